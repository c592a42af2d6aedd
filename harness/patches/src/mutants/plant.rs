//! The place where defects are planted: a work tree and a kernel of their own.

use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use anyhow::{Result, bail};
use ktap::Status;

use super::file::Mutant;
use super::objects::Objects;
use super::record::{MutantOutcome, MutantResult};
use super::{KERNEL, Mutants, NONE, SLOTS, WORKTREE};
use host::git::{ask, git};
use host::proc::{output, tail};
use host::status::ends_run;
use host::ui::seconds;
use kernel::Built;
use kernel::build::{Builder, set_aside};
use kernel::tree::Tree;
use plan::job::{Job, Spec, words};
use plan::kernels::Kernel;
use plan::topology::Topologies;
use results::report::Outcome;

/// The machines that test a mutant, each with one topology.
pub type Suite<'a> = dyn Fn(&Mutant) -> Result<Vec<Spec>> + Sync + 'a;

/// A separate work tree and kernel, and how mutants are tested there.
pub struct Plant<'a> {
    pub mutants: &'a Mutants<'a>,
    pub kernel: &'a Kernel,
    pub topologies: &'a Topologies,
    pub tree: Tree,
    pub suite: &'a Suite<'a>,
    /// The first failure is enough.
    pub fail_fast: bool,
    /// The objects without a defect, if a mutant that changes none is not to be tested.
    pub objects: Option<Objects>,
}

impl<'a> Plant<'a> {
    /// Checks out the work tree and builds the kernel without a defect.
    pub fn new(
        mutants: &'a Mutants<'a>,
        kernel: &'a Kernel,
        topologies: &'a Topologies,
        suite: &'a Suite<'a>,
    ) -> Result<Self> {
        let Builder {
            paths, ui, tree, ..
        } = *mutants.builder;
        let what = "tree: the one for defects";
        let plant = Self {
            mutants,
            kernel,
            topologies,
            tree: tree.aside(paths, ui, WORKTREE, what)?,
            suite,
            fail_fast: false,
            objects: None,
        };
        plant.builder().build(KERNEL, kernel, &[])?;
        Ok(plant)
    }

    fn builder(&self) -> Builder<'_> {
        self.mutants.builder.of(&self.tree)
    }

    /// The objects of the last build.
    pub fn objects(&self) -> Result<Objects> {
        Objects::read(&Built::at(self.mutants.builder.paths, KERNEL).dir)
    }

    /// Tests all mutants. Each runs while the next one is built. Calls `done` with each
    /// result. Begins with no other after the time in [`Mutants::until`].
    pub fn all(
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
                if self.mutants.is_late() {
                    break;
                }
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
        let end = |end| {
            let mut known = MutantResult::new(&mutant.name, end);
            known.build_seconds = start.elapsed().as_secs();
            Ok(Err(known))
        };
        let mut apply = git(&self.tree.dir, &["apply", "--whitespace=nowarn"]);
        apply.arg(&mutant.path);
        let (status, _, err) = output(&mut apply)?;
        if !status.success() {
            return end(MutantOutcome::DoesNotApply { why: tail(&err, 5) });
        }
        let built = self
            .builder()
            .again(KERNEL, self.kernel)
            .and_then(|()| self.set_aside(mutant, slot));
        ask(&self.tree.dir, &["checkout", "--quiet", "--", "."])?;
        match built {
            Err(error) if !ends_run(&error) => {
                let why = format!("{error:#}");
                return end(MutantOutcome::DoesNotBuild { why });
            }
            built => built?,
        }
        if let Some(objects) = &self.objects
            && self.objects()? == *objects
        {
            return end(MutantOutcome::SameCode);
        }
        Ok(Ok(start.elapsed().as_secs()))
    }

    /// Moves the kernel to a slot. If the defect is in a selftest, its programs go there, too.
    fn set_aside(&self, mutant: &Mutant, slot: &str) -> Result<()> {
        let at = |name| Built::at(self.mutants.builder.paths, name);
        set_aside(&at(KERNEL), &at(slot))?;
        if !mutant.is_in_selftest() {
            return Ok(());
        }
        let programs = mutant.programs.iter().map(|program| words(program).0);
        self.builder().selftests_aside(KERNEL, &at(slot), programs)
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
        let specs = (self.suite)(mutant)?;
        let known = self.observe(&mutant.name, slot, specs, &mutant.expect, self.fail_fast)?;
        Ok(MutantResult {
            build_seconds,
            ..known
        })
    }

    /// Runs these machines without a defect. All tests must pass.
    pub fn without_defect(&self, specs: Vec<Spec>) -> Result<MutantResult> {
        let known = self.observe(NONE, KERNEL, specs, &[], false)?;
        if let MutantOutcome::Caught { by, .. } = &known.end {
            bail!(
                "these tests fail without a defect, so they say nothing:\n    {}",
                by.join("\n    ")
            );
        }
        Ok(known)
    }

    /// Runs these machines, or up to the first failure.
    fn observe(
        &self,
        name: &str,
        kernel: &str,
        specs: Vec<Spec>,
        expect: &[String],
        fail_fast: bool,
    ) -> Result<MutantResult> {
        let start = Instant::now();
        let mut outcomes = Vec::new();
        for spec in specs {
            for topology in &spec.topologies {
                let topology = self.topologies.get(topology)?;
                let job = Job::alone(format!("mutant/{name}"), kernel, topology, spec.clone());
                let ran = jobs::run(&job, self.mutants.booter)?;
                outcomes.extend(ran.into_iter().map(|outcome| with_job(outcome, &job)));
            }
            let has_failed = |outcome: &Outcome| outcome.status == Status::Failed;
            if fail_fast && outcomes.iter().any(has_failed) {
                break;
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

/// Names the job of the test plan, if it is one of those.
fn with_job(outcome: Outcome, job: &Job<'_>) -> Outcome {
    if job.spec.name.is_empty() {
        return outcome;
    }
    let name = format!("{}/{}: {}", job.spec.name, job.topology.name, outcome.name);
    Outcome { name, ..outcome }
}

/// The result from the outcomes: the failed tests, expected ones first.
pub fn end(outcomes: &[Outcome], expect: &[String]) -> MutantOutcome {
    let expected = |name: &str| expect.iter().any(|word| name.contains(word.as_str()));
    let failed = outcomes
        .iter()
        .filter(|outcome| outcome.status == Status::Failed);
    let (mut by, others): (Vec<_>, Vec<_>) = failed
        .map(|outcome| outcome.name.clone())
        .partition(|name| expected(name));
    // Nobody expects anything of a generated one.
    let as_expected = !by.is_empty() || expect.is_empty();
    by.extend(others);
    if by.is_empty() {
        return MutantOutcome::Survived;
    }
    MutantOutcome::Caught { by, as_expected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_job_of_the_plan_that_notices_is_named() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let name = |job: &str| {
            let spec = Spec {
                name: job.to_owned(),
                ..Spec::default()
            };
            let topology = topologies.get("switch").unwrap();
            let job = Job::alone("mutant/x".to_owned(), KERNEL, topology, spec);
            with_job(Outcome::passed("mutant/x", "a: one"), &job).name
        };
        assert_eq!(name("rdma"), "rdma/switch: a: one");
        assert_eq!(name(""), "a: one");
    }
}
