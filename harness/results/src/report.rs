//! Test results: counts, JSON, JUnit, and the summary at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ktap::{Case, Status};
use serde::{Deserialize, Serialize};

use host::paths::Paths;
use host::proc::{indent, interrupted, tail};
use host::ui::seconds;

mod junit;
mod kselftest;

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

    /// The tests that failed before they passed.
    pub fn flaky(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes
            .iter()
            .filter(|outcome| !outcome.flaky.is_empty())
    }

    /// Adds what was flaky in earlier rounds. Of a test that now failed, the failure counts.
    pub fn add_flaky(&mut self, earlier: Vec<Outcome>) {
        for earlier in earlier {
            let is_same = |outcome: &&mut Outcome| {
                outcome.suite == earlier.suite && outcome.name == earlier.name
            };
            match self.outcomes.iter_mut().find(is_same) {
                Some(outcome) if outcome.status == Status::Passed => {
                    outcome.flaky.splice(..0, earlier.flaky);
                }
                Some(_) => (),
                None => self.outcomes.push(earlier),
            }
        }
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
        for outcome in self.flaky() {
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
        let json = dir.join(JSON);
        if read(&json).is_ok_and(|report| report.picked_nothing()) {
            let _ = fs::remove_file(json);
        } else {
            let _ = fs::rename(json, dir.join(PREVIOUS));
        }
        for name in [JUNIT, PAGE] {
            let _ = fs::remove_file(dir.join(name));
        }
    }

    /// The report of the last run that picked any tests.
    pub fn previous(dir: &Path) -> Result<Self> {
        // The file has its old name until a new run sets it aside.
        match read(&dir.join(JSON)) {
            Ok(report) if !report.picked_nothing() => Ok(report),
            last => read(&dir.join(PREVIOUS)).or_else(|_| {
                last?;
                bail!("the last run was aborted before it picked any tests")
            }),
        }
    }

    /// Whether an error ended the run before it knew what to run. Then it says nothing about
    /// what failed or was not reached.
    fn picked_nothing(&self) -> bool {
        self.aborted.is_some() && self.picked.is_empty()
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
        fs::write(dir.join(JUNIT), junit::junit(self, time).to_string()?)?;
        Ok(())
    }

    /// All results as KTAP: a test for each suite, with subtests.
    pub fn ktap(&self) -> String {
        kselftest::ktap(self)
    }
}

fn read(file: &Path) -> Result<Report> {
    let text = fs::read(file).with_context(|| file.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| file.display().to_string())
}

/// Writes the HTML page of a report and prints its path.
pub fn write_page(paths: &Paths, report: &impl Serialize, file: &Path) -> Result<()> {
    let report = serde_json::from_value(serde_json::to_value(report)?)?;
    let source = page::Source {
        root: &paths.root,
        results: &paths.results(),
    };
    page::write(source, &report, file)?;
    host::outln!("page: {}", paths.short(file));
    Ok(())
}

/// Runs a job, and again up to `retries` times while something in it fails. A test that
/// failed before it passed is flaky. A test that is skipped or absent later stays failed.
/// `set_aside` keeps the files of a failed run and returns where they are.
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
            Some(outcome) if outcome.status == Status::Passed => outcome.flaky.push(failed.reason),
            Some(outcome) => *outcome = failed,
            // These only appear when they are failures.
            None if is_of_run(&failed.name) => {
                outcomes.push(Outcome {
                    flaky: vec![failed.reason],
                    ..Outcome::passed(&failed.suite, &failed.name)
                });
            }
            None => outcomes.push(failed),
        }
    }
    Ok(outcomes)
}

/// Whether a result of that name is no test, and only appears when it is a failure.
fn is_of_run(name: &str) -> bool {
    let mut ends = ktap::OF_OUTPUT.iter().chain(&["exit status"]);
    ends.any(|end| name.ends_with(end))
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
mod tests;
