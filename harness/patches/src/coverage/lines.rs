//! How often each line ran, and the coverage of a series.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use serde::Serialize;

use super::Unreached;
use crate::diff::Diff;

/// How often each line with code ran, by file and number.
#[derive(Debug, Default)]
pub struct Lines(BTreeMap<String, BTreeMap<usize, u64>>);

impl Lines {
    /// Adds the output of `gcov --stdout` for files in `tree`.
    pub fn add(&mut self, said: &str, tree: &Path) -> Result<()> {
        let mut file: Option<&mut BTreeMap<usize, u64>> = None;
        for line in said.lines() {
            // "        -:    0:Source:mm/hmm.c", "        2:   17:	text"
            let mut parts = line.splitn(3, ':').map(str::trim);
            let (Some(count), Some(number), Some(text)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            if number == "0" {
                if let Some(path) = text.strip_prefix("Source:") {
                    let path = Path::new(path);
                    let path = path.strip_prefix(tree).unwrap_or(path);
                    file = Some(self.0.entry(path.display().to_string()).or_default());
                }
                continue;
            }
            // Lines without code have no count.
            if count == "-" {
                continue;
            }
            // An asterisk means that a part of the line did not run.
            let count = match count.trim_end_matches('*') {
                "#####" | "=====" => 0,
                count => count.parse().with_context(|| line.to_owned())?,
            };
            let number: usize = number.parse().with_context(|| line.to_owned())?;
            if let Some(file) = file.as_mut() {
                *file.entry(number).or_default() += count;
            }
        }
        Ok(())
    }

    /// Adds a count to a line.
    pub fn see(&mut self, file: &str, number: usize, count: u64) {
        let file = self.0.entry(file.to_owned()).or_default();
        *file.entry(number).or_default() += count;
    }

    /// The lines that the series adds to `files`, in lcov's tracefile format.
    pub fn tracefile(&self, added: &Diff, files: &[&str]) -> String {
        let mut text = String::new();
        for file in files {
            let counts = self.of(file).into_iter().flatten();
            let counts = Vec::from_iter(counts.filter(|(number, _)| added.has(file, **number)));
            if counts.is_empty() {
                continue;
            }
            let _ = writeln!(text, "TN:series\nSF:{file}");
            for (number, count) in &counts {
                let _ = writeln!(text, "DA:{number},{count}");
            }
            let reached = counts.iter().filter(|(_, count)| **count > 0).count();
            let _ = writeln!(text, "LF:{}\nLH:{reached}\nend_of_record", counts.len());
        }
        text
    }

    fn of(&self, file: &str) -> Option<&BTreeMap<usize, u64>> {
        self.0.get(file)
    }
}

/// The coverage of the series.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The run with these counts, in words.
    pub recorded: String,
    files: Vec<File>,
    /// Reasons that match no unreached line.
    needless: Vec<String>,
}

/// The coverage of a file.
#[derive(Debug, Serialize)]
struct File {
    file: String,
    /// The number of added lines with code. `None` if the file was not in the kernel.
    lines: Option<usize>,
    reached: usize,
    unreached: Vec<Line>,
    /// Why the file was not in the kernel.
    reason: Option<String>,
}

/// A line that no test reaches.
#[derive(Debug, Serialize)]
struct Line {
    number: usize,
    text: String,
    reason: Option<String>,
}

impl Summary {
    /// Computes the coverage of the lines that the series adds to `files`.
    pub fn new(
        lines: &Lines,
        added: &Diff,
        files: &[&str],
        tree: &Path,
        reasons: &[Unreached],
    ) -> Result<Self> {
        let mut summary = Vec::new();
        for file in files {
            let Some(counts) = lines.of(file) else {
                // A header may have no code.
                if file.ends_with(".h") {
                    continue;
                }
                summary.push(File {
                    file: (*file).to_owned(),
                    lines: None,
                    reached: 0,
                    unreached: Vec::new(),
                    reason: reason(reasons, file, None),
                });
                continue;
            };
            let text = fs::read_to_string(tree.join(file)).with_context(|| (*file).to_owned())?;
            let text: Vec<_> = text.lines().collect();
            let mut reached = 0;
            let mut unreached = Vec::new();
            // A line right after an unreached line is unreached for the same reason.
            let mut before = None;
            for (number, count) in counts
                .iter()
                .filter(|(number, _)| added.has(file, **number))
            {
                if *count > 0 {
                    reached += 1;
                    before = None;
                    continue;
                }
                let text = text.get(number - 1).unwrap_or(&"").trim();
                before = reason(reasons, file, Some(text)).or(before);
                unreached.push(Line {
                    number: *number,
                    text: text.to_owned(),
                    reason: before.clone(),
                });
            }
            summary.push(File {
                file: (*file).to_owned(),
                lines: Some(reached + unreached.len()),
                reached,
                unreached,
                reason: None,
            });
        }
        let needless = needless(reasons, &summary);
        Ok(Self {
            recorded: String::new(),
            files: summary,
            needless,
        })
    }

