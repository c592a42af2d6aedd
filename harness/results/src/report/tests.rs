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

/// Services tell tests apart by class and name, and some show the text alone.
#[test]
fn junit_tells_tests_of_two_jobs_apart() {
    let mut failed = Outcome::failed("mlx5/iommu", "a quiet kernel log", "BUG: no");
    failed.log_file = Some("build/run/console.log".to_owned());
    let passed = Outcome::passed("mlx5/switch", "a quiet kernel log");
    let xml = xml(&Report::from(vec![passed, failed]));
    for class in ["mlx5/switch", "mlx5/iommu"] {
        assert_eq!(
            xml.matches(&format!("classname=\"{class}\"")).count(),
            1,
            "{xml}"
        );
    }
    assert!(
        xml.contains(">BUG: no\nlog: build/run/console.log<"),
        "{xml}"
    );
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
            match round.get() {
                1 => all.push(Outcome::failed("a/x", "three", "lost a byte")),
                _ => all.push(Outcome::skipped("a/x", "three", "no device")),
            }
            if round.get() == 1 {
                all.push(Outcome::failed("a/x", "four", "lost a page"));
                all.push(Outcome::failed("a/x", "five: planned tests", "1 of 2"));
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
    assert_eq!(of("five: planned tests").flaky.len(), 1);
    // What did not run again has not passed.
    for name in ["three", "four"] {
        assert!(of(name).status == Status::Failed && of(name).flaky.is_empty());
    }
    assert!(of("three").reason.contains("lost a byte"));
    let report = Report::from(outcomes);
    assert_eq!(report.closing_line(), "3 passed, 3 failed, 0 skipped");
    let text = report.summary(|_| String::new());
    assert!(text.contains("flaky a/x: two: failed 2 times"), "{text}");
    assert_eq!(xml(&report).matches("<flakyFailure").count(), 4);
}

#[test]
fn what_was_flaky_in_an_earlier_round_stays_in_the_report() {
    let flaky = |name: &str, why: &str| Outcome {
        flaky: vec![why.to_owned()],
        ..Outcome::passed("a/x", name)
    };
    let failed = Outcome::failed("a/x", "two", "lost a byte");
    let mut report = Report::from(vec![flaky("one", "second"), failed]);
    report.add_flaky(vec![
        flaky("one", "first"),
        flaky("two", "slow"),
        flaky("three", "gone"),
    ]);
    assert_eq!(report.outcomes[0].flaky, ["first", "second"]);
    assert!(report.outcomes[1].flaky.is_empty());
    assert_eq!(report.closing_line(), "2 passed, 1 failed, 0 skipped");
    let text = report.summary(|_| String::new());
    for line in ["one: failed 2 times", "three: failed 1 times"] {
        assert!(text.contains(line), "{text}");
    }
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
fn a_run_that_picked_nothing_hides_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let aborted = Report {
        aborted: Some("a typo in a topology".to_owned()),
        ..Report::default()
    };
    let write = |report: &Report| report.write(dir.path(), Duration::from_secs(1)).unwrap();
    write(&aborted);
    let error = Report::previous(dir.path()).err().unwrap().to_string();
    assert!(error.contains("before it picked any tests"), "{error}");
    write(&report());
    for _ in 0..2 {
        Report::put_aside(dir.path());
        write(&aborted);
        assert_eq!(Report::previous(dir.path()).unwrap().unfinished().len(), 1);
    }
    Report::put_aside(dir.path());
    assert_eq!(Report::previous(dir.path()).unwrap().unfinished().len(), 1);
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
