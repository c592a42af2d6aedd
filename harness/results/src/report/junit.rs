//! Results as JUnit, which CI services read.

use std::time::Duration;

use ktap::Status;
use quick_junit::{
    NonSuccessKind, Report as Junit, TestCase, TestCaseStatus, TestRerun, TestSuite,
};

use super::Report;

/// All results: a suite for each job, check and kernel.
pub fn junit(report: &Report, time: Duration) -> Junit {
    let mut junit = Junit::new("p2p");
    junit.set_time(time);
    let mut suites: Vec<TestSuite> = Vec::new();
    for outcome in &report.outcomes {
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
        if outcome.status == Status::Failed {
            // Some services show the text alone, and not the message.
            let log = outcome.log_file.iter().map(|file| format!("log: {file}"));
            let lines = [outcome.reason.clone()].into_iter().chain(log);
            status.set_description(Vec::from_iter(lines).join("\n"));
        }
        for reason in &outcome.flaky {
            let mut rerun = TestRerun::new(NonSuccessKind::Failure);
            rerun.set_message(reason.clone());
            status.add_rerun(rerun);
        }
        let mut case = TestCase::new(outcome.name.clone(), status);
        // By class and name services tell tests apart.
        case.set_classname(outcome.suite.clone());
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
                let mut suite = suite_of(report, &outcome.suite);
                let taken = report.seconds.get(&outcome.suite);
                if let Some(taken) = taken.or(report.builds.get(&outcome.suite)) {
                    suite.set_time(Duration::from_secs_f64(*taken));
                }
                suite.add_test_case(case);
                suites.push(suite);
            }
        }
    }
    if let Some(error) = &report.aborted {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_message(error.clone());
        status.set_description(error.clone());
        let mut suite = suite_of(report, "run");
        let mut case = TestCase::new("is not aborted", status);
        case.set_classname("run");
        suite.add_test_case(case);
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

fn suite_of(report: &Report, name: &str) -> TestSuite {
    let mut suite = TestSuite::new(name);
    suite
        .extra
        .insert("hostname".into(), report.host.as_str().into());
    suite
}
