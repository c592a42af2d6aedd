//! Mutants: defects that are planted into the series, one at a time. A test must notice
//! each one. If none does, a test is missing.
//!
//! qemu/mutants has a file per defect ([`Mutant`]). qemu/mutants.toml says how they are
//! built and run. build/results/mutants.json keeps the results, so a run continues where
//! the last one ended. The first run starts with the valid results from
//! results/mutants.json, and marks them.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use anyhow::{Result, bail};
use ktap::Status;
use serde::Deserialize;

use crate::recorded;
use host::git::{ask, git};
use host::paths::digest;
use host::proc::{self, output, tail};
use host::status::Verdict;
use host::ui::seconds;
use kernel::Built;
use kernel::build::{Builder, set_aside};
use kernel::config;
use kernel::tree::Tree;
use machine::vm::Booter;
use plan::filter::Only;
use plan::job::{Job, Spec};
use plan::kernels::Kernel;
use plan::topology::{Kind, Topologies};
use results::cache::Inputs;
use results::report::Outcome;
use setup::search_path;

mod file;
mod record;

use file::{Mutant, Tests};
use record::{MutantOutcome, MutantResult, Record};

/// The names of the kernel and of the work tree.
pub const KERNEL: &str = "mutants/kernel";
const WORKTREE: &str = "mutants/linux";

/// The folders to run kernels from, in turns. One kernel runs while the next is built.
pub const SLOTS: [&str; 2] = ["mutants/even", "mutants/odd"];

/// The prefix of KUnit tests in the tables of qemu/mutants.toml.
const KUNIT: &str = "kunit/";

/// The name for the results of the series without a defect.
const NONE: &str = "none";

/// qemu/mutants.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MutantsConfig {
    topology: String,
    load: BTreeMap<String, Vec<String>>,
    machine: BTreeMap<String, Kind>,
    prepare: BTreeMap<String, Vec<String>>,
    env: BTreeMap<String, BTreeMap<String, String>>,
    pascal: BTreeMap<String, Vec<String>>,
    edu: BTreeMap<String, bool>,
    limit: u64,
    kernel: Kernel,
}

impl MutantsConfig {
    /// The tests, grouped by machine. The programs of a machine need the same topology,
    /// the same kind of machine, the same models and the same modules. Modules of
    /// different groups may not work together.
    fn machines(&self, tests: &Tests) -> Vec<Spec> {
        let mut machines = Vec::<Spec>::new();
        for run in &tests.programs {
            let program = &run.program;
            let kind = longest(&self.machine, program).unwrap_or_default();
            let pascal = longest(&self.pascal, program);
            let machine = Spec {
                machine: kind,
                topologies: vec![run.topology.as_ref().unwrap_or(&self.topology).clone()],
                connectx: match kind {
                    Kind::Counting => Vec::new(),
                    Kind::Parallel => run.connectx.clone(),
                },
                load: longest(&self.load, program).unwrap_or_default(),
                pascal: pascal.map(|pascal| [pascal, run.pascal.clone()].concat()),
                prepare: longest(&self.prepare, program).unwrap_or_default(),
                env: longest(&self.env, program).unwrap_or_default(),
                edu: longest(&self.edu, program).unwrap_or_default(),
                limit: self.limit,
                ..Spec::default()
            };
            let without_programs = |spec: &Spec| Spec {
                programs: Vec::new(),
                ..spec.clone()
            };
            let place = machines
                .iter()
                .position(|other| without_programs(other) == machine);
            let place = place.unwrap_or_else(|| {
                machines.push(machine);
                machines.len() - 1
            });
            let with = &mut machines[place].programs;
            if !with.contains(program) {
                with.push(program.clone());
            }
        }
        let kunit = tests.kunit.iter().map(|filter| self.kunit(filter));
        machines.into_iter().chain(kunit).collect()
    }

    /// The machine for KUnit tests. Tests in modules run when the module is loaded.
    fn kunit(&self, filter: &str) -> Spec {
        let of = |table: &BTreeMap<String, Vec<String>>| {
            if filter != "*" {
                return longest(table, &format!("{KUNIT}{filter}")).unwrap_or_default();
            }
            let all = table.iter().filter(|(start, _)| start.starts_with(KUNIT));
            all.flat_map(|(_, values)| values.clone()).collect()
        };
        Spec {
            topologies: vec![self.topology.clone()],
            load: of(&self.load),
            prepare: of(&self.prepare),
            kunit: Some(filter.to_owned()),
            limit: self.limit,
            ..Spec::default()
        }
    }
}

/// The table's value for the longest prefix of `name`.
fn longest<T: Clone>(table: &BTreeMap<String, T>, name: &str) -> Option<T> {
    let mut fitting = table.iter().filter(|(start, _)| name.starts_with(*start));
    // In a sorted map, a longer prefix comes later.
    fitting.next_back().map(|(_, value)| value.clone())
}

/// Tests the mutants.
pub struct Mutants<'a> {
    /// Builds the kernels. Its tree is only read.
    pub builder: &'a Builder<'a>,
    /// Boots the machines.
    pub booter: &'a Booter<'a>,
    /// `FORCE=1`: test mutants with known results again.
    pub force: bool,
}

