//! Renders the reports in `tests/data`.

use std::fs;
use std::path::{Path, PathBuf};

use page::{Report, Source};

/// This repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The report with that name.
pub fn report(name: &str) -> Report {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// Its page, with the recorded results in `Documentation/`.
pub fn render(report: &Report) -> String {
    let root = root();
    let source = Source {
        root: &root,
        results: Path::new("/nonexistent"),
    };
    page::render(source, report, "26 November 2026, 14:40 UTC").unwrap()
}
