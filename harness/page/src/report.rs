//! What the tool says of a run: the fields of report.json and of hw-report.json that are
//! shown. A field that is missing is empty, so that reports of older tools can be shown.

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
    /// What was tested, and with what: a name, and a text.
    pub of: Vec<(String, String)>,
    /// How long it took, in seconds.
    pub taken: f64,
    /// Tests, in the order in which they came.
    pub outcomes: Vec<Outcome>,
    /// How long each suite took, in seconds.
    pub seconds: BTreeMap<String, f64>,
    /// How long kernels took to build.
    pub builds: BTreeMap<String, f64>,
    /// Suites whose results were there.
    pub cached: BTreeSet<String>,
    /// The error that ended the run early.
    pub aborted: Option<String>,
    /// Of real hardware: the kernel's version.
    pub kernel: String,
    /// What was looked at before the tests.
    pub findings: Vec<Finding>,
    /// What perftest said.
    pub measured: Vec<Measured>,
    /// What the doctor says of the host.
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
    /// What it needs is not there.
    #[serde(default)]
    pub could_not_run: bool,
    /// The file that says more.
    #[serde(default)]
    pub log_file: Option<String>,
    /// How long it took.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// The command that does it again.
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
    /// What was played.
    pub scenario: String,
    /// How P2PDMA routes the DMA.
    pub map_type: String,
    /// Pages that the NIC reached in the GPU.
    pub peer: String,
    /// Pages that came home for it.
    pub home: String,
    /// Pages that migrated meanwhile.
    pub migrations: String,
    /// What the NIC moved.
    pub bytes: String,
    /// `yes` if everybody saw the right bytes.
    pub intact: String,
    /// Why pages fell back.
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

/// What one program came to under one policy.
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

/// A device that is an end of a path.
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

/// What stands in the way.
#[derive(Debug, Deserialize)]
pub struct Obstacle {
    pub effect: String,
    pub what: String,
    pub at: Vec<String>,
    pub next: String,
    pub parameter: Option<String>,
}
