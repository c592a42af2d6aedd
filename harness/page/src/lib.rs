//! Shows the results of a run as one HTML page without scripts, which needs no network:
//! [`write`] is where to start.
//!
//! The page shows the tool's JSON, `qemu/topologies`, and recorded results from the same
//! directory or from `Documentation/`. It does not judge anything.

// Not in unit tests, because the tests in tests/ use more crates.
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use askama::Template;

mod hardware;
mod markdown;
mod picture;
mod recorded;
mod report;
mod results;
mod topology;

use hardware::Hardware;
use picture::Picture;
use recorded::Recorded;
pub use report::{Outcome, Report, Row};
use results::{Skips, Suite, Test, Totals};

/// Where a page finds what is not in the report.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The repository: topologies, and the recorded results in `Documentation/`.
    pub root: &'a Path,
    /// Results of this machine. They take precedence over the recorded ones.
    pub results: &'a Path,
}

#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    report: &'a Report,
    written: String,
    totals: Totals,
    failures: Vec<Test<'a>>,
    skips: Vec<Skips<'a>>,
    suites: Vec<Suite<'a>>,
    hardware: Option<Hardware<'a>>,
    pictures: Vec<Picture>,
    recorded: Vec<Recorded>,
}

/// Writes the page of a report to `file`.
pub fn write(source: Source<'_>, report: &Report, file: &Path) -> Result<()> {
    let html = render(source, report, &now())?;
    fs::write(file, html).with_context(|| file.display().to_string())
}

/// Renders the page of a report. `written` is the time of writing, as text.
pub fn render(source: Source<'_>, report: &Report, written: &str) -> Result<String> {
    let hardware = Hardware::of(report, source.results);
    let (pictures, recorded) = match hardware {
        // Pictures and recorded results are about virtual machines.
        Some(_) => (Vec::new(), Vec::new()),
        None => (
            topology::pictures(source.root, report)?,
            Recorded::all(source)?,
        ),
    };
    let page = Page {
        report,
        written: written.to_owned(),
        totals: Totals::of(&report.outcomes),
        failures: results::failures(report),
        skips: results::skips(report),
        suites: results::suites(report),
        hardware,
        pictures,
        recorded,
    };
    Ok(page.render()?)
}

/// The time, in the format of `date`.
fn now() -> String {
    let said = std::process::Command::new("date")
        .env("LC_ALL", "C")
        .args(["-u", "+%-d %B %Y, %H:%M UTC"])
        .output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    said.unwrap_or_default()
}
