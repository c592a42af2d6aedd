//! Which lines the series adds: what is looked at by [`crate::check`] and counted
//! by [`crate::coverage`].

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::git::ask;
use crate::tree::Tree;

/// The lines that the series adds, by file.
pub struct Added(BTreeMap<String, BTreeSet<usize>>);

impl Added {
    /// Those of the series in a tree.
    pub fn of(tree: &Tree) -> Result<Self> {
        let diff = ["diff", "-U0", "--no-renames", &tree.base, &tree.tip];
        Ok(Self::parse(&ask(&tree.dir, &diff)?))
    }

    /// Files that end so, without programs for user space.
    pub fn files(&self, endings: &[&str]) -> Vec<&str> {
        self.all()
            .filter(|file| !file.starts_with("tools/"))
            .filter(|file| endings.iter().any(|ending| file.ends_with(ending)))
            .collect()
    }

    /// All files.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Reads `git diff -U0`.
    pub fn parse(diff: &str) -> Self {
        let mut files = BTreeMap::new();
        let mut current: Option<&mut BTreeSet<usize>> = None;
        for line in diff.lines() {
            if let Some(name) = line.strip_prefix("+++ ") {
                // A file that goes away is /dev/null here.
                current = name
                    .strip_prefix("b/")
                    .map(|name| files.entry(name.to_owned()).or_default());
            } else if let Some(rest) = line.strip_prefix("@@ -")
                && let Some(place) = rest.split(" +").nth(1)
                && let Some(lines) = current.as_mut()
            {
                let place = place.split(' ').next().unwrap_or_default();
                let (first, count) = place.split_once(',').unwrap_or((place, "1"));
                let first: usize = first.parse().unwrap_or_default();
                let count: usize = count.parse().unwrap_or_default();
                lines.extend(first..first + count);
            }
        }
        Self(files)
    }

    /// Whether a line of a file is one of them.
    pub fn has(&self, file: &str, line: usize) -> bool {
        let found = self.0.iter().find(|(name, _)| {
            file.strip_suffix(name.as_str())
                .is_some_and(|before| before.is_empty() || before.ends_with('/'))
        });
        found.is_some_and(|(_, lines)| lines.contains(&line))
    }

    /// The messages that are about a line of the series: `file:line: text`, or
    /// text with ` --> file:line` below, as rustc writes them.
    pub fn about(&self, said: &str) -> Vec<String> {
        let lines: Vec<_> = said.lines().collect();
        let mut found = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let rustc = line.trim_start().strip_prefix("--> ");
            let text = rustc.unwrap_or(line);
            let Some((file, number)) = place(text) else {
                continue;
            };
            if !self.has(file, number) {
                continue;
            }
            match rustc {
                Some(_) if at > 0 => found.push(format!("{}\n{line}", lines[at - 1])),
                Some(_) => found.push((*line).to_owned()),
                None if complains(line) => found.push((*line).to_owned()),
                None => {}
            }
        }
        let mut seen = BTreeSet::new();
        found.retain(|text| seen.insert(text.clone()));
        found
    }
}

fn complains(line: &str) -> bool {
    let line = line.to_lowercase();
    ["warning", "error", "severe"]
        .iter()
        .any(|word| line.contains(word))
}

/// `mm/hmm.c:12:3: text` and `Warning: mm/hmm.c:12 text`
fn place(text: &str) -> Option<(&str, usize)> {
    let word = text
        .split_whitespace()
        .find(|word| word.contains(':') && word.contains('.'))?;
    let mut parts = word.split(':');
    Some((parts.next()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests;
