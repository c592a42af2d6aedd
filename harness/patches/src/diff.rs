//! Finds the lines that the series adds, for [`crate::check`] and [`crate::coverage`].

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use host::git::ask;
use kernel::tree::Tree;

/// The lines that the series adds, by file.
pub struct Diff(BTreeMap<String, BTreeSet<usize>>);

impl Diff {
    /// The lines that the series in a tree adds.
    pub fn of(tree: &Tree) -> Result<Self> {
        let diff = ["diff", "-U0", "--no-renames", &tree.base, &tree.tip];
        Ok(Self::parse(&ask(&tree.dir, &diff)?))
    }

    /// Files with one of these endings, without programs for user space.
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

    /// Parses `git diff -U0`.
    pub fn parse(diff: &str) -> Self {
        let mut files = BTreeMap::new();
        let mut current: Option<&mut BTreeSet<usize>> = None;
        for line in diff.lines() {
            if let Some(name) = line.strip_prefix("+++ ") {
                // The new name of a deleted file is /dev/null.
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

    /// Whether a line of a file was added.
    pub fn has(&self, file: &str, line: usize) -> bool {
        let found = self.0.iter().find(|(name, _)| {
            file.strip_suffix(name.as_str())
                .is_some_and(|before| before.is_empty() || before.ends_with('/'))
        });
        found.is_some_and(|(_, lines)| lines.contains(&line))
    }
}

#[cfg(test)]
mod tests;
