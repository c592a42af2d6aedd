//! Checks that Documentation/hardware.md names the lines of the kernel that it means.
//! `hardware.lines` has the text of each line.

use std::fs;
use std::path::Path;

mod common;

/// A line of the kernel: file, number, and its text.
type Line = (String, usize, String);

/// The lines that a page names, each as `FILE:NUMBER` between backquotes, in order.
fn named(page: &str) -> Vec<(String, usize)> {
    let quoted = page.split('`').skip(1).step_by(2);
    let mut named: Vec<_> = quoted
        .filter_map(|text| {
            let (file, number) = text.split_once(':')?;
            let number = number.parse().ok()?;
            file.contains('/').then(|| (file.to_owned(), number))
        })
        .collect();
    named.sort();
    named.dedup();
    named
}

/// Parses the record: `FILE:NUMBER: TEXT`.
fn record(text: &str) -> Vec<Line> {
    let parse = |line: &str| {
        let mut parts = line.splitn(3, ':');
        let (file, number) = (parts.next()?, parts.next()?.parse().ok()?);
        Some((file.to_owned(), number, parts.next()?.trim().to_owned()))
    };
    let parse = |line| parse(line).unwrap_or_else(|| panic!("hardware.lines: {line}"));
    text.lines().map(parse).collect()
}

/// Where a line is now: the nearest with the same text.
fn now(source: &str, (_, number, text): &Line) -> Option<usize> {
    let lines = (1_usize..).zip(source.lines());
    let same = lines.filter(|(_, line)| line.trim() == text);
    same.map(|(at, _)| at).min_by_key(|at| at.abs_diff(*number))
}

/// With `HARDWARE_WRITE`, the test writes new numbers of lines that have moved into page and
/// record. What it cannot find, or what the page names for the first time, needs a reader.
#[test]
fn the_page_names_the_lines_that_it_means() {
    let page_file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Documentation/hardware.md");
    let record_file = common::folder().join("../hardware.lines");
    let mut page = fs::read_to_string(&page_file).unwrap();
    let mut lines = record(&fs::read_to_string(&record_file).unwrap());
    let recorded: Vec<_> = lines
        .iter()
        .map(|(file, at, _)| (file.clone(), *at))
        .collect();
    let named = named(&page);
    assert!(named.len() > 100, "{named:?}");
    assert_eq!(
        named, recorded,
        "hardware.lines must have the lines that hardware.md names"
    );
    let mut moved = Vec::new();
    for line in &mut lines {
        let Some(source) = common::source(&line.0) else {
            return;
        };
        let at = now(&source, line);
        let at = at.unwrap_or_else(|| panic!("{} has no longer: {}", line.0, line.2));
        if at != line.1 {
            let (old, new) = (
                format!("`{}:{}`", line.0, line.1),
                format!("`{}:{at}`", line.0),
            );
            // A mark keeps a number that another line had from being replaced twice.
            page = page.replace(&old, &new.replace(':', ":\0"));
            moved.push(format!("{old} is now {new}"));
            line.1 = at;
        }
    }
    if std::env::var_os("HARDWARE_WRITE").is_some() {
        lines.sort();
        let lines = lines
            .iter()
            .map(|(file, at, text)| format!("{file}:{at}: {text}\n"));
        fs::write(&record_file, lines.collect::<String>()).unwrap();
        fs::write(&page_file, page.replace('\0', "")).unwrap();
    } else {
        let next = "HARDWARE_WRITE=1 cargo test -p doctor --test hardware";
        assert!(moved.is_empty(), "{}\n{next}", moved.join("\n"));
    }
}
