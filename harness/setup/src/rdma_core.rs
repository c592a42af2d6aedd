//! rdma-core's tests, from the Debian package of the installed version. Debian ships them
//! as documentation, which some installations leave out, and compresses some files. So
//! they are unpacked from the package itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{NETWORK, failed, fresh, put_in_place};
use crate::once::once;
use host::paths::Paths;
use host::proc::capture;
use host::ui::Ui;

const PACKAGE: &str = "python3-pyverbs";
/// The path of the tests in the package.
const INSIDE: &str = "usr/share/doc/rdma-core/tests";

/// The directory that holds the Python package `tests`.
pub fn tests(paths: &Paths, ui: &Ui) -> Result<PathBuf> {
    let asked = Command::new("dpkg-query")
        .args(["--show", "--showformat=${Version}", PACKAGE])
        .output()
        .context("dpkg-query")?;
    let version = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
    if !asked.status.success() || version.is_empty() {
        bail!("{PACKAGE} is not installed: run `make setup`");
    }
    let home = paths
        .cache
        .join("tools")
        .join(format!("rdma-core-tests-{version}"));
    let there = || Ok(home.join("tests").is_dir().then(|| home.clone()));
    once(paths, ui, there, || install(ui, &version, &home))
}

fn install(ui: &Ui, version: &str, home: &Path) -> Result<()> {
    let step = ui.step(format!("setup: the tests of rdma-core {version}"));
    let partial = fresh(&home.with_file_name("rdma-core-tests-partial"))?;
    capture(
        Command::new("apt-get")
            .args(["-q", "-o", "APT::Sandbox::User=root", "download"])
            .arg(format!("{PACKAGE}={version}"))
            .current_dir(&partial),
    )
    .map_err(|error| {
        let hint = format!("{NETWORK} If apt knows no such version: `apt-get update`");
        failed(&format!("the package {PACKAGE} {version}"), &error, &hint)
    })?;
    unpack(&partial)?;
    put_in_place(&partial, home)?;
    step.done("unpacked");
    Ok(())
}

/// Unpacks the package in `dir` and leaves only `tests`.
fn unpack(dir: &Path) -> Result<()> {
    let package = fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "deb"))
        .context("apt-get downloaded no package")?;
    let all = dir.join("package");
    capture(Command::new("dpkg-deb").arg("-x").args([&package, &all]))?;
    let tests = dir.join("tests");
    fs::rename(all.join(INSIDE), &tests).with_context(|| format!("{PACKAGE} has no {INSIDE}"))?;
    let mut compressed = Vec::new();
    for entry in fs::read_dir(&tests)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "gz") {
            compressed.push(path);
        }
    }
    if !compressed.is_empty() {
        capture(Command::new("gzip").arg("-d").args(&compressed))?;
    }
    fs::remove_dir_all(&all)?;
    fs::remove_file(&package)?;
    Ok(())
}
