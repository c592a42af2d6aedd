//! Goes through the commits of a configuration: builds and boots each one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::recipe::Recipe;
use super::store::StepResults;
use super::warnings::warnings;
use super::{Bisect, Commit, StepResult, topic};
use host::git::ask;
use host::proc::{self, shown, tail};
use host::status::ends_run;
use kernel::Built;
use kernel::build::{Broken, Make};
use kernel::config;
use machine::logscan;
use machine::vm::Boot;
use plan::topology::{Kind, Models};

/// Paths with these prefixes are not read by a build, except for sources and Kconfig files.
const NOT_READ: [&str; 3] = ["Documentation/", "MAINTAINERS", "tools/testing/"];

/// Kbuild records which of these files it reads. Other files decide what is built.
const SOURCES: [&str; 3] = [".c", ".h", ".rs"];

/// Goes through the commits of one configuration.
pub struct Walker<'a> {
    pub bisect: &'a Bisect<'a>,
    /// The configuration's name.
    pub name: &'a str,
    pub recipe: &'a Recipe<'a>,
    /// The output directory.
    pub output: &'a Path,
    /// The name of its builds' log.
    pub log: String,
}

impl Walker<'_> {
    /// Builds and boots the picked commits that have not passed yet.
    pub fn walk(&self, base: &Commit, picked: &[&Commit], rows: &mut StepResults) -> Result<()> {
        let Self {
            bisect,
            name,
            recipe,
            ..
        } = *self;
        let todo = picked.iter().filter(|commit| {
            bisect.force || !rows.passed(name, commit.number, &recipe.key(commit))
        });
        let todo: Vec<_> = todo.collect();
        if todo.is_empty() {
            return Ok(());
        }
        // Make does not compile again what a patch warned about, so the warning would be gone.
        if rows.has_failures(name) {
            self.forget_base()?;
        }
        let known = self.base_warnings(base, &recipe.key(base))?;
        // The last commit in the output directory that passed.
        let mut built: Option<&Commit> = None;
        for commit in todo {
            let start = Instant::now();
            let mut row = StepResult {
                configuration: name.to_owned(),
                number: commit.number,
                subject: commit.subject.clone(),
                key: recipe.key(commit),
                booted: None,
                tests: None,
                as_before: false,
                trouble: None,
                seconds: 0,
                recorded: None,
            };
            if let Some(before) = built.filter(|before| before.number + 1 == commit.number)
                && !self.is_tested(commit)
                && !self.reads_what_changes(before, commit)?
            {
                row.as_before = true;
                row.booted = rows.booted(name, before.number);
            } else {
                self.step(commit, &known, &mut row)?;
            }
            built = row.passed().then_some(*commit);
            row.seconds = start.elapsed().as_secs();
            bisect.builder.ui.say(format!(
                "bisect: {name}/{}: {} ({} s)",
                commit.number,
                row.word(),
                row.seconds
            ));
            rows.put(row)?;
            self.begun().remove()?;
        }
        Ok(())
    }

    fn begun(&self) -> Mark {
        Mark(self.output.join("p2p-begun"))
    }

    fn base_file(&self) -> PathBuf {
        self.output.join("p2p-base.json")
    }

    /// The base will be built again.
    fn forget_base(&self) -> Result<()> {
        let file = self.base_file();
        if file.exists() {
            fs::remove_file(&file).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    /// Warnings of the base. It is built first, and again if it changes.
    fn base_warnings(&self, base: &Commit, key: &str) -> Result<BTreeSet<String>> {
        let file = self.base_file();
        let kept = fs::read_to_string(&file).ok();
        let kept = kept.and_then(|text| serde_json::from_str::<(String, _)>(&text).ok());
        if let Some((of, warnings)) = kept
            && of == key
        {
            return Ok(warnings);
        }
        if self.output.exists() {
            fs::remove_dir_all(self.output)?;
        }
        let warnings = self
            .build(base)
            .with_context(|| format!("bisect: {}, the base alone", self.name))?;
        fs::write(file, serde_json::to_string(&(key, &warnings))?)?;
        self.begun().remove()?;
        Ok(warnings)
    }

    /// Whether the build of a commit has read any file that the next commit changes.
    fn reads_what_changes(&self, before: &Commit, next: &Commit) -> Result<bool> {
        let tree = &self.bisect.builder.tree.dir;
        let diff = [
            "diff",
            "--no-renames",
            "--name-status",
            &before.id,
            &next.id,
        ];
        let diff = ask(tree, &diff)?;
        let mut sources = Vec::new();
        for (how, file) in diff.lines().filter_map(|line| line.split_once('\t')) {
            let is_source = SOURCES.iter().any(|end| file.ends_with(end));
            let is_built_from = is_source || file.contains("/Kconfig");
            if !is_built_from && NOT_READ.iter().any(|start| file.starts_with(start)) {
                continue;
            }
            if how != "M" || !is_source {
                return Ok(true);
            }
            // Compare only the file name, because the recorded path may contain `..`.
            let name = file.rsplit('/').next().unwrap_or(file);
            sources.push(format!("/{name}"));
        }
        if sources.is_empty() {
            return Ok(false);
        }
        // Beside each object, Kbuild records all files that it was made from.
        let mut grep = Command::new("grep");
        grep.args(["-rqF", "--include=.*.cmd"]);
        for source in sources {
            grep.args(["-e", &source]);
        }
        let (status, _, err) = proc::output(grep.arg(self.output))?;
        match status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => anyhow::bail!("{}: {}", shown(&grep), tail(&err, 5)),
        }
    }

    fn step(&self, commit: &Commit, known: &BTreeSet<String>, row: &mut StepResult) -> Result<()> {
        let warnings = match self.build(commit) {
            Err(error) if ends_run(&error) => return Err(error),
            Err(error) => {
                row.trouble = Some(format!("{error:#}"));
                return Ok(());
            }
            Ok(warnings) => warnings,
        };
        let new: Vec<_> = warnings.difference(known).cloned().collect();
        if !new.is_empty() {
            row.trouble = Some(format!("new warnings:\n{}", new.join("\n")));
            return Ok(());
        }
        if let Some(topology) = &self.recipe.configuration.boot {
            row.trouble = self.boot(commit, topology)?;
            row.booted = Some(row.trouble.is_none());
            if row.passed() && self.is_tested(commit) {
                let (passed, trouble) = self.test(commit)?;
                (row.tests, row.trouble) = (Some(passed), trouble);
            }
        }
        Ok(())
    }

    /// Whether jobs run after this patch.
    fn is_tested(&self, commit: &Commit) -> bool {
        commit.is_last && !self.recipe.jobs.is_empty()
    }

    /// Runs the jobs. Returns how many tests passed, and what failed.
    fn test(&self, commit: &Commit) -> Result<(usize, Option<String>)> {
        let Bisect {
            builder, booter, ..
        } = self.bisect;
        let source = self.source(commit)?;
        let jobs = topic::there(&self.recipe.jobs, &source);
        let step = builder.ui.step(format!("bisect: {}, its tests", self.name));
        let make = self.make(&source);
        let built = make.for_machines(topic::programs(&jobs), &step);
        drop(step);
        if let Err(error) = built {
            if ends_run(&error) {
                return Err(error);
            }
            return Ok((0, Some(error.downcast::<Broken>()?.to_string())));
        }
        let mut outcomes = Vec::new();
        for job in &jobs {
            outcomes.extend(jobs::run(job, booter)?);
        }
        Ok(topic::judged(&outcomes))
    }

    /// The work tree, with this commit.
    fn source(&self, commit: &Commit) -> Result<PathBuf> {
        let Bisect { paths, builder, .. } = self.bisect;
        let what = "tree: a second one, for bisect";
        let tree = builder.tree;
        tree.worktree(paths, builder.ui, "bisect/linux", &commit.id, what)
    }

    fn make<'m>(&'m self, source: &'m Path) -> Make<'m> {
        Make {
            builder: self.bisect.builder,
            name: &self.log,
            source,
            output: self.output,
            arch: self.recipe.configuration.arch.as_deref(),
            llvm: self.recipe.configuration.llvm,
        }
    }

    /// Builds a commit. Returns the warnings.
    fn build(&self, commit: &Commit) -> Result<BTreeSet<String>> {
        let builder = self.bisect.builder;
        let name = format!("bisect: {}/{}", self.name, commit.number);
        let step = builder.ui.step(name);
        let source = self.source(commit)?;
        fs::create_dir_all(self.output)?;
        let make = self.make(&source);
        // Objects from an interrupted build showed their warnings then.
        let begun = self.begun();
        let mut found = BTreeSet::new();
        if begun.is_set() {
            found = warnings(&fs::read_to_string(make.log()).unwrap_or_default());
        }
        begun.set()?;

        let tree = &builder.tree.dir;
        let wanted = config::defined(tree, &commit.id, &self.recipe.wanted)?;
        let text = config::text(&wanted);
        let mut log = make.log().into_os_string();
        let refused = make.configure(&text, &wanted, &step)?;
        if !refused.is_empty() {
            anyhow::bail!("Kconfig refuses {}", refused.join(", "));
        }
        let jobs = format!("-j{}", builder.jobs);
        let targets = self.targets(&source);
        let mut arguments = vec![jobs.as_str()];
        arguments.extend(targets.iter().map(String::as_str));
        let built = make.run(&arguments, &step);
        found.extend(warnings(&fs::read_to_string(make.log())?));
        // Keeps a log for each step.
        log.push(format!(".{}", commit.number));
        fs::copy(make.log(), log)?;
        built?;
        Ok(found)
    }

    /// The targets for the kernel's make.
    fn targets(&self, source: &Path) -> Vec<String> {
        let image = match (
            self.recipe.objects.as_slice(),
            &self.recipe.configuration.boot,
        ) {
            ([], Some(_)) => "bzImage",
            ([], None) => "vmlinux",
            (objects, _) => {
                // A later patch adds some of the objects.
                let there = objects.iter().filter(|object| has_source(source, object));
                return there.cloned().collect();
            }
        };
        vec![image.to_owned(), "modules".to_owned()]
    }

    /// Boots the built kernel. Returns the error, if there is one.
    fn boot(&self, commit: &Commit, topology: &str) -> Result<Option<String>> {
        let booter = self.bisect.booter;
        let name = format!("bisect/{}/{}", self.name, commit.number);
        let step = booter.ui.step(format!("run: {name}"));
        let ran = booter.boot(
            &Boot {
                name: &name,
                kernel: &Built {
                    dir: self.output.to_owned(),
                },
                topology: self.bisect.topologies.get(topology)?,
                kind: Kind::Counting,
                models: Models::default(),
                append: &[],
                icount: None,
                cpus: None,
                coverage: false,
                job: "uname -a >\"$out/uname\"\n".to_owned(),
                limit: Duration::from_secs(180),
            },
            &step,
        )?;
        let reports = logscan::reports(&ran.console);
        Ok(ran.trouble().or_else(|| reports.into_iter().next()))
    }
}

