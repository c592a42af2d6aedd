//! Checks the patches with a maintainer's tools, without a machine: do they apply, are
//! they mails, who gets them, and do compilers, sparse, clippy, kernel-doc, rustdoc and
//! Sphinx report anything about new code?
//!
//! The patches determine what is checked. A message counts if it is about a line that the
//! series adds. Older lines do not count.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde::Deserialize;

use crate::diff::Diff;
use host::paths::Paths;
use host::proc::{output, tail};
use host::ui::Ui;
use kernel::build::Builder;
use kernel::series::Series;
use kernel::tree::Tree;
use results::cache::{self, Cache, Inputs};
use results::report::Outcome;

mod building;
mod mail;
mod messages;
mod prose;
mod trees;

/// Checks that take seconds. `make test` runs them as well.
pub const QUICK: [&str; 9] = [
    "am",
    "topics",
    "checkpatch",
    "mail",
    "maintainers",
    "codespell",
    "kernel-doc",
    "kernel-rustfmt",
    "docs",
];

/// Output directories for checks: with all topics, and with one.
pub const OUTPUTS: [&str; 2] = ["check", "check-topic"];

/// Checks that take minutes.
pub const BUILDING: [&str; 2] = ["objects", "rustdoc"];

/// Checks the prose of pages and messages. It needs proselint, which may have to be
/// downloaded.
pub const PROSE: &str = "prose";

/// Checks which topics apply to which kernels. It may have to download kernels.
pub const TREES: &str = "trees";

/// qemu/check.toml
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckConfig {
    fragments: Vec<String>,
    targets: Vec<String>,
    words: Vec<String>,
    sparse: Vec<Known>,
    suites: Vec<String>,
    prose: prose::Config,
    #[serde(rename = "tree")]
    trees: Vec<trees::Kernel>,
}

/// Messages about new lines of a file that are not their fault.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    file: String,
    messages: Vec<String>,
    #[expect(dead_code, reason = "for readers of the file")]
    why: String,
}

impl Known {
    fn has(&self, said: &str) -> bool {
        let mut messages = self.messages.iter();
        said.contains(&format!("{}:", self.file)) && messages.any(|text| said.contains(text))
    }
}

impl CheckConfig {
    fn read(root: &Path) -> Result<Self> {
        host::settings::read(&root.join("qemu/check.toml"))
    }
}

/// Checks the series.
pub struct Checker<'a> {
    paths: &'a Paths,
    tree: &'a Tree,
    series: Series,
    settings: CheckConfig,
    added: Diff,
    /// `FORCE=1`
    force: bool,
}

impl<'a> Checker<'a> {
    /// Collects what to check: a series, and the tree that has it.
    pub fn new(paths: &'a Paths, tree: &'a Tree, series: Series, force: bool) -> Result<Self> {
        Ok(Self {
            paths,
            tree,
            series,
            settings: CheckConfig::read(&paths.root)?,
            added: Diff::of(tree)?,
            force,
        })
    }

    /// Runs one of [`QUICK`]. Also returns whether the results came from the cache.
    pub fn quick(&self, ui: &Ui, name: &str) -> Result<(Vec<Outcome>, bool)> {
        let step = ui.step(format!("run: {name}"));
        let look = || {
            Ok(match name {
                _ if self.series.patches.is_empty() => Vec::new(),
                "am" => vec![mail::am(self)?],
                "topics" => mail::topics(self)?,
                "checkpatch" => mail::checkpatch(self)?,
                "mail" => mail::mail(self)?,
                "maintainers" => mail::maintainers(self)?,
                "codespell" => mail::codespell(self)?,
                "kernel-doc" => vec![self.kernel_doc()?],
                "kernel-rustfmt" => vec![self.rustfmt()?],
                _ => building::docs(self)?,
            })
        };
        let cache = Cache::new(self.paths, self.force);
        let (outcomes, was_cached) = cache.or_find(name, self.inputs()?, look)?;
        step.done(cache::counted(outcomes.len(), was_cached));
        Ok((outcomes, was_cached))
    }

