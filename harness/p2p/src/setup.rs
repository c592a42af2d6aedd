//! What packages of the distribution do not give, or not where it is needed:
//! bindgen, virtme-ng, the base kernel's source, a recent QEMU, and rdma-core's own
//! tests. All of it goes to the cache, once.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result, anyhow};

use crate::paths::Paths;
use crate::proc::capture;
use crate::ui::{Step, Ui};
use apt::Apt;

mod apt;
pub mod qemu;
pub mod rdma_core;

const BINDGEN: &str = "0.72.1";
const VIRTME_NG: &str = "1.42";

/// The package that holds the base, and the version the series is made for.
const BASE_PACKAGE: &str = "linux-source-7.3";
pub const BASE_VERSION: &str = "7.3~rc7";
const BASE_SUITES: [&str; 2] = ["experimental", "sid"];

/// Programs that [`tools`] has made sure of.
pub struct Tools {
    /// bindgen
    pub bindgen: PathBuf,
    /// The directory with vng and what it calls.
    pub vng_dir: PathBuf,
}

/// Installs bindgen and virtme-ng unless they are there.
pub fn tools(paths: &Paths, ui: &Ui) -> Result<Tools> {
    Ok(Tools {
        bindgen: bindgen(paths, ui)?,
        vng_dir: virtme_ng(paths, ui)?,
    })
}

fn bindgen(paths: &Paths, ui: &Ui) -> Result<PathBuf> {
    let home = paths.cache.join("tools").join(format!("bindgen-{BINDGEN}"));
    let program = home.join("bin/bindgen");
    if program.is_file() {
        return Ok(program);
    }
    let step = ui.step(format!("setup: bindgen {BINDGEN}"));
    let partial = fresh(&home.with_file_name("bindgen-partial"))?;
    let target = paths.build().join("bindgen");
    // It runs for seconds, and to compile all of it with optimization takes minutes. These
    // two have most of the run time: 67 s of CPU instead of 163, for 6 s more per kernel.
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
    put_in_place(&partial, &home)?;
    fs::remove_dir_all(&target)?;
    step.done("installed");
    Ok(program)
}

fn virtme_ng(paths: &Paths, ui: &Ui) -> Result<PathBuf> {
    let home = paths
        .cache
        .join("tools")
        .join(format!("virtme-ng-{VIRTME_NG}"));
    let bin = home.join("bin");
    // A virtual environment cannot be moved, so a mark says that it is whole.
    let whole = home.join("whole");
    if whole.is_file() && bin.join("vng").is_file() {
        return Ok(bin);
    }
    let step = ui.step(format!("setup: virtme-ng {VIRTME_NG}"));
    fresh(&home)?;
    capture(
        Command::new("/usr/bin/python3")
            .args(["-m", "venv"])
            .arg(&home),
    )
    .context("a Python environment could not be made: is python3-venv installed?")?;
    capture(
        Command::new(bin.join("pip"))
            .args(["install", "--quiet", "--disable-pip-version-check"])
            .arg(format!("virtme-ng=={VIRTME_NG}"))
            .env("PIP_CACHE_DIR", paths.cache.join("pip"))
            .env("TMPDIR", paths.build()),
    )
    .map_err(|error| failed(&format!("virtme-ng {VIRTME_NG}"), &error, NETWORK))?;
    fs::write(&whole, "")?;
    step.done("installed");
    Ok(bin)
}

/// A source package of the base kernel.
pub struct Base {
    /// The package file.
    pub deb: PathBuf,
    /// Its version, as Debian writes it.
    pub version: String,
}

impl Base {
    /// Name and version, for people.
    pub fn name(&self) -> String {
        format!("{BASE_PACKAGE} {}", self.version)
    }
}

/// Gets the package of the base kernel. If the cache has one, it is used, and
/// no network is needed.
pub fn base(paths: &Paths, ui: &Ui) -> Result<Base> {
    let dir = paths.cache.join("deb");
    fs::create_dir_all(&dir)?;
    if let Some(base) = newest(&dir)? {
        return Ok(base);
    }
    let step = ui.step(format!("setup: {BASE_PACKAGE}"));
    step.at("reading the package lists");
    download(&dir, &step).map_err(|error| failed(BASE_PACKAGE, &error, EXPERIMENTAL))?;
    let base = newest(&dir)?.context("apt-get downloaded no package")?;
    step.done(format!("{} downloaded", base.version));
    if !base.version.starts_with(BASE_VERSION) {
        ui.say(format!(
            "note: the series is made for {BASE_VERSION}; Debian has replaced it, \
             and the base is now {}",
            base.version
        ));
    }
    Ok(base)
}

