//! The main job, once per scenario of each topology: a process's memory lies in
//! the GPU, the NIC reads and writes it, and the judge looks.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::kernel::Built;
use crate::proc::quote;
use crate::report::Outcome;
use crate::topology::{Kind, Scenario, Topology};
use crate::vm::{Boot, Booter, Ran};

/// What p2p_demo writes of a scenario.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Played {
    /// `bus_addr`, `host_bridge` or `host`
    pub map_type: String,
    /// Whether an IOMMU translates what the NIC does.
    pub translated: bool,
    /// Pages that the NIC reached in the GPU.
    pub peer_pages: u64,
    /// Pages that had to come home for it.
    pub home_pages: u64,
    /// Pages that moved while the NIC ran.
    pub migrations: u64,
    /// Bytes that the NIC read and wrote.
    pub bytes: u64,
    /// Whether everybody saw the right bytes: CPU, GPU, NIC and the judge.
    pub intact: bool,
    /// Whether a judge was asked.
    pub judged: bool,
    /// Pages by what their last fault met.
    pub reasons: BTreeMap<String, u64>,
    /// The first thing that went wrong.
    pub error: String,
}

/// A line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The topology.
    pub topology: String,
    /// The scenario.
    pub scenario: String,
    /// What came of it; nothing if the machine ended before.
    pub played: Option<Played>,
    /// Why it does not count as passed.
    pub trouble: Option<String>,
}

impl Row {
    /// As a test of a job.
    pub fn outcome(&self, job: &str) -> Outcome {
        Outcome::unless(job, &self.scenario, self.trouble.clone())
    }
}

/// The job that plays a topology's scenarios for `make demo`.
pub fn job(topology: &Topology) -> String {
    format!("demo/{}", topology.name)
}

/// The command that does an outcome of such a job again.
pub fn repeat(outcome: &Outcome) -> String {
    let topology = outcome.suite.trim_start_matches("demo/");
    format!("make demo ONLY={topology}")
}

/// Boots a topology and plays its scenarios.
pub fn play(
    booter: &Booter<'_>,
    name: &str,
    kernel: &Built,
    topology: &Topology,
    limit: Duration,
) -> Result<(Vec<Row>, Ran)> {
    let step = booter.ui.step(format!("run: {name}"));
    let ran = booter.boot(
        &Boot {
            name,
            kernel,
            topology,
            kind: Kind::Counting,
            connectx: &[],
            append: &[],
            icount: None,
            coverage: false,
            job: script(booter, kernel, topology),
            limit,
        },
        &step,
    )?;
    let rows = topology
        .scenarios
        .iter()
        .enumerate()
        .map(|(number, scenario)| row(topology, number, scenario, &ran))
        .collect();
    Ok((rows, ran))
}

fn file(number: usize, scenario: &Scenario) -> String {
    format!("{number}-{}", scenario.name)
}

fn script(booter: &Booter<'_>, kernel: &Built, topology: &Topology) -> String {
    let program = kernel.selftests("p2pdma").join("p2p_demo");
    let program = quote(&program.to_string_lossy());
    let mut job = booter.load(&["p2ptest_gpu", "p2ptest_nic"], topology);
    job.push_str("find_judge\n");
    for (number, scenario) in topology.scenarios.iter().enumerate() {
        let file = file(number, scenario);
        job.push_str(&format!(
            "run {file} {program} --judge \"$judge\" --scenario {} --pages {} \
             --expect-kind {} --expect-peer {} --expect-home {} --out \"$out/{file}.json\"\n",
            scenario.name, scenario.pages, scenario.kind, scenario.peer, scenario.home,
        ));
    }
    job
}

fn row(topology: &Topology, number: usize, scenario: &Scenario, ran: &Ran) -> Row {
    let file = file(number, scenario);
    let played: Option<Played> = ran
        .file(&format!("{file}.json"))
        .and_then(|text| serde_json::from_str(&text).ok());
    let trouble = match &played {
        Some(played) => mismatch(scenario, topology.iommu, played),
        None => Some(format!(
            "no result: {}",
            ran.file(&format!("{file}.log"))
                .filter(|log| !log.trim().is_empty())
                .or_else(|| ran.trouble())
                .unwrap_or_else(|| "p2p_demo wrote none".to_owned())
        )),
    };
    Row {
        topology: topology.name.clone(),
        scenario: scenario.name.clone(),
        played,
        trouble,
    }
}

/// What was expected and not seen. The program in the guest has compared as
/// well; it is not the only one to be believed.
fn mismatch(scenario: &Scenario, iommu: bool, played: &Played) -> Option<String> {
    let mut wrong = Vec::new();
    let mut compare = |what: &str, expected: String, seen: String| {
        if expected != seen {
            wrong.push(format!("{what}: expected {expected}, seen {seen}"));
        }
    };
    compare("map type", scenario.kind.clone(), played.map_type.clone());
    compare(
        "translated by an IOMMU",
        iommu.to_string(),
        played.translated.to_string(),
    );
    compare(
        "pages with a peer address",
        scenario.peer.to_string(),
        played.peer_pages.to_string(),
    );
    compare(
        "pages that came home",
        scenario.home.to_string(),
        played.home_pages.to_string(),
    );
    compare(
        "migrations during the DMA",
        scenario.home.to_string(),
        played.migrations.to_string(),
    );
    compare(
        "bytes moved",
        (scenario.pages * 4096 * 2).to_string(),
        played.bytes.to_string(),
    );
    compare("data intact", "true".to_owned(), played.intact.to_string());
    compare(
        "looked at by the judge",
        "true".to_owned(),
        played.judged.to_string(),
    );
    if !played.error.is_empty() {
        wrong.push(played.error.clone());
    }
    (!wrong.is_empty()).then(|| wrong.join("\n"))
}

/// The table at the end of `make demo`.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header([
        "topology",
        "scenario",
        "map type",
        "peer",
        "home",
        "migrations",
        "bytes",
        "intact",
        "why pages fell back",
    ]);
    for row in rows {
        let Some(played) = &row.played else {
            table.add_row([&row.topology, &row.scenario, "no result"]);
            continue;
        };
        table.add_row([
            row.topology.clone(),
            row.scenario.clone(),
            map_type(played),
            played.peer_pages.to_string(),
            played.home_pages.to_string(),
            played.migrations.to_string(),
            played.bytes.to_string(),
            if played.intact { "yes" } else { "NO" }.to_owned(),
            reasons(played),
        ]);
    }
    for column in 3..7 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

fn map_type(played: &Played) -> String {
    let name = match played.map_type.as_str() {
        "bus_addr" => "BUS_ADDR",
        "host_bridge" if played.translated => "HOST_BRIDGE (IOVA)",
        "host_bridge" => "HOST_BRIDGE",
        "host" => "host memory",
        other => other,
    };
    if played.peer_pages > 0 && played.home_pages > 0 {
        format!("{name}, mixed")
    } else {
        name.to_owned()
    }
}

/// Reasons of pages that did not get a peer address.
fn reasons(played: &Played) -> String {
    let reached = ["none", "bus_addr", "host_bridge"];
    let reasons: Vec<_> = played
        .reasons
        .iter()
        .filter(|(name, count)| **count > 0 && !reached.contains(&name.as_str()))
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if !reasons.is_empty() {
        reasons.join(", ")
    } else if played.home_pages > 0 {
        "not asked for".to_owned()
    } else {
        "-".to_owned()
    }
}

#[cfg(test)]
mod tests;
