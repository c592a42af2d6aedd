//! Benchmarks: instructions, not time. qemu/bench.toml says what boots and which goals the
//! figures must meet. harness/guest/bench counts in the guest.
//!
//! QEMU counts instructions (`-icount shift=0`), and the guest's clock is that count. So a
//! figure is the same on every machine and in every run. The benchmark checks that as
//! well.

#![warn(unused_crate_dependencies)]
// See host::ui.
#![warn(clippy::print_stdout, clippy::print_stderr)]

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
mod spans;
mod table;

pub use figures::Figures;
use report::Results;

/// The files that a run writes to its results: a page, data, and a plot.
pub const RESULTS: [&str; 3] = ["bench.md", "bench.json", "bench.svg"];

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
    /// All figures must be the same as in that run.
    same_as: Option<String>,
    /// The names of the program's spans, starting at 1. Their instructions are also
    /// counted by function.
    #[serde(default)]
    spans: Vec<String>,
}

/// A ratio of figures and its limit.
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

    /// The kernels for the runs that `only` picks.
    pub fn kernels(&self, only: &Only) -> Result<Vec<&str>> {
        only.check(&Vec::from_iter(self.runs.iter().map(|run| &run.name)))?;
        let picked = self.runs.iter().filter(|run| only.picks(&run.name));
        let mut names: Vec<_> = picked.map(|run| run.kernel.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}

/// Counts instructions.
pub struct Bench<'a> {
    /// The directories.
    pub paths: &'a Paths,
    /// Shows progress.
    pub ui: &'a Ui,
    /// Boots; its machine is not ours.
    pub booter: &'a Booter<'a>,
    /// The settings.
    pub settings: &'a BenchConfig,
    /// The series of these figures.
    pub recorded: String,
}

impl Bench<'_> {
    /// Runs everything that `only` picks, and judges the goals that have figures.
    pub fn run(&self, only: &Only, topologies: &Topologies) -> Result<Verdict> {
        let mut figures = BTreeMap::new();
        let mut spans = Vec::new();
        for run in self
            .settings
            .runs
            .iter()
            .filter(|run| only.picks(&run.name))
        {
            let (counted, of_spans) = self.count(run, topologies)?;
            figures.insert(run.name.clone(), counted);
            spans.extend(of_spans);
        }
        let results = Results::new(self.settings, figures, spans)?;
        let dir = self.paths.results();
        results.write(&dir, &self.recorded)?;
        host::outln!("\n{}\n\n{}", self.recorded, results.tables());
        host::outln!("results: {}", self.paths.short(&dir.join("bench.json")));
        Ok(if results.all_met() {
            Verdict::Passed
        } else {
            Verdict::Failed
        })
    }

    /// Boots, and reads the program's output.
    fn count(
        &self,
        run: &BenchRun,
        topologies: &Topologies,
    ) -> Result<(Figures, Vec<spans::Span>)> {
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
        let mut qemu_args = self.booter.qemu_args.to_vec();
        if !run.spans.is_empty() {
            job.push_str(&spans::job());
            qemu_args.extend(spans::plugin(self.paths, &name)?);
        }
        let machine = Machine {
            cpus: self.settings.cpus,
            ..self.booter.machine.clone()
        };
        let booter = Booter {
            machine: &machine,
            qemu_args: &qemu_args,
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
                cpus: None,
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
        let mut of_spans = Vec::new();
        if !run.spans.is_empty() {
            of_spans = spans::read(&ran, &run.name, &run.spans).with_context(|| name.clone())?;
        }
        step.done("counted");
        let figures = Figures::parse(&log).with_context(|| name)?;
        Ok((figures, of_spans))
    }
}

#[cfg(test)]
mod tests;
