//! What each command does, from the parts that do it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use ktap::Status;

use super::{Command, Options, about, selfcheck};
use bench::{self, Bench};
use host::paths::Paths;
use host::proc;
use host::status::{Usage, Verdict};
use host::ui::{Ui, seconds};
use jobs::demo;
use jobs::schedule::run_as_built;
use jobs::soak::{self, Soak};
use kernel::Built;
use kernel::build::{Broken, Builder};
use kernel::compiler::Compiler;
use kernel::series::Series;
use kernel::tree;
use machine::vm::Booter;
use patches::bisect::{self, Bisect};
use patches::check::{self, Checker};
use patches::coverage::{self, Coverage};
use patches::export;
use patches::mutants::{self, Mutants};
use patches::recorded;
use plan::filter::Only;
use plan::job::{Job, Plan, Spec, kernels_for};
use plan::kernels::Kernels;
use plan::topology::Topologies;
use results::report::{self, Outcome, Report};

/// A command with what it needs.
pub struct Run<'a> {
    /// What the user chose.
    pub options: &'a Options,
    /// Progress.
    pub ui: &'a Ui,
    /// Where things are.
    pub paths: &'a Paths,
    /// `QEMU=`
    pub qemu: Option<PathBuf>,
    /// `QEMU_ARGS=`
    pub qemu_args: Vec<String>,
    /// `LLVM=` and `CC=`
    pub compiler: Compiler,
    /// `FORCE=1`: what is cached is run again.
    pub force: bool,
}

