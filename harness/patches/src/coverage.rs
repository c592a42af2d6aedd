//! Finds the lines of the series that no test reaches, and why.
//!
//! The tests of qemu/coverage.toml run on a kernel from its own work tree. In C, gcov
//! counts: the touched files are built with its counters. For Rust, see [`rust`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use ktap::Status;
use serde::Deserialize;

use crate::diff::Diff;
use crate::recorded;
use host::proc::capture;
use host::status::Verdict;
use jobs::schedule::run_all;
use kernel::build::Builder;
use kernel::tree::Tree;
use machine::vm::Booter;
use machine::vm::trace::LOG;
use plan::job::{Job, Spec};
use plan::kernels::Kernel;
use plan::topology::Topologies;

mod lines;
mod rust;

use lines::{Lines, Summary};
use rust::{Executed, place};

const HEAD: &str = "\
# Lines that tests reach

    make coverage

counts the lines that the series adds, in C by gcov and in Rust by the instructions that
QEMU has run and the line table. `qemu/coverage.toml` has the tests and the reasons.

";

/// The files that a run writes to its results: a page, data, and input for lcov's tools.
pub const RESULTS: [&str; 3] = ["coverage.md", "coverage.json", "coverage.info"];

/// The file with the modules' addresses in a machine with counters.
const MODULES: &str = "out/modules";

/// The names of the kernel and of the work tree.
pub const KERNEL: &str = "coverage/kernel";
const WORKTREE: &str = "coverage/linux";

/// qemu/coverage.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CoverageConfig {
    kernel: Kernel,
    #[serde(rename = "job")]
    jobs: Vec<Spec>,
    #[serde(default)]
    unreached: Vec<Unreached>,
}

/// The reason why no test reaches some lines.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unreached {
    /// A file, a folder with everything in it, or all files.
    #[serde(default)]
    file: String,
    /// Parts of lines. If there are none, every line of the file.
    #[serde(default)]
    lines: Vec<String>,
    /// For people.
    reason: String,
}

impl Unreached {
    fn is_of(&self, file: &str) -> bool {
        file == self.file
            || self.file.is_empty()
            || (self.file.ends_with('/') && file.starts_with(self.file.as_str()))
    }
}

impl CoverageConfig {
    fn read(root: &Path) -> Result<Self> {
        let file = root.join("qemu/coverage.toml");
        let settings: Self = host::settings::read(&file)?;
        for spec in &settings.jobs {
            spec.check().with_context(|| file.display().to_string())?;
        }
        Ok(settings)
    }
}

/// Measures coverage.
pub struct Coverage<'a> {
    /// Builds the kernel. Its tree is only read, and its compiler must be clang.
    pub builder: &'a Builder<'a>,
    /// Boots the machines.
    pub booter: &'a Booter<'a>,
}