impl Mutants<'_> {
    /// Tests the mutants that `only` picks. Mutants with known results are only tested
    /// again if they are named.
    pub fn run(&self, only: &Only, topologies: &Topologies) -> Result<Verdict> {
        let Builder {
            paths, ui, tree, ..
        } = *self.builder;
        let root = &paths.root;
        let settings = settings(root)?;
        let mutants = file::read_all(&root.join("qemu/mutants"))?;
        let recorded = recorded::line(self.builder, self.booter.qemu)?;
        let mut record = Record::read(&paths.results(), &paths.recorded())?;

        // The diff of what is built and run, without documentation and commit messages.
        let range = ["diff", &tree.base, &tree.tip, "--", ".", ":!Documentation"];
        let series = ask(&tree.dir, &range)?;
        let what = format!("{}\n{series}", tree.base);
        let base = self.inputs(&settings, &what, topologies)?;
        let key = |mutant: &Mutant| key(&base, mutant, topologies);
        record.keep(|name| mutants.iter().find(|mutant| mutant.name == name).map(key));
        let wanted: Vec<_> = mutants
            .iter()
            .filter(|mutant| only.picks(&mutant.name))
            .filter(|mutant| !only.all() || self.force || !record.knows(&mutant.name, &key(mutant)))
            .collect();
        if only.all() && wanted.len() < mutants.len() {
            ui.say(format!(
                "{} are known; ONLY= or FORCE=1 tests them again",
                mutants.len() - wanted.len()
            ));
        }
        if !wanted.is_empty() {
            let plant = Plant::new(self, &settings, topologies)?;
            plant.builder().build(KERNEL, &settings.kernel, &[])?;
            let tests = file::all_tests(&wanted);
            let key_of_none = digest(format!("{base}\n{tests:?}").as_bytes());
            if self.force || !record.knows(NONE, &key_of_none) {
                // The tests must pass without a defect.
                let known = plant.observe(NONE, KERNEL, &tests, &[])?;
                if let MutantOutcome::Caught { by, .. } = &known.end {
                    bail!(
                        "these tests fail without a defect, so they say nothing:\n    {}",
                        by.join("\n    ")
                    );
                }
                record.add(MutantResult {
                    key: key_of_none,
                    ..known
                });
                record.write(&paths.results(), &mutants, &recorded)?;
            }
            let mut number = 0;
            plant.all(&wanted, |mutant, known| {
                number += 1;
                ui.say(format!(
                    "{number}/{} {}: {} ({} s to build, {} s to test)",
                    wanted.len(),
                    mutant.name,
                    known.end,
                    known.build_seconds,
                    known.test_seconds
                ));
                record.add(MutantResult {
                    key: key(mutant),
                    ..known
                });
                record.write(&paths.results(), &mutants, &recorded)
            })?;
        }
        record.write(&paths.results(), &mutants, &recorded)?;
        println!("\n{}", record.table(&mutants));
        println!("{}", record.closing_line(&mutants));
        let picked = mutants.iter().filter(|mutant| only.picks(&mutant.name));
        Ok(if record.all_caught(picked) {
            Verdict::Passed
        } else {
            Verdict::Failed
        })
    }
}

impl Mutants<'_> {
    /// A digest of all inputs of a result except the mutant. `series`: the diff of the series.
    fn inputs(&self, settings: &MutantsConfig, series: &str, all: &Topologies) -> Result<String> {
        let Builder { paths, tools, .. } = *self.builder;
        let mut inputs = Inputs::of_running(&paths.root)?;
        let mut options = config::wanted(&paths.root, &settings.kernel.fragments)?;
        let compiler = self.builder.compiler;
        if let Some(file) = &compiler.config {
            options.extend(config::read(file)?);
        }
        let versions = compiler.versions(settings.kernel.llvm, &search_path(tools)?);
        inputs.text(&format!("{series}\n{options:?}\n{settings:?}"));
        inputs.text(&format!("{compiler:?}\n{versions}"));
        inputs.text(&format!("{:?}", all.get(&settings.topology)?));
        for kind in [Kind::Counting, Kind::Parallel] {
            self.booter.inputs(&mut inputs, kind)?;
        }
        Ok(inputs.key())
    }
}

/// Fails if `only` names a mutant that does not exist.
pub fn check(root: &Path, only: &Only) -> Result<()> {
    let mutants = file::read_all(&root.join("qemu/mutants"))?;
    only.check(&Vec::from_iter(mutants.iter().map(|mutant| &mutant.name)))
}

/// The key of a mutant's result.
fn key(base: &str, mutant: &Mutant, all: &Topologies) -> String {
    let topology = mutant
        .topology
        .as_deref()
        .and_then(|name| all.get(name).ok());
    digest(format!("{base}\n{}\n{topology:?}", mutant.text).as_bytes())
}

fn settings(root: &Path) -> Result<MutantsConfig> {
    host::settings::read(&root.join("qemu/mutants.toml"))
}

