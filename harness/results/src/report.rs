//! Test results: counts, JSON, JUnit, and the summary at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use ktap::{Case, Status};
use quick_junit::{
    NonSuccessKind, Report as Junit, TestCase, TestCaseStatus, TestRerun, TestSuite,
};
use serde::{Deserialize, Serialize};

use host::paths::Paths;
use host::proc::{indent, interrupted, tail};
use host::ui::seconds;

/// A test and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The job, e.g. `selftest/switch`.
    pub suite: String,
    /// The test in it.
    pub name: String,
    /// `passed`, `failed` or `skipped`
    pub status: Status,
    /// Why it failed or was skipped.
    pub reason: String,
    /// What it printed before.
    pub log: Vec<String>,
    /// It failed because something that it needs is missing. JUnit calls that an error.
    #[serde(default)]
    pub could_not_run: bool,
    /// The file with more details, relative to the repository.
    #[serde(default)]
    pub log_file: Option<String>,
    /// How long it took, in seconds, if that is known.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// The command that repeats it, if it failed.
    #[serde(default)]
    pub repeat: Option<String>,
    /// Its row in the demo's table.
    #[serde(default)]
    pub row: Option<page::Row>,
    /// The reasons of its failures before it passed (`RETRIES=`).
    #[serde(default)]
    pub flaky: Vec<String>,
}

impl Outcome {
    /// A test that passed.
    pub fn passed(suite: &str, name: &str) -> Self {
        Self::new(suite, name, Status::Passed, String::new())
    }

    /// A test that failed.
    pub fn failed(suite: &str, name: &str, reason: impl Into<String>) -> Self {
        Self::new(suite, name, Status::Failed, reason.into())
    }

    /// A test that could not be run. It counts as failed.
    pub fn could_not_run(suite: &str, name: &str, reason: impl Into<String>) -> Self {
        Self {
            could_not_run: true,
            ..Self::failed(suite, name, reason)
        }
    }

    /// A test that was not run.
    pub fn skipped(suite: &str, name: &str, reason: impl Into<String>) -> Self {
        Self::new(suite, name, Status::Skipped, reason.into())
    }

    /// A test that fails if there is an error message.
    pub fn unless(suite: &str, name: &str, trouble: Option<String>) -> Self {
        match trouble {
            None => Self::passed(suite, name),
            Some(trouble) => Self::failed(suite, name, trouble),
        }
    }

    /// Adds the file with more details, relative to the repository.
    pub fn with_log(mut self, file: String) -> Self {
        self.log_file = Some(file);
        self
    }

    /// A test of a KTAP report.
    pub fn from_ktap(suite: &str, program: &str, case: Case) -> Self {
        let mut outcome = Self::new(
            suite,
            &format!("{program}: {}", case.name),
            case.status,
            case.reason,
        );
        outcome.log = case.log;
        outcome
    }

    fn new(suite: &str, name: &str, status: Status, reason: String) -> Self {
        Self {
            suite: suite.to_owned(),
            name: name.to_owned(),
            status,
            reason,
            log: Vec::new(),
            could_not_run: false,
            log_file: None,
            seconds: None,
            repeat: None,
            row: None,
            flaky: Vec::new(),
        }
    }
}

/// All results of a run.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// In the order in which they came.
    pub outcomes: Vec<Outcome>,
    /// What the user typed.
    pub command: String,
    /// The machine that it ran on.
    pub host: String,
    /// What was tested, and with what, as pairs of a name and a text.
    pub of: Vec<(String, String)>,
    /// How long all of it took, in seconds.
    pub taken: f64,
    /// How long each suite took, in seconds.
    pub seconds: BTreeMap<String, f64>,
    /// How long kernels took to build, in seconds. A build without changes takes little time.
    pub builds: BTreeMap<String, f64>,
    /// Suites whose results came from the cache.
    pub cached: BTreeSet<String>,
    /// The suites that the user picked.
    pub picked: BTreeSet<String>,
    /// The suites that there was no time for.
    pub left_out: BTreeSet<String>,
    /// With `REPEAT=`, the round of these results.
    pub round: Option<u32>,
    /// The error that ended the run early. The outcomes are from before the error.
    pub aborted: Option<String>,
}

