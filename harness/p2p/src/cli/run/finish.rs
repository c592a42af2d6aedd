//! How a command ends: it writes and prints its results, and returns its status.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use ktap::Status;

use super::Run;
use crate::cli::about;
use host::proc;
use host::status::Verdict;
use host::ui::seconds;
use kernel::build::Broken;
use results::report::{self, Outcome, Report};

impl Run<'_> {
    /// Writes and prints results. `repeat` returns the command that repeats one; what the user
    /// gave besides is added.
    pub fn finish(
        &self,
        report: &mut Report,
        dir: &Path,
        start: Instant,
        repeat: impl Fn(&Outcome) -> String,
    ) -> Result<()> {
        let given = about::given();
        let repeat = |outcome: &Outcome| repeat(outcome) + &given;
        let logs = report.write_logs(&self.paths.logs(), |file| self.paths.short(file));
        report.note_repeats(repeat);
        about::note(report, start);
        host::out!("{}", report.summary(repeat));
        // The user gets to know the results even if the disk is full.
        let written = logs
            .and_then(|()| report.write(dir, start.elapsed()))
            .and_then(|()| report::write_page(self.paths, report, &dir.join(report::PAGE)));
        if written.is_ok() {
            host::outln!(
                "results: {} ({})",
                self.paths.short(dir),
                seconds(start.elapsed())
            );
        }
        host::out!("{}", slowest(report));
        host::out!("{}", last_words(report));
        written
    }

    /// Ends a command with what there is, also after an error or Ctrl-C. The closing line
    /// then begins with "aborted".
    pub fn conclude(
        &self,
        report: &mut Report,
        dir: &Path,
        start: Instant,
        result: Result<()>,
        repeat: impl Fn(&Outcome) -> String,
    ) -> Result<Verdict> {
        report.aborted = aborted(&result);
        let written = self.finish(report, dir, start, repeat);
        host::outln!("{}", report.closing_line());
        result.and(written).map(|()| verdict(report))
    }
}

/// What ended a run early, if anything did.
pub fn aborted(result: &Result<()>) -> Option<String> {
    match result {
        // The errors of programs that Ctrl-C ended would mislead.
        _ if proc::interrupted() => Some("interrupted".to_owned()),
        Err(error) => Some(format!("{error:#}")),
        Ok(()) => None,
    }
}

/// A line about what ended the run early.
pub fn last_words(report: &Report) -> String {
    let error = report.aborted.as_ref();
    error.map_or(String::new(), |error| {
        format!("aborted, not everything was run: {error}\n")
    })
}

/// A table of what took longest. Of a single thing it would say nothing new.
pub fn slowest(report: &Report) -> String {
    let lines = report.slowest();
    match lines.lines().count() {
        0 | 1 => String::new(),
        _ => format!("slowest:\n{lines}"),
    }
}

pub fn verdict(report: &Report) -> Verdict {
    match report.count(Status::Failed) {
        0 => Verdict::Passed,
        _ => Verdict::Failed,
    }
}

/// Removes the last run's results, so that nobody takes them for results of a run that
/// ends early.
pub fn forget(dir: &Path, names: &[&str]) {
    for name in names {
        let _ = fs::remove_file(dir.join(name));
    }
}

/// The reason why a kernel could not be built, if its sources are at fault. Other errors,
/// and Ctrl-C, end the run.
pub fn broken(built: Result<()>) -> Result<Option<String>> {
    match built {
        Ok(()) => Ok(None),
        Err(error) if proc::interrupted() => Err(error),
        Err(error) => Ok(Some(error.downcast::<Broken>()?.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cli::Cli;
    use anyhow::anyhow;
    use clap::Parser;
    use host::paths::Paths;
    use host::ui::Ui;
    use kernel::compiler::Compiler;

    #[test]
    fn results_that_an_error_left_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        std::os::unix::fs::symlink(
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../qemu"),
            root.join("qemu"),
        )
        .unwrap();
        let paths = Paths::new(&root, None, None).unwrap();
        let run = Run {
            options: &Cli::try_parse_from(["p2p", "check"]).unwrap().options,
            ui: &Ui::new(false),
            paths: &paths,
            qemu: None::<PathBuf>,
            qemu_args: Vec::new(),
            kvm: false,
            compiler: Compiler::default(),
            force: false,
        };
        let end = |result| {
            let mut report = Report::from(vec![
                Outcome::passed("am", "all patches"),
                Outcome::could_not_run("stress/switch", "runs", "kernel plain is not built"),
            ]);
            let (dir, start) = (root.join("out"), Instant::now());
            let ended = run.conclude(&mut report, &dir, start, result, |_| "make".to_owned());
            let written = fs::read(dir.join("report.json")).unwrap();
            let written: Report = serde_json::from_slice(&written).unwrap();
            assert_eq!(written.outcomes.len(), 2);
            (ended, written.aborted)
        };
        let (ended, aborted) = end(Err(anyhow!("the disk is full")));
        assert_eq!(ended.unwrap_err().to_string(), "the disk is full");
        assert_eq!(aborted.as_deref(), Some("the disk is full"));
        let (ended, aborted) = end(Ok(()));
        assert_eq!((ended.unwrap(), aborted), (Verdict::Failed, None));
    }

    #[test]
    fn one_duration_is_no_table() {
        let mut report = Report::default();
        report.seconds.insert("am".to_owned(), 5.0);
        assert_eq!(slowest(&report), "");
        report.builds.insert("plain".to_owned(), 60.0);
        let text = slowest(&report);
        assert!(
            text.starts_with("slowest:\n") && text.lines().count() == 3,
            "{text}"
        );
    }

    #[test]
    fn only_what_is_the_matter_with_one_kernel_lets_the_run_go_on() {
        assert_eq!(broken(Ok(())).unwrap(), None);
        let refused = Err(Broken("kernel plain: refused".into()).into());
        assert_eq!(
            broken(refused).unwrap().as_deref(),
            Some("kernel plain: refused")
        );
        assert!(broken(Err(anyhow!("the disk is full"))).is_err());
    }
}