/// The place for planting defects: a separate work tree and kernel.
struct Plant<'a> {
    mutants: &'a Mutants<'a>,
    settings: &'a MutantsConfig,
    topologies: &'a Topologies,
    tree: Tree,
}

impl<'a> Plant<'a> {
    fn new(
        mutants: &'a Mutants<'a>,
        settings: &'a MutantsConfig,
        topologies: &'a Topologies,
    ) -> Result<Self> {
        let Builder {
            paths, ui, tree, ..
        } = *mutants.builder;
        let what = "tree: the one for defects";
        Ok(Self {
            mutants,
            settings,
            topologies,
            tree: tree.aside(paths, ui, WORKTREE, what)?,
        })
    }

    fn builder(&self) -> Builder<'_> {
        self.mutants.builder.of(&self.tree)
    }

    /// Tests all mutants. Each runs while the next one is built. Calls `done` with each
    /// result.
    fn all(
        &self,
        mutants: &[&Mutant],
        mut done: impl FnMut(&Mutant, MutantResult) -> Result<()>,
    ) -> Result<()> {
        thread::scope(|scope| {
            let mut testing = None;
            let mut join =
                |(mutant, thread): (&Mutant, ScopedJoinHandle<'_, Result<MutantResult>>)| {
                    let known = thread.join().expect("no test panics");
                    done(mutant, known?)
                };
            for (&mutant, slot) in mutants.iter().zip(SLOTS.iter().cycle()) {
                let built = self.build(mutant, slot)?;
                if let Some(last) = testing.take() {
                    join(last)?;
                }
                let thread = scope.spawn(move || self.test(mutant, slot, built));
                testing = Some((mutant, thread));
            }
            testing.map_or(Ok(()), join)
        })
    }

    /// Plants a defect, builds, takes the defect out again, and moves the kernel to a
    /// slot. Returns the build time, or the whole result if there is nothing to test.
    fn build(&self, mutant: &Mutant, slot: &str) -> Result<Result<u64, MutantResult>> {
        let start = Instant::now();
        let mut apply = git(&self.tree.dir, &["apply", "--whitespace=nowarn"]);
        apply.arg(&mutant.path);
        let (status, _, err) = output(&mut apply)?;
        if !status.success() {
            let why = tail(&err, 5);
            return Ok(Err(MutantResult::new(
                &mutant.name,
                MutantOutcome::DoesNotApply { why },
            )));
        }
        let built = self.builder().again(KERNEL, &self.settings.kernel);
        ask(&self.tree.dir, &["checkout", "--quiet", "--", "."])?;
        let seconds = start.elapsed().as_secs();
        match built {
            Err(error) if !proc::interrupted() => {
                let why = format!("{error:#}");
                let mut known =
                    MutantResult::new(&mutant.name, MutantOutcome::DoesNotBuild { why });
                known.build_seconds = seconds;
                Ok(Err(known))
            }
            built => {
                built?;
                let at = |name| Built::at(self.mutants.builder.paths, name);
                set_aside(&at(KERNEL), &at(slot))?;
                Ok(Ok(seconds))
            }
        }
    }

    /// Tests a built mutant.
    fn test(
        &self,
        mutant: &Mutant,
        slot: &str,
        built: Result<u64, MutantResult>,
    ) -> Result<MutantResult> {
        let build_seconds = match built {
            Ok(seconds) => seconds,
            Err(known) => return Ok(known),
        };
        let known = self.observe(&mutant.name, slot, &mutant.tests(), &mutant.expect)?;
        Ok(MutantResult {
            build_seconds,
            ..known
        })
    }

    fn observe(
        &self,
        name: &str,
        kernel: &str,
        tests: &Tests,
        expect: &[String],
    ) -> Result<MutantResult> {
        let start = Instant::now();
        let mut outcomes = Vec::new();
        for spec in self.settings.machines(tests) {
            for topology in &spec.topologies {
                let topology = self.topologies.get(topology)?;
                let job = Job::alone(format!("mutant/{name}"), kernel, topology, spec.clone());
                outcomes.extend(jobs::run(&job, self.mutants.booter)?);
            }
        }
        let mut known = MutantResult::new(name, end(&outcomes, expect));
        known.test_seconds = start.elapsed().as_secs();
        self.mutants.builder.ui.say(format!(
            "{name}: {} outcomes in {}",
            outcomes.len(),
            seconds(start.elapsed())
        ));
        Ok(known)
    }
}

/// The result from the outcomes: the failed tests, expected ones first.
fn end(outcomes: &[Outcome], expect: &[String]) -> MutantOutcome {
    let expected = |name: &str| expect.iter().any(|word| name.contains(word.as_str()));
    let failed = outcomes
        .iter()
        .filter(|outcome| outcome.status == Status::Failed);
    let (mut by, others): (Vec<_>, Vec<_>) = failed
        .map(|outcome| outcome.name.clone())
        .partition(|name| expected(name));
    let as_expected = !by.is_empty();
    by.extend(others);
    if by.is_empty() {
        return MutantOutcome::Survived;
    }
    MutantOutcome::Caught { by, as_expected }
}

#[cfg(test)]
mod tests;
