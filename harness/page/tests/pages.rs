//! Tests of the page's content.

mod common;

use std::fs;
use std::path::Path;

use page::{Report, Source};
use proptest::prelude::*;

#[test]
fn failures_come_first_with_the_command_that_repeats_them() {
    let html = common::render(&common::report("run.json"));
    let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("no {text:?}"));
    assert!(place("3 failed") < place("id=\"failures\""));
    assert!(place("id=\"failures\"") < place("id=\"demo\""));
    assert!(place("make demo ONLY=demo-mlx5/small-bar") < place("id=\"demo\""));
    assert!(place("build/run/demo-mlx5/small-bar/out/0.log") < place("id=\"demo\""));
    // A suite with a failure comes before a suite that ran earlier.
    let results = &html[place("id=\"results\"")..];
    let suite = |name: &str| results.find(&format!(">{name}</b>")).unwrap();
    assert!(suite("selftest/switch") < suite("demo/switch"));
}

#[test]
fn a_picture_for_each_topology_has_the_ways_of_the_run() {
    let html = common::render(&common::report("run.json"));
    for entry in fs::read_dir(common::root().join("qemu/topologies")).unwrap() {
        let name = entry.unwrap().path();
        let name = name.file_stem().unwrap().to_str().unwrap();
        assert!(
            html.contains(&format!("<figcaption><b>{name}</b>")),
            "{name}"
        );
    }
    let picture = |name: &str| {
        let (_, rest) = html
            .split_once(&format!("<figcaption><b>{name}</b>"))
            .unwrap();
        rest.split_once("</figure>").unwrap().0.to_owned()
    };
    let ways = |name: &str| {
        let picture = picture(name);
        let ways = picture.split("class=\"way ").skip(1);
        let classes = ways.map(|way| way.split('"').next().unwrap().to_owned());
        // Each class appears in the drawing and in the legend.
        let mut classes = Vec::from_iter(classes);
        classes.truncate(classes.len() / 2);
        classes
    };
    assert_eq!(ways("switch"), ["bus seen"]);
    assert_eq!(ways("host-bridge"), ["host-bridge seen"]);
    assert_eq!(ways("small-bar"), ["bus seen", "home seen"]);
    assert_eq!(ways("two-gpus"), ["bus seen", "home seen"]);
    assert_eq!(ways("blocked"), ["home seen"]);
    assert_eq!(
        ways("many"),
        ["bus expected", "bus expected", "home expected"]
    );
    assert!(picture("iommu").contains("HOST_BRIDGE (IOVA)"));
    assert!(picture("two-gpus").contains("GPU 1: p2ptest + mlx5"));
}

#[test]
fn recorded_results_say_when_and_of_what() {
    let html = common::render(&common::report("run.json"));
    let of = |id: &str| {
        let (_, rest) = html.split_once(&format!("<section id=\"{id}\">")).unwrap();
        rest.split_once("</section>").unwrap().0.to_owned()
    };
    for (id, target) in [
        ("benchmarks", "make bench"),
        ("coverage", "make coverage"),
        ("mutants", "make mutants"),
    ] {
        let section = of(id);
        assert!(section.contains("Recorded on "), "{section}");
        assert!(section.contains(target), "{section}");
    }
    assert!(of("mutants").contains(" caught"));
    assert!(of("coverage").contains(" lines reached"));
    assert!(of("benchmarks").contains("<img src=\"data:image/svg+xml,"));
}

#[test]
fn results_of_this_machine_count_more_than_recorded_ones() {
    let dir = tempfile::tempdir().unwrap();
    let said = "Recorded on 1 January 2027, of the series with tree `0123456789ab`.\n\n\
                | file | n | m | |\n|---|---|---|---|\n| all | 9 | 8 | 88 % |\n";
    fs::write(dir.path().join("coverage.md"), said).unwrap();
    let root = common::root();
    let source = Source {
        root: &root,
        results: dir.path(),
    };
    let html = page::render(source, &Report::default(), "now").unwrap();
    assert!(html.contains("8 of 9 lines reached"), "{html}");
    assert!(html.contains("Recorded on 1 January 2027, of the series with tree 0123456789ab"));
}