impl Run<'_> {
    /// Carries it out.
    pub fn command(&self, command: &Command) -> Result<Verdict> {
        let (paths, ui) = (self.paths, self.ui);
        match command {
            Command::Setup => {
                setup::tools(paths, ui)?;
                if paths.kdir.is_none() {
                    setup::source::base(paths, ui)?;
                }
                setup::rdma_core::tests(paths, ui)?;
                let topologies = Topologies::read(&paths.root)?;
                self.qemu_for(&Plan::read(&paths.root)?.jobs(&topologies)?)?;
                ui.say("set up");
            }
            Command::Tree => {
                let tree = tree::ensure(paths, ui)?;
                ui.say(format!("{}: {}", paths.short(&tree.dir), tree.source));
            }
            Command::Export => self.export()?,
            Command::Drift => {
                let outcome = selfcheck::drift(paths, &tree::ensure(paths, ui)?)?;
                match outcome.status {
                    Status::Passed => ui.say("patches/, the tree and the mirrors are the same"),
                    Status::Skipped => ui.say(format!("not compared: {}", outcome.reason)),
                    Status::Failed => {
                        println!("{}", outcome.reason);
                        return Ok(Verdict::Failed);
                    }
                }
            }
            Command::Build(part) => {
                let only = part.only()?;
                let all = Kernels::read(&paths.root)?;
                only.check(&all.names())?;
                let picked = all.picked(&only);
                if picked.is_empty() {
                    only.nothing(ON_DEMAND)?;
                }
                self.build(&all, &picked)?;
            }
            Command::Demo(part) => return self.demo(&part.only()?),
            Command::Test(options) => return self.test(options),
            Command::Mutants(part) => return self.mutants(&part.only()?),
            Command::Coverage => return self.coverage(),
            Command::Bench(part) => return self.bench(&part.only()?),
            Command::Soak {
                part,
                minutes,
                seed,
            } => {
                let soak = Soak::new(*minutes, *seed)?;
                return self.soak(&soak, &part.only()?);
            }
            Command::Check(part) => return self.check(&part.only()?),
            Command::Bisect(part) => return self.bisect(&part.only()?),
            Command::HwTest { sysroot, perftest } => {
                return hw::run(paths, ui, sysroot, perftest);
            }
            Command::Doctor(_) => unreachable!("it was carried out without all this"),
            Command::Shell { only } => self.shell(only.as_deref().unwrap_or("switch"))?,
            Command::Clean => self.clean()?,
        }
        Ok(Verdict::Passed)
    }

    fn export(&self) -> Result<()> {
        let tree = tree::open(self.paths)?;
        let series = Series::read(&self.paths.root)?;
        if !tree.found.patches.is_empty() {
            bail!(
                "the tree has these patches already, and no commits of them to write: {}.\n\
                 `make export` works in a tree with the whole series, or with nothing of it.",
                series.shortened(&tree.found.patches)
            );
        }
        let changes = export::write(&self.paths.root, &tree, &series)?;
        tree.remember(&Series::read(&self.paths.root)?)?;
        for change in &changes {
            self.ui.say(format!("wrote   {change}"));
        }
        if changes.is_empty() {
            self.ui.say("nothing to export: all of it is there");
        }
        Ok(())
    }

    fn build(&self, kernels: &Kernels, names: &[&str]) -> Result<setup::Tools> {
        let (tools, tree) = self.tools_and_tree()?;
        self.builder(&tools, &tree, &self.compiler)
            .all(kernels, names)?;
        Ok(tools)
    }

    fn tools_and_tree(&self) -> Result<(setup::Tools, tree::Tree)> {
        self.tools_and(|_| Ok(()))
    }

    /// The tools are compiled while the tree is downloaded, unpacked and looked at.
    pub fn tools_and(
        &self,
        look: impl FnOnce(&tree::Tree) -> Result<()>,
    ) -> Result<(setup::Tools, tree::Tree)> {
        thread::scope(|scope| {
            let tools = scope.spawn(|| setup::tools(self.paths, self.ui));
            let tree = tree::ensure(self.paths, self.ui).and_then(|tree| {
                look(&tree)?;
                Ok(tree)
            });
            Ok((tools.join().expect("it does not panic")?, tree?))
        })
    }

    pub fn builder<'b>(
        &'b self,
        tools: &'b setup::Tools,
        tree: &'b tree::Tree,
        compiler: &'b Compiler,
    ) -> Builder<'b> {
        Builder {
            paths: self.paths,
            ui: self.ui,
            tools,
            tree,
            compiler,
            jobs: self.jobs(),
        }
    }

    fn check(&self, only: &Only) -> Result<Verdict> {
        let series = Series::read(&self.paths.root)?;
        let folders = series.settings.folders();
        let names = check::QUICK.iter().chain(&check::BUILDING);
        let names = OF_REPOSITORY.iter().chain(names).chain([&check::TREES]);
        let names = Vec::from_iter(names.copied());
        only.check(&[names.as_slice(), &folders].concat())?;
        let (topics, only) = only.split(&folders)?;
        if !topics.is_empty() {
            of_topics(&names, &only)?;
        }
        let start = Instant::now();
        let (tools, tree) = self.tools_and_tree()?;
        let mut report = Report {
            of: about::facts(&tree)?,
            ..Report::default()
        };
        let mut look = |tree: &tree::Tree, series: Series, left_out: &[&str]| {
            let builder = self.builder(&tools, tree, &self.compiler);
            let checker = Checker::new(self.paths, tree, series, self.force)?;
            let picked = names.iter().filter(|name| only.picks(name));
            for name in picked.filter(|name| !left_out.contains(name)) {
                let start = Instant::now();
                report.outcomes.extend(if check::QUICK.contains(name) {
                    checker.quick(self.ui, name)?.0
                } else if check::BUILDING.contains(name) {
                    checker.building(&builder, name)?
                } else if **name == *check::TREES {
                    checker.trees(self.ui)?
                } else {
                    selfcheck::run(name, self.paths, self.ui, tree)?
                });
                // Of several topics together.
                let taken = report.seconds.entry((*name).to_owned()).or_default();
                *taken += start.elapsed().as_secs_f64();
            }
            anyhow::Ok(())
        };
        let picked = series.settings.picked(&topics);
        for topic in &picked {
            let alone = tree.topic(&series, topic, self.ui)?;
            let what = "tree: one for single topics";
            let alone = alone.aside(self.paths, self.ui, "topic/linux", what)?;
            look(&alone, series.part(&[topic]), &NOT_OF_TOPICS)?;
        }
        if picked.is_empty() {
            look(&tree, series, &[])?;
        }
        let dir = self.paths.results().join("check");
        self.tell(&mut report, &dir, start, |outcome| {
            let words = topics.iter().chain([&outcome.suite]);
            format!(
                "make check ONLY={}",
                Vec::from_iter(words.cloned()).join(",")
            )
        })?;
        println!("{}", report.closing_line());
        Ok(verdict(&report))
    }

    /// Writes results, and tells of them; `repeat` is the command that does one again.
    pub fn tell(
        &self,
        report: &mut Report,
        dir: &Path,
        start: Instant,
        repeat: impl Fn(&Outcome) -> String,
    ) -> Result<()> {
        report.write_logs(&self.paths.logs(), |file| self.paths.short(file))?;
        report.note_repeats(&repeat);
        about::note(report, start);
        report.write(dir, start.elapsed())?;
        print!("{}", report.tell(repeat));
        report::write_page(self.paths, report, &dir.join(report::PAGE))?;
        println!(
            "results: {} ({})",
            self.paths.short(dir),
            seconds(start.elapsed())
        );
        Ok(())
    }

    fn bisect(&self, only: &Only) -> Result<Verdict> {
        let topologies = Topologies::read(&self.paths.root)?;
        let series = Series::read(&self.paths.root)?;
        let (topics, only) = only.split(&series.settings.folders())?;
        let (tools, tree) = self.tools_and_tree()?;
        let mut passed = true;
        let mut walk = |tree: &tree::Tree, scope: &str| {
            let bisect = Bisect {
                paths: self.paths,
                builder: &self.builder(&tools, tree, &self.compiler),
                booter: &self.booter(&tools, &topologies),
                topologies: &topologies,
                scope,
                force: self.force,
            };
            let rows = bisect.run(&only)?;
            let failures = bisect.failures(&rows);
            println!("\n{}{failures}", bisect::table(&rows));
            println!("table: {}", self.paths.short(&bisect.table_file()));
            passed &= rows.iter().all(bisect::StepResult::passed);
            anyhow::Ok(())
        };
        let picked = series.settings.picked(&topics);
        for topic in &picked {
            walk(&tree.topic(&series, topic, self.ui)?, &topic.folder)?;
        }
        if picked.is_empty() {
            walk(&tree, "")?;
        }
        Ok(if passed {
            Verdict::Passed
        } else {
            Verdict::Failed
        })
    }

    pub fn jobs(&self) -> usize {
        self.options.jobs.unwrap_or_else(proc::processors)
    }

    pub fn booter<'b>(&'b self, tools: &'b setup::Tools, topologies: &'b Topologies) -> Booter<'b> {
        Booter {
            paths: self.paths,
            ui: self.ui,
            tools,
            qemu: self.qemu.as_deref(),
            qemu_args: &self.qemu_args,
            machine: &topologies.machine,
        }
    }

    fn demo(&self, only: &Only) -> Result<Verdict> {
        let topologies = Topologies::read(&self.paths.root)?;
        let kernels = Kernels::read(&self.paths.root)?;
        let mut jobs = Plan::read(&self.paths.root)?.jobs(&topologies)?;
        jobs.retain(Job::is_demo);
        only.check(&Vec::from_iter(jobs.iter().map(|job| &job.name)))?;
        jobs.retain(|job| only.picks(&job.name));
        let results = self.paths.results().join("demo.json");
        // If this run ends early, nobody takes the last run's table for its own.
        for file in [&results, &results.with_extension("html")] {
            let _ = fs::remove_file(file);
        }
        let needed = kernels_for(&Vec::from_iter(&jobs), &kernels);
        let (tools, tree) = self.tools_and_tree()?;
        self.qemu_for(&jobs)?;
        let builder = self.builder(&tools, &tree, &self.compiler);
        let booter = self.booter(&tools, &topologies);
        let (start, found) = (Instant::now(), Mutex::new(Vec::new()));
        let build = |name: &str| builder.one(&kernels, name).map(|()| true);
        // In the order of topologies, and of the plan in each.
        let all = topologies.all();
        let place = |job: &Job<'_>| all.iter().position(|t| t.name == job.topology.name);
        let run = |(number, job): (usize, &Job<'_>)| {
            let start = Instant::now();
            let (rows, outcomes) = jobs::play(job, &booter)?;
            let log = booter.dir(&job.name).join("console.log");
            self.ui.say(format!(
                "{}: {} ({}, log: {})",
                job.name,
                job.topology.summary,
                seconds(start.elapsed()),
                self.paths.short(&log)
            ));
            let mut found = found.lock().expect("no panic holds it");
            found.push(((place(job), number), rows, outcomes));
            Ok(())
        };
        let needed = kernels.in_order(&needed);
        run_as_built(
            jobs.iter().enumerate().collect(),
            |(_, job)| job.needs(),
            &needed,
            self.jobs(),
            build,
            run,
        )?;
        let mut found = found.into_inner().expect("no panic holds it");
        found.sort_by_key(|(place, ..)| *place);
        let (mut rows, mut report) = (Vec::new(), Report::default());
        for (_, played, outcomes) in found {
            rows.extend(played);
            report.outcomes.extend(outcomes);
        }
        fs::create_dir_all(self.paths.results())?;
        fs::write(&results, serde_json::to_string_pretty(&rows)?)?;
        println!("\n{}", demo::table(&rows));
        report.note_repeats(demo::repeat);
        report.of = about::facts(&tree)?;
        about::note(&mut report, start);
        print!("{}", report.tell(demo::repeat));
        report::write_page(self.paths, &report, &results.with_extension("html"))?;
        Ok(verdict(&report))
    }

    fn bench(&self, only: &Only) -> Result<Verdict> {
        let settings = bench::BenchConfig::read(&self.paths.root)?;
        let topologies = Topologies::read(&self.paths.root)?;
        let kernels = Kernels::read(&self.paths.root)?;
        let names = settings.kernels(only);
        let tools = self.build(&kernels, &names)?;
        let tree = tree::open(self.paths)?;
        let builder = self.builder(&tools, &tree, &self.compiler);
        for name in names {
            builder.bench(name, kernels.get(name)?)?;
        }
        Bench {
            paths: self.paths,
            ui: self.ui,
            booter: &self.booter(&tools, &topologies),
            settings: &settings,
            recorded: recorded::line(&tree)?,
        }
        .run(only, &topologies)
    }

    fn soak(&self, soak: &Soak, only: &Only) -> Result<Verdict> {
        let topologies = Topologies::read(&self.paths.root)?;
        let kernels = Kernels::read(&self.paths.root)?;
        let mut jobs = soak.jobs(&self.paths.root, &topologies)?;
        only.check(&Vec::from_iter(jobs.iter().map(|job| &job.name)))?;
        let dir = self.paths.results().join("soak");
        // If this is interrupted, nobody takes what the last one found for its results.
        let _ = fs::remove_dir_all(&dir);
        jobs.retain(|job| only.picks(&job.name));
        let needed = kernels_for(&Vec::from_iter(&jobs), &kernels);
        let (tools, tree) = self.tools_and_tree()?;
        self.qemu_for(&jobs)?;
        let builder = self.builder(&tools, &tree, &self.compiler);
        let booter = self.booter(&tools, &topologies);
        let start = Instant::now();
        let report = Mutex::new(Report::default());
        let build = |name: &str| builder.one(&kernels, name).map(|()| true);
        let run = |job: &Job<'_>| {
            let start = Instant::now();
            let outcomes = jobs::run(job, &booter)?;
            self.ui
                .say(format!("{}: {}", job.name, seconds(start.elapsed())));
            let mut report = report.lock().expect("no panic holds it");
            let taken = start.elapsed().as_secs_f64();
            report.seconds.insert(job.name.clone(), taken);
            report.outcomes.extend(outcomes);
            Ok(())
        };
        let names = kernels.in_order(&needed);
        let jobs = Vec::from_iter(&jobs);
        run_as_built(jobs, |job| job.needs(), &names, self.jobs(), build, run)?;
        let mut report = report.into_inner().expect("no panic holds it");
        report.of = about::facts(&tree)?;
        print!("{}", soak::totals(&report));
        self.tell(&mut report, &dir, start, |outcome| soak.repeat(outcome))?;
        println!("{}", report.closing_line());
        Ok(verdict(&report))
    }

    fn mutants(&self, only: &Only) -> Result<Verdict> {
        let topologies = Topologies::read(&self.paths.root)?;
        let (tools, tree) = self.tools_and_tree()?;
        Mutants {
            builder: &self.builder(&tools, &tree, &self.compiler),
            booter: &self.booter(&tools, &topologies),
            force: self.force,
        }
        .run(only, &topologies)
    }

    fn coverage(&self) -> Result<Verdict> {
        let topologies = Topologies::read(&self.paths.root)?;
        let (tools, tree) = self.tools_and_tree()?;
        Coverage {
            builder: &self.builder(&tools, &tree, &self.compiler),
            booter: &self.booter(&tools, &topologies),
        }
        .run(&topologies)
    }

    /// A shell in a topology, or in the machine of a job.
    fn shell(&self, name: &str) -> Result<()> {
        let topologies = Topologies::read(&self.paths.root)?;
        let mut jobs = Plan::read(&self.paths.root)?.jobs(&topologies)?;
        let job = match jobs.iter().position(|job| job.name == name) {
            Some(at) => jobs.swap_remove(at),
            None if name.contains('/') => {
                bail!(Usage(format!(
                    "there is no job {name:?} in qemu/tests.toml"
                )))
            }
            None => {
                let topology = topologies.get(name)?;
                let name = format!("shell/{name}");
                Job::alone(name, &topology.kernel, topology, Spec::default())
            }
        };
        let kernels = Kernels::read(&self.paths.root)?;
        let tools = self.build(&kernels, &job.needs())?;
        jobs::shell(&job, &self.booter(&tools, &topologies))
    }

    /// Before jobs run side by side, of which each would get it.
    pub fn qemu_for<'j>(&self, jobs: impl IntoIterator<Item = &'j Job<'j>>) -> Result<()> {
        if jobs.into_iter().any(Job::is_parallel) {
            setup::qemu::with_vfio_user(self.paths, self.ui, self.qemu.as_deref())?;
        }
        Ok(())
    }

    /// Kernels that were built, machines and results; not the trees.
    fn clean(&self) -> Result<()> {
        let mut dirs = vec![self.paths.results(), self.paths.runs(), self.paths.logs()];
        for name in Kernels::read(&self.paths.root)?.names() {
            let dir = Built::at(self.paths, name).dir;
            for entry in fs::read_dir(&dir).into_iter().flatten() {
                dirs.push(entry?.path());
            }
        }
        dirs.extend(bisect::outputs(self.paths)?);
        let others = ["check-docs", mutants::KERNEL, coverage::KERNEL];
        let others = others.iter().chain(&check::OUTPUTS).chain(&mutants::SLOTS);
        dirs.extend(others.map(|name| self.paths.output.join(name)));
        for dir in dirs {
            if dir.is_dir() && !dir.is_symlink() {
                fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
            } else if dir.exists() || dir.is_symlink() {
                fs::remove_file(&dir).with_context(|| dir.display().to_string())?;
            }
        }
        Ok(())
    }
}

