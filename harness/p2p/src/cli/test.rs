//! `make test` and `make list`: what runs, in what order, and how often.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use comfy_table::{Table, presets};
use ktap::Status;

use super::about;
use super::run::{Run, broken, verdict};
use super::selfcheck;
use host::proc::{self, OutOfTime};
use host::status::{self, Verdict, status_of};
use host::ui::seconds;
use jobs::schedule::{run_all, run_as_built, run_before_next_build};
use jobs::speed;
use kernel::build::{self, Builder};
use kernel::series::Series;
use kernel::tree;
use patches::check::{self, Checker};
use plan::job::{Job, Plan, kernels_for};
use plan::kernels::{Kernels, Source};
use results::cache::{self, Cache};
use results::durations::Durations;
use results::report::{Outcome, Report, retried};

mod choice;

const MINUTE: Duration = Duration::from_secs(60);

/// Why a test was skipped that `MINUTES=` left no time for.
const NO_TIME: &str = "no time: MINUTES= is over";

pub use choice::Options;
use choice::{Choice, Selection, suites};

impl Run<'_> {
    pub fn test(&self, options: &Options) -> Result<Verdict> {
        if options.list {
            return self.list(&Choice::new(options)?);
        }
        let results = self.paths.results();
        let status_file = results.join("status");
        fs::create_dir_all(&results)?;
        Report::put_aside(&results);
        for file in [&status_file, &results.join("closing-line")] {
            let _ = fs::remove_file(file);
        }
        let start = Instant::now();
        let choice = Choice::new(options);
        let (mut report, result) = match &choice {
            Ok(choice) => self.rounds(choice, start),
            Err(_) => (Report::default(), Ok(())),
        };
        let given = choice.as_ref().ok();
        let repeat = given.and_then(|choice| choice.repeat);
        let test = given.and_then(|choice| choice.test.clone());
        let wants_ktap = given.is_some_and(|choice| choice.ktap);
        let result = choice.and(result).map(|()| verdict(&report));
        let usage = status_of(&result) == status::USAGE;
        fs::write(&status_file, status_of(&result).to_string())?;
        if !usage && !proc::interrupted() {
            let same = Plan::read(&self.paths.root)?.same;
            self.finish(&mut report, &results, start, |outcome| {
                let only = suites(&outcome.suite, &same).join(",");
                let test = test.as_ref().map(|test| format!(" TEST={test}"));
                format!("make test ONLY={only}{}", test.unwrap_or_default())
            })?;
            if let Some(error) = &report.aborted {
                println!("aborted, not everything was run: {error}");
            }
            if let (Some(rounds), Some(round)) = (repeat, report.round) {
                println!("{}", rounds_in_words(rounds, round, &report));
            }
            let closing_line = report.closing_line();
            fs::write(results.join("closing-line"), format!("{closing_line}\n"))?;
            println!("{closing_line}");
            if wants_ktap {
                print!("{}", report.ktap());
            }
        }
        result
    }

    /// Runs all picked tests as often as the user wants, or until one fails. Returns the
    /// last round's results.
    fn rounds(&self, choice: &Choice, start: Instant) -> (Report, Result<()>) {
        let rounds = choice.repeat.unwrap_or(1);
        let until = choice.minutes.map(|minutes| start + MINUTE * minutes);
        let mut round = 1;
        loop {
            let report = Mutex::new(Report::default());
            let result = self.test_all(choice, until, &report);
            let mut report = report.into_inner().expect("no panic holds it");
            report.round = choice.repeat.map(|_| round);
            if let Err(error) = &result {
                report.aborted = Some(format!("{error:#}"));
            }
            let is_last = round == rounds || report.picked.is_empty();
            if result.is_err() || is_last || verdict(&report) == Verdict::Failed {
                return (report, result);
            }
            let line = report.closing_line();
            self.ui.say(format!("round {round} of {rounds}: {line}"));
            round += 1;
        }
    }

    fn test_all(
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
            let why = match (choice.failed, choice.shard) {
                (_, Some(_)) => "nothing is left for this shard",
                _ => "nothing that is picked failed in the last run",
            };
            self.ui.say(why);
            return Ok(());
        }
        let is_picked = |name: &str| picked.contains(name);

        let lock = || report.lock().expect("no panic holds it");
        let add = |outcomes: Vec<Outcome>| lock().outcomes.extend(outcomes);
        let took = |suite: &str, start: Instant, was_cached: bool| {
            let mut report = lock();
            let taken = start.elapsed().as_secs_f64();
            report.seconds.insert(suite.to_owned(), taken);
            if was_cached {
                report.cached.insert(suite.to_owned());
            }
        };
        lock().picked = picked.clone();
        // Runs before any kernel is built, so that its results come early.
        let look = |tree: &tree::Tree| {
            let series = Series::read(&self.paths.root)?;
            let checker = Checker::new(self.paths, tree, series, self.force)?;
            let looks = selfcheck::NAMES.iter().chain(&check::QUICK);
            let looks = looks.copied().filter(|name| is_picked(name)).collect();
            run_all(looks, self.jobs(), |name| {
                let start = Instant::now();
                let (outcomes, was_cached) = if selfcheck::NAMES.contains(&name) {
                    (selfcheck::run(name, self.paths, self.ui, tree)?, false)
                } else {
                    checker.quick(self.ui, name)?
                };
                took(name, start, was_cached);
                add(outcomes);
                Ok(())
            })
        };
        let (tools, tree) = self.tools_and(look)?;

        let is_empty = tree.tip == tree.base;
        let skipped = |name: &str| vec![Outcome::skipped(name, "all", "patches/ is empty")];
        if let Some(test) = &choice.test {
            jobs.iter_mut().for_each(|job| job.pick_test(test));
        }
        let mut to_run = Vec::new();
        for job in jobs.iter().filter(|job| is_picked(&job.name)) {
            if is_empty && job.needs_series(&kernels)? {
                add(skipped(&job.name));
            } else {
                to_run.push(job);
            }
        }
        let jobs = to_run;
        let mut names = kernels_for(&jobs, &kernels);
        let others = kernels.tests().into_iter();
        let others = others.filter(|name| is_picked(name) && !names.contains(name));
        names.extend(others.collect::<Vec<_>>());
        if jobs.iter().any(|job| job.needs_rdma_core()) {
            // Runs before jobs run in parallel. Otherwise each job would do it.
            setup::rdma_core::tests(self.paths, self.ui)?;
        }
        self.qemu_for(jobs.iter().copied())?;
        let builder = Builder {
            until,
            ..self.builder(&tools, &tree, &self.compiler)
        };
        lock().of = about::facts(&builder, self.qemu.as_deref())?;
        let is_late = || until.is_some_and(|until| Instant::now() >= until);
        let no_time = |name: &str| lock().leave_out(name, NO_TIME);
        let booter = self.booter(&tools, &topologies);
        // With REPEAT=, no test starts after a failure, so that its output does not hide
        // the failure.
        let has_failed = AtomicBool::new(false);
        let stops = choice.repeat.is_some() || choice.fail_fast;
        let is_over = || stops && has_failed.load(Ordering::SeqCst);
        let note = |outcomes: &[Outcome]| {
            let mut all = outcomes.iter();
            if all.any(|outcome| outcome.status == Status::Failed) {
                has_failed.store(true, Ordering::SeqCst);
            }
        };
        note(&lock().outcomes);
        let build = |name: &str| -> Result<bool> {
            if is_over() {
                return Ok(false);
            }
            let kernel = kernels.get(name)?;
            let is_test = kernels.is_test(name);
            if is_test && is_empty && kernel.tree == Source::Series {
                add(skipped(name));
                return Ok(false);
            }
            let start = Instant::now();
            let built = match is_late() {
                true => Err(OutOfTime.into()),
                false => builder.one(&kernels, name),
            };
            if built.as_ref().is_err_and(|error| error.is::<OutOfTime>()) {
                if is_test {
                    no_time(name);
                }
                return Ok(false);
            }
            let trouble = broken(built)?;
            let taken = start.elapsed().as_secs_f64();
            lock().builds.insert(name.to_owned(), taken);
            let is_built = trouble.is_none();
            if is_test || !is_built {
                let outcome = Outcome::unless(name, "built without a warning", trouble);
                let log = build::log(self.paths, name);
                let outcome = outcome.with_log(self.paths.short(&log));
                note(std::slice::from_ref(&outcome));
                add(vec![outcome]);
            }
            Ok(is_built)
        };
        let run = |job: &Job<'_>| {
            if is_over() {
                return Ok(());
            }
            if is_late() {
                no_time(&job.name);
                return Ok(());
            }
            let start = Instant::now();
            // The cache has neither results of single tests nor of repeated rounds.
            let is_cacheable = choice.test.is_none() && choice.repeat.is_none();
            let run = || {
                let aside = || booter.set_aside(&job.name);
                retried(choice.retries, aside, || jobs::run(job, &booter))
            };
            let (outcomes, was_cached) = if job.needs_series(&kernels)? || !is_cacheable {
                (run()?, false)
            } else {
                let inputs = jobs::inputs(job, &booter)?;
                Cache::new(self.paths, self.force).or_find(&job.name, inputs, run)?
            };
            took(&job.name, start, was_cached);
            note(&outcomes);
            let part = Report::from(outcomes);
            let how = if was_cached {
                cache::HIT.to_owned()
            } else {
                seconds(start.elapsed())
            };
            let speed = speed::of(&part.outcomes);
            let speed = speed.map_or(String::new(), |told| format!("; {told}"));
            let line = part.closing_line();
            self.ui.say(format!("{}: {line} ({how}){speed}", job.name));
            add(part.outcomes);
            Ok(())
        };
        if until.is_some() {
            // Clang takes three times as long as GCC.
            names.sort_by_key(|name| kernels.get(name).is_ok_and(|kernel| kernel.llvm));
        }
        let names = kernels.in_order(&names);
        let job_names = Vec::from_iter(jobs.iter().map(|job| job.name.clone()));
        let at_a_time = self.jobs();
        let left = if until.is_some() {
            run_before_next_build(jobs, |job| job.needs(), &names, at_a_time, build, run)?
        } else {
            run_as_built(jobs, |job| job.needs(), &names, at_a_time, build, run)?
        };
        for job in left.into_iter().filter(|_| !is_over()) {
            let needs = job.needs();
            let was_tried = |name: &&str| lock().builds.contains_key(*name);
            if is_late() && !needs.iter().all(was_tried) {
                no_time(&job.name);
                continue;
            }
            let reason = format!("a kernel is not built: {}", needs.join(" or "));
            let mut outcome = Outcome::could_not_run(&job.name, "runs", reason);
            let mut report = lock();
            let mut failed = report.outcomes.iter();
            let failed = failed.find(|other| needs.contains(&other.suite.as_str()));
            outcome.log_file = failed.and_then(|other| other.log_file.clone());
            report.outcomes.push(outcome);
        }
        let mut report = lock();
        let has_run = |name: &String| report.seconds.contains_key(name);
        if is_late() && !job_names.is_empty() && !job_names.iter().any(has_run) {
            let outcome =
                Outcome::could_not_run("all", "runs", "no job had time: MINUTES= is over");
            report.outcomes.push(outcome);
        }
        if choice.fail_fast && is_over() {
            report.aborted = Some("FAIL_FAST=1, and something failed".to_owned());
        }
        // A single test is no basis for the comparison.
        for same in plan.same.iter().filter(|_| choice.test.is_none()) {
            let outcome = jobs::compare(same, &report.outcomes);
            report.outcomes.extend(outcome);
        }
        // All shards must use the same times, even if one runs after another.
        if choice.shard.is_none() && choice.test.is_none() {
            durations.update(&self.paths.results(), report.measured())?;
        }
        Ok(())
    }

    /// Prints the tests that would run.
    fn list(&self, choice: &Choice) -> Result<Verdict> {
        let root = &self.paths.root;
        let topologies = self.topologies()?;
        let kernels = Kernels::read(root)?;
        let plan = Plan::read(root)?;
        let mut jobs = plan.jobs(&topologies)?;
        let durations = Durations::read(&self.paths.results());
        let selection = Selection {
            choice,
            kernels: &kernels,
            plan: &plan,
            jobs: &jobs,
            durations: &durations,
        };
        let picked = selection.names(|| Report::previous(&self.paths.results()))?;
        let all = selection.all();
        if let Some(test) = &choice.test {
            jobs.iter_mut().for_each(|job| job.pick_test(test));
        }
        let checks = self.cached_checks().unwrap_or_default();
        let tools = setup::places(self.paths);
        let booter = self.booter(&tools, &topologies);
        let is_cached = |job: &Job<'_>| -> Result<&str> {
            if job.needs_series(&kernels)? || choice.test.is_some() || choice.repeat.is_some() {
                return Ok("never");
            }
            let has_qemu = || setup::qemu::there(self.paths, self.qemu.as_deref()).is_some();
            if job.is_parallel() && !has_qemu() {
                return Ok("no");
            }
            // Without its kernel, the job's key cannot be computed.
            let inputs = jobs::inputs(job, &booter).ok();
            let cache = Cache::new(self.paths, self.force);
            Ok(
                match inputs.is_some_and(|inputs| cache.has(&job.name, inputs)) {
                    true => "yes",
                    false => "no",
                },
            )
        };
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["name", "topology", "kernel", "runs", "cached", "last time"]);
        // In the order of the names for ONLY=: checks, kernels, jobs.
        for name in all.iter().filter(|name| picked.contains(*name)) {
            let last = durations.get(name).map(Duration::from_secs_f64);
            let last = last.map_or("-".to_owned(), seconds);
            let mut row = vec![name.clone()];
            if let Some(job) = jobs.iter().find(|job| job.name == *name) {
                let runs = job.runs().join(", ");
                row.extend([job.topology.name.clone(), job.needs().join(", "), runs]);
                row.push(is_cached(job)?.to_owned());
            } else if kernels.is_test(name) {
                row.extend(["-", name, "a build without a warning", "-"].map(str::to_owned));
            } else {
                let cached = match name.as_str() {
                    name if checks.contains(&name) => "yes",
                    name if check::QUICK.contains(&name) => "no",
                    _ => "never",
                };
                row.extend(["-", "-", "a check", cached].map(str::to_owned));
            }
            row.push(last);
            table.add_row(row);
        }
        println!("{table}");
        Ok(Verdict::Passed)
    }

    /// The checks with cached results. Empty without a tree.
    fn cached_checks(&self) -> Result<Vec<&'static str>> {
        let tree = tree::open(self.paths)?;
        let series = Series::read(&self.paths.root)?;
        Checker::new(self.paths, &tree, series, self.force)?.cached()
    }
}

