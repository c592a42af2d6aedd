use super::*;

fn summary(text: &str) -> Vec<(String, Status)> {
    parse(text)
        .into_iter()
        .map(|case| (case.name, case.status))
        .collect()
}

fn named(list: &[(&str, Status)]) -> Vec<(String, Status)> {
    list.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect()
}

#[test]
fn kselftest_harness() {
    let cases = parse(
        "TAP version 13\n1..3\n# Starting 3 tests from 1 test cases.\n\
         #  RUN           p2p.read ...\n#            OK  p2p.read\nok 1 p2p.read\n\
         #  RUN           p2p.write ...\n# t.c:7:write:Expected 1 (1) == 2 (2)\n\
         not ok 2 p2p.write\nok 3 p2p.thp # SKIP no huge pages\n\
         # Totals: pass:1 fail:1 xfail:0 xpass:0 skip:1 error:0\n",
    );
    assert_eq!(cases.len(), 3);
    assert_eq!(cases[0].status, Status::Passed);
    assert_eq!(cases[1].status, Status::Failed);
    assert!(cases[1].log.iter().any(|line| line.contains("Expected 1")));
    assert_eq!(cases[2].status, Status::Skipped);
    assert_eq!(cases[2].reason, "no huge pages");
}

#[test]
fn a_skip_without_a_name() {
    let cases = parse("TAP version 13\n1..1\nok 1 # SKIP not here\n");
    assert_eq!(cases[0].name, "test 1");
    assert_eq!(cases[0].status, Status::Skipped);
    assert_eq!(cases[0].reason, "not here");
}

#[test]
fn kunit_in_a_kernel_log() {
    assert_eq!(
        summary(
            "[    0.1] Linux version\n\
             [    0.500000] KTAP version 1\n[    0.5] 1..2\n\
             [    0.5]     KTAP version 1\n[    0.5]     # Subtest: ranges\n\
             [    0.5]     # module: p2pdma\n[    0.5]     1..2\n\
             [    0.5]     ok 1 insert\n[    0.5] random: crng init done\n\
             [    0.5]         KTAP version 1\n[    0.5]         # Subtest: lookup\n\
             [    0.5]         ok 1 first\n[    0.5]         not ok 2 last\n\
             [    0.5]     not ok 2 lookup\n[    0.5] # ranges: pass:1 fail:1\n\
             [    0.5] not ok 1 ranges\n\
             [    0.5]     KTAP version 1\n[    0.5]     # Subtest: empty\n\
             [    0.5]     1..1\n[    0.5]     ok 1 one # SKIP no device\n\
             [    0.5] ok 2 empty # SKIP\n"
        ),
        named(&[
            ("ranges.insert", Status::Passed),
            ("ranges.lookup.first", Status::Passed),
            ("ranges.lookup.last", Status::Failed),
            ("empty.one", Status::Skipped),
        ])
    );
}

#[test]
fn a_report_after_another_adds_to_its_plan() {
    let first = "KTAP version 1\n1..2\nok 1 a\nok 2 b\n[    1.000000] a driver loads\n";
    let second = "KTAP version 1\n1..1\n";
    let passed = [
        ("a", Status::Passed),
        ("b", Status::Passed),
        ("c", Status::Passed),
    ];
    let both = format!("{first}{second}ok 1 c\n");
    assert_eq!(summary(&both), named(&passed));
    let mut cut = passed.to_vec();
    cut[2] = ("planned tests", Status::Failed);
    assert_eq!(summary(&format!("{first}{second}")), named(&cut));
}

#[test]
fn a_crash_leaves_failures() {
    let cases = parse("KTAP version 1\n1..3\nok 1 a\n#  RUN           b ...\nBUG: unable\n");
    assert_eq!(cases.len(), 2);
    assert_eq!(cases[1].name, "b");
    assert_eq!(cases[1].status, Status::Failed);
    assert_eq!(
        cases[1].reason,
        "it did not end; 2 of 3 planned tests have no result"
    );
    assert!(cases[1].log.iter().any(|line| line.contains("BUG")));
}

#[test]
fn a_crash_inside_a_group_leaves_failures() {
    let cases = summary("KTAP version 1\n1..1\n    # Subtest: s\n    1..2\n    ok 1 a\n");
    assert_eq!(
        cases,
        named(&[
            ("s.a", Status::Passed),
            ("s.planned tests", Status::Failed),
            ("planned tests", Status::Failed),
        ])
    );
}

#[test]
fn a_group_that_fails_by_itself_is_a_failure() {
    assert_eq!(
        summary("KTAP version 1\n1..1\n    1..1\n    ok 1 a\nnot ok 1 s\n"),
        named(&[("s.a", Status::Passed), ("s", Status::Failed)])
    );
}

#[test]
fn more_results_than_planned_is_a_failure() {
    let cases = parse("TAP version 13\n1..1\nok 1 a\nok 2 b\n");
    assert_eq!(cases[2].status, Status::Failed);
}

#[test]
fn no_report_is_a_failure() {
    for text in ["", "kernel panic\n", "TAP version 13\n", "ok 1 a\n"] {
        let cases = parse(text);
        assert_eq!(cases.len(), 1, "{text:?}");
        assert_eq!(cases[0].status, Status::Failed);
    }
}

#[test]
fn bail_out_is_a_failure() {
    let cases = parse("TAP version 13\n1..2\nok 1 a\nBail out! no device\n");
    assert!(
        cases
            .iter()
            .any(|c| c.status == Status::Failed && c.reason == "no device")
    );
}

#[test]
fn an_empty_plan_says_why_or_fails() {
    let cases = parse("TAP version 13\n1..0 # SKIP no device\n");
    assert_eq!(cases.len(), 1);
    assert_eq!(cases[0].status, Status::Skipped);
    assert_eq!(cases[0].reason, "no device");
    let cases = parse("KTAP version 1\n1..0\n");
    assert_eq!(cases.len(), 1);
    assert_eq!(cases[0].status, Status::Failed);
}
