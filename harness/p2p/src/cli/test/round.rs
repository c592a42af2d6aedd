//! A round of `make test`: what runs, and in what order.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use anyhow::Result;
use ktap::Status;

use super::choice::{Choice, Selection};
use crate::cli::run::{Run, broken};
use crate::cli::{about, selfcheck};
use host::proc::{self, OutOfTime};
use host::ui::seconds;
use jobs::schedule::{run_all, run_as_built, run_before_next_build};
use jobs::speed;
use kernel::build::{self, Builder};
use kernel::series::Series;
use kernel::tree::Tree;
use machine::vm::Booter;
use patches::check::{self, Checker};
use plan::job::{Job, Plan, Same, kernels_for};
use plan::kernels::{Kernels, Source};
use results::cache::{self, Cache};
use results::durations::Durations;
use results::report::{Outcome, Report, retried};

/// Why a test was skipped that `MINUTES=` left no time for.
const NO_TIME: &str = "no time: MINUTES= is over";

impl Run<'_> {
    /// Runs all picked tests once.
    pub fn round(
        &self,
        choice: &Choice,
        until: Option<Instant>,
        report: &Mutex<Report>,
    ) -> Result<()> {
        let root = &self.paths.root;
        let topologies = self.topologies()?;
        let kernels = Kernels::read(root)?;
        let plan = Plan::read(root)?;
        let mut jobs = plan.jobs(&topologies)?;
        let mut durations = Durations::read(&self.paths.results());
        // So that no long job finishes last alone.
        longest_first(&mut jobs, &durations);
        if until.is_some() {
            // So that as many jobs as possible have time.
            jobs.reverse();
        }
        let picked = Selection {
            choice,
            kernels: &kernels,
            plan: &plan,
            jobs: &jobs,
            durations: &durations,
        }
        .names(|| Report::previous(&self.paths.results()))?;
        if picked.is_empty() {
            self.ui.say(choice.why_nothing());
            return Ok(());
        }
        let round = Round {
            run: self,
            choice,
            kernels: &kernels,
            picked: &picked,
            until,
            report,
            has_failed: AtomicBool::new(false),
        };
        round.report().picked = picked.clone();
        let (tools, tree) = self.tools_and(|tree| round.look(tree))?;

        if let Some(test) = &choice.test {
            jobs.iter_mut().for_each(|job| job.pick_test(test));
        }
        let jobs = round.that_can_run(&jobs, &tree)?;
        // Before jobs run in parallel. Otherwise each job would do it.
        let get = || setup::rdma_core::tests(self.paths, self.ui).map(drop);
        let (jobs, errors) = those_with(jobs, Job::needs_rdma_core, get)?;
        round.add(errors);
        self.qemu_for(jobs.iter().copied())?;
        let builder = Builder {
            until,
            ..self.builder(&tools, &tree, &self.compiler)
        };
        round.report().of = about::facts(&builder, self.qemu.as_deref())?;
        let booter = self.booter(&tools, &topologies);

        let names = round.kernels_in_order(&jobs);
        let job_names = Vec::from_iter(jobs.iter().map(|job| job.name.clone()));
        let build = |name: &str| round.build(&builder, name);
        let run = |job: &Job<'_>| round.run(&booter, job);
        let left = if until.is_some() {
            run_before_next_build(jobs, |job| job.needs(), &names, self.jobs(), build, run)?
        } else {
            run_as_built(jobs, |job| job.needs(), &names, self.jobs(), build, run)?
        };
        round.left_over(left);
        round.end(&job_names, &plan.same);
        // All shards must use the same times, even if one runs after another.
        if choice.shard.is_none() && choice.test.is_none() {
            durations.update(&self.paths.results(), round.report().measured())?;
        }
        Ok(())
    }
}

/// What a round runs, and what it has found so far.
struct Round<'a> {
    run: &'a Run<'a>,
    choice: &'a Choice,
    kernels: &'a Kernels,
    /// The names of the tests that run.
    picked: &'a BTreeSet<String>,
    /// When nothing more starts (`MINUTES=`).
    until: Option<Instant>,
    report: &'a Mutex<Report>,
    has_failed: AtomicBool,
}

