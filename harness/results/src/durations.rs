//! The durations of jobs and checks in their last run. The longest start first, and shards
//! depend on them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// In build/results.
const FILE: &str = "durations.json";

/// Seconds by job or check.
#[derive(Debug, Default)]
pub struct Durations(BTreeMap<String, f64>);

impl Durations {
    /// Reads the durations. A file that cannot be read counts as empty.
    pub fn read(results: &Path) -> Self {
        let text = fs::read(results.join(FILE)).ok();
        Self(
            text.and_then(|text| serde_json::from_slice(&text).ok())
                .unwrap_or_default(),
        )
    }

    /// The duration of a job or check, if it is known.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// Merges measured durations and writes them.
    pub fn update(&mut self, results: &Path, measured: BTreeMap<String, f64>) -> Result<()> {
        self.0.extend(measured);
        let file = results.join(FILE);
        fs::write(&file, serde_json::to_string_pretty(&self.0)?)
            .with_context(|| file.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_time_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let mut durations = Durations::read(dir.path());
        assert_eq!(durations.get("a"), None);
        let measured = |name: &str, seconds| BTreeMap::from([(name.to_owned(), seconds)]);
        durations.update(dir.path(), measured("a", 1.0)).unwrap();
        durations.update(dir.path(), measured("b", 2.0)).unwrap();
        durations.update(dir.path(), measured("a", 3.0)).unwrap();
        let durations = Durations::read(dir.path());
        assert_eq!(
            (durations.get("a"), durations.get("b")),
            (Some(3.0), Some(2.0))
        );
        fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(Durations::read(dir.path()).get("a"), None);
    }
}
