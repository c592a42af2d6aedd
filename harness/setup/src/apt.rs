//! Gets packages of other Debian releases, using an apt with its own settings, lists and
//! files. Nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::fresh;
use host::proc::{capture, output, tail};
use plan::arch::Arch;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An apt with its own list of Debian suites.
pub struct Apt {
    dir: PathBuf,
    arch: &'static str,
}

impl Apt {
    /// Reads the package lists of `suites`, for an architecture. All files of this apt are in
    /// `dir`.
    pub fn new(dir: &Path, suites: &[&str], arch: Arch) -> Result<Self> {
        let archive = debian_archive()?;
        let apt = Self {
            dir: fresh(dir)?,
            arch: arch.debian(),
        };
        for sub in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        let sources: String = suites
            .iter()
            .map(|suite| {
                let arch = apt.arch;
                format!("deb [arch={arch} signed-by={KEYRING}] {archive} {suite} main\n")
            })
            .collect();
        fs::write(dir.join("sources.list"), sources)?;
        // With an empty status, apt downloads all dependencies of a package.
        fs::write(dir.join("status"), "")?;
        let (status, _, err) = output(apt.command("apt-get").arg("update"))?;
        if !status.success() || err.contains("Failed to fetch") {
            bail!("apt-get update: {}", tail(&err, 6));
        }
        Ok(apt)
    }

    /// Runs an apt-get command that downloads packages, and returns their files.
    pub fn get(&self, args: &[&str]) -> Result<Vec<PathBuf>> {
        capture(self.command("apt-get").args(args))?;
        let mut debs = Vec::new();
        for dir in [&self.dir, &self.dir.join("cache/archives")] {
            for entry in fs::read_dir(dir)? {
                let path = entry?.path();
                if path.extension().is_some_and(|ext| ext == "deb") {
                    debs.push(path);
                }
            }
        }
        debs.sort();
        Ok(debs)
    }

    /// Packages whose name matches, and their versions, in no particular order.
    pub fn versions(&self, pattern: &str) -> Result<Vec<(String, String)>> {
        let mut search = self.command("apt-cache");
        let found = capture(search.args(["search", "--names-only", pattern]))?;
        let names = found.lines().filter_map(|line| line.split(' ').next());
        let mut madison = self.command("apt-cache");
        Ok(listed(&capture(madison.arg("madison").args(names))?))
    }

    /// Downloads a package with all that it needs, and unpacks them into `to`. Returns the files of
    /// the packages, which [`Self::remove`] removes.
    pub fn unpack(&self, install: &[&str], to: &Path) -> Result<Vec<PathBuf>> {
        let debs = self.get(&[&["-y", "--download-only", "install"], install].concat())?;
        for deb in &debs {
            capture(Command::new("dpkg-deb").arg("-x").arg(deb).arg(to))?;
        }
        Ok(debs)
    }

    /// Removes all its files.
    pub fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.dir).with_context(|| self.dir.display().to_string())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-q").current_dir(&self.dir);
        let options = [
            ("Dir::Etc::sourcelist", self.dir.join("sources.list")),
            ("Dir::Etc::sourceparts", PathBuf::from("/dev/null")),
            ("Dir::Etc::preferences", PathBuf::from("/dev/null")),
            ("Dir::Etc::preferencesparts", PathBuf::from("/dev/null")),
            ("Dir::State", self.dir.join("state")),
            ("Dir::State::status", self.dir.join("status")),
            ("Dir::Cache", self.dir.join("cache")),
        ];
        for (name, value) in options {
            command.arg("-o").arg(format!("{name}={}", value.display()));
        }
        // The sandbox user may not be able to write in our directories.
        command.args(["-o", "APT::Sandbox::User=root"]);
        // Without the second option, apt adds the architectures that this machine's dpkg knows.
        for option in ["APT::Architecture", "APT::Architectures"] {
            command.arg("-o").arg(format!("{option}={}", self.arch));
        }
        command.args(["-o", "APT::Install-Recommends=false"]);
        command.args(["-o", "Acquire::Languages=none", "-o", "Acquire::Retries=3"]);
        command
    }
}

/// Parses lines of the form ` package | version | where from`.
fn listed(madison: &str) -> Vec<(String, String)> {
    let fields = |line: &str| {
        let mut fields = line.split('|').map(|field| field.trim().to_owned());
        Some((fields.next()?, fields.next()?))
    };
    madison.lines().filter_map(fields).collect()
}

/// Whether `version` is newer than `than`, by Debian's rules.
pub fn is_newer(version: &str, than: &str) -> Result<bool> {
    Ok(Command::new("dpkg")
        .args(["--compare-versions", version, "gt", than])
        .status()?
        .success())
}

/// The URL of the Debian archive that this machine's apt uses.
fn debian_archive() -> Result<String> {
    let targets = capture(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(LABEL)|$(REPO_URI)",
        "Created-By: Packages",
    ]))
    .context("this machine's apt cannot be asked")?;
    targets
        .lines()
        .find_map(|line| line.strip_prefix("Debian|"))
        .map(str::to_owned)
        .context("this machine's apt knows no Debian archive")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apt_cache_lists() {
        let madison = " linux-source-7.2 |   7.2.1-1 | somewhere sid/main amd64 Packages\n\
                       linux-source-7.3 | 7.3~rc7-1~exp1 | somewhere else\n";
        let [old, new] = &listed(madison)[..] else {
            panic!("{:?}", listed(madison));
        };
        assert_eq!((&*old.0, &*old.1), ("linux-source-7.2", "7.2.1-1"));
        assert!(is_newer(&new.1, &old.1).unwrap());
        assert!(is_newer("7.3.1-1", &new.1).unwrap());
        assert!(!is_newer(&new.1, &new.1).unwrap());
    }
}
