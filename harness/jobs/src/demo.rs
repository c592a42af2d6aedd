//! The main job, once per scenario of each topology and NIC. A process's memory is in the
//! GPU, the NIC reads and writes it, and the judge checks it. If the NIC is a ConnectX
//! model, or the GPU a Pascal model, its log must agree.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use host::paths::Paths;
use host::proc::quote;
use kernel::Built;
use machine::vm::RunResult;
use machine::witness;
use machine::witness::Conversation;
use plan::job::{Job, split};
use plan::topology::{Scenario, connectx};
use results::report::Outcome;

use copies::Copies;

mod copies;

/// What p2p_demo writes about a scenario, with any NIC.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Played {
    /// `bus_addr`, `host_bridge` or `host`
    pub map_type: String,
    /// Whether an IOMMU translates the NIC's addresses.
    pub translated: bool,
    /// Pages that the NIC reached in the GPU.
    pub peer_pages: u64,
    /// Pages that had to migrate to host memory for it.
    pub home_pages: u64,
    /// Pages that migrated while the NIC ran.
    pub migrations: u64,
    /// Bytes that the NIC read and wrote.
    pub bytes: u64,
    /// Calls of `hmm_range_fault()` by the test NIC.
    pub faults: u64,
    /// Calls that were repeated, because pages moved meanwhile.
    pub retries: u64,
    /// Whether CPU, GPU, NIC and judge all saw the right bytes.
    pub intact: bool,
    /// Whether a judge was asked.
    pub judged: bool,
    /// Pages by the result of their last fault.
    pub reasons: BTreeMap<String, u64>,
    /// The first error.
    pub error: String,
}

/// The test NIC, used like a device without page faults.
const CARD: &str = "p2ptest + card";

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioResult {
    /// The topology.
    pub topology: String,
    /// The GPU's driver and the NIC.
    pub devices: &'static str,
    /// The scenario.
    pub scenario: String,
    /// The result. `None` if the machine ended before.
    pub played: Option<Played>,
    /// Why it counts as failed.
    pub trouble: Option<String>,
    /// The program's output.
    #[serde(skip)]
    pub log: PathBuf,
}

impl ScenarioResult {
    /// The result as a test of a job.
    pub fn outcome(&self, job: &str, paths: &Paths) -> Outcome {
        let name = match self.devices {
            CARD => format!("{} by card", self.scenario),
            _ => self.scenario.clone(),
        };
        let mut outcome = Outcome::unless(job, &name, self.trouble.clone());
        outcome.row = self.shown();
        outcome.with_log(paths.short(&self.log))
    }

    /// The row for tables. `None` if there is no result.
    fn shown(&self) -> Option<page::Row> {
        let played = self.played.as_ref()?;
        Some(page::Row {
            topology: self.topology.clone(),
            devices: self.devices.to_owned(),
            scenario: self.scenario.clone(),
            map_type: map_type(played),
            peer: played.peer_pages.to_string(),
            home: played.home_pages.to_string(),
            migrations: played.migrations.to_string(),
            bytes: played.bytes.to_string(),
            intact: if played.intact { "yes" } else { "NO" }.to_owned(),
            why: reasons(played),
        })
    }
}

/// The command that repeats an outcome of such a job.
pub fn repeat(outcome: &Outcome) -> String {
    format!("make demo ONLY={}", outcome.suite)
}

/// A play of a job: a program, and a scenario of the job or of its topology.
type Play<'a> = (&'a str, &'a Scenario);

fn plays<'a>(job: &'a Job<'_>) -> Vec<Play<'a>> {
    let scenarios = match &job.spec.own[..] {
        [] => &job.topology.scenarios,
        own => own,
    };
    let programs = job.spec.scenarios.iter();
    let all = |program: &'a String| scenarios.iter().map(|one| (program.as_str(), one));
    programs.flat_map(all).collect()
}

/// Shell lines that play the scenarios. Empty if the job plays none.
pub fn script(job: &Job<'_>, programs: &Built) -> String {
    if !job.is_demo() {
        return String::new();
    }
    let mut text = "find_judge\n".to_owned();
    for (number, (program, scenario)) in plays(job).into_iter().enumerate() {
        let (folder, name) = split(program);
        let program = programs.selftests(folder).join(name);
        let program = quote(&program.to_string_lossy());
        let file = file(number, scenario);
        text.push_str(&format!(
            "run {file} {program} --judge \"$judge\" --scenario {} --pages {} \
             --expect-kind {} --expect-peer {} --expect-home {} --out \"$out/{file}.json\"\n",
            scenario.name, scenario.pages, scenario.kind, scenario.peer, scenario.home,
        ));
    }
    text
}

