//! How a command ends: what it writes and prints of its results, and its status.

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
    /// Writes results, and tells of them; `repeat` is the command that does one again.
    pub fn tell(
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
        print!("{}", report.tell(repeat));
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

/// Why a kernel could not be built, if its sources are the reason. Other errors, and
/// Ctrl-C, end the run.
pub fn broken(built: Result<()>) -> Result<Option<String>> {
    match built {
        Ok(()) => Ok(None),
        Err(error) if proc::interrupted() => Err(error),
        Err(error) => Ok(Some(error.downcast::<Broken>()?.to_string())),
    }
}