/// Checks that look at this repository.
const OF_REPOSITORY: [&str; 3] = ["style", "drift", recorded::NAME];

/// Checks that do not look at a topic by itself.
const NOT_OF_TOPICS: [&str; 4] = ["style", "drift", recorded::NAME, check::TREES];

/// An error if none of these checks looks at a topic.
fn of_topics(names: &[&str], only: &Only) -> Result<()> {
    let mut looks = names.iter().filter(|name| !NOT_OF_TOPICS.contains(name));
    if !looks.any(|name| only.picks(name)) {
        only.nothing("these checks are of all topics together")?;
    }
    Ok(())
}

/// Why an `ONLY=` with wildcards picks none of them.
pub const ON_DEMAND: &str = "kernels that are built on demand want their whole names";

pub fn verdict(report: &Report) -> Verdict {
    match report.count(Status::Failed) {
        0 => Verdict::Passed,
        _ => Verdict::Failed,
    }
}

/// Why a kernel could not be built, if its sources are the reason. Other errors, and
/// Ctrl-C, end the run.
pub fn broken(built: Result<()>) -> Result<Option<String>> {
    match built {
        Ok(()) => Ok(None),
        Err(error) if proc::interrupted() => Err(error),
        Err(error) => Ok(Some(error.downcast::<Broken>()?.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_wants_a_check_that_looks_at_it() {
        let names = ["style", "drift", "am", "docs"];
        let looks = |text| {
            let (topics, only) = Only::new(Some(text)).unwrap().split(&["07-rdma"]).unwrap();
            assert_eq!(topics, ["07-rdma"]);
            of_topics(&names, &only)
        };
        for text in [
            "07-rdma",
            "07-rdma,am",
            "07-rdma,drift,docs",
            "07-rdma,!drift",
        ] {
            looks(text).unwrap();
        }
        for text in ["07-rdma,drift", "07-rdma,!am,!docs"] {
            let error = looks(text).unwrap_err();
            assert!(error.downcast_ref::<Usage>().is_some(), "{text}");
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("ONLY={text} picks nothing"))
            );
        }
    }
}
