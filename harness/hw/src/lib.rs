//! Tests the series on real hardware. First it reports what the host has and what it
//! lacks, because disabled peer-to-peer DMA looks like slow peer-to-peer DMA. Then it runs
//! perftest, and the selftests, which compare contents.
//!
//! It changes the host in two ways only: it sets the policy, which it restores, and it
//! loads test_hmm while the tests of that module run.

#![warn(unused_crate_dependencies)]
// See host::ui.
#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;

use checks::{Finding, State, Survey};
use host::paths::Paths;
use host::status::Verdict;
use host::ui::Ui;
use ktap::Status;
use perftest::Measured;
use results::report::{self, Outcome, Report};
use speed::Speed;
use sysroot::Host;
use table::markdown;

mod checks;
mod perftest;
mod selftests;
mod speed;
mod sysroot;
mod table;

/// perftest's options that put its buffer into the GPU and keep it there.
pub const GPU_OPTIONS: &str = "--use_opencl=0 --gpu_touch=infinite";

/// The command that repeats everything.
const COMMAND: &str = "make hw-test";

/// The report in build/results, which owners of hardware send back.
#[derive(Serialize)]
struct Record<'a> {
    command: &'static str,
    host: String,
    kernel: String,
    /// The error that ended the run early.
    aborted: Option<String>,
    /// The report of p2p-doctor.
    doctor: &'a doctor::report::Report,
    findings: &'a [Finding],
    measured: &'a [Measured],
    speeds: &'a [Speed],
    /// The same as Markdown, for the page.
    speed: String,
    outcomes: &'a [Outcome],
    log: Vec<String>,
}

/// Checks the host below `sysroot`, and tests it if possible.
pub fn run(paths: &Paths, ui: &Ui, sysroot: &Path, gpu_options: &str) -> Result<Verdict> {
    let host = Host::at(sysroot);
    let known = doctor::Known::read()?;
    let seen = doctor::Host::new(doctor::capture::take(sysroot, &known));
    let diagnosis = doctor::diagnose::diagnose(&seen, &known);
    let survey = checks::survey(&host, &seen, &known, &diagnosis);
    host::out!("{}", in_words(&survey.findings));

    let mut measured = Vec::new();
    let mut outcomes = Vec::new();
    let result = test(
        paths,
        ui,
        &host,
        &survey,
        gpu_options,
        &mut measured,
        &mut outcomes,
    );
    let mut report = Report::from(outcomes);
    report.write_logs(&paths.logs(), |file| paths.short(file))?;
    report.note_repeats(|_| COMMAND.to_owned());
    let speeds = speed::read(&report.outcomes);
    let record = Record {
        command: COMMAND,
        host: report::host(),
        aborted: result.as_ref().err().map(|error| format!("{error:#}")),
        kernel: host.read("/proc/version").unwrap_or_default(),
        doctor: &diagnosis,
        findings: &survey.findings,
        measured: &measured,
        speeds: &speeds,
        speed: speed::table(&speeds),
        outcomes: &report.outcomes,
        log: kernel_log(&host),
    };
    fs::create_dir_all(paths.results())?;
    // The host's picture for `p2p-doctor --from`.
    fs::write(paths.results().join("hw-host.toml"), seen.picture.dump()?)?;
    speed::draw(&paths.results().join(speed::PICTURE), &speeds)?;
    let file = paths.results().join("hw-report.md");
    fs::write(&file, record.markdown())?;
    fs::write(
        file.with_extension("json"),
        serde_json::to_string_pretty(&record)?,
    )?;
    host::out!(
        "{}{}",
        table(&measured),
        report.summary(|_| COMMAND.to_owned())
    );
    host::outln!("report: {}", paths.short(&file));
    report::write_page(paths, &record, &file.with_extension("html"))?;
    host::outln!("{}", report.closing_line());
    result?;
    Ok(match report.count(Status::Failed) {
        0 => Verdict::Passed,
        _ => Verdict::Failed,
    })
}

