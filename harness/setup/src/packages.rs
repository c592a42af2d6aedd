//! Packages of the distribution. harness/packages/need knows which ones a target of make
//! needs, and installs them. The tool calls it late, so that bad usage installs nothing.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use host::paths::Paths;

/// make's target. Without it, the user has started the tool by hand and has packages.
pub const TARGET: &str = "P2P_TARGET";

const MISSING: &str = "packages are missing: see above";

/// Has the packages of the target installed. A second caller gets the result of the first.
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
    let status = Command::new(need)
        .arg(target)
        .stdin(Stdio::null())
        .status()
        .with_context(|| need.display().to_string())?;
    if !status.success() {
        bail!("{MISSING}");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