    /// The checks of [`QUICK`] with cached results.
    pub fn cached(&self) -> Result<Vec<&'static str>> {
        let (cache, inputs) = (Cache::new(self.paths, self.force), self.inputs()?);
        let mut names = QUICK.to_vec();
        names.retain(|name| cache.has(name, inputs.clone()));
        Ok(names)
    }

    /// The inputs of the results of [`QUICK`].
    fn inputs(&self) -> Result<Inputs> {
        let mut inputs = Inputs::new()?;
        // Some checks read the work tree's files.
        inputs.tree(&self.tree.dir, &[&self.tree.base, &self.tree.tip])?;
        inputs.path(&self.series.dir)?;
        inputs.path(&self.paths.root.join("qemu"))?;
        Ok(inputs)
    }

    /// Runs one of [`BUILDING`].
    pub fn building(&self, builder: &Builder<'_>, name: &str) -> Result<Vec<Outcome>> {
        let step = builder.ui.step(format!("run: {name}"));
        let outcomes = match name {
            _ if self.series.patches.is_empty() => Vec::new(),
            "objects" => building::objects(self, builder, &step)?,
            _ => vec![building::rustdoc(self, builder, &step)?],
        };
        step.done(format!("{} tests", outcomes.len()));
        Ok(outcomes)
    }

    /// Runs [`PROSE`].
    pub fn prose(&self, ui: &Ui) -> Result<Vec<Outcome>> {
        let step = ui.step(format!("run: {PROSE}"));
        let outcomes = prose::run(self, ui)?;
        step.done(format!("{} tests", outcomes.len()));
        Ok(outcomes)
    }

    /// Runs [`TREES`] and prints the table.
    pub fn trees(&self, ui: &Ui) -> Result<Vec<Outcome>> {
        trees::run(self, ui)
    }

    /// The output directory for checks. Another tree has another directory, because
    /// objects contain the path of their tree.
    fn output(&self) -> PathBuf {
        self.paths
            .output
            .join(OUTPUTS[usize::from(!self.has_all())])
    }

    /// Whether the tree has all topics.
    fn has_all(&self) -> bool {
        self.tree.dir == self.paths.tree()
    }

    /// Touched files with one of these endings, without programs for user space.
    fn touched(&self, endings: &[&str]) -> Vec<&str> {
        self.added.files(endings)
    }

    /// The messages about new lines.
    fn about(&self, said: &str) -> Vec<String> {
        messages::about(said, &self.added)
    }

    fn kernel_doc(&self) -> Result<Outcome> {
        let mut command = Command::new("scripts/kernel-doc");
        command
            .current_dir(&self.tree.dir)
            .env("PATH", "/usr/bin:/bin")
            .args(["-none", "-Wall"])
            .args(self.touched(&[".c", ".h"]));
        let (status, out, err) = output(&mut command)?;
        let mut said = self.about(&format!("{out}{err}"));
        // Complaints do not change the status.
        if !status.success() {
            said.push(format!("{status}\n{}", tail(&err, 20)));
        }
        Ok(messages::outcome(
            "kernel-doc",
            "what is new",
            said,
            &command,
        ))
    }

    fn rustfmt(&self) -> Result<Outcome> {
        let name = "kernel-rustfmt";
        let program = "/usr/bin/rustfmt";
        if !Path::new(program).is_file() {
            let why = format!("{program} is not installed");
            return Ok(Outcome::skipped(name, "touched files", why));
        }
        let mut command = Command::new(program);
        command
            .current_dir(&self.tree.dir)
            .args(["--check", "-l", "--edition", "2021"])
            .args(self.touched(&[".rs"]));
        let (status, out, err) = output(&mut command)?;
        let said = (!status.success()).then(|| format!("{out}{err}"));
        Ok(messages::outcome(
            name,
            "touched files",
            said.into_iter().collect(),
            &command,
        ))
    }
}

#[cfg(test)]
mod tests;