    /// Whether every unreached line and file has a reason.
    pub fn is_explained(&self) -> bool {
        self.files.iter().all(|file| {
            (file.lines.is_some() || file.reason.is_some())
                && file.unreached.iter().all(|line| line.reason.is_some())
        })
    }

    /// In Markdown.
    pub fn tables(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["file", "added lines of code", "reached", ""]);
        let mut add = |file: &str, lines: usize, reached: usize| {
            let (lines, share) = (lines.to_string(), share(reached, lines));
            table.add_row([file, &lines, &reached.to_string(), &share]);
        };
        let (mut all, mut reached) = (0, 0);
        for file in &self.files {
            let Some(lines) = file.lines.filter(|lines| *lines > 0) else {
                continue;
            };
            all += lines;
            reached += file.reached;
            add(&file.file, lines, file.reached);
        }
        add("all", all, reached);
        let mut text = format!("{table}\n");
        let unknown = || "**no reason is known**".to_owned();
        let mut absent = BTreeMap::<_, Vec<_>>::new();
        let mut missed = BTreeMap::<_, Vec<_>>::new();
        for file in &self.files {
            if file.lines.is_none() {
                let reason = file.reason.clone().unwrap_or_else(unknown);
                absent.entry(reason).or_default().push(file.file.clone());
            }
            for line in &file.unreached {
                let reason = line.reason.clone().unwrap_or_else(unknown);
                let lines = missed.entry(reason).or_default();
                lines.push(format!("{}:{}: {}", file.file, line.number, line.text));
            }
        }
        if !missed.is_empty() {
            text.push_str("\nLines that no test reaches, by reason.\n");
            text.push_str(&listing(&missed));
        }
        if !absent.is_empty() {
            text.push_str("\nFiles that are not in the kernel that counts, by reason.\n");
            text.push_str(&listing(&absent));
        }
        if !self.needless.is_empty() {
            text.push_str("\nReasons that nothing needed this time:\n\n");
            for reason in &self.needless {
                let _ = writeln!(text, "    {reason}");
            }
        }
        text
    }
}

fn share(part: usize, whole: usize) -> String {
    match whole {
        0 => "–".to_owned(),
        _ => format!("{} %", part * 100 / whole),
    }
}

/// The reason for a line, or for a whole file.
fn reason(reasons: &[Unreached], file: &str, line: Option<&str>) -> Option<String> {
    let found = reasons.iter().find(|reason| {
        let whole = reason.lines.is_empty();
        reason.is_of(file)
            && (whole
                || line.is_some_and(|line| reason.lines.iter().any(|part| line.contains(part))))
    });
    found.map(|reason| reason.reason.clone())
}

/// Reasons without an unreached line. Some are for lines that rarely run, so a later run
/// may need them.
fn needless(reasons: &[Unreached], files: &[File]) -> Vec<String> {
    let is_missed = |reason: &Unreached, part: &str| {
        files.iter().any(|file| {
            reason.is_of(&file.file) && file.unreached.iter().any(|line| line.text.contains(part))
        })
    };
    let mut needless = Vec::new();
    for reason in reasons {
        let parts = reason.lines.iter();
        for part in parts.filter(|part| !is_missed(reason, part)) {
            needless.push(format!("{}: {part:?}: {}", reason.file, reason.reason));
        }
    }
    needless
}

/// A listing of the unreached lines by reason, for people.
fn listing(by_reason: &BTreeMap<String, Vec<String>>) -> String {
    let mut text = String::new();
    for (reason, lines) in by_reason {
        let _ = writeln!(text, "\n{reason}:\n");
        for line in lines {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}