/// The files that a run writes. `PREVIOUS` is the JSON of the run before.
const JSON: &str = "report.json";
const JUNIT: &str = "report.xml";
/// The page that people read.
pub const PAGE: &str = "report.html";
const PREVIOUS: &str = "previous.json";

/// How many suites the table of the slowest lists.
const SLOWEST: usize = 10;

impl From<Vec<Outcome>> for Report {
    fn from(outcomes: Vec<Outcome>) -> Self {
        Self {
            outcomes,
            ..Self::default()
        }
    }
}

impl Report {
    /// How many tests ended with that status.
    pub fn count(&self, status: Status) -> usize {
        self.outcomes
            .iter()
            .filter(|outcome| outcome.status == status)
            .count()
    }

    /// The last line of a test run.
    pub fn closing_line(&self) -> String {
        format!(
            "{}{} passed, {} failed, {} skipped",
            self.aborted.as_ref().map_or("", |_| "aborted: "),
            self.count(Status::Passed),
            self.count(Status::Failed),
            self.count(Status::Skipped)
        )
    }

    /// Counts a suite as skipped that there was no time for.
    pub fn leave_out(&mut self, suite: &str, why: &str) {
        self.left_out.insert(suite.to_owned());
        self.outcomes.push(Outcome::skipped(suite, "all", why));
    }

    /// The failures and skips, for people. `repeat` returns the command that repeats an
    /// outcome.
    pub fn summary(&self, repeat: impl Fn(&Outcome) -> String) -> String {
        let mut text = String::new();
        for outcome in &self.outcomes {
            if outcome.status == Status::Failed {
                text.push_str(&failure(outcome, &repeat(outcome)));
            }
        }
        let mut skips: Vec<(String, usize)> = Vec::new();
        for outcome in &self.outcomes {
            if outcome.status == Status::Skipped {
                let reason = format!("{}: {}", outcome.suite, outcome.reason);
                match skips.iter_mut().find(|(seen, _)| *seen == reason) {
                    Some((_, count)) => *count += 1,
                    None => skips.push((reason, 1)),
                }
            }
        }
        for outcome in self.outcomes.iter().filter(|o| !o.flaky.is_empty()) {
            let (suite, name, times) = (&outcome.suite, &outcome.name, outcome.flaky.len());
            let first = outcome.flaky[0].lines().next().unwrap_or_default();
            text.push_str(&format!(
                "flaky {suite}: {name}: failed {times} times, then passed: {first}\n"
            ));
        }
        for (reason, count) in skips {
            text.push_str(&format!("skipped {count}: {reason}\n"));
        }
        text
    }

    /// The durations of suites that ran, without cached ones.
    pub fn measured(&self) -> BTreeMap<String, f64> {
        let mut measured = self.seconds.clone();
        measured.retain(|suite, _| !self.cached.contains(suite));
        measured
    }

    /// The suites and builds that took longest.
    pub fn slowest(&self) -> String {
        let suites = self.seconds.iter();
        let suites = suites.map(|(suite, taken)| (taken, suite.clone()));
        let builds = self.builds.iter();
        let builds = builds.map(|(kernel, taken)| (taken, format!("build of kernel {kernel}")));
        let mut all = Vec::from_iter(suites.chain(builds));
        all.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        all.truncate(SLOWEST);
        let mut text = String::new();
        for (taken, what) in all {
            let taken = seconds(Duration::from_secs_f64(*taken));
            text.push_str(&format!("{taken:>12}  {what}\n"));
        }
        text
    }

    /// Sets the files of an earlier run aside, so that nobody takes them for this run's.
    /// [`Report::previous`] still finds that report, even if this run is interrupted.
    pub fn put_aside(dir: &Path) {
        let _ = fs::rename(dir.join(JSON), dir.join(PREVIOUS));
        for name in [JUNIT, PAGE] {
            let _ = fs::remove_file(dir.join(name));
        }
    }

    /// The report of the last run.
    pub fn previous(dir: &Path) -> Result<Self> {
        // The file has its old name until a new run sets it aside.
        let files = [dir.join(JSON), dir.join(PREVIOUS)];
        let file = files
            .iter()
            .find(|file| file.is_file())
            .unwrap_or(&files[0]);
        let text = fs::read(file).with_context(|| file.display().to_string())?;
        serde_json::from_slice(&text).with_context(|| file.display().to_string())
    }

