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

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};

use crate::recorded;
use host::git::ask;
use host::paths::{Paths, digest};
use host::proc::indent;
use host::proc::{self, interrupted, shown, tail};
use kernel::Built;
use kernel::build::{self, Builder, Make};
use kernel::config;
use machine::logscan;
use machine::vm::{Boot, Booter};
use plan::filter::Only;
use plan::kernels::Kernels;
use plan::topology::{Kind, Models, Topologies};
use results::cache::Inputs;
use setup::search_path;

/// Beginnings of what no kernel is made of, other than sources and options.
const NOT_READ: [&str; 3] = ["Documentation/", "MAINTAINERS", "tools/testing/"];

/// Ends of what is read only if Kbuild says so. Other files say what is built.
const SOURCES: [&str; 3] = [".c", ".h", ".rs"];

/// A configuration of qemu/bisect.toml.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    fragments: Vec<String>,
    arch: Option<String>,
    #[serde(default)]
    llvm: bool,
    boot: Option<String>,
    /// A kernel of qemu/kernels.toml, whose targets are built.
    targets: Option<String>,
}

type Configurations = BTreeMap<String, Configuration>;

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

fn read(root: &Path) -> Result<Configurations> {
    host::settings::read(&root.join("qemu/bisect.toml"))
}

/// All that a result depends on besides the tree.
struct Recipe<'a> {
    configuration: &'a Configuration,
    /// All its options.
    wanted: config::Options,
    /// What is built instead of a kernel; nothing if one is.
    objects: Vec<String>,
    /// By what it is built and booted.
    means: String,
}

impl Recipe<'_> {
    /// What a result is good for.
    fn key(&self, commit: &Commit) -> String {
        let Self {
            configuration,
            wanted,
            objects,
            means,
        } = self;
        let what = format!("{configuration:?}\n{wanted:?}\n{objects:?}");
        digest(format!("{}\n{what}\n{means}", commit.tree).as_bytes())
    }
}

/// Names of all output directories, for `make clean`.
pub fn outputs(paths: &Paths) -> Result<Vec<PathBuf>> {
    let names = read(&paths.root)?.into_keys();
    Ok(names.map(|name| output(paths, &name)).collect())
}

fn output(paths: &Paths, name: &str) -> PathBuf {
    paths.output.join("bisect").join(name)
}

impl Bisect<'_> {
    /// Builds and boots what `only` picks: a configuration, a patch's number, or
    /// `configuration/number`.
    pub fn run(&self, only: &Only) -> Result<Vec<StepResult>> {
        let configurations = read(&self.paths.root)?;
        let commits = self.commits()?;
        let name = |c: &str, commit: &Commit| format!("{c}/{}", commit.number);
        let names: Vec<_> = configurations
            .keys()
            .flat_map(|c| commits.iter().skip(1).map(move |commit| name(c, commit)))
            .collect();
        only.check(&names)?;
        let mut rows = StepResults::read(self.paths, self.scope);
        rows.recorded = recorded::line(self.builder.tree)?;
        let mut keys = BTreeMap::new();
        for (c, configuration) in &configurations {
            let recipe = self.recipe(configuration)?;
            for commit in &commits {
                keys.insert((c.clone(), commit.number), recipe.key(commit));
            }
        }
        // What is of other patches or another configuration says nothing.
        rows.keep(|row| keys.get(&(row.configuration.clone(), row.number)) == Some(&row.key));
        for (c, configuration) in &configurations {
            let picked = commits.iter().skip(1);
            let picked: Vec<_> = picked.filter(|at| only.picks(&name(c, at))).collect();
            self.walk(c, configuration, &commits[0], &picked, &mut rows)?;
        }
        rows.write()?;
        Ok(rows.all)
    }

    /// What failed.
    pub fn failures(&self, rows: &[StepResult]) -> String {
        failures(rows, self.scope, |row| self.paths.short(&self.log(row)))
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
        self.paths.results().join(file(self.scope, "md"))
    }

    /// What a configuration is, with all that it names.
    fn recipe<'b>(&'b self, configuration: &'b Configuration) -> Result<Recipe<'b>> {
        let root = &self.paths.root;
        let objects = match &configuration.targets {
            Some(kernel) => Kernels::read(root)?.get(kernel)?.targets.clone(),
            None => Vec::new(),
        };
        let compiler = self.builder.compiler;
        let path = search_path(self.builder.tools)?;
        let machine = configuration.boot.as_deref().map(|topology| {
            let mut inputs = Inputs::of_running(root)?;
            inputs.text(&format!("{:?}", self.topologies.get(topology)?));
            self.booter.inputs(&mut inputs, Kind::Counting)?;
            anyhow::Ok(inputs.key())
        });
        let machine = machine.transpose()?.unwrap_or_default();
        let versions = compiler.versions(configuration.llvm, &path);
        Ok(Recipe {
            configuration,
            wanted: config::wanted(root, &configuration.fragments)?,
            objects,
            means: format!("{compiler:?}\n{versions}\n{machine}"),
        })
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

    fn walk(
        &self,
        name: &str,
        configuration: &Configuration,
        base: &Commit,
        picked: &[&Commit],
        rows: &mut StepResults,
    ) -> Result<()> {
        let recipe = self.recipe(configuration)?;
        let key = |commit: &Commit| recipe.key(commit);
        let todo = picked
            .iter()
            .filter(|commit| self.force || !rows.passed(name, commit.number, &key(commit)));
        let todo: Vec<_> = todo.collect();
        if todo.is_empty() {
            return Ok(());
        }
        let output = output(self.paths, name);
        let stepper = Stepper {
            bisect: self,
            name,
            recipe: &recipe,
            output: &output,
        };
        let known = stepper.base_warnings(base, &key(base))?;
        // What is in the output directory, and is as it should be.
        let mut built: Option<&Commit> = None;
        for commit in todo {
            let start = Instant::now();
            let mut row = StepResult {
                configuration: name.to_owned(),
                number: commit.number,
                subject: commit.subject.clone(),
                key: key(commit),
                booted: None,
                as_before: false,
                trouble: None,
                seconds: 0,
            };
            if let Some(before) = built.filter(|before| before.number + 1 == commit.number)
                && !stepper.reads_what_changes(before, commit)?
            {
                row.as_before = true;
                row.booted = rows.booted(name, before.number);
            } else {
                stepper.step(commit, &known, &mut row)?;
            }
            built = row.passed().then_some(*commit);
            row.seconds = start.elapsed().as_secs();
            self.builder.ui.say(format!(
                "bisect: {name}/{}: {} ({} s)",
                commit.number,
                row.word(),
                row.seconds
            ));
            rows.put(row)?;
            stepper.begun().remove()?;
        }
        Ok(())
    }
}

