//! The English of pages and of messages: proselint, and phrases that are hard to read.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Checker;
use host::proc::output;
use host::ui::Ui;
use kernel::series::name;
use results::report::Outcome;

/// The part of qemu/check.toml that is about prose.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Files with prose, as globs.
    pages: Vec<String>,
    /// Sources, as globs. Only their comments are read, and only for `phrases`.
    comments: Vec<String>,
    /// Files that are written by this tool.
    generated: Vec<String>,
    /// Checks of proselint that are turned off.
    off: Vec<String>,
    /// Phrases, each with what to write instead.
    phrases: BTreeMap<String, String>,
}

/// Reads all pages and messages.
pub fn run(checker: &Checker<'_>, ui: &Ui) -> Result<Vec<Outcome>> {
    let config = &checker.settings.prose;
    let proselint = match setup::proselint(checker.paths, ui) {
        Ok(program) => program,
        // Without a network, proselint cannot be installed.
        Err(error) => {
            let why = format!("{error:#}");
            return Ok(vec![Outcome::skipped("prose", "pages and messages", why)]);
        }
    };
    let texts = texts(checker, config)?;

    let scratch = tempfile::tempdir_in(checker.paths.build())?;
    // proselint resolves links.
    let folder = scratch.path().canonicalize()?;
    for (file, text) in &texts {
        let copy = folder.join(file);
        fs::create_dir_all(copy.parent().expect("it has a folder"))?;
        fs::write(copy, text)?;
    }
    let off: BTreeMap<_, _> = config.off.iter().map(|name| (name, false)).collect();
    let settings = folder.join("settings.json");
    fs::write(&settings, json!({ "checks": off }).to_string())?;
    let mut command = Command::new(proselint);
    command
        .current_dir(&folder)
        .args(["check", "--output-format", "json", "--config"])
        .arg(&settings)
        .args(texts.keys());
    let (_, out, err) = output(&mut command)?;
    let said: Value = serde_json::from_str(&out).with_context(|| format!("proselint: {err}"))?;

    let mut outcomes = Vec::new();
    for (file, text) in &texts {
        let uri = format!("file://{}", folder.join(file).display());
        let mut lines = complaints(&said["result"][uri.as_str()])
            .with_context(|| format!("proselint says nothing of {file}: {err}"))?;
        lines.extend(phrases(text, &config.phrases));
        let lines: Vec<_> = lines
            .iter()
            .map(|(line, what)| format!("{file}:{line}: {what}"))
            .collect();
        let trouble = (!lines.is_empty()).then(|| lines.join("\n"));
        outcomes.push(Outcome::unless("prose", file, trouble));
    }
    let lines = comment_lines(&checker.paths.root, config)?;
    let trouble = (!lines.is_empty()).then(|| lines.join("\n"));
    outcomes.push(Outcome::unless("prose", "comments", trouble));
    Ok(outcomes)
}

/// Phrases to avoid in comments of sources.
fn comment_lines(root: &Path, config: &Config) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (file, text) in matching(root, &config.comments)? {
        let found = phrases(&comments(&file, &text), &config.phrases).into_iter();
        lines.extend(found.map(|(line, what)| format!("{file}:{line}: {what}")));
    }
    Ok(lines)
}

/// The files that match these globs: their paths relative to `root`, and their contents.
fn matching(root: &Path, globs: &[String]) -> Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    for pattern in globs {
        for path in glob::glob(&root.join(pattern).to_string_lossy())? {
            let path = path?;
            let file = path.strip_prefix(root)?.to_string_lossy().into_owned();
            texts.insert(file, fs::read_to_string(&path)?);
        }
    }
    Ok(texts)
}

/// The prose of each file, by its path relative to the repository.
fn texts(checker: &Checker<'_>, config: &Config) -> Result<BTreeMap<String, String>> {
    let mut texts = matching(&checker.paths.root, &config.pages)?;
    texts.retain(|file, _| !config.generated.contains(file));
    for page in texts.values_mut() {
        *page = prose(page);
    }
    for patch in &checker.series.patches {
        let text = fs::read_to_string(patch)?;
        texts.insert(format!("patches/{}", name(patch)), message(&text));
    }
    Ok(texts)
}

/// A page without code and numbers, line by line, because proselint does not parse
/// Markdown. A heading counts as a sentence, and so does a table cell.
fn prose(page: &str) -> String {
    let is_digit = |character: char| character.is_ascii_digit();
    let mut in_code = false;
    let mut text = String::new();
    for line in page.lines() {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        if !in_code && !is_fence && !line.starts_with("    ") {
            // Every other part is code.
            for (index, part) in line.split('`').enumerate() {
                let words = part.replace(" | ", " . ").replace(is_digit, "");
                text.push_str(if index % 2 == 0 { &words } else { "…" });
            }
            text.push_str(if line.starts_with('#') { "." } else { "" });
        }
        text.push('\n');
    }
    text
}