    /// The suites to run again: suites with a failure, and suites that an aborted run did
    /// not reach.
    pub fn unfinished(&self) -> BTreeSet<&str> {
        let is_failed = |outcome: &&Outcome| outcome.status == Status::Failed;
        let failed = self.outcomes.iter().filter(is_failed);
        let mut suites: BTreeSet<_> = failed.map(|outcome| &*outcome.suite).collect();
        suites.extend(self.left_out.iter().map(|suite| &**suite));
        if self.aborted.is_some() {
            let is_there = |suite: &&str| self.outcomes.iter().any(|o| o.suite == **suite);
            let picked = self.picked.iter().map(|suite| &**suite);
            suites.extend(picked.filter(|suite| !is_there(suite)));
        }
        suites
    }

    /// Writes a log for each suite that has failures without a log file. It contains
    /// everything that is known about them. `short` makes a path relative to the
    /// repository.
    pub fn write_logs(&mut self, dir: &Path, short: impl Fn(&Path) -> String) -> Result<()> {
        let is_without =
            |outcome: &&mut Outcome| outcome.status == Status::Failed && outcome.log_file.is_none();
        let mut logs = BTreeMap::<PathBuf, String>::new();
        for outcome in self.outcomes.iter_mut().filter(is_without) {
            let name = format!("{}.log", outcome.suite.replace('/', "-"));
            let file = dir.join(name);
            let (reason, log) = (&outcome.reason, outcome.log.join("\n"));
            let text = format!("{}: {}\n{reason}\n{log}\n", outcome.suite, outcome.name);
            outcome.log_file = Some(short(&file));
            logs.entry(file).or_default().push_str(&text);
        }
        for (file, text) in logs {
            fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
            fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    /// Stores for each failure the command that repeats it.
    pub fn note_repeats(&mut self, repeat: impl Fn(&Outcome) -> String) {
        let all = self.outcomes.iter_mut();
        for outcome in all.filter(|outcome| outcome.status == Status::Failed) {
            outcome.repeat = Some(repeat(outcome));
        }
    }

    /// Writes report.json and report.xml.
    pub fn write(&self, dir: &Path, time: Duration) -> Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(dir.join(JSON), serde_json::to_string_pretty(self)?)?;
        fs::write(dir.join(JUNIT), self.junit(time).to_string()?)?;
        Ok(())
    }

    fn junit(&self, time: Duration) -> Junit {
        let mut junit = Junit::new("p2p");
        junit.set_time(time);
        let mut suites: Vec<TestSuite> = Vec::new();
        for outcome in &self.outcomes {
            let mut status = match outcome.status {
                Status::Passed => TestCaseStatus::success(),
                Status::Failed if outcome.could_not_run => {
                    TestCaseStatus::non_success(NonSuccessKind::Error)
                }
                Status::Failed => TestCaseStatus::non_success(NonSuccessKind::Failure),
                Status::Skipped => TestCaseStatus::skipped(),
            };
            if !outcome.reason.is_empty() {
                status.set_message(outcome.reason.clone());
            }
            if let (Status::Failed, Some(file)) = (outcome.status, &outcome.log_file) {
                status.set_description(format!("log: {file}"));
            }
            for reason in &outcome.flaky {
                let mut rerun = TestRerun::new(NonSuccessKind::Failure);
                rerun.set_message(reason.clone());
                status.add_rerun(rerun);
            }
            let mut case = TestCase::new(outcome.name.clone(), status);
            if let Some(taken) = outcome.seconds {
                case.set_time(Duration::from_secs_f64(taken));
            }
            if !outcome.log.is_empty() {
                case.set_system_out(outcome.log.join("\n"));
            }
            match suites
                .iter_mut()
                .find(|suite| suite.name.as_str() == outcome.suite)
            {
                Some(suite) => {
                    suite.add_test_case(case);
                }
                None => {
                    let mut suite = self.suite(&outcome.suite);
                    let taken = self.seconds.get(&outcome.suite);
                    if let Some(taken) = taken.or(self.builds.get(&outcome.suite)) {
                        suite.set_time(Duration::from_secs_f64(*taken));
                    }
                    suite.add_test_case(case);
                    suites.push(suite);
                }
            }
        }
        if let Some(error) = &self.aborted {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
            status.set_message(error.clone());
            let mut suite = self.suite("run");
            suite.add_test_case(TestCase::new("is not aborted", status));
            suites.push(suite);
        }
        for suite in &mut suites {
            // If a suite has one test, the test took as long as the suite.
            if let ([case], Some(taken)) = (&mut suite.test_cases[..], suite.time) {
                case.time.get_or_insert(taken);
            }
        }
        junit.add_test_suites(suites);
        junit
    }

    /// All results as KTAP: a test for each suite, with subtests.
    pub fn ktap(&self) -> String {
        let mut suites: Vec<(&str, Vec<&Outcome>)> = Vec::new();
        for outcome in &self.outcomes {
            let place = suites.iter().position(|(name, _)| *name == outcome.suite);
            let place = place.unwrap_or_else(|| {
                suites.push((&outcome.suite, Vec::new()));
                suites.len() - 1
            });
            suites[place].1.push(outcome);
        }
        let mut text = format!("KTAP version 1\n1..{}\n", suites.len());
        for (number, (suite, outcomes)) in suites.iter().enumerate() {
            let (name, count) = (plain(suite), outcomes.len());
            text.push_str(&format!(
                "    KTAP version 1\n    # Subtest: {name}\n    1..{count}\n"
            ));
            for (number, outcome) in outcomes.iter().enumerate() {
                let lines = outcome
                    .reason
                    .lines()
                    .filter(|_| outcome.status == Status::Failed);
                text.extend(lines.map(|line| format!("    # {line}\n")));
                let result = match outcome.status {
                    Status::Failed => "not ok",
                    Status::Passed | Status::Skipped => "ok",
                };
                let (number, name) = (number + 1, plain(&outcome.name));
                text.push_str(&format!("    {result} {number} {name}"));
                if outcome.status == Status::Skipped {
                    text.push_str(&format!(" # SKIP {}", plain(&outcome.reason)));
                }
                text.push('\n');
            }
            let has = |status| outcomes.iter().any(|outcome| outcome.status == status);
            let (result, end) = match (has(Status::Failed), has(Status::Passed)) {
                (true, _) => ("not ok", ""),
                (false, true) => ("ok", ""),
                (false, false) => ("ok", " # SKIP"),
            };
            text.push_str(&format!("{result} {} {name}{end}\n", number + 1));
        }
        if let Some(error) = &self.aborted {
            text.push_str(&format!("Bail out! {}\n", plain(error)));
        }
        text
    }

    fn suite(&self, name: &str) -> TestSuite {
        let mut suite = TestSuite::new(name);
        suite
            .extra
            .insert("hostname".into(), self.host.as_str().into());
        suite
    }
}

/// Writes the HTML page of a report and prints its path.
pub fn write_page(paths: &Paths, report: &impl Serialize, file: &Path) -> Result<()> {
    let report = serde_json::from_value(serde_json::to_value(report)?)?;
    let source = page::Source {
        root: &paths.root,
        results: &paths.results(),
    };
    page::write(source, &report, file)?;
    println!("page: {}", paths.short(file));
    Ok(())
}

/// A text in one line, without `#`, which begins a KTAP directive.
fn plain(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join("; ").replace('#', "")
}

/// Runs a job, and again up to `retries` times while something in it fails. A test that
/// failed before it passed is flaky. `set_aside` keeps the files of a failed run and
/// returns where they are.
pub fn retried(
    retries: u32,
    set_aside: impl Fn() -> Result<String>,
    run: impl Fn() -> Result<Vec<Outcome>>,
) -> Result<Vec<Outcome>> {
    let mut outcomes = run()?;
    let mut before: Vec<Outcome> = Vec::new();
    for _ in 0..retries {
        let is_failed = |outcome: &&Outcome| outcome.status == Status::Failed;
        if interrupted() || !outcomes.iter().any(|outcome| is_failed(&outcome)) {
            break;
        }
        let place = set_aside()?;
        for outcome in outcomes.iter().filter(is_failed) {
            let reason = format!("{} (its files: {place})", outcome.reason);
            before.push(Outcome {
                reason,
                ..outcome.clone()
            });
        }
        outcomes = run()?;
    }
    for failed in before {
        let is_same = |outcome: &&mut Outcome| outcome.name == failed.name;
        match outcomes.iter_mut().find(is_same) {
            Some(outcome) if outcome.status == Status::Failed => (),
            Some(outcome) => outcome.flaky.push(failed.reason),
            // This test only appears when it fails.
            None => outcomes.push(Outcome {
                flaky: vec![failed.reason],
                ..Outcome::passed(&failed.suite, &failed.name)
            }),
        }
    }
    Ok(outcomes)
}

/// The name of this machine.
pub fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// How many last lines of a reason, and of a test's log, are shown.
const SHOWN_REASON: usize = 40;
const SHOWN: usize = 20;

fn failure(outcome: &Outcome, repeat: &str) -> String {
    let mut text = format!("FAILED {}: {}\n", outcome.suite, outcome.name);
    if !outcome.reason.is_empty() {
        text.push_str(&format!(
            "{}\n",
            indent(&tail(&outcome.reason, SHOWN_REASON))
        ));
    }
    let from = outcome.log.len().saturating_sub(SHOWN);
    if !outcome.log.is_empty() {
        text.push_str(&format!("{}\n", indent(&outcome.log[from..].join("\n"))));
    }
    text.push_str(&format!("    to repeat: {repeat}\n"));
    if let Some(file) = &outcome.log_file {
        text.push_str(&format!("    log: {file}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report::from(vec![
            Outcome::passed("a/x", "one"),
            Outcome::failed("a/x", "two", "expected 1, seen 2"),
            Outcome::skipped("b", "three", "no device"),
            Outcome::skipped("b", "four", "no device"),
        ])
    }

    fn xml(report: &Report) -> String {
        let dir = tempfile::tempdir().unwrap();
        report.write(dir.path(), Duration::from_secs(1)).unwrap();
        fs::read_to_string(dir.path().join("report.xml")).unwrap()
    }

    #[test]
    fn an_aborted_run_does_not_look_whole() {
        let mut report = Report::from(vec![Outcome::passed("a/x", "one")]);
        assert_eq!(report.closing_line(), "1 passed, 0 failed, 0 skipped");
        assert_eq!(xml(&report).matches("<error").count(), 0);
        report.aborted = Some("no QEMU".to_owned());
        assert_eq!(
            report.closing_line(),
            "aborted: 1 passed, 0 failed, 0 skipped"
        );
        let xml = xml(&report);
        assert!(xml.contains("<error") && xml.contains("no QEMU"), "{xml}");
    }

    #[test]
    fn what_could_not_run_is_an_error() {
        let report = Report::from(vec![Outcome::could_not_run("a/x", "runs", "no kernel")]);
        assert_eq!(report.closing_line(), "0 passed, 1 failed, 0 skipped");
        let xml = xml(&report);
        assert_eq!(xml.matches("<error").count(), 1, "{xml}");
        assert_eq!(xml.matches("<failure").count(), 0, "{xml}");
    }

    #[test]
    fn what_passes_the_second_time_is_flaky() {
        let round = std::cell::Cell::new(0);
        let asides = std::cell::Cell::new(0);
        let run_of = |retries| {
            round.set(0);
            asides.set(0);
            let aside = || {
                asides.set(asides.get() + 1);
                Ok("build/run/a/x.1".to_owned())
            };
            let run = || {
                round.set(round.get() + 1);
                let mut all = vec![Outcome::failed("a/x", "one", "always")];
                match round.get() {
                    1 | 2 => all.push(Outcome::failed("a/x", "two", "lost a race")),
                    _ => all.push(Outcome::passed("a/x", "two")),
                }
                if round.get() == 1 {
                    all.push(Outcome::failed("a/x", "exit status", "139"));
                }
                Ok(all)
            };
            retried(retries, aside, run).unwrap()
        };
        let once = run_of(0);
        assert!(round.get() == 1 && asides.get() == 0);
        assert!(once.iter().all(|outcome| outcome.flaky.is_empty()));
        let outcomes = run_of(3);
        assert!(round.get() == 4 && asides.get() == 3);
        let of = |name: &str| outcomes.iter().find(|o| o.name == name).unwrap();
        assert!(of("one").status == Status::Failed && of("one").flaky.is_empty());
        assert_eq!(
            (of("two").status, of("two").flaky.len()),
            (Status::Passed, 2)
        );
        assert!(of("two").flaky[0].contains("lost a race (its files: build/run/a/x.1)"));
        assert_eq!(of("exit status").flaky.len(), 1);
        let report = Report::from(outcomes);
        assert_eq!(report.closing_line(), "2 passed, 1 failed, 0 skipped");
        let text = report.summary(|_| String::new());
        assert!(text.contains("flaky a/x: two: failed 2 times"), "{text}");
        assert_eq!(xml(&report).matches("<flakyFailure").count(), 3);
    }

    #[test]
    fn ktap_says_the_same() {
        let mut report = report();
        report.outcomes[1].reason = "expected 1\nseen 2".to_owned();
        let text = report.ktap();
        let cases = ktap::parse(&text);
        let of = |name: &str| {
            let case = cases.iter().find(|case| case.name.ends_with(name)).unwrap();
            case.status
        };
        assert_eq!(of("one"), Status::Passed);
        assert_eq!(of("two"), Status::Failed);
        assert_eq!(of("three"), Status::Skipped);
        assert!(text.contains("    # seen 2\n    not ok 2 two\n"), "{text}");
        assert!(text.contains("\nnot ok 1 a/x\n"), "{text}");
        assert!(text.contains("\nok 2 b # SKIP\n"), "{text}");
        report.aborted = Some("no\nQEMU".to_owned());
        assert!(report.ktap().ends_with("Bail out! no; QEMU\n"));
    }

    #[test]
    fn the_slowest_come_first() {
        let mut report = report();
        report.seconds.insert("a/x".to_owned(), 5.0);
        report.seconds.insert("b".to_owned(), 61.0);
        let text = report.slowest();
        assert!(
            text.find("  b\n").unwrap() < text.find("  a/x\n").unwrap(),
            "{text}"
        );
        assert!(xml(&report).contains("time=\"61.000\""), "{}", xml(&report));
    }

    #[test]
    fn junit_has_times_and_the_host() {
        let mut report = report();
        report.host = "lab3".to_owned();
        report.outcomes[0].seconds = Some(4.0);
        report.seconds.insert("a/x".to_owned(), 5.0);
        report.outcomes.push(Outcome::passed("plain", "built"));
        report.builds.insert("plain".to_owned(), 600.0);
        let text = xml(&report);
        assert_eq!(text.matches("hostname=\"lab3\"").count(), 3, "{text}");
        let case = |name: &str| {
            let (_, case) = text
                .split_once(&format!("<testcase name=\"{name}\""))
                .unwrap();
            let (case, _) = case.split_once('>').unwrap();
            let time = case
                .split_once("time=\"")
                .map(|(_, time)| time.split('"').next());
            time.flatten().map(str::to_owned)
        };
        assert_eq!(case("one").as_deref(), Some("4.000"));
        assert_eq!(case("two"), None);
        assert_eq!(case("built").as_deref(), Some("600.000"));
        assert!(
            report
                .slowest()
                .contains("10 min 0 s  build of kernel plain\n")
        );
    }

    #[test]
    fn every_failure_names_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("logs");
        let mut report = report();
        let long = Vec::from_iter((0..100).map(|line| format!("line {line}"))).join("\n");
        report.outcomes.push(Outcome::failed("same/x", "y", long));
        let other = Outcome::could_not_run("m/switch", "runs", "no kernel");
        report
            .outcomes
            .push(other.with_log("build/logs/build-plain.log".to_owned()));
        report
            .write_logs(&logs, |file| {
                format!("L/{}", file.file_name().unwrap().display())
            })
            .unwrap();
        let is_named = |outcome: &Outcome| outcome.log_file.is_some();
        let failed = |outcome: &Outcome| outcome.status == Status::Failed;
        assert!(report.outcomes.iter().all(|o| is_named(o) == failed(o)));
        let text = report.summary(|_| "make".to_owned());
        assert_eq!(text.matches("FAILED").count(), 3);
        let named = ["a-x.log", "same-x.log"].map(|name| format!("    log: L/{name}\n"));
        assert!(named.iter().all(|line| text.contains(line)), "{text}");
        assert!(text.contains("    log: build/logs/build-plain.log\n"));
        // The log has the lines that the summary leaves out.
        assert!(!text.contains("line 0\n") && text.contains("line 99\n"));
        let log = fs::read_to_string(logs.join("same-x.log")).unwrap();
        assert!(log.contains("same/x: y\nline 0\n"), "{log}");
        assert!(xml(&report).contains("log: L/a-x.log"));
    }