/// A configuration on its way through the commits.
struct Stepper<'a> {
    bisect: &'a Bisect<'a>,
    name: &'a str,
    recipe: &'a Recipe<'a>,
    output: &'a Path,
}

/// A file that is there while a step is not done.
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

impl Stepper<'_> {
    fn begun(&self) -> Mark {
        Mark(self.output.join("p2p-begun"))
    }

    /// Warnings of the base, which is built first, and anew if it is another.
    fn base_warnings(&self, base: &Commit, key: &str) -> Result<BTreeSet<String>> {
        let file = self.output.join("p2p-base.json");
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

    /// Whether the build of a commit has read anything that the next one changes.
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
            // By its name alone: a way to it may have `..` in it.
            let name = file.rsplit('/').next().unwrap_or(file);
            sources.push(format!("/{name}"));
        }
        if sources.is_empty() {
            return Ok(false);
        }
        // Kbuild notes all that an object is made of beside it.
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
            Err(error) if interrupted() => return Err(error),
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
        }
        Ok(())
    }

    /// Builds a commit; gives what was warned of on the way.
    fn build(&self, commit: &Commit) -> Result<BTreeSet<String>> {
        let Bisect { paths, builder, .. } = self.bisect;
        let ui = builder.ui;
        let step = ui.step(format!("bisect: {}/{}", self.name, commit.number));
        let tree = builder.tree;
        let what = "tree: a second one, for bisect";
        let source = tree.worktree(paths, ui, "bisect/linux", &commit.id, what)?;
        fs::create_dir_all(self.output)?;
        let name = format!("bisect-{}", self.name);
        let make = Make {
            builder,
            name: &name,
            source: &source,
            output: self.output,
            arch: self.recipe.configuration.arch.as_deref(),
            llvm: self.recipe.configuration.llvm,
        };
        // What was built before an interruption warned then.
        let begun = self.begun();
        let mut found = BTreeSet::new();
        if begun.is_set() {
            found = warnings(&fs::read_to_string(make.log()).unwrap_or_default());
        }
        begun.set()?;

        let wanted = config::defined(&tree.dir, &commit.id, &self.recipe.wanted)?;
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
        // A log of its own for each step, to look at later.
        log.push(format!(".{}", commit.number));
        fs::copy(make.log(), log)?;
        built?;
        Ok(found)
    }

    /// What the kernel's make is asked for.
    fn targets(&self, source: &Path) -> Vec<String> {
        let image = match (
            self.recipe.objects.as_slice(),
            &self.recipe.configuration.boot,
        ) {
            ([], Some(_)) => "bzImage",
            ([], None) => "vmlinux",
            (objects, _) => {
                // Some come with a later patch.
                let there = objects.iter().filter(|object| has_source(source, object));
                return there.cloned().collect();
            }
        };
        vec![image.to_owned(), "modules".to_owned()]
    }

    /// Boots what was built; gives what went wrong.
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

/// Whether a tree has what an object is made of, or a folder.
fn has_source(tree: &Path, target: &str) -> bool {
    match target.strip_suffix(".o") {
        Some(object) => ["c", "rs"]
            .iter()
            .any(|end| tree.join(format!("{object}.{end}")).is_file()),
        None => tree.join(target).is_dir(),
    }
}

