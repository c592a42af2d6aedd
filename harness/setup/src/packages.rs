//! Installs packages of the distribution. The script harness/packages/need knows which
//! packages each make target needs. The tool calls it late, so that bad usage installs
//! nothing.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};

use host::paths::Paths;
use host::proc::interactive;

/// make's target. If it is unset, the user started the tool directly and has the packages.
pub const TARGET: &str = "P2P_TARGET";

const MISSING: &str = "packages are missing: see above";

/// Installs the packages of the target. A second caller gets the result of the first.
pub fn ensure(paths: &Paths) -> Result<()> {
    static INSTALLED: Mutex<Option<bool>> = Mutex::new(None);
    let Ok(target) = env::var(TARGET) else {
        return Ok(());
    };
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed == Some(false) {
        bail!("{MISSING}");
    }
    if installed.is_none() {
        let result = install(&paths.root.join("harness/packages/need"), &target);
        *installed = Some(result.is_ok());
        return result;
    }
    Ok(())
}

fn install(need: &Path, target: &str) -> Result<()> {
    // It runs in the foreground because sudo may ask for a password.
    let status = interactive(Command::new(need).arg(target).stdin(Stdio::null()))?;
    if !status.success() {
        bail!("{MISSING}");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
