//! Results: counted, written as JSON and JUnit, and told at the end.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use ktap::{Case, Status};
use quick_junit::{NonSuccessKind, Report as Junit, TestCase, TestCaseStatus, TestSuite};
use serde::{Deserialize, Serialize};

use crate::vm::indent;

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
    /// What was printed before.
    pub log: Vec<String>,
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

    /// A test that was not run.
    pub fn skipped(suite: &str, name: &str, reason: impl Into<String>) -> Self {
        Self::new(suite, name, Status::Skipped, reason.into())
    }

    /// A test that fails if there is something to say.
    pub fn unless(suite: &str, name: &str, trouble: Option<String>) -> Self {
        match trouble {
            None => Self::passed(suite, name),
            Some(trouble) => Self::failed(suite, name, trouble),
        }
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
        }
    }
}

/// All results of a run.
#[derive(Default, Serialize)]
pub struct Report {
    /// In the order in which they came.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// How many ended so.
    pub fn count(&self, status: Status) -> usize {
        self.outcomes
            .iter()
            .filter(|outcome| outcome.status == status)
            .count()
    }

    /// The last line of a test run.
    pub fn closing_line(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.count(Status::Passed),
            self.count(Status::Failed),
            self.count(Status::Skipped)
        )
    }

    /// What people need to see of failures and skips; `repeat` is the command
    /// that does an outcome again.
    pub fn tell(&self, repeat: impl Fn(&Outcome) -> String) -> String {
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
        for (reason, count) in skips {
            text.push_str(&format!("skipped {count}: {reason}\n"));
        }
        text
    }

    /// Writes report.json and report.xml.
    pub fn write(&self, dir: &Path, time: Duration) -> Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("report.json"), serde_json::to_string_pretty(self)?)?;
        fs::write(dir.join("report.xml"), self.junit(time).to_string()?)?;
        Ok(())
    }

    fn junit(&self, time: Duration) -> Junit {
        let mut junit = Junit::new("p2p");
        junit.set_time(time);
        let mut suites: Vec<TestSuite> = Vec::new();
        for outcome in &self.outcomes {
            let mut status = match outcome.status {
                Status::Passed => TestCaseStatus::success(),
                Status::Failed => TestCaseStatus::non_success(NonSuccessKind::Failure),
                Status::Skipped => TestCaseStatus::skipped(),
            };
            if !outcome.reason.is_empty() {
                status.set_message(outcome.reason.clone());
            }
            let mut case = TestCase::new(outcome.name.clone(), status);
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
                    let mut suite = TestSuite::new(outcome.suite.clone());
                    suite.add_test_case(case);
                    suites.push(suite);
                }
            }
        }
        junit.add_test_suites(suites);
        junit
    }
}

/// Lines of a test's log that are shown.
const SHOWN: usize = 20;

fn failure(outcome: &Outcome, repeat: &str) -> String {
    let mut text = format!("FAILED {}: {}\n", outcome.suite, outcome.name);
    if !outcome.reason.is_empty() {
        text.push_str(&format!("{}\n", indent(&outcome.reason)));
    }
    let from = outcome.log.len().saturating_sub(SHOWN);
    if !outcome.log.is_empty() {
        text.push_str(&format!("{}\n", indent(&outcome.log[from..].join("\n"))));
    }
    text.push_str(&format!("    to repeat: {repeat}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            outcomes: vec![
                Outcome::passed("a/x", "one"),
                Outcome::failed("a/x", "two", "expected 1, seen 2"),
                Outcome::skipped("b", "three", "no device"),
                Outcome::skipped("b", "four", "no device"),
            ],
        }
    }

    #[test]
    fn the_closing_line() {
        assert_eq!(report().closing_line(), "1 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn a_failure_is_told_with_what_repeats_it() {
        let text = report().tell(|outcome| format!("make test ONLY={}", outcome.suite));
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