fn test(
    paths: &Paths,
    ui: &Ui,
    host: &Host,
    survey: &Survey,
    gpu_options: &str,
    measured: &mut Vec<Measured>,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    let Some(pair) = &survey.pair else {
        // The findings are in the report already.
        let missing = survey.findings.iter().filter(|f| f.state == State::Missing);
        let missing: Vec<_> = missing.map(|finding| &*finding.check).collect();
        let why = format!("see the checks {}", missing.join(", "));
        outcomes.push(Outcome::skipped("hw", "all", why));
        bail!(
            "the tests were not run: {} of {} checks miss something; see \"next\" above",
            missing.len(),
            survey.findings.len()
        );
    };
    // The selftests also set the policy.
    let policy = perftest::Policy::keep(host)?;
    if !survey.has_perftest {
        outcomes.push(Outcome::skipped("hw", "perftest", "see the check perftest"));
    } else {
        let step = ui.step(format!("hw-test: perftest, {} and {}", pair.nic, pair.gpu));
        let options: Vec<_> = gpu_options.split_whitespace().map(str::to_owned).collect();
        let logs = paths.build().join("run/hw");
        *measured = perftest::run(&policy, pair, &options, &logs)?;
        outcomes.extend(perftest::judge(
            measured,
            pair.limit().map(|reads| &*reads.why),
        ));
        step.done("ran");
    }
    outcomes.extend(selftests::run(paths, ui, host, pair)?);
    Ok(())
}

/// The checks, as text.
fn in_words(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let word = match finding.state {
            State::Ok => "ok",
            State::Note => "note",
            State::Missing => "MISSING",
        };
        text.push_str(&format!("{word:8} {}: {}\n", finding.check, finding.found));
        if !finding.next.is_empty() {
            text.push_str(&format!("         next: {}\n", finding.next));
        }
    }
    text
}

/// The figures before and after in one table.
fn table(measured: &[Measured]) -> String {
    if measured.is_empty() {
        return String::new();
    }
    let mut table = markdown(["program", "policy", "figure", "unit", "pages by result"]);
    for m in measured {
        let figure = m.figure.map_or("-".to_owned(), |figure| figure.to_string());
        let pages: Vec<_> = m.pages.iter().map(|(n, c)| format!("{n} {c}")).collect();
        table.add_row([&*m.program, &m.policy, &figure, &m.unit, &pages.join(", ")]);
    }
    format!("\n{table}\n\n")
}

impl Record<'_> {
    fn markdown(&self) -> String {
        let mut text = format!("# Hardware report\n\n{}\n\n```\n", self.kernel);
        text.push_str(&in_words(self.findings));
        text.push_str("```\n");
        text.push_str(&table(self.measured));
        text.push_str(&self.speed);
        let mut table = markdown(["suite", "test", "result", "why"]);
        for outcome in self.outcomes {
            let result = format!("{:?}", outcome.status).to_lowercase();
            let why = outcome.reason.replace('\n', "<br>").replace('|', "\\|");
            table.add_row([&outcome.suite, &outcome.name, &result, &why]);
        }
        if !self.outcomes.is_empty() {
            text.push_str(&format!("\n{table}\n"));
        }
        if !self.log.is_empty() {
            text.push_str(&format!(
                "\nKernel log:\n\n```\n{}\n```\n",
                self.log.join("\n")
            ));
        }
        text
    }
}

/// The kernel's log lines about peer-to-peer DMA and about the GPU that it found.
fn kernel_log(host: &Host) -> Vec<String> {
    let marks = [
        "peer-to-peer",
        "P2PDMA",
        "p2pdma",
        "ACS redirect",
        "hmm_p2p",
        "nouveau",
        "DMAR",
        "AMD-Vi",
    ];
    let log = host.ask("dmesg", &[]).unwrap_or_default();
    let lines = log
        .lines()
        .filter(|line| marks.iter().any(|mark| line.contains(mark)));
    lines.take(60).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