/// What compilers, linker and modpost warn of, without line numbers, which
/// every patch changes.
fn warnings(log: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        let warns = line.contains("warning: ") || line.contains("WARNING: ");
        if !warns || line.starts_with("make") || line.contains("warning emitted") {
            continue;
        }
        let mut text = without_numbers(line);
        // rustc says where on the next line.
        if let Some(place) = lines
            .peek()
            .and_then(|next| next.trim().strip_prefix("--> "))
        {
            text = format!("{}: {text}", without_numbers(place));
        }
        found.insert(text);
    }
    found
}

/// `a.c:12:3: warning: x` → `a.c: warning: x`
fn without_numbers(line: &str) -> String {
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts = line.trim().split(':');
    parts
        .filter(|part| !is_number(part))
        .collect::<Vec<_>>()
        .join(":")
}

/// What the table says of itself.
const HEAD: &str = "\
# After each patch

    make bisect

builds the kernel without a new warning, and boots it, in each configuration of
`qemu/bisect.toml`. Those of `targets` have objects alone. \"As before\": the patch
touches nothing that this configuration is built from.
";

/// A file of results in build/results, and in Documentation/.
fn file(scope: &str, end: &str) -> String {
    let dash = if scope.is_empty() { "" } else { "-" };
    format!("bisect{dash}{scope}.{end}")
}

/// All results.
struct StepResults {
    dir: PathBuf,
    scope: String,
    /// The series that they are of.
    recorded: String,
    all: Vec<StepResult>,
}

impl StepResults {
    fn read(paths: &Paths, scope: &str) -> Self {
        let text = fs::read_to_string(paths.known(&file(scope, "json"))).ok();
        let all = text.and_then(|text| serde_json::from_str(&text).ok());
        Self {
            dir: paths.results(),
            scope: scope.to_owned(),
            recorded: String::new(),
            all: all.unwrap_or_default(),
        }
    }

    fn passed(&self, configuration: &str, number: usize, key: &str) -> bool {
        self.all.iter().any(|row| {
            row.configuration == configuration
                && row.number == number
                && row.key == key
                && row.passed()
        })
    }

    fn booted(&self, configuration: &str, number: usize) -> Option<bool> {
        let mut rows = self.all.iter();
        let is = |row: &&StepResult| row.configuration == configuration && row.number == number;
        rows.find(is).and_then(|row| row.booted)
    }

    fn put(&mut self, row: StepResult) -> Result<()> {
        self.keep(|old| old.configuration != row.configuration || old.number != row.number);
        self.all.push(row);
        self.write()
    }

    fn keep(&mut self, which: impl Fn(&StepResult) -> bool) {
        self.all.retain(which);
    }

    fn write(&mut self) -> Result<()> {
        self.all
            .sort_by_key(|row| (row.configuration.clone(), row.number));
        fs::create_dir_all(&self.dir)?;
        let json = serde_json::to_string_pretty(&self.all)?;
        fs::write(self.dir.join(file(&self.scope, "json")), json)?;
        let text = format!("{HEAD}\n{}\n\n{}\n", self.recorded, table(&self.all));
        fs::write(self.dir.join(file(&self.scope, "md")), text)?;
        Ok(())
    }
}

impl StepResult {
    fn word(&self) -> &'static str {
        match (self.passed(), self.booted) {
            (true, _) if self.as_before => "as before",
            (true, Some(_)) => "builds, boots",
            (true, None) => "builds",
            (false, Some(_)) => "DOES NOT BOOT",
            (false, None) => "FAILS",
        }
    }
}

/// A line per patch, a column per configuration.
pub fn table(rows: &[StepResult]) -> String {
    let columns: BTreeSet<_> = rows.iter().map(|row| &row.configuration).collect();
    let patches: BTreeMap<_, _> = rows.iter().map(|row| (row.number, &row.subject)).collect();
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    let mut header = vec!["".to_owned(), "patch".to_owned()];
    header.extend(columns.iter().map(|name| (*name).clone()));
    table.set_header(header);
    for (number, subject) in patches {
        let mut line = vec![number.to_string(), subject.clone()];
        for name in &columns {
            let row = rows
                .iter()
                .find(|row| row.number == number && row.configuration == **name);
            line.push(row.map_or("-", StepResult::word).to_owned());
        }
        table.add_row(line);
    }
    table.to_string()
}

/// What failed, with what repeats it.
fn failures(rows: &[StepResult], scope: &str, log: impl Fn(&StepResult) -> String) -> String {
    let comma = if scope.is_empty() { "" } else { "," };
    let failed = rows.iter().filter_map(|row| {
        let trouble = row.trouble.as_ref()?;
        Some(format!(
            "\nFAILED {0}, patch {1}: {2}\n{3}\n    \
             to repeat: make bisect ONLY={scope}{comma}{0}/{1}\n    log: {4}\n",
            row.configuration,
            row.number,
            row.subject,
            indent(trouble),
            log(row)
        ))
    });
    failed.collect()
}

#[cfg(test)]
mod tests;
