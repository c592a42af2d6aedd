//! A file of qemu/mutants: what the defect breaks, in one line; then lines
//! `key: value`; then, after an empty line, a diff for `git apply`.
//!
//! | key | value |
//! |---|---|
//! | `run` | a selftest, `folder/program`, and its arguments; any number of them |
//! | `topology` | where they are run, if not where mutants.toml says |
//! | `connectx` | an argument of the model of a NIC in parallel machines, as in tests.toml; any number of them |
//! | `pascal` | the same for the model of a GPU, after those of mutants.toml |
//! | `kunit` | the kernel's own tests, by filter |
//! | `expect` | part of the name of a test that should notice; any number of them |
//!
//! The defect may be in a selftest: then each program of `run` is built with it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A defect, and the tests that should notice it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Mutant {
    /// The file's name, without `.diff`.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// The whole content of the file.
    pub text: String,
    /// What the defect breaks.
    pub breaks: String,
    /// Selftests to run.
    pub programs: Vec<String>,
    /// The topology for the selftests.
    pub topology: Option<String>,
    /// Arguments for the NIC model of parallel machines.
    pub connectx: Vec<String>,
    /// More arguments for the GPU model, if the GPU is one.
    pub pascal: Vec<String>,
    /// KUnit tests to run.
    pub kunit: Option<String>,
    /// Parts of the names of the tests that should notice it.
    pub expect: Vec<String>,
    /// The first file that it changes.
    pub changes: String,
}

impl Mutant {
    fn parse(text: &str) -> Result<Self> {
        let mut mutant = Self {
            text: text.to_owned(),
            ..Self::default()
        };
        let (head, diff) = text
            .split_once("\n\n")
            .context("there is no empty line before the diff")?;
        let mut lines = head.lines();
        lines
            .next()
            .unwrap_or_default()
            .clone_into(&mut mutant.breaks);
        for line in lines {
            let Some((key, value)) = line.split_once(": ") else {
                bail!("{line:?} is no `key: value`");
            };
            let value = value.trim().to_owned();
            match key {
                "run" => mutant.programs.push(value),
                "topology" if mutant.topology.is_none() => mutant.topology = Some(value),
                "connectx" => mutant.connectx.push(value),
                "pascal" => mutant.pascal.push(value),
                "kunit" if mutant.kunit.is_none() => mutant.kunit = Some(value),
                "expect" => mutant.expect.push(value),
                _ => bail!(
                    "{line:?}: there are run, topology (once), connectx, pascal, kunit (once) \
                     and expect"
                ),
            }
        }
        if mutant.breaks.is_empty() || mutant.expect.is_empty() {
            bail!("it does not say what it breaks, or which test is expected to notice");
        }
        if mutant.programs.is_empty() && mutant.kunit.is_none() {
            bail!("it runs no test");
        }
        let changed = diff.lines().find_map(|line| line.strip_prefix("+++ b/"));
        changed
            .context("there is no diff")?
            .clone_into(&mut mutant.changes);
        Ok(mutant)
    }
}

/// A selftest, and the machine that it runs in.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TestRun {
    /// `folder/program` and its arguments.
    pub program: String,
    /// As in [`Mutant`].
    pub topology: Option<String>,
    /// As in [`Mutant`].
    pub connectx: Vec<String>,
    /// As in [`Mutant`].
    pub pascal: Vec<String>,
}

/// The tests of one run: each program, with its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tests {
    /// Selftests.
    pub programs: Vec<TestRun>,
    /// KUnit tests, by filter.
    pub kunit: Option<String>,
}

impl Mutant {
    /// Whether the defect is in a selftest, which the kernel's build does not build.
    pub fn is_in_selftest(&self) -> bool {
        self.changes.starts_with("tools/testing/selftests/")
    }

    /// The tests to run.
    pub fn tests(&self) -> Tests {
        let programs = self.programs.iter();
        Tests {
            programs: programs
                .map(|program| TestRun {
                    program: program.clone(),
                    topology: self.topology.clone(),
                    connectx: self.connectx.clone(),
                    pascal: self.pascal.clone(),
                })
                .collect(),
            kunit: self.kunit.clone(),
        }
    }
}

/// All tests of these mutants, each once.
pub fn all_tests(mutants: &[&Mutant]) -> Tests {
    let all = mutants.iter().flat_map(|mutant| mutant.tests().programs);
    let programs: BTreeSet<_> = all.collect();
    let has_kunit = mutants.iter().any(|mutant| mutant.kunit.is_some());
    Tests {
        programs: programs.into_iter().collect(),
        kunit: has_kunit.then(|| "*".to_owned()),
    }
}

/// Reads all files. Mutants that change the same file are neighbours, because the next
/// build is then short.
pub fn read_all(dir: &Path) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "diff") {
            continue;
        }
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut mutant = Mutant::parse(&text).with_context(|| path.display().to_string())?;
        mutant.name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        mutant.path = path;
        mutants.push(mutant);
    }
    mutants.sort_by(|a, b| (&a.changes, &a.name).cmp(&(&b.changes, &b.name)));
    Ok(mutants)
}
