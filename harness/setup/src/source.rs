//! Kernel sources from Debian's packages `linux-source-*`: the base of the series, and
//! other kernels to see which topics apply to them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result, bail};

use super::apt::{Apt, is_newer};
use super::failed;
use crate::once::once;
use host::paths::Paths;
use host::proc::{collect, tail};
use host::ui::Ui;
use plan::arch::Arch;

/// The package with the base, and the version that the series is for.
const BASE_PACKAGE: &str = "linux-source-7.3";
/// The version of Debian's kernel that is the base.
pub const BASE_VERSION: &str = "7.3~rc7";
const BASE_SUITES: [&str; 2] = ["experimental", "sid"];

const PREFIX: &str = "linux-source-";

pub(super) const EXPERIMENTAL: &str = "It comes from Debian's experimental, once: is the network \
                                       there? With a kernel tree of your own it is not needed: \
                                       KDIR=/path/to/linux";

/// A package with a kernel's source.
#[derive(Debug)]
pub struct Source {
    /// The package file.
    pub deb: PathBuf,
    /// The package's name.
    pub package: String,
    /// Its version, as Debian writes it.
    pub version: String,
}

impl Source {
    /// Name and version, for people.
    pub fn name(&self) -> String {
        format!("{} {}", self.package, self.version)
    }

    /// Parses the name of a file that apt has downloaded: `linux-source-7.3_7.3~rc7-1_all.deb`
    fn at(deb: PathBuf) -> Option<Self> {
        let name = deb.file_name()?.to_string_lossy();
        let (package, version) = name.strip_suffix("_all.deb")?.split_once('_')?;
        package.strip_prefix(PREFIX)?;
        let (package, version) = (package.to_owned(), version.replace("%3a", ":"));
        Some(Self {
            deb,
            package,
            version,
        })
    }

