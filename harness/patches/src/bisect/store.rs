//! Stores results for the next run: bisect.json, and the table beside it.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{StepResult, table};
use crate::recorded;
use host::paths::Paths;

/// The name of a results file in build/results and in results/.
pub fn file(scope: &str, end: &str) -> String {
    let dash = if scope.is_empty() { "" } else { "-" };
    format!("bisect{dash}{scope}.{end}")
}

/// All results.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepResults {
    #[serde(skip)]
    dir: PathBuf,
    #[serde(skip)]
    scope: String,
    /// The last run that added some of them.
    pub recorded: String,
    pub all: Vec<StepResult>,
}

impl StepResults {
    /// Reads the results of runs on this machine. Before the first run, reads the recorded
    /// ones.
    pub fn read(paths: &Paths, scope: &str) -> Result<Self> {
        let name = file(scope, "json");
        let (dir, here) = (paths.results(), paths.results().join(&name));
        let is_here = here.is_file();
        let file = if is_here {
            here
        } else {
            paths.recorded().join(name)
        };
        let mut read = match fs::read_to_string(&file) {
            Ok(text) => serde_json::from_str(&text)
                .with_context(|| format!("{}; remove it to begin anew", file.display()))?,
            Err(error) if error.kind() == ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(error).context(file.display().to_string()),
        };
        for row in read.all.iter_mut().filter(|_| !is_here) {
            row.recorded.get_or_insert(read.recorded.clone());
        }
        let scope = scope.to_owned();
        Ok(Self { dir, scope, ..read })
    }

    pub fn passed(&self, configuration: &str, number: usize, key: &str) -> bool {
        self.all.iter().any(|row| {
            row.configuration == configuration
                && row.number == number
                && row.key == key
                && row.passed()
        })
    }

    /// Whether any patch failed in this configuration.
    pub fn has_failures(&self, configuration: &str) -> bool {
        let mut rows = self.all.iter();
        rows.any(|row| row.configuration == configuration && !row.passed())
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
        let json = serde_json::to_string_pretty(&self)?;
        recorded::replace(&self.dir.join(file(&self.scope, "json")), &json)?;
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
        let mut rows = StepResults::read(&paths, "").unwrap();
        rows.put(row("i386", 2, None)).unwrap();
        rows.put(row("i386", 1, Some("error: no"))).unwrap();
        let mut rows = StepResults::read(&paths, "").unwrap();
        assert!(rows.passed("i386", 2, "k"));
        assert!(!rows.passed("i386", 2, "another tree"));
        assert!(!rows.passed("i386", 1, "k"), "what failed is done again");
        assert!(!rows.passed("arm64", 2, "k"));
        rows.put(row("i386", 1, None)).unwrap();
        assert_eq!(rows.all.len(), 2);
        assert!(rows.all.iter().all(StepResult::passed));
        // A single topic is another series. Its patches have their own numbers.
        assert!(StepResults::read(&paths, "1-mm").unwrap().all.is_empty());

        // A clone continues from the recorded results and marks them.
        rows.recorded = "Recorded on 1 May 2026.".to_owned();
        rows.write().unwrap();
        let page = || fs::read_to_string(paths.results().join("bisect.md")).unwrap();
        assert!(!page().contains("(recorded)"), "{}", page());
        let [here, there] = [paths.results(), paths.recorded()].map(|dir| dir.join("bisect.json"));
        fs::create_dir(paths.recorded()).unwrap();
        fs::rename(here, there).unwrap();
        let mut rows = StepResults::read(&paths, "").unwrap();
        assert!(rows.passed("i386", 2, "k"));
        rows.recorded = "Recorded on 2 May 2026.".to_owned();
        rows.write().unwrap();
        assert_eq!(page().matches("builds (recorded)").count(), 2, "{}", page());
        let last = "are not of this run. Recorded on 1 May 2026.\n";
        assert!(page().ends_with(last), "{}", page());
        rows.put(row("i386", 2, Some("error: no"))).unwrap();
        assert!(
            !StepResults::read(&paths, "")
                .unwrap()
                .passed("i386", 2, "k")
        );
        // What cannot be read is not thrown away.
        let file = paths.results().join("bisect.json");
        fs::write(&file, "{").unwrap();
        let error = StepResults::read(&paths, "").err().unwrap();
        assert!(error.to_string().contains("remove it"), "{error:#}");
    }
}
