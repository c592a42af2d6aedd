//! Checks whether the kernel builds without a new warning, and boots, after each patch, in
//! each configuration of qemu/bisect.toml.
//!
//! Some drivers take too long to build as a whole. A configuration for them builds only
//! the objects that a kernel of qemu/kernels.toml names.
//!
//! With a single topic, tests run after its last patch.
//!
//! Each configuration has one output directory and goes through the commits in order, so
//! each step builds only what its patch touches. A step that has passed does not run
//! again, so a second run continues where the first one stopped. If a patch touches no
//! file that the previous build has read, it cannot change the result and is not built.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::recorded;
use host::git::ask;
use host::paths::Paths;
use kernel::build::{self, Builder};
use machine::vm::Booter;
use plan::filter::Only;
use plan::topology::Topologies;
use store::StepResults;
use walker::Walker;

mod recipe;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod topic;
mod walker;
mod warnings;

pub use table::table;

/// The result of a patch in a configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepResult {
    /// The configuration.
    configuration: String,
    /// The patch's position in the series, from 1.
    number: usize,
    /// The patch's subject.
    subject: String,
    /// A digest of tree and configuration. The result is valid for these.
    key: String,
    /// Whether it booted. `None` if it does not need to.
    booted: Option<bool>,
    /// How many tests passed, if it ran some: the last patch of a topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tests: Option<usize>,
    /// It was not built, because the patch touches no file that the build reads.
    #[serde(default)]
    as_before: bool,
    /// The error, if there is one.
    trouble: Option<String>,
    seconds: u64,
    /// The run with this result, if it was another run somewhere else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recorded: Option<String>,
}

impl StepResult {
    /// Whether there is no error.
    pub fn passed(&self) -> bool {
        self.trouble.is_none()
    }

    /// `configuration/number`
    pub fn name(&self) -> String {
        format!("{}/{}", self.configuration, self.number)
    }
}

/// A commit of the series.
struct Commit {
    number: usize,
    id: String,
    tree: String,
    subject: String,
    is_last: bool,
}

/// The settings of all steps.
pub struct Bisect<'a> {
    /// The directories.
    pub paths: &'a Paths,
    /// Builds the kernels.
    pub builder: &'a Builder<'a>,
    /// Boots the kernels.
    pub booter: &'a Booter<'a>,
    /// The topologies to boot in.
    pub topologies: &'a Topologies,
    /// The name of the topic, if the tree has only one. Empty if it has all.
    pub scope: &'a str,
    /// `FORCE=1`: run passed steps again.
    pub force: bool,
}

/// The output directories of all configurations, for `make clean`.
pub fn outputs(paths: &Paths) -> Result<Vec<PathBuf>> {
    let names = recipe::read(&paths.root)?.into_keys();
    Ok(names.map(|name| output(paths, &name)).collect())
}

/// Fails if `only` names a step that a series with `patches` patches does not have.
pub fn check(root: &Path, patches: usize, only: &Only) -> Result<()> {
    let configurations = recipe::read(root)?;
    let names = configurations
        .keys()
        .flat_map(|name| (1..=patches).map(move |number| format!("{name}/{number}")));
    only.check(&Vec::from_iter(names))
}

/// The folder of all output directories.
const DIR: &str = "bisect";

fn output(paths: &Paths, name: &str) -> PathBuf {
    paths.output.join(DIR).join(name)
}

impl Bisect<'_> {
    /// Builds and boots the steps that `only` picks: a configuration, a patch's number, or
    /// `configuration/number`.
    pub fn run(&self, only: &Only) -> Result<Vec<StepResult>> {
        let configurations = recipe::read(&self.paths.root)?;
        let commits = self.commits()?;
        let name = |c: &str, commit: &Commit| format!("{c}/{}", commit.number);
        check(&self.paths.root, commits.len() - 1, only)?;
        let recipes = configurations
            .iter()
            .map(|(c, configuration)| Ok((c.as_str(), self.recipe(c, configuration)?)))
            .collect::<Result<BTreeMap<_, _>>>()?;
        let key = |row: &StepResult| {
            let recipe = recipes.get(&*row.configuration)?;
            Some(recipe.key(commits.get(row.number)?))
        };
        let mut rows = StepResults::read(self.paths, self.scope)?;
        rows.recorded = recorded::line(self.builder, self.booter.qemu)?;
        // Results of other patches or another configuration are no longer valid.
        rows.keep(|row| key(row).as_ref() == Some(&row.key));
        for (c, recipe) in &recipes {
            let picked = commits.iter().skip(1);
            let picked: Vec<_> = picked.filter(|at| only.picks(&name(c, at))).collect();
            Walker {
                bisect: self,
                name: c,
                recipe,
                output: &output(self.paths, c),
                log: format!("bisect-{c}"),
            }
            .walk(&commits[0], &picked, &mut rows)?;
        }
        rows.write()?;
        Ok(rows.all)
    }

    /// The failed steps.
    pub fn failures(&self, rows: &[StepResult]) -> String {
        table::failures(rows, self.scope, |row| self.paths.short(&self.log(row)))
    }

    /// The log of a failed step.
    fn log(&self, row: &StepResult) -> PathBuf {
        let (name, number) = (&row.configuration, row.number);
        match row.booted {
            Some(_) => {
                let dir = self.booter.dir(&format!("bisect/{name}/{number}"));
                dir.join("console.log")
            }
            None => {
                let log = build::log(self.paths, &format!("bisect-{name}"));
                log.with_extension(format!("log.{number}"))
            }
        }
    }

    /// The path of the table.
    pub fn table_file(&self) -> PathBuf {
        self.paths.results().join(store::file(self.scope, "md"))
    }

    /// The base, and each commit after it.
    fn commits(&self) -> Result<Vec<Commit>> {
        let tree = self.builder.tree;
        let range = format!("{}..{}", tree.base, tree.tip);
        let format = "--format=%H %T %s";
        let base = ask(&tree.dir, &["log", "-1", format, &tree.base])?;
        let series = ask(&tree.dir, &["log", "--reverse", format, &range])?;
        let last = series.lines().count();
        base.lines()
            .chain(series.lines())
            .enumerate()
            .map(|(number, line)| {
                let mut words = line.splitn(3, ' ').map(str::to_owned);
                Some(Commit {
                    number,
                    id: words.next()?,
                    tree: words.next()?,
                    subject: words.next()?,
                    is_last: number == last,
                })
            })
            .collect::<Option<_>>()
            .context("git log")
    }
}