impl<'a> Round<'a> {
    fn report(&self) -> MutexGuard<'a, Report> {
        self.report.lock().expect("no panic holds it")
    }

    fn add(&self, outcomes: Vec<Outcome>) {
        let mut all = outcomes.iter();
        if all.any(|outcome| outcome.status == Status::Failed) {
            self.has_failed.store(true, Ordering::SeqCst);
        }
        self.report().outcomes.extend(outcomes);
    }

    /// Adds that `patches/` has nothing to test.
    fn add_skipped(&self, name: &str) {
        self.add(vec![Outcome::skipped(name, "all", "patches/ is empty")]);
    }

    fn took(&self, suite: &str, start: Instant, was_cached: bool) {
        let mut report = self.report();
        let taken = start.elapsed().as_secs_f64();
        report.seconds.insert(suite.to_owned(), taken);
        if was_cached {
            report.cached.insert(suite.to_owned());
        }
    }

    /// Whether a failure ended the round. With REPEAT=, no test starts after a failure, so
    /// that its output does not hide the failure.
    fn is_over(&self) -> bool {
        let stops = self.choice.repeat.is_some() || self.choice.fail_fast;
        stops && self.has_failed.load(Ordering::SeqCst)
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Whether a test can begin. Notes it if there is no time.
    fn may_start(&self, name: &str) -> bool {
        let is_over = self.is_over();
        if !is_over && self.is_late() {
            self.no_time(name);
            return false;
        }
        !is_over
    }

    fn no_time(&self, name: &str) {
        self.report().leave_out(name, NO_TIME);
    }

    /// Runs the checks. They come before any kernel is built, so that their results are
    /// there early.
    fn look(&self, tree: &Tree) -> Result<()> {
        let Run { paths, ui, .. } = *self.run;
        let series = Series::read(&paths.root)?;
        let checker = Checker::new(paths, tree, series, self.run.force)?;
        let looks = selfcheck::NAMES.iter().chain(&check::QUICK).copied();
        let looks = looks.filter(|name| self.picked.contains(*name)).collect();
        run_all(looks, self.run.jobs(), |name| {
            if !self.may_start(name) {
                return Ok(());
            }
            let start = Instant::now();
            let (outcomes, was_cached) = if selfcheck::NAMES.contains(&name) {
                selfcheck::run(name, paths, ui, tree, self.run.force)?
            } else {
                checker.quick(ui, name)?
            };
            self.took(name, start, was_cached);
            self.add(outcomes);
            Ok(())
        })
    }

    /// The picked jobs, except those of the series if there is none.
    fn that_can_run<'j>(&self, jobs: &'j [Job<'j>], tree: &Tree) -> Result<Vec<&'j Job<'j>>> {
        let mut to_run = Vec::new();
        for job in jobs.iter().filter(|job| self.picked.contains(&job.name)) {
            if is_empty(tree) && job.needs_series(self.kernels)? {
                self.add_skipped(&job.name);
            } else {
                to_run.push(job);
            }
        }
        Ok(to_run)
    }

    /// The kernels to build: those of the jobs, and those that are tests themselves.
    fn kernels_in_order(&self, jobs: &[&Job<'_>]) -> Vec<&'a str> {
        let mut names = kernels_for(jobs, self.kernels);
        let others = self.kernels.tests().into_iter();
        let others = others.filter(|name| self.picked.contains(*name) && !names.contains(name));
        names.extend(others.collect::<Vec<_>>());
        if self.until.is_some() {
            // Clang takes three times as long as GCC.
            names.sort_by_key(|name| self.kernels.get(name).is_ok_and(|kernel| kernel.llvm));
        }
        self.kernels.in_order(&names)
    }

    /// Builds a kernel. Returns whether jobs can use it.
    fn build(&self, builder: &Builder<'_>, name: &str) -> Result<bool> {
        if self.is_over() {
            return Ok(false);
        }
        let kernel = self.kernels.get(name)?;
        let is_test = self.kernels.is_test(name);
        if is_test && is_empty(builder.tree) && kernel.tree == Source::Series {
            self.add_skipped(name);
            return Ok(false);
        }
        let start = Instant::now();
        let built = match self.is_late() {
            true => Err(OutOfTime.into()),
            false => builder.one(self.kernels, name),
        };
        if built.as_ref().is_err_and(|error| error.is::<OutOfTime>()) {
            if is_test {
                self.no_time(name);
            }
            return Ok(false);
        }
        let trouble = broken(built)?;
        let taken = start.elapsed().as_secs_f64();
        self.report().builds.insert(name.to_owned(), taken);
        let is_built = trouble.is_none();
        if is_test || !is_built {
            let outcome = Outcome::unless(name, "built without a warning", trouble);
            let paths = self.run.paths;
            let log = build::log(paths, name);
            self.add(vec![outcome.with_log(paths.short(&log))]);
        }
        Ok(is_built)
    }

    /// Runs a job, or takes its results from the cache.
    fn run(&self, booter: &Booter<'_>, job: &Job<'_>) -> Result<()> {
        if !self.may_start(&job.name) {
            return Ok(());
        }
        let start = Instant::now();
        // The cache has neither results of single tests nor of repeated rounds.
        let is_cacheable = self.choice.test.is_none() && self.choice.repeat.is_none();
        let run = || {
            let aside = || booter.set_aside(&job.name);
            retried(self.choice.retries, aside, || jobs::run(job, booter))
        };
        let (outcomes, was_cached) = if job.boots_series(self.kernels)? || !is_cacheable {
            (run()?, false)
        } else {
            let inputs = jobs::inputs(job, booter)?;
            Cache::new(self.run.paths, self.run.force).or_find(&job.name, inputs, run)?
        };
        self.took(&job.name, start, was_cached);
        let part = Report::from(outcomes);
        let how = if was_cached {
            cache::HIT.to_owned()
        } else {
            seconds(start.elapsed())
        };
        let speed = speed::of(&part.outcomes);
        let speed = speed.map_or(String::new(), |told| format!("; {told}"));
        let line = part.closing_line();
        self.add(part.outcomes);
        self.run
            .ui
            .say(format!("{}: {line} ({how}){speed}", job.name));
        Ok(())
    }

    /// Says of jobs that did not run why.
    fn left_over(&self, jobs: Vec<&Job<'_>>) {
        for job in jobs.into_iter().filter(|_| !self.is_over()) {
            let needs = job.needs();
            let was_tried = |name: &&str| self.report().builds.contains_key(*name);
            if self.is_late() && !needs.iter().all(was_tried) {
                self.no_time(&job.name);
                continue;
            }
            let reason = format!("a kernel is not built: {}", needs.join(" or "));
            let mut outcome = Outcome::could_not_run(&job.name, "runs", reason);
            let mut report = self.report();
            let mut failed = report.outcomes.iter();
            let failed = failed.find(|other| needs.contains(&other.suite.as_str()));
            outcome.log_file = failed.and_then(|other| other.log_file.clone());
            report.outcomes.push(outcome);
        }
    }

    /// Adds results that need those of all jobs.
    fn end(&self, jobs: &[String], same: &[Same]) {
        let mut report = self.report();
        fail_if_nothing_ran(&mut report, jobs);
        if self.is_over() {
            let variable = if self.choice.fail_fast {
                "FAIL_FAST=1"
            } else {
                "REPEAT="
            };
            report.aborted = Some(format!("{variable}, and something failed"));
        }
        // A single test is no basis for the comparison.
        if self.choice.test.is_none() {
            compare(&mut report, same);
        }
    }
}

/// The jobs that can run if `get` gets what some of them need, and an error for each other.
/// It is not there on every distribution.
fn those_with<'j>(
    mut jobs: Vec<&'j Job<'j>>,
    need: impl Fn(&Job<'j>) -> bool,
    get: impl FnOnce() -> Result<()>,
) -> Result<(Vec<&'j Job<'j>>, Vec<Outcome>)> {
    let mut errors = Vec::new();
    if jobs.iter().any(|job| need(job))
        && let Err(error) = get()
    {
        if proc::interrupted() {
            return Err(error);
        }
        let without = jobs.extract_if(.., |job| need(job));
        let error = |job: &Job<'_>| Outcome::could_not_run(&job.name, "runs", format!("{error:#}"));
        errors.extend(without.map(error));
    }
    Ok((jobs, errors))
}

/// Adds a failure if there was no time for any of the jobs. Not in a later round of REPEAT=:
/// the rounds before it ran them.
fn fail_if_nothing_ran(report: &mut Report, jobs: &[String]) {
    let is_left_out = |name: &String| report.left_out.contains(name);
    let no_job = !jobs.is_empty() && jobs.iter().all(is_left_out);
    let nothing = !report.left_out.is_empty()
        && report
            .outcomes
            .iter()
            .all(|outcome| outcome.status == Status::Skipped);
    if (no_job || nothing) && report.round.is_none_or(|n| n == 1) {
        let why = match no_job {
            true => "no job had time: MINUTES= is over",
            false => "nothing had time: MINUTES= is over",
        };
        report
            .outcomes
            .push(Outcome::could_not_run(ALL, "runs", why));
    }
}

/// The suite of what concerns all jobs.
pub const ALL: &str = "all";

/// Compares jobs that must have the same results, except where one did not run.
fn compare(report: &mut Report, same: &[Same]) {
    for same in same {
        let could_not_run = |job: &String| {
            let mut all = report.outcomes.iter();
            all.any(|outcome| outcome.could_not_run && outcome.suite == *job)
        };
        let has_run = |job| !report.left_out.contains(job) && !could_not_run(job);
        if same.jobs.iter().all(has_run) {
            let outcome = jobs::compare(same, &report.outcomes);
            report.outcomes.extend(outcome);
        }
    }
}

/// Whether the tree is the base alone.
fn is_empty(tree: &Tree) -> bool {
    tree.tip == tree.base
}

/// Sorts by the last duration, the longest first. For jobs without one, the time limit counts.
fn longest_first(jobs: &mut [Job<'_>], durations: &Durations) {
    let seconds = |job: &Job<'_>| durations.get(&job.name).unwrap_or(job.limit() as f64);
    jobs.sort_by(|one, other| seconds(other).total_cmp(&seconds(one)));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use anyhow::bail;
    use plan::topology::Topologies;

    fn left_out(names: &[&str]) -> Report {
        let mut report = Report::default();
        names
            .iter()
            .for_each(|name| report.leave_out(name, NO_TIME));
        report
    }

    #[test]
    fn time_for_no_job_is_a_failure() {
        let jobs = ["a/x", "b/x"].map(str::to_owned);
        let fails = |mut report: Report, jobs: &[String]| {
            fail_if_nothing_ran(&mut report, jobs);
            report.count(Status::Failed) == 1
        };
        assert!(fails(left_out(&["a/x", "b/x", "modules"]), &jobs));
        assert!(fails(left_out(&["modules"]), &[]));
        let beside = |name| {
            let mut some = left_out(&[name]);
            some.outcomes.push(Outcome::passed("b/x", "runs"));
            some
        };
        assert!(!fails(beside("a/x"), &jobs));
        assert!(!fails(beside("modules"), &[]));
        let round = |round| Report {
            round: Some(round),
            ..left_out(&["a/x", "b/x"])
        };
        assert!(fails(round(1), &jobs));
        assert!(!fails(round(2), &jobs));
    }

    #[test]
    fn a_job_without_time_is_not_compared() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let same = Plan::read(&root).unwrap().same;
        let [one, other] = &same[0].jobs;
        let mut report = left_out(&[one]);
        report.outcomes.push(Outcome::passed(other, "t"));
        compare(&mut report, &same);
        assert_eq!(report.count(Status::Failed), 0);
        report.left_out.clear();
        compare(&mut report, &same);
        assert_eq!(report.count(Status::Failed), 1);
        // Two errors are the same, which means nothing.
        let errors = same[0].jobs.iter();
        let errors = errors.map(|job| Outcome::could_not_run(job, "runs", "no kernel"));
        let mut report = Report::from(Vec::from_iter(errors));
        compare(&mut report, &same);
        assert_eq!(report.outcomes.len(), 2);
    }

    #[test]
    fn jobs_without_what_they_need_are_errors_and_the_others_run() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let all = Plan::read(&root).unwrap().jobs(&topologies).unwrap();
        let get = |get: &dyn Fn() -> Result<()>| {
            those_with(all.iter().collect(), Job::needs_rdma_core, get).unwrap()
        };
        let (jobs, errors) = get(&|| Ok(()));
        assert!(jobs.len() == all.len() && errors.is_empty());
        let (jobs, errors) = get(&|| bail!("no dpkg-query"));
        assert!(jobs.iter().all(|job| !job.needs_rdma_core()));
        assert_eq!(jobs.len() + errors.len(), all.len());
        assert!(
            errors
                .iter()
                .any(|error| error.suite == "pyverbs-base/switch")
        );
        let is_right = |error: &Outcome| error.could_not_run && error.reason == "no dpkg-query";
        assert!(errors.iter().all(is_right), "{errors:?}");
        // If no job needs it, nobody asks for it.
        those_with(jobs, Job::needs_rdma_core, || panic!("asked")).unwrap();
    }

    #[test]
    fn what_took_longest_comes_first() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let mut jobs = Plan::read(&root).unwrap().jobs(&topologies).unwrap();
        let results = tempfile::tempdir().unwrap();
        let mut durations = Durations::read(results.path());
        let measured = [("demo/switch", 1e6), ("stress/switch", 0.5)];
        let measured = measured.map(|(name, taken)| (name.to_owned(), taken));
        durations.update(results.path(), measured.into()).unwrap();
        longest_first(&mut jobs, &durations);
        assert_eq!(jobs.first().unwrap().name, "demo/switch");
        assert_eq!(jobs.last().unwrap().name, "stress/switch");
        // The other jobs are sorted by their limits.
        let others = &jobs[1..jobs.len() - 1];
        assert!(others.is_sorted_by(|one, other| one.limit() >= other.limit()));
    }
}
