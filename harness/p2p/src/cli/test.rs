//! `make test` and `make list`: how often everything runs, and how it ends.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::run::{Run, aborted, verdict};
use host::status::{self, Verdict, status_of};
use plan::job::Plan;
use plan::kernels::Kernels;
use results::report::Report;

mod choice;
mod list;
mod round;

pub use choice::Options;
use choice::{Choice, suites};

const MINUTE: Duration = Duration::from_secs(60);

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
        let mut written = write(&status_file, &status_of(&result).to_string());
        if !usage {
            // If they cannot be read, nothing was run.
            let same = Plan::read(&self.paths.root).map_or(Vec::new(), |plan| plan.same);
            let kernels = Kernels::read(&self.paths.root);
            let is_kernel = |name: &str| kernels.as_ref().is_ok_and(|all| all.has(name));
            let picked = report.picked.clone();
            let finished = self.finish(&mut report, &results, start, |outcome| {
                if is_kernel(&outcome.suite) && !picked.contains(&outcome.suite) {
                    return format!("make build ONLY={}", outcome.suite);
                }
                if outcome.suite == round::ALL {
                    return "make test".to_owned();
                }
                let only = suites(&outcome.suite, &same).join(",");
                let test = test.as_ref().map(|test| format!(" TEST={test}"));
                format!("make test ONLY={only}{}", test.unwrap_or_default())
            });
            if let (Some(rounds), Some(round)) = (repeat, report.round) {
                host::outln!("{}", rounds_in_words(rounds, round, &report));
            }
            let closing_line = report.closing_line();
            host::outln!("{closing_line}");
            if wants_ktap {
                host::out!("{}", report.ktap());
            }
            let line = format!("{closing_line}\n");
            written = written
                .and(finished)
                .and_then(|()| write(&results.join("closing-line"), &line));
        }
        // What ended the run is more important than what it could not write.
        result.and_then(|verdict| written.map(|()| verdict))
    }

    /// Runs all picked tests as often as the user wants, or until one fails. Returns the
    /// last round's results, and the tests that were flaky in any round.
    fn rounds(&self, choice: &Choice, start: Instant) -> (Report, Result<()>) {
        let rounds = choice.repeat.unwrap_or(1);
        let until = choice.minutes.map(|minutes| start + MINUTE * minutes);
        let mut round = 1;
        let mut flaky = Vec::new();
        loop {
            let report = Mutex::new(Report {
                round: choice.repeat.map(|_| round),
                ..Report::default()
            });
            let result = self.round(choice, until, &report);
            let mut report = report.into_inner().expect("no panic holds it");
            // `FAIL_FAST=1` may have ended it as well.
            report.aborted = aborted(&result).or(report.aborted);
            let has_time = report.left_out.is_empty();
            let is_last = round == rounds || report.picked.is_empty() || !has_time;
            if report.aborted.is_some() || is_last || verdict(&report) == Verdict::Failed {
                report.add_flaky(flaky);
                return (report, result);
            }
            flaky.extend(report.flaky().cloned());
            let line = report.closing_line();
            self.ui.say(format!("round {round} of {rounds}: {line}"));
            round += 1;
        }
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| file.display().to_string())
}

/// The summary of all rounds, for the user.
fn rounds_in_words(rounds: u32, round: u32, report: &Report) -> String {
    let end = match (verdict(report), &report.aborted) {
        (Verdict::Failed, _) => format!("round {round} failed"),
        (Verdict::Passed, Some(_)) => format!("round {round} was aborted"),
        (Verdict::Passed, None) => format!("no failure in {round} rounds"),
    };
    format!("REPEAT={rounds}: {end}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use results::report::Outcome;

    #[test]
    fn rounds_end_with_the_first_failure() {
        let mut report = Report::from(vec![Outcome::passed("a", "x")]);
        assert_eq!(
            rounds_in_words(9, 9, &report),
            "REPEAT=9: no failure in 9 rounds"
        );
        report.aborted = Some("no QEMU".to_owned());
        assert_eq!(
            rounds_in_words(9, 1, &report),
            "REPEAT=9: round 1 was aborted"
        );
        report.outcomes.push(Outcome::failed("a", "y", "no"));
        assert_eq!(rounds_in_words(9, 3, &report), "REPEAT=9: round 3 failed");
    }
}
