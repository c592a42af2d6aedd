//! Shows the results of a run as one page of HTML, which needs no network and no scripts:
//! [`write`] is where to start.
//!
//! The page is of the data that the tool writes as JSON, of `qemu/topologies`, and of the
//! results that are recorded beside it or in `Documentation/`. It judges nothing.

// Not of unit tests: those in tests/ use more.
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

/// Where a page takes what the report does not have.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The repository: topologies, and results that are recorded in `Documentation/`.
    pub root: &'a Path,
    /// Results of this machine, which count more than those recorded.
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

/// The page of a report, written at a time that is given in words.
pub fn render(source: Source<'_>, report: &Report, written: &str) -> Result<String> {
    let hardware = Hardware::of(report);
    let (pictures, recorded) = match hardware {
        // These are of virtual machines.
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

/// The time, as `date` says it.
fn now() -> String {
    let said = std::process::Command::new("date")
        .env("LC_ALL", "C")
        .args(["-u", "+%-d %B %Y, %H:%M UTC"])
        .output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    said.unwrap_or_default()
}
