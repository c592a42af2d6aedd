//! A cache of results that only change when one of their inputs does: tests on the base
//! kernel, the kernel scripts' checks of the patches, and the tool's own tests.
//!
//! Results of the series in a machine are not cached: a second run may find what the first
//! one missed. Failures are not cached either.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use ktap::Status;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::report::Outcome;
use host::git::ask;
use host::paths::{Paths, hex};

/// The progress message for a cached result.
pub const HIT: &str = "as before: nothing has changed";

/// The message at the end of a check that found `count` results.
pub fn counted(count: usize, was_cached: bool) -> String {
    match was_cached {
        true => format!("{count} tests, {HIT}"),
        false => format!("{count} tests"),
    }
}

/// The directory of the cache. `make clean` removes it.
pub struct Cache {
    dir: PathBuf,
    /// `FORCE=1`: ignore existing entries.
    force: bool,
}

/// A file in that directory.
#[derive(Serialize, Deserialize)]
struct Record {
    key: String,
    outcomes: Vec<Outcome>,
}

impl Cache {
    /// The cache of this repository. `force` ignores existing entries.
    pub fn new(paths: &Paths, force: bool) -> Self {
        let dir = paths.results().join("cache");
        Self { dir, force }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{}.json", name.replace('/', ".")))
    }

    fn record(&self, name: &str, key: &str) -> Option<Record> {
        if self.force {
            return None;
        }
        // An entry that cannot be read counts as missing.
        let text = fs::read(self.file(name)).ok()?;
        let record = serde_json::from_slice::<Record>(&text).ok()?;
        (record.key == key).then_some(record)
    }

    /// Whether the cache has results of that name from the same inputs.
    pub fn has(&self, name: &str, inputs: Inputs) -> bool {
        self.record(name, &inputs.key()).is_some()
    }

    /// Returns the results of that name, and whether they came from the cache. Calls
    /// `find` only if the cache has none from the same inputs.
    pub fn or_find(
        &self,
        name: &str,
        inputs: Inputs,
        find: impl FnOnce() -> Result<Vec<Outcome>>,
    ) -> Result<(Vec<Outcome>, bool)> {
        let key = inputs.key();
        if let Some(record) = self.record(name, &key) {
            return Ok((record.outcomes, true));
        }
        let file = self.file(name);
        let outcomes = find()?;
        // Caching a flaky result would hide that it is flaky.
        let is_good =
            |outcome: &Outcome| outcome.status != Status::Failed && outcome.flaky.is_empty();
        if !outcomes.is_empty() && outcomes.iter().all(is_good) {
            let record = Record { key, outcomes };
            fs::create_dir_all(&self.dir).with_context(|| self.dir.display().to_string())?;
            let text = serde_json::to_string_pretty(&record)?;
            fs::write(&file, text).with_context(|| file.display().to_string())?;
            return Ok((record.outcomes, false));
        }
        Ok((outcomes, false))
    }
}

/// Everything that results depend on.
#[derive(Clone)]
pub struct Inputs(Sha256);

/// The package databases of Debian, Fedora and Alpine. They change with every package.
const PACKAGES: [&str; 3] = [
    "/var/lib/dpkg/status",
    "/usr/lib/sysimage/rpm/rpmdb.sqlite",
    "/lib/apk/db/installed",
];

/// The parts of this tool in harness/ that boot machines and judge their output.
const RUNNING: [&str; 6] = [
    "jobs/src",
    "judge/src",
    "ktap/src",
    "machine/src",
    "plan/src/job.rs",
    "plan/src/topology.rs",
];

impl Inputs {
    /// This program, and the installed packages: QEMU, Perl, files for the guest.
    pub fn new() -> Result<Self> {
        let mut inputs = Self(Sha256::new());
        // Open the running binary: cargo may have replaced the file at its path.
        inputs.path(Path::new("/proc/self/exe"))?;
        inputs.packages(&PACKAGES.map(Path::new))?;
        Ok(inputs)
    }

    /// Only the parts of this program that boot and judge, for results that take hours.
    pub fn of_running(root: &Path) -> Result<Self> {
        let mut inputs = Self(Sha256::new());
        for part in RUNNING {
            inputs.named(Path::new(part), &root.join("harness").join(part))?;
        }
        Ok(inputs)
    }

    fn packages(&mut self, lists: &[&Path]) -> Result<()> {
        let lists = Vec::from_iter(lists.iter().filter(|list| list.is_file()));
        for list in &lists {
            self.path(list)?;
        }
        if lists.is_empty() {
            self.unknown();
        }
        Ok(())
    }

