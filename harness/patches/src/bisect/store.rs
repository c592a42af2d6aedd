//! Results that a run leaves for the next one: bisect.json, and the table beside it.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use super::{StepResult, table};
use host::paths::Paths;

/// A file of results in build/results, and in Documentation/.
pub fn file(scope: &str, end: &str) -> String {
    let dash = if scope.is_empty() { "" } else { "-" };
    format!("bisect{dash}{scope}.{end}")
}

/// All results.
pub struct StepResults {
    dir: PathBuf,
    scope: String,
    /// The series that they are of.
    pub recorded: String,
    pub all: Vec<StepResult>,
}

impl StepResults {
    pub fn read(paths: &Paths, scope: &str) -> Self {
        let text = fs::read_to_string(paths.known(&file(scope, "json"))).ok();
        let all = text.and_then(|text| serde_json::from_str(&text).ok());
        Self {
            dir: paths.results(),
            scope: scope.to_owned(),
            recorded: String::new(),
            all: all.unwrap_or_default(),
        }
    }

    pub fn passed(&self, configuration: &str, number: usize, key: &str) -> bool {
        self.all.iter().any(|row| {
            row.configuration == configuration
                && row.number == number
                && row.key == key
                && row.passed()
        })
    }

    pub fn booted(&self, configuration: &str, number: usize) -> Option<bool> {
        let mut rows = self.all.iter();
        let is = |row: &&StepResult| row.configuration == configuration && row.number == number;
        rows.find(is).and_then(|row| row.booted)
    }

    pub fn put(&mut self, row: StepResult) -> Result<()> {
        self.keep(|old| old.configuration != row.configuration || old.number != row.number);
        self.all.push(row);
        self.write()
    }

    pub fn keep(&mut self, which: impl Fn(&StepResult) -> bool) {
        self.all.retain(which);
    }

    pub fn write(&mut self) -> Result<()> {
        self.all
            .sort_by_key(|row| (row.configuration.clone(), row.number));
        fs::create_dir_all(&self.dir)?;
        let json = serde_json::to_string_pretty(&self.all)?;
        fs::write(self.dir.join(file(&self.scope, "json")), json)?;
        let page = table::page(&self.all, &self.recorded);
        fs::write(self.dir.join(file(&self.scope, "md")), page)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{paths, row};
    use super::*;

    #[test]
    fn results_are_kept_for_what_they_are_of() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        let mut rows = StepResults::read(&paths, "");
        rows.put(row("i386", 2, None)).unwrap();
        rows.put(row("i386", 1, Some("error: no"))).unwrap();
        let mut rows = StepResults::read(&paths, "");
        assert!(rows.passed("i386", 2, "k"));
        assert!(!rows.passed("i386", 2, "another tree"));
        assert!(!rows.passed("i386", 1, "k"), "what failed is done again");
        assert!(!rows.passed("arm64", 2, "k"));
        rows.put(row("i386", 1, None)).unwrap();
        assert_eq!(rows.all.len(), 2);
        assert!(rows.all.iter().all(StepResult::passed));
        // A topic alone is another series: its patches have numbers of their own.
        assert!(StepResults::read(&paths, "1-mm").all.is_empty());

        // A clone goes on from what Documentation shows.
        let shown = paths.root.join("Documentation");
        fs::create_dir(&shown).unwrap();
        fs::rename(
            paths.results().join("bisect.json"),
            shown.join("bisect.json"),
        )
        .unwrap();
        let mut rows = StepResults::read(&paths, "");
        assert!(rows.passed("i386", 2, "k"));
        rows.put(row("i386", 2, Some("error: no"))).unwrap();
        assert!(!StepResults::read(&paths, "").passed("i386", 2, "k"));
    }
}
