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
    /// Writes and prints results. `repeat` returns the command that repeats one.
    pub fn finish(
        &self,
        report: &mut Report,
        dir: &Path,
        start: Instant,
        repeat: impl Fn(&Outcome) -> String,
    ) -> Result<()> {
        report.write_logs(&self.paths.logs(), |file| self.paths.short(file))?;
        report.note_repeats(&repeat);
        about::note(report, start);
        report.write(dir, start.elapsed())?;
        print!("{}", report.summary(repeat));
        report::write_page(self.paths, report, &dir.join(report::PAGE))?;
        println!(
            "results: {} ({})",
            self.paths.short(dir),
            seconds(start.elapsed())
        );
        Ok(())
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
    use super::*;
    use anyhow::anyhow;

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