    /// Adds something that nobody can look at, so that no two keys are the same.
    fn unknown(&mut self) {
        self.text(&format!("{:?}", SystemTime::now()));
    }

    /// Adds a text.
    pub fn text(&mut self, text: &str) {
        self.0.update(text.len().to_le_bytes());
        self.0.update(text);
    }

    /// Adds a file, or all files in a folder: names and contents. Its location does not
    /// count, because the same files in another checkout give the same results.
    pub fn path(&mut self, path: &Path) -> Result<()> {
        self.named(&name(path), path)
    }

    /// Adds the files of a git repository, except those that git ignores.
    pub fn repository(&mut self, root: &Path) -> Result<()> {
        let list = [
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ];
        // Without one of its own, git looks at a repository further up.
        let is_repository = root.join(".git").exists();
        let Some(files) = is_repository.then(|| ask(root, &list).ok()).flatten() else {
            // An unpacked archive, or a repository that git refuses to read.
            self.unknown();
            return Ok(());
        };
        // A deleted file is in the list until the deletion is staged.
        let files = files.split('\0').map(|file| (file, root.join(file)));
        for (name, file) in files.filter(|(_, file)| file.is_file()) {
            self.named(Path::new(name), &file)?;
        }
        Ok(())
    }

    /// Adds a kernel's tree: these commits of it, and what its work tree changes.
    pub fn tree(&mut self, dir: &Path, commits: &[&str]) -> Result<()> {
        commits.iter().for_each(|commit| self.text(commit));
        self.text(&ask(dir, &["diff", "HEAD"])?);
        Ok(())
    }

    /// Adds the same under another name.
    fn named(&mut self, known_as: &Path, path: &Path) -> Result<()> {
        if path.is_dir() {
            let entries = fs::read_dir(path).with_context(|| path.display().to_string())?;
            let mut paths = entries
                .map(|entry| Ok(entry?.path()))
                .collect::<Result<Vec<_>>>()?;
            paths.sort();
            return paths
                .iter()
                .try_for_each(|path| self.named(&known_as.join(name(path)), path));
        }
        self.text(&known_as.to_string_lossy());
        let content = fs::read(path).with_context(|| path.display().to_string())?;
        self.0.update(content.len().to_le_bytes());
        self.0.update(content);
        Ok(())
    }

    /// A key that stands for all inputs.
    pub fn key(self) -> String {
        hex(&self.0.finalize())
    }
}