impl Coverage<'_> {
    /// Builds, runs the tests, and reports what they reach.
    pub fn run(&self, topologies: &Topologies) -> Result<Verdict> {
        let paths = self.builder.paths;
        let settings = CoverageConfig::read(&paths.root)?;
        let added = Diff::of(self.builder.tree)?;
        let touched = added.files(&[".c", ".h", ".rs"]);
        let tree = self.counting_tree(&touched)?;
        self.builder
            .of(&tree)
            .build(KERNEL, &settings.kernel, &[])?;

        let (lines, failed) = self.run_jobs(&settings, topologies, &tree, &touched)?;
        let mut summary = Summary::new(&lines, &added, &touched, &tree.dir, &settings.unreached)?;
        summary.recorded = recorded::line(self.builder, self.booter.qemu)?;
        let dir = paths.results();
        fs::create_dir_all(&dir)?;
        let [page, data, trace] = RESULTS.map(|name| dir.join(name));
        fs::write(data, serde_json::to_string_pretty(&summary)?)?;
        let text = format!("{HEAD}{}\n\n{}", summary.recorded, summary.tables());
        fs::write(&page, &text)?;
        fs::write(&trace, lines.tracefile(&added, &touched))?;
        host::outln!("\n{text}");
        host::outln!("results: {}", paths.short(&page));
        host::outln!("tracefile: {}", paths.short(&trace));
        for failure in &failed {
            host::errln!("FAILED {failure}");
        }
        Ok(if summary.is_explained() && failed.is_empty() {
            Verdict::Passed
        } else {
            Verdict::Failed
        })
    }

    /// Runs the jobs with one machine per processor. Returns the lines that ran and the
    /// tests that failed. After a failed test, the others still count.
    fn run_jobs(
        &self,
        settings: &CoverageConfig,
        topologies: &Topologies,
        tree: &Tree,
        touched: &[&str],
    ) -> Result<(Lines, Vec<String>)> {
        let objects = self.builder.paths.output.join(KERNEL);
        let mut jobs = Vec::new();
        for spec in &settings.jobs {
            for name in &spec.topologies {
                let topology = topologies.get(name)?;
                let name = format!("coverage/{}/{name}", spec.name);
                jobs.push(Job::alone(name, KERNEL, topology, spec.clone()));
            }
        }
        let found = Mutex::new((Lines::default(), Vec::new()));
        run_all(jobs, self.builder.jobs, |job| {
            let name = &job.name;
            let outcomes = jobs::run(&job, self.booter)?;
            let dir = self.booter.dir(name);
            let (lines, failed) = &mut *found.lock().expect("no panic holds it");
            for outcome in outcomes {
                if outcome.status == Status::Failed {
                    failed.push(format!("{name}: {}: {}", outcome.name, outcome.reason));
                }
            }
            let counters = dir.join("out/gcov");
            if !counters.is_dir() {
                failed.push(format!("{name}: the machine has left no counters of gcov"));
                return Ok(());
            }
            self.count(&objects, &counters, &tree.dir, lines)
                .with_context(|| format!("{name}: reading gcov's counters"))?;
            self.count_rust(&objects, &dir, &tree.dir, touched, lines)
                .with_context(|| format!("{name}: reading what QEMU has run"))
        })?;
        Ok(found.into_inner().expect("no panic holds it"))
    }

    /// Adds the Rust lines that one machine has run, and removes its large log.
    fn count_rust(
        &self,
        objects: &Path,
        dir: &Path,
        tree: &Path,
        touched: &[&str],
        lines: &mut Lines,
    ) -> Result<()> {
        let mut files = touched.to_owned();
        files.retain(|file| file.ends_with(".rs"));
        let log = dir.join(LOG);
        let executed = Executed::read(&log)?;
        fs::remove_file(&log)?;
        executed.count(&objects.join("vmlinux"), tree, &files, lines)?;

        let scratch = tempfile::tempdir_in(self.builder.paths.build().join("tmp"))?;
        let loaded = fs::read_to_string(dir.join(MODULES))?;
        let order = fs::read_to_string(objects.join("modules.order"))?;
        for module in order.lines().map(|o| Path::new(o).with_extension("ko")) {
            let name = module.file_stem().unwrap_or_default().to_string_lossy();
            let name = name.replace('-', "_");
            let mut loaded = loaded.lines().filter_map(|line| line.split_once(' '));
            let Some((_, text)) = loaded.find(|(loaded, _)| *loaded == name) else {
                continue;
            };
            let placed = scratch.path().join(&name);
            place(&objects.join(&module), text, &placed)?;
            executed.count(&placed, tree, &files, lines)?;
        }
        Ok(())
    }

    /// The series with gcov's counters in the touched files, and line tables for Rust.
    fn counting_tree(&self, touched: &[&str]) -> Result<Tree> {
        let Builder {
            paths, ui, tree, ..
        } = *self.builder;
        let tree = tree.aside(paths, ui, WORKTREE, "tree: the one for coverage")?;
        let mut makefiles = BTreeMap::<PathBuf, BTreeSet<String>>::new();
        makefiles
            .entry(tree.dir.join("Makefile"))
            .or_default()
            .insert("KBUILD_RUSTFLAGS += -Cdebuginfo=1\n".to_owned());
        for file in touched {
            for (makefile, line) in counting(&tree.dir, file) {
                makefiles.entry(makefile).or_default().insert(line);
            }
        }
        for (makefile, lines) in makefiles {
            let mut text = fs::read_to_string(&makefile)?;
            text.extend(lines);
            fs::write(&makefile, text)?;
        }
        Ok(tree)
    }

    /// Adds the counts of one machine. The name of a counter file is the path of its
    /// object at compile time, with `#` for `/`.
    fn count(&self, objects: &Path, counters: &Path, tree: &Path, lines: &mut Lines) -> Result<()> {
        let scratch = tempfile::tempdir_in(self.builder.paths.build().join("tmp"))?;
        let mut found = false;
        for entry in fs::read_dir(counters).with_context(|| counters.display().to_string())? {
            let data = entry?.path();
            let name = data.file_name().unwrap_or_default().to_string_lossy();
            let notes = notes(objects, &name)
                .with_context(|| format!("{name}: no such object in {}", objects.display()))?;
            // gcov expects both files to have the same name.
            fs::copy(&data, scratch.path().join("object.gcda"))?;
            fs::copy(&notes, scratch.path().join("object.gcno"))?;
            let said = capture(
                Command::new("/usr/lib/llvm-19/bin/llvm-cov")
                    .args(["gcov", "--stdout", "object.gcda"])
                    .current_dir(scratch.path()),
            )?;
            lines.add(&said, tree)?;
            found = true;
        }
        if !found {
            bail!("there are none: has the kernel CONFIG_GCOV_KERNEL?");
        }
        Ok(())
    }
}

/// The compiler's notes for an object. Its path at compile time may be in another clone,
/// because of ccache.
fn notes(objects: &Path, name: &str) -> Option<PathBuf> {
    let mut rest = name;
    while let Some((_, end)) = rest.split_once('#') {
        let notes = objects.join(end.replace('#', "/")).with_extension("gcno");
        if notes.is_file() {
            return Some(notes);
        }
        rest = end;
    }
    None
}

/// Makefile lines that turn on counting for the object of a file. Kbuild looks the object
/// up by its path from the folder that builds it. Any parent folder may build it: nouveau
/// includes the `Kbuild` files of all folders below it. If there is a `Kbuild`, it
/// replaces the Makefile.
fn counting(tree: &Path, file: &str) -> Vec<(PathBuf, String)> {
    let Some(stem) = file.strip_suffix(".c") else {
        return Vec::new();
    };
    let line = |folder: &Path| {
        let names = ["Kbuild", "Makefile"].map(|name| tree.join(folder).join(name));
        let makefile = names.into_iter().find(|name| name.is_file())?;
        let object = Path::new(stem).strip_prefix(folder).ok()?;
        let line = format!("GCOV_PROFILE_{}.o := y\n", object.display());
        Some((makefile, line))
    };
    Path::new(file)
        .ancestors()
        .skip(1)
        .filter_map(line)
        .collect()
}

#[cfg(test)]
mod tests;
