//! The fields of report.json and hw-report.json that the page shows. A missing field is
//! empty, so that the page can show reports of older tools.

use std::collections::{BTreeMap, BTreeSet};

use ktap::Status;
use serde::{Deserialize, Serialize};

/// A run.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Report {
    /// What the user typed.
    pub command: String,
    /// The machine that it ran on.
    pub host: String,
    /// What was tested, and with what, as pairs of a name and a text.
    pub of: Vec<(String, String)>,
    /// How long it took, in seconds.
    pub taken: f64,
    /// Tests, in the order in which they came.
    pub outcomes: Vec<Outcome>,
    /// How long each suite took, in seconds.
    pub seconds: BTreeMap<String, f64>,
    /// How long kernels took to build.
    pub builds: BTreeMap<String, f64>,
    /// Suites whose results came from the cache.
    pub cached: BTreeSet<String>,
    /// The error that ended the run early.
    pub aborted: Option<String>,
    /// The version of the kernel, on real hardware.
    pub kernel: String,
    /// What was checked before the tests.
    pub findings: Vec<Finding>,
    /// The results of perftest.
    pub measured: Vec<Measured>,
    /// The speed of each way to memory in the GPU, as Markdown.
    pub speed: String,
    /// The doctor's report on the host.
    pub doctor: Option<Doctor>,
    /// Lines of the kernel's log.
    pub log: Vec<String>,
}

impl Report {
    /// The rows of the demo's table.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.outcomes
            .iter()
            .filter_map(|outcome| outcome.row.as_ref())
    }
}

/// A test.
#[derive(Debug, Deserialize)]
pub struct Outcome {
    /// Its job, check or kernel.
    pub suite: String,
    /// In the suite.
    pub name: String,
    /// How it ended.
    pub status: Status,
    /// Why it failed or was skipped.
    #[serde(default)]
    pub reason: String,
    /// What it printed.
    #[serde(default)]
    pub log: Vec<String>,
    /// Something that it needs is missing.
    #[serde(default)]
    pub could_not_run: bool,
    /// The file with more details.
    #[serde(default)]
    pub log_file: Option<String>,
    /// How long it took.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// The command that repeats it.
    #[serde(default)]
    pub repeat: Option<String>,
    /// Its row in the demo's table.
    #[serde(default)]
    pub row: Option<Row>,
}

/// A row of the demo's table, as the tool prints it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// A file of `qemu/topologies`.
    pub topology: String,
    /// The drivers of the GPU and the NIC.
    pub devices: String,
    /// The scenario.
    pub scenario: String,
    /// How P2PDMA routes the DMA.
    pub map_type: String,
    /// Pages that the NIC reached in the GPU.
    pub peer: String,
    /// Pages that migrated to host memory for it.
    pub home: String,
    /// Pages that migrated during the scenario.
    pub migrations: String,
    /// The bytes that the NIC moved.
    pub bytes: String,
    /// `yes` if every side saw the right bytes.
    pub intact: String,
    /// Why pages fell back to host memory.
    pub why: String,
}

/// A check of the hardware.
#[derive(Debug, Deserialize)]
pub struct Finding {
    pub check: String,
    /// `ok`, `note` or `missing`.
    pub state: String,
    pub found: String,
    pub next: String,
}

/// The result of one program under one policy.
#[derive(Debug, Deserialize)]
pub struct Measured {
    pub program: String,
    pub policy: String,
    pub figure: Option<f64>,
    pub unit: String,
    pub pages: BTreeMap<String, u64>,
    pub error: Option<String>,
}

/// The doctor's report: `p2p-doctor-report`, version 1.
#[derive(Debug, Deserialize)]
pub struct Doctor {
    pub devices: Vec<Device>,
    pub pairs: Vec<Pair>,
    pub obstacles: Vec<Obstacle>,
}

/// A device at an end of a path.
#[derive(Debug, Deserialize)]
pub struct Device {
    pub address: String,
    pub kind: String,
    pub driver: Option<String>,
    pub below: Vec<String>,
}

/// Two devices.
#[derive(Debug, Deserialize)]
pub struct Pair {
    pub provider: String,
    pub client: String,
    pub verdict: String,
    pub path: String,
    pub works: String,
    pub in_place: Option<String>,
}

/// What is in the way.
#[derive(Debug, Deserialize)]
pub struct Obstacle {
    pub effect: String,
    pub what: String,
    pub at: Vec<String>,
    pub next: String,
    pub parameter: Option<String>,
}