/// The last part of a path.
fn name(path: &Path) -> PathBuf {
    path.file_name().map(PathBuf::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache {
            dir: dir.path().join("cache"),
            force: false,
        };
        (dir, cache)
    }

    fn inputs(text: &str) -> Inputs {
        let mut inputs = Inputs(Sha256::new());
        inputs.text(text);
        inputs
    }

    fn find(cache: &Cache, text: &str, outcome: &Outcome) -> (Vec<Outcome>, bool) {
        cache
            .or_find("a/b", inputs(text), || Ok(vec![outcome.clone()]))
            .unwrap()
    }

    #[test]
    fn the_same_inputs_give_the_same_results() {
        let (_dir, cache) = cache();
        let (passed, skipped) = (
            Outcome::passed("a/b", "x"),
            Outcome::skipped("a/b", "x", "y"),
        );
        assert!(!cache.has("a/b", inputs("one")));
        assert!(!find(&cache, "one", &skipped).1);
        assert!(cache.has("a/b", inputs("one")) && !cache.has("a/b", inputs("two")));
        let (outcomes, was_cached) = find(&cache, "one", &passed);
        assert!(was_cached);
        assert_eq!(outcomes[0].status, Status::Skipped);
        assert_eq!(outcomes[0].reason, "y");
        let (outcomes, was_cached) = find(&cache, "two", &passed);
        assert!(!was_cached);
        assert_eq!(outcomes[0].status, Status::Passed);
    }

    #[test]
    fn with_force_everything_is_looked_for_again() {
        let (_dir, mut cache) = cache();
        find(&cache, "one", &Outcome::skipped("a/b", "x", "y"));
        cache.force = true;
        assert!(!cache.has("a/b", inputs("one")));
        let (outcomes, was_cached) = find(&cache, "one", &Outcome::passed("a/b", "x"));
        assert!(!was_cached && outcomes[0].status == Status::Passed);
        // A forced run still writes the cache.
        cache.force = false;
        let (outcomes, was_cached) = find(&cache, "one", &Outcome::skipped("a/b", "x", "y"));
        assert!(was_cached && outcomes[0].status == Status::Passed);
    }

    #[test]
    fn packages_count_and_without_a_list_nothing_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("status");
        let key = || {
            let mut inputs = Inputs(Sha256::new());
            inputs.packages(&[&dir.path().join("none"), &list]).unwrap();
            inputs.key()
        };
        assert_ne!(key(), key());
        fs::write(&list, "qemu 1").unwrap();
        let first = key();
        assert_eq!(first, key());
        fs::write(&list, "qemu 2").unwrap();
        assert_ne!(first, key());
    }

    #[test]
    fn this_program_counts() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        // Each part exists at its path.
        let running = || Inputs::of_running(&root).unwrap().key();
        assert_eq!(running(), running());
        assert_ne!(running(), Inputs(Sha256::new()).key());
        let mut packages = Inputs(Sha256::new());
        packages.packages(&PACKAGES.map(Path::new)).unwrap();
        assert_ne!(Inputs::new().unwrap().key(), packages.key());
    }

    #[test]
    fn failures_are_looked_for_again() {
        let (_dir, cache) = cache();
        find(&cache, "one", &Outcome::failed("a/b", "x", "broken"));
        let (outcomes, was_cached) = find(&cache, "one", &Outcome::passed("a/b", "x"));
        assert!(!was_cached);
        assert_eq!(outcomes[0].status, Status::Passed);
    }

    #[test]
    fn what_is_flaky_is_looked_for_again() {
        let (_dir, cache) = cache();
        let mut flaky = Outcome::passed("a/b", "x");
        flaky.flaky.push("lost a byte".into());
        find(&cache, "one", &flaky);
        assert!(!find(&cache, "one", &Outcome::passed("a/b", "x")).1);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_none() {
        let (_dir, cache) = cache();
        find(&cache, "one", &Outcome::passed("a/b", "x"));
        fs::write(cache.dir.join("a.b.json"), "{").unwrap();
        assert!(!find(&cache, "one", &Outcome::passed("a/b", "x")).1);
    }

    #[test]
    fn where_files_are_does_not_count() {
        let key = || {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().join("folder/of");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("a"), "1").unwrap();
            let mut inputs = Inputs(Sha256::new());
            inputs.path(&folder.join("a")).unwrap();
            inputs.path(&dir.path().join("folder")).unwrap();
            inputs.key()
        };
        assert_eq!(key(), key());
    }

    #[test]
    fn names_and_contents_of_files_count() {
        let dir = tempfile::tempdir().unwrap();
        let key = || {
            let mut inputs = Inputs(Sha256::new());
            inputs.path(dir.path()).unwrap();
            inputs.key()
        };
        fs::create_dir(dir.path().join("folder")).unwrap();
        fs::write(dir.path().join("folder/a"), "1").unwrap();
        let first = key();
        assert_eq!(first, key());
        fs::write(dir.path().join("folder/a"), "2").unwrap();
        assert_ne!(first, key());
        fs::rename(dir.path().join("folder/a"), dir.path().join("folder/b")).unwrap();
        fs::write(dir.path().join("folder/b"), "1").unwrap();
        assert_ne!(first, key());
        assert!(
            Inputs(Sha256::new())
                .path(&dir.path().join("none"))
                .is_err()
        );
    }

    #[test]
    fn each_file_of_a_repository_counts_except_ignored_ones() {
        let dir = tempfile::tempdir().unwrap();
        ask(dir.path(), &["init", "-q"]).unwrap();
        fs::write(dir.path().join(".gitignore"), "*\n").unwrap();
        let root = &dir.path().join("archive");
        fs::create_dir(root).unwrap();
        let write = |name: &str, text: &str| fs::write(root.join(name), text).unwrap();
        let key = || {
            let mut inputs = Inputs(Sha256::new());
            inputs.repository(root).unwrap();
            inputs.key()
        };
        write("staged", "one");
        assert_ne!(key(), key(), "without git");
        ask(root, &["init", "-q"]).unwrap();
        write(".gitignore", "ignored\n");
        ask(root, &["add", "."]).unwrap();
        let first = key();
        write("ignored", "one");
        assert_eq!(key(), first);
        for name in ["staged", "new"] {
            write(name, "two");
            assert_ne!(key(), first, "{name}");
            fs::remove_file(root.join(name)).unwrap();
        }
        assert_ne!(key(), first);
        write("staged", "one");
        assert_eq!(key(), first);
    }
}
