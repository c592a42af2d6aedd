//! Mutants: defects that are planted into the series, one at a time. A test
//! must notice each one; if none does, a test is missing.
//!
//! qemu/mutants has a file per defect ([`Mutant`]), qemu/mutants.toml says what
//! they are built and run as. What is known of a mutant is kept in
//! build/results/mutants.json, so that a run goes on where the last one ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use ktap::Status;
use serde::Deserialize;

use crate::git::{ask, git};
use crate::kernel::Kernel;
use crate::kernel::build::Builder;
use crate::kernel::config;
use crate::outcome::Verdict;
use crate::paths::digest;
use crate::plan::{Job, Only, Spec};
use crate::proc::{self, output, tail};
use crate::report::Outcome;
use crate::topology::{Topologies, Topology};
use crate::tree::Tree;
use crate::ui::seconds;
use crate::vm::Booter;

mod file;
mod record;

use file::Mutant;
use record::{End, Known, Record};

/// The kernel's name, and the work tree's. They lie to each other as those of the
/// other kernels do, so that ccache finds what these have in common with it.
pub const KERNEL: &str = "mutants/kernel";
const WORKTREE: &str = "mutants/linux";

/// The name under which the series without a defect is known.
const NONE: &str = "none";

/// qemu/mutants.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    topology: String,
    load: BTreeMap<String, Vec<String>>,
    allow: Vec<String>,
    limit: u64,
    kernel: Kernel,
}

impl Settings {
    /// The modules that a program needs: those of the longest beginning of its
    /// name that there are some for.
    fn modules(&self, program: &str) -> Vec<String> {
        let of = |(start, _): &(&String, &Vec<String>)| program.starts_with(start.as_str());
        let mut fitting = self.load.iter().filter(of);
        // In a sorted map, a longer name comes after its beginning.
        fitting
            .next_back()
            .map_or_else(Vec::new, |(_, modules)| modules.clone())
    }

    /// What is run in one machine: programs that need the same modules, which
    /// may not be loaded together with those of others.
    fn machines(&self, programs: &[String]) -> BTreeMap<Vec<String>, Vec<String>> {
        let mut machines = BTreeMap::<_, Vec<_>>::new();
        for program in programs {
            let with = machines.entry(self.modules(program)).or_default();
            with.push(program.clone());
        }
        machines
    }
}

/// Plants the defects.
pub struct Mutants<'a> {
    /// Builds; its tree is only read.
    pub builder: &'a Builder<'a>,
    /// Boots.
    pub booter: &'a Booter<'a>,
}

impl Mutants<'_> {
    /// Tests the mutants that `only` picks; those that are known already are
    /// tested again only if they are named.
    pub fn run(&self, only: &Only, topologies: &Topologies) -> Result<Verdict> {
        let Builder {
            paths, ui, tree, ..
        } = *self.builder;
        let root = &paths.root;
        let settings = settings(root)?;
        let topology = topologies.get(&settings.topology)?;
        let mutants = file::read_all(&root.join("qemu/mutants"))?;
        let names: Vec<_> = mutants.iter().map(|mutant| mutant.name.clone()).collect();
        only.check(&names)?;
        let mut record = Record::read(&paths.results())?;
        record.keep(&names);

        // What is built and run; not what is only read, nor messages of commits.
        let range = ["diff", &tree.base, &tree.tip, "--", ".", ":!Documentation"];
        let series = ask(&tree.dir, &range)?;
        let options = config::wanted(root, &settings.kernel.fragments)?;
        let base = digest(format!("{}{series}{options:?}{settings:?}", tree.base).as_bytes());
        let key = |mutant: &Mutant| digest(format!("{base}\n{}", mutant.text).as_bytes());
        let wanted: Vec<_> = mutants
            .iter()
            .filter(|mutant| only.picks(&mutant.name))
            .filter(|mutant| !only.all() || !record.knows(&mutant.name, &key(mutant)))
            .collect();
        if !wanted.is_empty() {
            let plant = Plant::new(self, &settings, topology)?;
            let runs: BTreeSet<_> = wanted.iter().flat_map(|m| m.programs.clone()).collect();
            let kunit = wanted.iter().any(|mutant| mutant.kunit.is_some());
            let key_of_none = digest(format!("{base}\n{runs:?}\n{kunit}").as_bytes());
            if !record.knows(NONE, &key_of_none) {
                let known = plant.without(runs.into_iter().collect(), kunit)?;
                if let End::Caught { by, .. } = &known.end {
                    bail!(
                        "these tests fail without a defect, so they say nothing:\n    {}",
                        by.join("\n    ")
                    );
                }
                record.add(Known {
                    key: key_of_none,
                    ..known
                });
                record.write(&paths.results(), &mutants)?;
            }
            for (number, mutant) in wanted.iter().enumerate() {
                let mut known = plant.test(mutant)?;
                known.key = key(mutant);
                ui.say(format!(
                    "{}/{} {}: {} ({} s to build, {} s to test)",
                    number + 1,
                    wanted.len(),
                    mutant.name,
                    known.end,
                    known.build_seconds,
                    known.test_seconds
                ));
                record.add(known);
                record.write(&paths.results(), &mutants)?;
            }
        }
        record.write(&paths.results(), &mutants)?;
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

fn settings(root: &Path) -> Result<Settings> {
    let file = root.join("qemu/mutants.toml");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    toml::from_str(&text).with_context(|| file.display().to_string())
}

/// The place where defects are planted: a work tree and a kernel of its own.
struct Plant<'a> {
    mutants: &'a Mutants<'a>,
    settings: &'a Settings,
    topology: &'a Topology,
    tree: Tree,
}

