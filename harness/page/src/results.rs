//! Tests, grouped by result and by suite.

use ktap::Status;

use crate::report::{Outcome, Report};

/// The number of last log lines shown for a test that did not fail.
const SHOWN: usize = 20;

/// How many tests have each result.
pub struct Totals {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Totals {
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        let mut totals = Self {
            passed: 0,
            failed: 0,
            skipped: 0,
        };
        for outcome in outcomes {
            *match outcome.status {
                Status::Passed => &mut totals.passed,
                Status::Failed => &mut totals.failed,
                Status::Skipped => &mut totals.skipped,
            } += 1;
        }
        totals
    }

    /// The overall result.
    pub fn word(&self) -> &'static str {
        match self {
            Self { failed: 1.., .. } => "failed",
            Self { passed: 1.., .. } => "passed",
            _ => "skipped",
        }
    }

    /// The counts in words, without zeros.
    pub fn in_words(&self) -> String {
        let parts = [
            (self.failed, "failed"),
            (self.passed, "passed"),
            (self.skipped, "skipped"),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        let parts = parts.map(|(count, word)| format!("{count} {word}"));
        Vec::from_iter(parts).join(", ")
    }
}

/// A test with its log.
pub struct Test<'a> {
    pub outcome: &'a Outcome,
    /// How it ended.
    pub word: &'static str,
    pub log: String,
}

impl<'a> Test<'a> {
    fn of(outcome: &'a Outcome) -> Self {
        let (word, shown) = match outcome.status {
            Status::Passed => ("passed", SHOWN),
            Status::Failed => ("failed", usize::MAX),
            Status::Skipped => ("skipped", SHOWN),
        };
        let from = outcome.log.len().saturating_sub(shown);
        Self {
            outcome,
            word,
            log: outcome.log[from..].join("\n"),
        }
    }
}

/// Tests that failed.
pub fn failures(report: &Report) -> Vec<Test<'_>> {
    let all = report.outcomes.iter();
    let failed = all.filter(|outcome| outcome.status == Status::Failed);
    failed.map(Test::of).collect()
}

/// Tests of a suite that were skipped for the same reason.
pub struct Skips<'a> {
    pub suite: &'a str,
    pub reason: &'a str,
    pub count: usize,
}

/// Tests that were skipped.
pub fn skips(report: &Report) -> Vec<Skips<'_>> {
    let mut all: Vec<Skips<'_>> = Vec::new();
    let outcomes = report.outcomes.iter();
    for outcome in outcomes.filter(|outcome| outcome.status == Status::Skipped) {
        let (suite, reason) = (&*outcome.suite, &*outcome.reason);
        let mut seen = all.iter_mut();
        match seen.find(|skips| (skips.suite, skips.reason) == (suite, reason)) {
            Some(skips) => skips.count += 1,
            None => all.push(Skips {
                suite,
                reason,
                count: 1,
            }),
        }
    }
    all
}

/// A suite and its tests.
pub struct Suite<'a> {
    pub name: &'a str,
    pub totals: Totals,
    /// How long it took, or that it was cached.
    pub taken: String,
    pub tests: Vec<Test<'a>>,
}

/// Suites with failures come first. The others keep their order.
pub fn suites(report: &Report) -> Vec<Suite<'_>> {
    let mut by_name: Vec<(&str, Vec<&Outcome>)> = Vec::new();
    for outcome in &report.outcomes {
        match by_name.iter_mut().find(|(name, _)| *name == outcome.suite) {
            Some((_, outcomes)) => outcomes.push(outcome),
            None => by_name.push((&outcome.suite, vec![outcome])),
        }
    }
    let suites = by_name.into_iter().map(|(name, outcomes)| Suite {
        name,
        totals: Totals::of(outcomes.iter().copied()),
        taken: taken(report, name),
        tests: outcomes.into_iter().map(Test::of).collect(),
    });
    let mut suites = Vec::from_iter(suites);
    suites.sort_by_key(|suite| suite.totals.failed == 0);
    suites
}

fn taken(report: &Report, suite: &str) -> String {
    if report.cached.contains(suite) {
        return "cached".to_owned();
    }
    let seconds = report.seconds.get(suite).or(report.builds.get(suite));
    seconds.map_or(String::new(), |seconds| duration(*seconds))
}

/// As `12 s` or `3 min 4 s`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        _ => format!("{} min {} s", whole / 60, whole % 60),
    }
}