/// Sorts by the last duration, the longest first. For jobs without one, the time limit counts.
fn longest_first(jobs: &mut [Job<'_>], durations: &Durations) {
    let seconds = |job: &Job<'_>| durations.get(&job.name).unwrap_or(job.limit() as f64);
    jobs.sort_by(|one, other| seconds(other).total_cmp(&seconds(one)));
}

/// The summary of all rounds, for the user.
fn rounds_in_words(rounds: u32, round: u32, report: &Report) -> String {
    let end = match (&report.aborted, verdict(report)) {
        (Some(_), _) => format!("round {round} was aborted"),
        (None, Verdict::Failed) => format!("round {round} failed"),
        (None, Verdict::Passed) => format!("no failure in {round} rounds"),
    };
    format!("REPEAT={rounds}: {end}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use plan::topology::Topologies;

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

    #[test]
    fn rounds_end_with_the_first_failure() {
        let mut report = Report::from(vec![Outcome::passed("a", "x")]);
        assert_eq!(
            rounds_in_words(9, 9, &report),
            "REPEAT=9: no failure in 9 rounds"
        );
        report.outcomes.push(Outcome::failed("a", "y", "no"));
        assert_eq!(rounds_in_words(9, 3, &report), "REPEAT=9: round 3 failed");
        report.aborted = Some("no QEMU".to_owned());
        assert_eq!(
            rounds_in_words(9, 1, &report),
            "REPEAT=9: round 1 was aborted"
        );
    }
}
