//! Mutants: defects that are planted into the series, one at a time. A test must notice
//! each one. If none does, a test is missing.
//!
//! qemu/mutants has a file per defect ([`Mutant`]). qemu/mutants.toml says how they are
//! built and run. build/results/mutants.json keeps the results, so a run continues where
//! the last one ended. The first run starts with the valid results from
//! results/mutants.json, and marks them.
//!
//! [`generated`] has a random sample of all simple defects besides.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use crate::recorded;
use host::git::ask;
use host::paths::digest;
use host::status::Verdict;
use kernel::build::Builder;
use kernel::config;
use machine::vm::Booter;
use plan::arch::Arch;
use plan::filter::Only;
use plan::topology::{Kind, Topologies};
use results::cache::Inputs;
use setup::search_path;

mod file;
mod generate;
mod generated;
mod objects;
mod plant;
mod record;
mod score;
mod settings;

use file::Mutant;
pub use generated::{Sample, list};
use plant::Plant;
use record::{HAND_PICKED, MutantResult, Record};
use settings::MutantsConfig;

/// The names of the kernel and of the work tree.
pub const KERNEL: &str = "mutants/kernel";
const WORKTREE: &str = "mutants/linux";

/// The folders to run kernels from, in turns. One kernel runs while the next is built.
pub const SLOTS: [&str; 2] = ["mutants/even", "mutants/odd"];

/// The name for the results of the series without a defect.
const NONE: &str = "none";

/// Tests the mutants.
pub struct Mutants<'a> {
    /// Builds the kernels. Its tree is only read.
    pub builder: &'a Builder<'a>,
    /// Boots the machines.
    pub booter: &'a Booter<'a>,
    /// `FORCE=1`: test mutants with known results again.
    pub force: bool,
    /// `MINUTES=`: begin with no other mutant after this.
    pub until: Option<Instant>,
}

impl Mutants<'_> {
    /// Whether the time is over.
    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Tests the mutants that `only` picks. Mutants with known results are only tested
    /// again if they are named.
    pub fn run(&self, only: &Only, topologies: &Topologies) -> Result<Verdict> {
        let Builder {
            paths, ui, tree, ..
        } = *self.builder;
        let root = &paths.root;
        let settings = MutantsConfig::read(root)?;
        let mutants = file::read_all(&root.join("qemu/mutants"))?;
        let recorded = recorded::line(self.builder, self.booter.qemu)?;
        let mut record = Record::read(&paths.results(), &paths.recorded(), HAND_PICKED)?;

        // The diff of what is built and run, without documentation and commit messages.
        let range = ["diff", &tree.base, &tree.tip, "--", ".", ":!Documentation"];
        let series = ask(&tree.dir, &range)?;
        let what = format!("{}\n{series}", tree.base);
        let base = self.inputs(&settings, &what, topologies)?;
        let key = |mutant: &Mutant| key(&base, mutant, topologies);
        record.keep(|known| {
            let mut of_name = mutants.iter().filter(|mutant| mutant.name == known.name);
            of_name.any(|mutant| key(mutant) == known.key)
        });
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
            let suite = |mutant: &Mutant| Ok(settings.machines(&mutant.tests()));
            let plant = Plant::new(self, &settings.kernel, topologies, &suite)?;
            let tests = file::all_tests(&wanted);
            let key_of_none = digest(format!("{base}\n{tests:?}").as_bytes());
            if self.force || !record.knows(NONE, &key_of_none) {
                let known = plant.without_defect(settings.machines(&tests))?;
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
        host::outln!("\n{}", record.table(&mutants));
        host::outln!("{}", record.closing_line(&mutants));
        let picked = mutants.iter().filter(|mutant| only.picks(&mutant.name));
        Ok(if record.all_caught(picked, self.is_late()) {
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
            self.booter.inputs(&mut inputs, Arch::default(), kind)?;
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

#[cfg(test)]
mod tests;
