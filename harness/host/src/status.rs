//! The result of a command and its exit status.

use std::fmt;
use std::process::ExitCode;

use anyhow::Error;

use crate::proc;

/// The result of a command that could run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything is as expected.
    Passed,
    /// The command ran, and some result is not as expected.
    Failed,
}

/// The command line is wrong.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Passed.
pub const PASSED: u8 = 0;
/// A test failed.
pub const FAILED: u8 = 1;
/// The run could not be carried out. Every error that is not a [`Usage`] has this status.
pub const COULD_NOT_RUN: u8 = 2;
/// Bad usage (EX_USAGE).
pub const USAGE: u8 = 64;
/// Ended by Ctrl-C (128 + SIGINT).
pub const INTERRUPTED: u8 = 130;

/// The exit status for a result.
pub fn status_of(result: &Result<Verdict, Error>) -> u8 {
    match result {
        _ if proc::interrupted() => INTERRUPTED,
        Ok(Verdict::Passed) => PASSED,
        Ok(Verdict::Failed) => FAILED,
        Err(error) if error.downcast_ref::<Usage>().is_some() => USAGE,
        Err(_) => COULD_NOT_RUN,
    }
}

/// Runs `command`, prints its error if any, and returns the exit status.
pub fn exit(command: impl FnOnce() -> Result<Verdict, Error>) -> ExitCode {
    let result = command();
    let status = status_of(&result);
    if status == INTERRUPTED {
        crate::errln!("p2p: interrupted; the next run continues from here");
    } else if let Err(error) = &result {
        crate::errln!("p2p: {}", describe(error));
    }
    ExitCode::from(status)
}

/// Whether an error says nothing about what was being built or tested: a signal ended it, or the
/// disk is full.
pub fn ends_run(error: &Error) -> bool {
    proc::interrupted() || is_disk_full(error)
}

/// Whether the disk is full, for us or for a program whose output the error has.
fn is_disk_full(error: &Error) -> bool {
    let ours = error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::StorageFull)
    });
    ours || format!("{error:#}").contains("No space left on device")
}

/// The error and its causes, outermost first, with a hint where one is known.
fn describe(error: &Error) -> String {
    let mut text = format!("{error:#}");
    if is_disk_full(error) {
        text.push_str("\nThe disk is full. `make clean` removes kernels that were built.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn statuses_differ() {
        assert_eq!(status_of(&Ok(Verdict::Passed)), 0);
        assert_eq!(status_of(&Ok(Verdict::Failed)), 1);
        assert_eq!(status_of(&Err(anyhow!("no network"))), 2);
        let usage = Error::new(Usage("no such topology".into())).context("demo");
        assert_eq!(status_of(&Err(usage)), 64);
    }

    #[test]
    fn a_full_disk_gets_a_hint() {
        let error = Error::new(std::io::Error::from_raw_os_error(28)).context("build/linux");
        assert!(describe(&error).contains("make clean"));
        assert!(!describe(&anyhow!("other")).contains("make clean"));
    }

    #[test]
    fn a_full_disk_is_known_by_what_a_compiler_prints() {
        let text = "x.c:1: fatal error: error writing to /tmp/x.s: No space left on device";
        assert!(is_disk_full(&anyhow!("{text}").context("kernel plain")));
        assert!(!is_disk_full(&anyhow!("x.c:1: error: no such member")));
    }
}