    #[test]
    fn results_of_an_earlier_run_are_not_those_of_this_one() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Report::previous(dir.path()).is_err());
        report().write(dir.path(), Duration::from_secs(1)).unwrap();
        for _interrupted in 0..2 {
            Report::put_aside(dir.path());
            let left = fs::read_dir(dir.path()).unwrap();
            let left = Vec::from_iter(left.map(|file| file.unwrap().file_name()));
            assert_eq!(left, [PREVIOUS]);
            assert_eq!(Report::previous(dir.path()).unwrap().outcomes.len(), 4);
        }
        let new = Report::from(vec![Outcome::passed("c", "one")]);
        new.write(dir.path(), Duration::from_secs(1)).unwrap();
        assert_eq!(Report::previous(dir.path()).unwrap().outcomes.len(), 1);
    }

    #[test]
    fn what_failed_or_was_not_reached_is_unfinished() {
        let mut report = report();
        report.picked = ["a/x", "b", "c"].map(str::to_owned).into();
        assert_eq!(Vec::from_iter(report.unfinished()), ["a/x"]);
        report.aborted = Some("no QEMU".to_owned());
        assert_eq!(Vec::from_iter(report.unfinished()), ["a/x", "c"]);
        report.aborted = None;
        report.leave_out("debug/x", "no time");
        assert_eq!(Vec::from_iter(report.unfinished()), ["a/x", "debug/x"]);
    }

    #[test]
    fn a_report_of_an_older_tool_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let old = r#"{"outcomes": [{"suite": "style", "name": "clippy", "status": "failed",
            "reason": "", "log": []}], "seconds": {}, "aborted": null}"#;
        fs::write(dir.path().join(JSON), old).unwrap();
        let old = Report::previous(dir.path()).unwrap();
        assert_eq!(Vec::from_iter(old.unfinished()), ["style"]);
    }

    #[test]
    fn the_page_shows_what_is_written() {
        let mut report = report();
        report.command = "make test".to_owned();
        report.of = vec![("series".to_owned(), "129 patches".to_owned())];
        report.taken = 7.0;
        report.seconds.insert("a/x".to_owned(), 5.0);
        report.cached.insert("b".to_owned());
        report.aborted = Some("no QEMU".to_owned());
        report.note_repeats(|outcome| format!("make test ONLY={}", outcome.suite));
        let value = serde_json::to_value(&report).unwrap();
        let shown: page::Report = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(shown.command, report.command);
        assert_eq!(shown.of, report.of);
        assert_eq!((shown.taken, &shown.aborted), (7.0, &report.aborted));
        assert_eq!(
            (&shown.seconds, &shown.cached),
            (&report.seconds, &report.cached)
        );
        let repeats = Vec::from_iter(shown.outcomes.iter().map(|outcome| &outcome.repeat));
        let repeat = Some("make test ONLY=a/x".to_owned());
        assert_eq!(repeats, [&None, &repeat, &None, &None]);
        // The tool reads the command back as well.
        let read: Report = serde_json::from_value(value).unwrap();
        assert_eq!(read.outcomes[1].repeat, repeat);
    }

    #[test]
    fn the_closing_line() {
        assert_eq!(report().closing_line(), "1 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn a_failure_is_told_with_what_repeats_it() {
        let text = report().summary(|outcome| format!("make test ONLY={}", outcome.suite));
        assert!(
            text.contains("FAILED a/x: two\n    expected 1, seen 2\n"),
            "{text}"
        );
        assert!(text.contains("make test ONLY=a/x"), "{text}");
        assert!(text.contains("skipped 2: b: no device"), "{text}");
    }

    #[test]
    fn both_files_hold_every_test() {
        let dir = tempfile::tempdir().unwrap();
        report().write(dir.path(), Duration::from_secs(1)).unwrap();
        let json = fs::read_to_string(dir.path().join("report.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["outcomes"].as_array().unwrap().len(), 4);
        assert_eq!(json["outcomes"][1]["status"], "failed");
        let xml = fs::read_to_string(dir.path().join("report.xml")).unwrap();
        assert_eq!(xml.matches("<testcase").count(), 4);
        assert_eq!(xml.matches("<failure").count(), 1);
    }
}