#[test]
fn nothing_that_was_run_is_told() {
    let html = page::render(
        Source {
            root: &common::root(),
            results: Path::new("/nonexistent"),
        },
        &Report {
            aborted: Some("no <QEMU>".to_owned()),
            ..Report::default()
        },
        "now",
    )
    .unwrap();
    assert!(html.contains("No test was run") && html.contains("Aborted"));
    assert!(html.contains("no &#60;QEMU&#62;"), "{html}");
    assert!(!html.contains("<section id=\"demo\">"));
}

#[test]
fn hardware_has_its_own_page() {
    let html = common::render(&common::report("hardware.json"));
    for text in [
        "next: boot with pci=disable_acs_redir=0000:02:00.0;0000:02:01.0",
        "ib_write_bw, policy auto: <b>11840.2 MB/s</b>",
        "Failed to &#60;init&#62;",
        "ACS redirects peer-to-peer requests",
        "<td class=\"key\">0000:03:00.0</td><td>0000:04:00.0</td>",
    ] {
        assert!(html.contains(text), "{text}");
    }
    // Nothing about virtual machines is on the page of real hardware.
    assert!(!html.contains("<section id=\"topologies\">"));
}

#[test]
fn speed_has_its_table_and_picture() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("x.svg"), "<svg/>").unwrap();
    let root = common::root();
    let source = Source {
        root: &root,
        results: dir.path(),
    };
    let mut report = common::report("hardware.json");
    let title = "Three ways to memory in the GPU";
    assert!(
        !page::render(source, &report, "now")
            .unwrap()
            .contains(title)
    );
    report.speed = "| bytes |\n|---|\n| 4096 |\n\n![plot](x.svg)\n".to_owned();
    let html = page::render(source, &report, "now").unwrap();
    for text in [title, "<td>4096</td>", "data:image/svg+xml,%3Csvg/%3E"] {
        assert!(html.contains(text), "{text}: {html}");
    }
}

/// A report in which every text is `text`.
fn of(text: &str) -> Report {
    let row = serde_json::json!({
        "topology": text, "devices": text, "scenario": text, "map_type": text, "peer": text,
        "home": text, "migrations": text, "bytes": text, "intact": text, "why": text,
    });
    serde_json::from_value(serde_json::json!({
        "command": text, "host": text, "of": [[text, text]], "aborted": text,
        "outcomes": [
            { "suite": text, "name": text, "status": "failed", "reason": text, "log": [text],
              "log_file": text, "repeat": text, "row": row },
            { "suite": "x", "name": text, "status": "skipped", "reason": text, "log": [text] },
        ],
        "kernel": text, "log": [text],
        "findings": [{ "check": text, "state": text, "found": text, "next": text }],
        "measured": [{ "program": text, "policy": text, "figure": 1.0, "unit": text,
                       "pages": { text: 1 }, "error": text }],
        "doctor": {
            "devices": [{ "address": text, "kind": text, "driver": text, "below": ["pci", "x"] }],
            "pairs": [{ "provider": text, "client": text, "verdict": text, "path": text,
                        "works": text, "in_place": text }],
            "obstacles": [{ "effect": text, "what": text, "at": [text], "next": text,
                            "parameter": text }],
        },
    }))
    .unwrap()
}

/// Counts the characters that make tags and end attributes.
fn marks(html: &str) -> [usize; 3] {
    ['<', '>', '"'].map(|mark| html.matches(mark).count())
}

proptest! {
    #[test]
    fn no_text_becomes_a_tag(text in "([<>&\"'/=a-z -]|\\PC|\\p{Cc}){1,40}") {
        // "x" would be the same suite as "x" below, and a cell with "-" as its reason gets
        // a class.
        prop_assume!(text != "x" && text != "-");
        let plain = common::render(&of("y"));
        prop_assert_eq!(marks(&common::render(&of(&text))), marks(&plain), "{:?}", text);
    }
}