fn download(dir: &Path, step: &Step<'_>) -> Result<()> {
    let apt = Apt::new(&dir.join("apt"), &BASE_SUITES)?;
    step.at("downloading 170 MB");
    for deb in apt.get(&["download", BASE_PACKAGE])? {
        fs::rename(&deb, dir.join(deb.file_name().expect("it has a name")))?;
    }
    apt.remove()
}

/// The newest base package in `dir`.
fn newest(dir: &Path) -> Result<Option<Base>> {
    let mut found: Option<Base> = None;
    for entry in fs::read_dir(dir)? {
        let deb = entry?.path();
        let name = deb.file_name().unwrap_or_default().to_string_lossy();
        let Some(version) = package_version(&name) else {
            continue;
        };
        let newer = match &found {
            None => true,
            Some(other) => Command::new("dpkg")
                .args(["--compare-versions", &version, "gt", &other.version])
                .status()?
                .success(),
        };
        if newer {
            found = Some(Base { deb, version });
        }
    }
    Ok(found)
}

/// `linux-source-7.3_7.3~rc7-1_all.deb` → `7.3~rc7-1`
fn package_version(name: &str) -> Option<String> {
    let rest = name.strip_prefix(BASE_PACKAGE)?.strip_prefix('_')?;
    Some(rest.strip_suffix("_all.deb")?.replace("%3a", ":"))
}

const NETWORK: &str = "It comes from the network, once: is it there?";
const EXPERIMENTAL: &str = "It comes from Debian's experimental, once: is the network there? \
                            With a kernel tree of your own it is not needed: \
                            KDIR=/path/to/linux";

/// An error with the next step at the end, where people look.
fn failed(what: &str, error: &Error, hint: &str) -> Error {
    anyhow!("{what} could not be had: {error:#}\n{hint}")
}

/// The directory, empty.
fn fresh(dir: &Path) -> Result<PathBuf> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    Ok(dir.to_owned())
}

/// Gives a finished directory its name; another run may have been faster.
fn put_in_place(partial: &Path, home: &Path) -> Result<()> {
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    fs::rename(partial, home).with_context(|| home.display().to_string())
}

/// Jobs at a time, unless the user says otherwise.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Debian's own programs, which come before a rustup's.
const DEBIANS: [&str; 5] = [
    "/usr/lib/llvm-19/bin",
    "/usr/bin",
    "/bin",
    "/usr/sbin",
    "/sbin",
];

/// The `PATH` that programs get.
pub fn search_path(tools: &Tools) -> Result<OsString> {
    let mut dirs = search_dirs();
    // What vng brings is not to come before Debian's own.
    dirs.insert(DEBIANS.len(), tools.vng_dir.clone());
    Ok(env::join_paths(dirs)?)
}

/// Where the user's programs are looked for.
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
        for (hint, next_step) in [(NETWORK, "the network"), (EXPERIMENTAL, "KDIR=")] {
            let said = format!("{:#}", failed("virtme-ng 1.42", &error, hint));
            let (why, last) = said.rsplit_once('\n').unwrap();
            assert!(why.starts_with("virtme-ng 1.42 could not be had: pip: "));
            assert!(why.ends_with("Temporary failure in name resolution"));
            assert!(last.contains(next_step), "{said}");
        }
    }

    #[test]
    fn versions_of_packages() {
        let version = package_version("linux-source-7.3_7.3~rc7-1~exp1_all.deb");
        assert_eq!(version.as_deref(), Some("7.3~rc7-1~exp1"));
        assert_eq!(package_version("linux-source-7.2_7.2-1_all.deb"), None);
        assert_eq!(package_version("linux-source-7.3_7.3_all.deb.part"), None);
    }

    #[test]
    fn the_newest_package_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["7.3~rc7-1~exp1", "7.3~rc8-1~exp1", "7.3~rc6-1"] {
            let name = format!("{BASE_PACKAGE}_{version}_all.deb");
            fs::write(dir.path().join(name), "").unwrap();
        }
        let base = newest(dir.path()).unwrap().unwrap();
        assert_eq!(base.version, "7.3~rc8-1~exp1");
    }
}