    /// Unpacks the whole tree, or only the files in `only` that exist. The package
    /// contains the tree as a tar archive.
    pub fn unpack(&self, dir: &Path, only: Option<&BTreeSet<String>>) -> Result<()> {
        fs::create_dir_all(dir)?;
        let mut outer = Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(&self.deb)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("dpkg-deb not found: run `make setup`")?;
        let mut middle = Command::new("tar")
            .args(["-xO", "--occurrence=1"])
            .arg(format!("./usr/src/{}.tar.xz", self.package))
            .stdin(outer.stdout.take().expect("it is piped"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut inner = Command::new("tar");
        inner
            .args(["-xJ", "--strip-components=1", "-C"])
            .arg(dir)
            .args(members(&self.package, only))
            .env("LC_ALL", "C")
            .stdin(middle.stdout.take().expect("it is piped"));
        let (status, _, err) = collect(&mut inner)?;
        // Both processes end with the last one. Only the unpacked files count.
        let _ = outer.kill();
        outer.wait()?;
        middle.wait()?;
        let is_good = status.success() || (only.is_some() && err.lines().all(is_about_missing));
        if !is_good || !dir.join(ALWAYS).is_file() {
            bail!(
                "{} could not be unpacked: {}\n\
                 If the file is damaged, remove it; it will be fetched again.",
                self.deb.display(),
                tail(&err, 5)
            );
        }
        Ok(())
    }
}

/// A file that every kernel tree has.
const ALWAYS: &str = "Kbuild";

/// The names of these files in the archive. No names means all files.
fn members(package: &str, only: Option<&BTreeSet<String>>) -> Vec<String> {
    let files = only.into_iter().flatten().map(String::as_str);
    let always = only.map(|_| ALWAYS);
    let files = files.chain(always);
    files.map(|file| format!("{package}/{file}")).collect()
}

/// Whether a line of tar only reports a missing file.
fn is_about_missing(said: &str) -> bool {
    said.ends_with(": Not found in archive")
        || said == "tar: Exiting with failure status due to previous errors"
}

/// Gets the package of the base kernel. If the cache has one, no network is needed.
pub fn base(paths: &Paths, ui: &Ui) -> Result<Source> {
    let dir = paths.cache.join("deb");
    fs::create_dir_all(&dir)?;
    let there = || newest(&dir, BASE_PACKAGE);
    if let Some(base) = there()? {
        return Ok(base);
    }
    let base = once(paths, ui, there, || {
        let step = ui.step(format!("setup: {BASE_PACKAGE}"));
        step.at("reading the package lists");
        let download = || {
            let apt = Apt::new(&dir.join("apt"), &BASE_SUITES, Arch::default())?;
            step.at("downloading 170 MB");
            fetch(&apt, BASE_PACKAGE, &dir)?;
            apt.remove()
        };
        download().map_err(|error| failed(BASE_PACKAGE, &error, EXPERIMENTAL))?;
        step.done("downloaded");
        Ok(())
    })?;
    if !base.version.starts_with(BASE_VERSION) {
        ui.say(format!(
            "note: the series is made for {BASE_VERSION}; Debian has replaced it, \
             and the base is now {}",
            base.version
        ));
    }
    Ok(base)
}

/// Downloads a package to `dir`. `package` may be `name=version`.
fn fetch(apt: &Apt, package: &str, dir: &Path) -> Result<()> {
    for deb in apt.get(&["download", package])? {
        fs::rename(&deb, dir.join(deb.file_name().expect("it has a name")))?;
    }
    Ok(())
}

/// The newest package in `dir` with that name. For the bare prefix, any package counts.
fn newest(dir: &Path, name: &str) -> Result<Option<Source>> {
    let mut found: Option<Source> = None;
    for entry in fs::read_dir(dir)? {
        let Some(source) = Source::at(entry?.path()) else {
            continue;
        };
        if is_called(&source.package, name)
            && found
                .as_ref()
                .map_or(Ok(true), |other| is_newer(&source.version, &other.version))?
        {
            found = Some(source);
        }
    }
    Ok(found)
}

/// Whether the package has that name. The name may be the bare prefix `linux-source-`.
fn is_called(package: &str, name: &str) -> bool {
    package == name || (name == PREFIX && package.starts_with(name))
}

/// The newest kernels in some of Debian's suites. Downloads are kept. Without a network,
/// only these are available.
pub struct Archive {
    dir: PathBuf,
    apt: Result<Apt>,
}

impl Archive {
    /// Reads the package lists of the suites.
    pub fn new(paths: &Paths, suites: &[String]) -> Result<Self> {
        let dir = paths.cache.join("trees");
        fs::create_dir_all(&dir)?;
        let suites = Vec::from_iter(suites.iter().map(String::as_str));
        let apt = Apt::new(&dir.join("apt"), &suites, Arch::default());
        Ok(Self { dir, apt })
    }

    /// The newest kernel of a version, e.g. `7.2`, or of all versions.
    pub fn newest(&self, version: Option<&str>, at: impl Fn(String)) -> Result<Source> {
        let name = format!("{PREFIX}{}", version.unwrap_or_default());
        let gone = |error: &Error| failed(&name, error, super::NETWORK);
        let offered = match &self.apt {
            Ok(apt) => offer(apt.versions(&format!("^{PREFIX}[0-9.]*$"))?, &name)?,
            Err(_) => None,
        };
        let there = newest(&self.dir, &name)?;
        if let (Ok(apt), Some((package, version))) = (&self.apt, offered)
            && there.as_ref().is_none_or(|there| there.version != version)
        {
            at(format!("downloading {package} {version}"));
            fetch(apt, &format!("{package}={version}"), &self.dir).map_err(|error| gone(&error))?;
            // Each package has 170 MB, so the old one is removed.
            if let Some(old) = there.filter(|old| old.package == package) {
                fs::remove_file(old.deb)?;
            }
            return newest(&self.dir, &name)?.context("apt-get downloaded no package");
        }
        there.with_context(|| match &self.apt {
            Ok(_) => format!("{name} is not in Debian's suites any more"),
            Err(error) => format!("{:#}", gone(error)),
        })
    }

    /// Removes everything except the packages.
    pub fn close(self) -> Result<()> {
        self.apt.map_or(Ok(()), Apt::remove)
    }
}

/// The newest of these packages with that name.
fn offer(packages: Vec<(String, String)>, name: &str) -> Result<Option<(String, String)>> {
    let mut found: Option<(String, String)> = None;
    for (package, version) in packages {
        if is_called(&package, name)
            && found
                .as_ref()
                .map_or(Ok(true), |(_, other)| is_newer(&version, other))?
        {
            found = Some((package, version));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(name: &str) -> Option<(String, String)> {
        Source::at(PathBuf::from(name)).map(|source| (source.package, source.version))
    }

    fn pair(one: &str, other: &str) -> (String, String) {
        (one.to_owned(), other.to_owned())
    }

    #[test]
    fn what_a_package_is_called() {
        assert_eq!(
            is("linux-source-7.3_7.3~rc7-1~exp1_all.deb"),
            Some(pair("linux-source-7.3", "7.3~rc7-1~exp1"))
        );
        assert_eq!(is("linux-source_7.3_all.deb"), None);
        assert_eq!(is("linux-source-7.3_7.3_all.deb.part"), None);
    }

    #[test]
    fn the_newest_package_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let names = [
            "linux-source-7.3_7.3~rc7-1~exp1",
            "linux-source-7.3_7.3~rc8-1~exp1",
            "linux-source-7.3_7.3~rc6-1",
            "linux-source-7.2_7.2.13-1",
        ];
        for name in names {
            fs::write(dir.path().join(format!("{name}_all.deb")), "").unwrap();
        }
        let version = |name| newest(dir.path(), name).unwrap().map(|base| base.version);
        assert_eq!(version(BASE_PACKAGE).as_deref(), Some("7.3~rc8-1~exp1"));
        assert_eq!(version("linux-source-7.2").as_deref(), Some("7.2.13-1"));
        assert_eq!(version(PREFIX).as_deref(), Some("7.3~rc8-1~exp1"));
        assert_eq!(version("linux-source-7"), None);
    }

    #[test]
    fn the_newest_of_all_suites_is_offered() {
        let packages = || {
            vec![
                pair("linux-source-7.2", "7.2.13-1"),
                pair("linux-source-7.3", "7.3~rc7-1~exp1"),
                pair("linux-source-7.3", "7.3.4-1~bpo13+1"),
                pair("linux-source-7.2", "7.2.12-1"),
            ]
        };
        let version = |name| offer(packages(), name).unwrap().map(|(_, version)| version);
        assert_eq!(version(PREFIX).as_deref(), Some("7.3.4-1~bpo13+1"));
        assert_eq!(version("linux-source-7.2").as_deref(), Some("7.2.13-1"));
        assert_eq!(version("linux-source-7.1"), None);
    }

    #[test]
    fn without_a_network_it_is_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let archive = Archive {
            dir: dir.path().to_owned(),
            apt: Err(anyhow::anyhow!("no name server")),
        };
        let newest = |version| archive.newest(version, |_| ());
        let error = format!("{:#}", newest(Some("7.2")).unwrap_err());
        assert!(error.contains("linux-source-7.2") && error.contains("no name server"));
        fs::write(dir.path().join("linux-source-7.2_7.2.13-1_all.deb"), "").unwrap();
        assert_eq!(
            newest(Some("7.2")).unwrap().name(),
            "linux-source-7.2 7.2.13-1"
        );
        assert_eq!(newest(None).unwrap().version, "7.2.13-1");
    }

    /// Makes a package like Debian's, with these files in the tree.
    fn package(dir: &Path, files: &[(&str, &str)]) -> Source {
        let tree = dir.join("linux-source-7.2");
        for (name, text) in files {
            let file = tree.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let script = "set -e; mkdir -p deb/DEBIAN deb/usr/src; \
             tar -cJf deb/usr/src/linux-source-7.2.tar.xz linux-source-7.2; \
             printf 'Package: linux-source-7.2\\nVersion: 7.2.13-1\\nArchitecture: all\\n\
             Maintainer: A <a@example.org>\\nDescription: x\\n' >deb/DEBIAN/control; \
             dpkg-deb -b deb linux-source-7.2_7.2.13-1_all.deb";
        let mut sh = Command::new("sh");
        host::proc::capture(sh.args(["-c", script]).current_dir(dir)).unwrap();
        Source::at(dir.join("linux-source-7.2_7.2.13-1_all.deb")).unwrap()
    }

    #[test]
    fn some_of_the_files_can_be_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let files = [("Kbuild", ""), ("mm/hmm.c", "hmm"), ("mm/other.c", "")];
        let source = package(dir.path(), &files);
        let only = BTreeSet::from(["mm/hmm.c", "mm/new.c"].map(str::to_owned));
        let some = dir.path().join("some");
        source.unpack(&some, Some(&only)).unwrap();
        assert_eq!(fs::read_to_string(some.join("mm/hmm.c")).unwrap(), "hmm");
        assert!(!some.join("mm/other.c").exists());
        let all = dir.path().join("all");
        source.unpack(&all, None).unwrap();
        assert!(all.join("mm/other.c").is_file());
        // The package is damaged.
        let deb = fs::read(&source.deb).unwrap();
        fs::write(&source.deb, &deb[..deb.len() - 100]).unwrap();
        let error = source.unpack(&some.join("again"), Some(&only)).unwrap_err();
        assert!(
            error.to_string().contains("could not be unpacked"),
            "{error}"
        );
    }
}