/// The result of each play. Empty if the job plays none.
pub fn rows(job: &Job<'_>, ran: &RunResult) -> Vec<ScenarioResult> {
    if !job.is_demo() {
        return Vec::new();
    }
    let has_log = job.spec.models().has_connectx(job.spec.machine);
    let witness = has_log.then(|| Witness::read(ran));
    let copies = job.spec.pascal.is_some().then(|| Copies::read(ran));
    let plays = plays(job);
    let all = plays.iter().enumerate();
    let row = |(number, play): (usize, &Play<'_>)| {
        let mut row = row(job, number, plays.len(), *play, ran, witness.as_ref());
        let copied = copies.as_ref().zip(row.played.as_ref());
        let copied =
            copied.and_then(|(copies, played)| copies.contradicts(number, plays.len(), played));
        let wrong = Vec::from_iter(row.trouble.into_iter().chain(copied));
        row.trouble = (!wrong.is_empty()).then(|| wrong.join("\n"));
        row
    };
    all.map(row).collect()
}

fn row(
    job: &Job<'_>,
    number: usize,
    count: usize,
    (program, scenario): Play<'_>,
    ran: &RunResult,
    witness: Option<&Witness>,
) -> ScenarioResult {
    let file = file(number, scenario);
    let played: Option<Played> = ran
        .file(&format!("{file}.json"))
        .and_then(|text| serde_json::from_str(&text).ok());
    let mut wrong = Vec::new();
    match &played {
        Some(played) => {
            let faults = match split(program).1 {
                "p2p_demo" => scenario.faults,
                _ => 0,
            };
            wrong.extend(mismatch(scenario, job.topology.iommu, faults, played));
            let log = witness.map(|witness| witness.contradicts(number, count, played));
            wrong.extend(log.flatten());
        }
        None => wrong.push(format!(
            "no result: {}",
            ran.file(&format!("{file}.log"))
                .filter(|log| !log.trim().is_empty())
                .or_else(|| ran.trouble())
                .unwrap_or_else(|| "p2p_demo wrote none".to_owned())
        )),
    }
    ScenarioResult {
        topology: job.topology.name.clone(),
        devices: match (&job.spec.pascal, witness) {
            (None, None) if program.ends_with("_card") => CARD,
            (None, None) => "p2ptest + edu",
            (None, Some(_)) => "p2ptest + mlx5",
            (Some(_), Some(_)) => "nouveau + mlx5",
            (Some(_), None) => "nouveau + edu",
        },
        scenario: scenario.name.clone(),
        played,
        trouble: (!wrong.is_empty()).then(|| wrong.join("\n")),
        log: ran.log_of(&file),
    }
}

/// The log of a machine's NIC, with a conversation for each scenario, or why it cannot be
/// read.
struct Witness(Result<Vec<Conversation>, String>);

impl Witness {
    fn read(ran: &RunResult) -> Self {
        let file = ran.dir.join(format!("{}.log", connectx(0)));
        let text = fs::read_to_string(&file).map_err(Into::into);
        let read = text.and_then(|text| witness::conversations(&text));
        let read = read.with_context(|| file.display().to_string());
        Self(read.map_err(|error| format!("the NIC's log is no witness: {error:#}")))
    }

    /// Why the log contradicts scenario `number` of `count`.
    fn contradicts(&self, number: usize, count: usize, played: &Played) -> Option<String> {
        let conversations = match &self.0 {
            Ok(conversations) => conversations,
            Err(error) => return Some(error.clone()),
        };
        if conversations.len() != count {
            return Some(format!(
                "the NIC's log has {} conversations, for {count} scenarios",
                conversations.len()
            ));
        }
        // The NIC writes the pages once and reads them once.
        let bytes = played.peer_pages * 4096 * 2;
        conversations[number].contradicts(bytes, bytes)
    }
}

fn file(number: usize, scenario: &Scenario) -> String {
    format!("{number}-{}", scenario.name)
}

/// What differs from the expected result. The program in the guest compares as well, but
/// its verdict is not enough.
fn mismatch(scenario: &Scenario, iommu: bool, faults: u64, played: &Played) -> Option<String> {
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
    // A NIC that faults page by page calls it many times.
    compare(
        "calls of hmm_range_fault()",
        (faults + played.retries).to_string(),
        played.faults.to_string(),
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
pub fn table(rows: &[ScenarioResult]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "topology",
        "GPU + NIC",
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
        let Some(shown) = row.shown() else {
            table.add_row([&row.topology, row.devices, &row.scenario, "no result"]);
            continue;
        };
        table.add_row([
            shown.topology,
            shown.devices,
            shown.scenario,
            shown.map_type,
            shown.peer,
            shown.home,
            shown.migrations,
            shown.bytes,
            shown.intact,
            shown.why,
        ]);
    }
    for column in 4..8 {
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

/// Why pages did not get a peer address.
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
