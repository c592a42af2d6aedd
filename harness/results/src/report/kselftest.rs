//! Results as KTAP, which programs of the kernel read.

use ktap::Status;

use super::{Outcome, Report};

/// All results as KTAP: a test for each suite, with subtests.
pub fn ktap(report: &Report) -> String {
    let mut suites: Vec<(&str, Vec<&Outcome>)> = Vec::new();
    for outcome in &report.outcomes {
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
    if let Some(error) = &report.aborted {
        text.push_str(&format!("Bail out! {}\n", plain(error)));
    }
    text
}

/// A text in one line, without `#`, which begins a KTAP directive.
fn plain(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join("; ").replace('#', "")
}
