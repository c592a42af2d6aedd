//! Benchmarks: instructions, not time. qemu/bench.toml says what is booted and
//! what must come of it; harness/guest/bench counts in the guest.
//!
//! QEMU counts instructions (`-icount shift=0`), and the guest's clock is that
//! count. So a figure is the same on every machine and every time, which is one
//! of the things that are checked.

#![warn(unused_crate_dependencies)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use host::paths::Paths;
use host::proc::quote;
use host::status::Verdict;
use host::ui::Ui;
use kernel::Built;
use kernel::build::bench_output;
use machine::vm::{Boot, Booter};
use plan::filter::Only;
use plan::topology::{Kind, Machine, Models, Topologies};

mod figures;
mod plot;
mod report;

pub use figures::Figures;
use report::Results;

/// qemu/bench.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchConfig {
    icount: String,
    cpus: u32,
    limit: u64,
    #[serde(rename = "run")]
    runs: Vec<BenchRun>,
    #[serde(rename = "goal")]
    goals: Vec<Goal>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BenchRun {
    name: String,
    kernel: String,
    topology: String,
    #[serde(default)]
    load: Vec<String>,
    what: String,
    /// All figures must be those of that run.
    same_as: Option<String>,
}

/// A quotient of figures and its limit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    name: String,
    of: String,
    to: String,
    at_most: Option<f64>,
    at_least: Option<f64>,
}

impl BenchConfig {
    /// Reads qemu/bench.toml.
    pub fn read(root: &Path) -> Result<Self> {
        host::settings::read(&root.join("qemu/bench.toml"))
    }

    /// The kernels that are booted for what `only` picks.
    pub fn kernels(&self, only: &Only) -> Vec<&str> {
        let picked = self.runs.iter().filter(|run| only.picks(&run.name));
        let mut names: Vec<_> = picked.map(|run| run.kernel.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Counts.
pub struct Bench<'a> {
    /// Where things are.
    pub paths: &'a Paths,
    /// Progress.
    pub ui: &'a Ui,
    /// Boots; its machine is not ours.
    pub booter: &'a Booter<'a>,
    /// What to do.
    pub settings: &'a BenchConfig,
    /// The series that the figures are of.
    pub recorded: String,
}

impl Bench<'_> {
    /// Runs everything that `only` picks, and judges what there is figures for.
    pub fn run(&self, only: &Only, topologies: &Topologies) -> Result<Verdict> {
        let runs = &self.settings.runs;
        let names: Vec<_> = runs.iter().map(|run| run.name.clone()).collect();
        only.check(&names)?;
        let mut figures = BTreeMap::new();
        for run in runs.iter().filter(|run| only.picks(&run.name)) {
            figures.insert(run.name.clone(), self.count(run, topologies)?);
        }
        let results = Results::new(self.settings, figures)?;
        let dir = self.paths.results();
        results.write(&dir, &self.recorded)?;
        println!("\n{}\n\n{}", self.recorded, results.tables());
        println!("results: {}", self.paths.short(&dir.join("bench.json")));
        Ok(if results.all_met() {
            Verdict::Passed
        } else {
            Verdict::Failed
        })
    }

    /// Boots, and reads what the program says.
    fn count(&self, run: &BenchRun, topologies: &Topologies) -> Result<Figures> {
        let topology = topologies.get(&run.topology)?;
        let kernel = Built::at(self.paths, &run.kernel);
        let name = format!("bench/{}", run.name);
        let step = self.ui.step(format!("run: {name}"));
        let mut job = self.booter.load(&run.load, topology);
        let path = |name: &str| quote(&bench_output(&kernel).join(name).to_string_lossy()).clone();
        job.push_str(&format!(
            "insmod {} || finish 103\nrun bench {} {}\n",
            path("hmm_bench.ko"),
            path("bench"),
            run.what
        ));
        let machine = Machine {
            cpus: self.settings.cpus,
            ..self.booter.machine.clone()
        };
        let booter = Booter {
            machine: &machine,
            ..*self.booter
        };
        let ran = booter.boot(
            &Boot {
                name: &name,
                kernel: &kernel,
                topology,
                kind: Kind::Counting,
                models: Models::default(),
                append: &[],
                icount: Some(&self.settings.icount),
                coverage: false,
                job,
                limit: Duration::from_secs(self.settings.limit),
            },
            &step,
        )?;
        if let Some(trouble) = ran.trouble() {
            bail!("{name}: {trouble}");
        }
        let log = ran.file("bench.log").unwrap_or_default();
        if ran.file("bench.status").as_deref().map(str::trim) != Some("0") {
            bail!("{name}: the program failed:\n{log}");
        }
        step.done("counted");
        Figures::parse(&log).with_context(|| name)
    }
}

#[cfg(test)]
mod tests;
