//! Whether the kernel builds without a new warning, and boots, after each patch,
//! in each configuration of qemu/bisect.toml.
//!
//! A configuration of drivers that are too long to build as a whole has the
//! objects that a kernel of qemu/kernels.toml is made of instead.
//!
//! A configuration has one output directory and walks the commits in order, so
//! that each step builds what its patch touches. What has passed is not done
//! again: a second run continues. A patch that touches nothing which the build of
//! the one before has read leaves everything as it was, and is not built.

use std::collections::BTreeMap;
use std::path::PathBuf;

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
mod walker;
mod warnings;

pub use table::table;

/// A patch in a configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepResult {
    /// The configuration.
    configuration: String,
    /// Its place in the series, from 1.
    number: usize,
    /// What it is called.
    subject: String,
    /// Tree and configuration: the result is good for these.
    key: String,
    /// Whether it booted; nothing if it need not.
    booted: Option<bool>,
    /// It was not built, because the patch touches nothing that is read.
    #[serde(default)]
    as_before: bool,
    /// What is not as it should be.
    trouble: Option<String>,
    seconds: u64,
}

impl StepResult {
    /// Whether all is as it should be.
    pub fn passed(&self) -> bool {
        self.trouble.is_none()
    }
}

/// A commit of the series.
struct Commit {
    number: usize,
    id: String,
    tree: String,
    subject: String,
}

/// What all steps need.
pub struct Bisect<'a> {
    /// Where things are.
    pub paths: &'a Paths,
    /// Builds.
    pub builder: &'a Builder<'a>,
    /// Boots.
    pub booter: &'a Booter<'a>,
    /// Where to boot.
    pub topologies: &'a Topologies,
    /// The topic that the tree has alone; empty if it has all.
    pub scope: &'a str,
    /// `FORCE=1`: what has passed is done again.
    pub force: bool,
}

/// Names of all output directories, for `make clean`.
pub fn outputs(paths: &Paths) -> Result<Vec<PathBuf>> {
    let names = recipe::read(&paths.root)?.into_keys();
    Ok(names.map(|name| output(paths, &name)).collect())
}

fn output(paths: &Paths, name: &str) -> PathBuf {
    paths.output.join("bisect").join(name)
}

impl Bisect<'_> {
    /// Builds and boots what `only` picks: a configuration, a patch's number, or
    /// `configuration/number`.
    pub fn run(&self, only: &Only) -> Result<Vec<StepResult>> {
        let configurations = recipe::read(&self.paths.root)?;
        let commits = self.commits()?;
        let name = |c: &str, commit: &Commit| format!("{c}/{}", commit.number);
        let names: Vec<_> = configurations
            .keys()
            .flat_map(|c| commits.iter().skip(1).map(move |commit| name(c, commit)))
            .collect();
        only.check(&names)?;
        let recipes = configurations
            .iter()
            .map(|(c, configuration)| Ok((c.as_str(), self.recipe(configuration)?)))
            .collect::<Result<BTreeMap<_, _>>>()?;
        let key = |row: &StepResult| {
            let recipe = recipes.get(&*row.configuration)?;
            Some(recipe.key(commits.get(row.number)?))
        };
        let mut rows = StepResults::read(self.paths, self.scope);
        rows.recorded = recorded::line(self.builder.tree)?;
        // What is of other patches or another configuration says nothing.
        rows.keep(|row| key(row).as_ref() == Some(&row.key));
        for (c, recipe) in &recipes {
            let picked = commits.iter().skip(1);
            let picked: Vec<_> = picked.filter(|at| only.picks(&name(c, at))).collect();
            Walker {
                bisect: self,
                name: c,
                recipe,
                output: &output(self.paths, c),
            }
            .walk(&commits[0], &picked, &mut rows)?;
        }
        rows.write()?;
        Ok(rows.all)
    }

    /// What failed.
    pub fn failures(&self, rows: &[StepResult]) -> String {
        table::failures(rows, self.scope, |row| self.paths.short(&self.log(row)))
    }

    /// What a step said that failed.
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

    /// Where the table is.
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
                })
            })
            .collect::<Option<_>>()
            .context("git log")
    }
}