impl<'a> Plant<'a> {
    fn new(
        mutants: &'a Mutants<'a>,
        settings: &'a Settings,
        topology: &'a Topology,
    ) -> Result<Self> {
        let Builder {
            paths, ui, tree, ..
        } = *mutants.builder;
        let what = "tree: the one for defects";
        Ok(Self {
            mutants,
            settings,
            topology,
            tree: tree.aside(paths, ui, WORKTREE, what)?,
        })
    }

    fn builder(&self) -> Builder<'_> {
        self.mutants.builder.of(&self.tree)
    }

    /// Builds the series as it is, and runs everything that will be run.
    fn without(&self, programs: Vec<String>, kunit: bool) -> Result<Known> {
        let start = Instant::now();
        self.builder().one(KERNEL, &self.settings.kernel)?;
        let built = start.elapsed().as_secs();
        let kunit = kunit.then(|| "*".to_owned());
        let mut known = self.observe(NONE, programs, kunit, &[])?;
        known.build_seconds = built;
        Ok(known)
    }

    /// Plants a defect, builds, tests, and takes it out again.
    fn test(&self, mutant: &Mutant) -> Result<Known> {
        let start = Instant::now();
        let mut apply = git(&self.tree.dir, &["apply", "--whitespace=nowarn"]);
        apply.arg(&mutant.path);
        let (status, _, err) = output(&mut apply)?;
        if !status.success() {
            return Ok(Known::new(
                &mutant.name,
                End::DoesNotApply { why: tail(&err, 5) },
            ));
        }
        let result = self.build_and_observe(mutant, start);
        ask(&self.tree.dir, &["checkout", "--quiet", "--", "."])?;
        result
    }

    fn build_and_observe(&self, mutant: &Mutant, start: Instant) -> Result<Known> {
        let build = self.builder().again(KERNEL);
        let built = start.elapsed().as_secs();
        let mut known = match build {
            Err(error) if !proc::interrupted() => Known::new(
                &mutant.name,
                End::DoesNotBuild {
                    why: format!("{error:#}"),
                },
            ),
            build => {
                build?;
                let (programs, kunit) = (mutant.programs.clone(), mutant.kunit.clone());
                self.observe(&mutant.name, programs, kunit, &mutant.expect)?
            }
        };
        known.build_seconds = built;
        Ok(known)
    }

    fn observe(
        &self,
        name: &str,
        programs: Vec<String>,
        kunit: Option<String>,
        expect: &[String],
    ) -> Result<Known> {
        let start = Instant::now();
        let settings = self.settings;
        let spec = Spec {
            allow: settings.allow.clone(),
            limit: settings.limit,
            ..Spec::default()
        };
        let mut specs: Vec<_> = settings
            .machines(&programs)
            .into_iter()
            .map(|(load, programs)| Spec {
                load,
                programs,
                ..spec.clone()
            })
            .collect();
        if kunit.is_some() {
            specs.push(Spec { kunit, ..spec });
        }
        let mut outcomes = Vec::new();
        for spec in specs {
            let job = Job::alone(format!("mutant/{name}"), KERNEL, self.topology, spec);
            outcomes.extend(job.run(self.mutants.booter, self.mutants.builder.paths)?);
        }
        let mut known = Known::new(name, end(&outcomes, expect));
        known.test_seconds = start.elapsed().as_secs();
        self.mutants.builder.ui.say(format!(
            "{name}: {} outcomes in {}",
            outcomes.len(),
            seconds(start.elapsed())
        ));
        Ok(known)
    }
}

/// What the outcomes say: which failed, those first that were expected to.
fn end(outcomes: &[Outcome], expect: &[String]) -> End {
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
        return End::Survived;
    }
    End::Caught { by, as_expected }
}

#[cfg(test)]
mod tests;