/// The comments of a source, line by line. The name of the file says how they begin.
fn comments(file: &str, source: &str) -> String {
    let marks: &[&str] = match Path::new(file).extension().and_then(OsStr::to_str) {
        Some("rs") => &["//"],
        Some("c" | "h") => &["//", "/*", "* "],
        _ => &["#"],
    };
    let mut text = String::new();
    for line in source.lines().map(str::trim_start) {
        if marks.iter().any(|mark| line.starts_with(mark)) {
            text.push_str(line.trim_matches(['/', '!', '*', '#', ' ']));
        }
        text.push('\n');
    }
    text
}

/// The message of a mail, line by line, without indented lines, which are tables and commands.
fn message(mail: &str) -> String {
    let mut in_body = false;
    let mut text = String::new();
    for line in mail.lines() {
        if line == "---" || line == "-- " {
            break;
        }
        if in_body && !line.starts_with("  ") {
            text.push_str(line);
        }
        in_body |= line.is_empty();
        text.push('\n');
    }
    text
}

/// proselint's messages about a file, by line. `None` if it has not checked the file.
fn complaints(file: &Value) -> Option<Vec<(u64, String)>> {
    let found = file["diagnostics"].as_array()?;
    let complaint = |one: &Value| {
        let what = one["message"].as_str().unwrap_or_default();
        (
            one["pos"][0].as_u64().unwrap_or_default(),
            what.replace('\n', " "),
        )
    };
    Some(found.iter().map(complaint).collect())
}

/// Phrases to avoid, by line. A phrase may continue on the next line.
fn phrases(text: &str, avoid: &BTreeMap<String, String>) -> Vec<(u64, String)> {
    let flat = text.to_lowercase().replace('\n', " ");
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let mut found = Vec::new();
    for (phrase, better) in avoid {
        for (at, _) in flat.match_indices(phrase.as_str()) {
            let before = flat[..at].chars().next_back();
            let after = flat[at + phrase.len()..].chars().next();
            if ![before, after].into_iter().flatten().any(is_word) {
                let line = 1 + text[..at].matches('\n').count() as u64;
                found.push((line, format!("\"{phrase}\": write {better}")));
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_no_prose() {
        let page = "# 12 One\n`code` two\n    indented\n\n```\nfenced\n```\n| a | b |\n";
        assert_eq!(prose(page), "#  One.\n… two\n\n\n\n\n\n| a . b |\n");
    }

    #[test]
    fn only_comments_of_a_source_are_prose() {
        let source = "//! All\n/// but\n    // for one.\nlet but_for = \"but for\"; // but for\n";
        assert_eq!(comments("a.rs", source), "All\nbut\nfor one.\n\n");
        let avoid = BTreeMap::from([("but for".to_owned(), "\"except\"".to_owned())]);
        assert_eq!(phrases(&comments("a.rs", source), &avoid).len(), 1);
        let source = "/* One */\n\t/*\n\t * two\n\t */\n*three = 3;\n#define FOUR\n";
        assert_eq!(comments("a/b.c", source), "One\n\ntwo\n\n\n\n");
        for file in ["Makefile", "a.sh", "b.toml"] {
            assert_eq!(comments(file, "#!/bin/sh\nx\n# One\n"), "bin/sh\n\nOne\n");
        }
    }

    #[test]
    fn the_comments_of_this_repository_have_no_such_phrase() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let settings = host::settings::read::<Value>(&root.join("qemu/check.toml")).unwrap();
        let config: Config = serde_json::from_value(settings["prose"].clone()).unwrap();
        assert_eq!(comment_lines(&root, &config).unwrap(), [""; 0]);
        // Each glob finds something.
        for pattern in &config.comments {
            let found = matching(&root, std::slice::from_ref(pattern)).unwrap();
            assert!(!found.is_empty(), "{pattern}");
        }
    }

    #[test]
    fn a_message_is_what_people_read() {
        let mail = "From: x\nSubject: y\n\nText.\n\n  table\n---\n diff\n";
        assert_eq!(message(mail), "\n\n\nText.\n\n\n");
    }

    #[test]
    fn phrases_are_whole_words_and_go_on_in_the_next_line() {
        let avoid = BTreeMap::from([("but for".to_owned(), "\"except\"".to_owned())]);
        let found = phrases("All\nbut\nfor one. But forever.", &avoid);
        assert_eq!(found, [(2, "\"but for\": write \"except\"".to_owned())]);
    }

    #[test]
    fn a_file_that_was_not_looked_at_is_noticed() {
        let said = json!({ "diagnostics": [{ "message": "a\nb", "pos": [7, 1] }] });
        assert_eq!(complaints(&said), Some(vec![(7, "a b".to_owned())]));
        assert_eq!(complaints(&said["no such file"]), None);
    }
}