/// A file that exists while a step is not complete.
struct Mark(PathBuf);

impl Mark {
    fn is_set(&self) -> bool {
        self.0.is_file()
    }

    fn set(&self) -> Result<()> {
        Ok(fs::write(&self.0, "")?)
    }

    fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Whether a tree has the source of an object, or a folder.
fn has_source(tree: &Path, target: &str) -> bool {
    match target.strip_suffix(".o") {
        Some(object) => ["c", "rs"]
            .iter()
            .any(|end| tree.join(format!("{object}.{end}")).is_file()),
        None => tree.join(target).is_dir(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_built_once_there_is_something_to_make_them_of() {
        let tree = tempfile::tempdir().unwrap();
        let there = |target| has_source(tree.path(), target);
        fs::create_dir_all(tree.path().join("gpu/kfd")).unwrap();
        fs::create_dir(tree.path().join("gpu/amd")).unwrap();
        fs::write(tree.path().join("gpu/kfd/a.c"), "").unwrap();
        fs::write(tree.path().join("gpu/pool.rs"), "").unwrap();
        assert!(there("gpu/kfd/") && there("gpu/pool.o"));
        assert!(there("gpu/amd/../kfd/a.o"));
        assert!(!there("gpu/window.o") && !there("nic/"));
    }
}
