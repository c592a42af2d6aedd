//! Commands that run jobs in machines: the demo, stress, benchmarks, a shell.

use std::fs;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Result, bail};

use super::Run;
use super::finish::verdict;
use crate::cli::about;
use bench::Bench;
use host::status::{Usage, Verdict};
use host::ui::seconds;
use jobs::demo;
use jobs::schedule::run_as_built;
use jobs::soak::{self, Soak};
use kernel::tree::{self, Tree};
use machine::vm::Booter;
use patches::recorded;
use plan::filter::Only;
use plan::job::{Job, Plan, Spec, kernels_for};
use plan::kernels::Kernels;
use plan::topology::Topologies;
use results::report::{self, Report};

impl Run<'_> {
    pub fn demo(&self, only: &Only) -> Result<Verdict> {
        let topologies = Topologies::read(&self.paths.root)?;
        let mut jobs = Plan::read(&self.paths.root)?.jobs(&topologies)?;
        jobs.retain(Job::is_demo);
        only.check(&Vec::from_iter(jobs.iter().map(|job| &job.name)))?;
        jobs.retain(|job| only.picks(&job.name));
        let results = self.paths.results().join("demo.json");
        // If this run ends early, nobody takes the last run's table for its own.
        for file in [&results, &results.with_extension("html")] {
            let _ = fs::remove_file(file);
        }
        // In the order of topologies, and of the plan in each.
        let all = topologies.all();
        let place = |job: &Job<'_>| {
            let topology = all.iter().position(|t| t.name == job.topology.name);
            let job = jobs.iter().position(|other| other.name == job.name);
            (topology, job)
        };
        let found = Mutex::new(Vec::new());
        let (tree, start) = self.run_jobs(&jobs, &topologies, |job, booter| {
            let start = Instant::now();
            let (rows, outcomes) = jobs::play(job, booter)?;
            let log = booter.dir(&job.name).join("console.log");
            self.ui.say(format!(
                "{}: {} ({}, log: {})",
                job.name,
                job.topology.summary,
                seconds(start.elapsed()),
                self.paths.short(&log)
            ));
            let mut found = found.lock().expect("no panic holds it");
            found.push((place(job), rows, outcomes));
            Ok(())
        })?;
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

    pub fn soak(&self, soak: &Soak, only: &Only) -> Result<Verdict> {
        let topologies = Topologies::read(&self.paths.root)?;
        let mut jobs = soak.jobs(&self.paths.root, &topologies)?;
        only.check(&Vec::from_iter(jobs.iter().map(|job| &job.name)))?;
        let dir = self.paths.results().join("soak");
        // If this is interrupted, nobody takes what the last one found for its results.
        let _ = fs::remove_dir_all(&dir);
        jobs.retain(|job| only.picks(&job.name));
        let report = Mutex::new(Report::default());
        let (tree, start) = self.run_jobs(&jobs, &topologies, |job, booter| {
            let start = Instant::now();
            let outcomes = jobs::run(job, booter)?;
            self.ui
                .say(format!("{}: {}", job.name, seconds(start.elapsed())));
            let mut report = report.lock().expect("no panic holds it");
            let taken = start.elapsed().as_secs_f64();
            report.seconds.insert(job.name.clone(), taken);
            report.outcomes.extend(outcomes);
            Ok(())
        })?;
        let mut report = report.into_inner().expect("no panic holds it");
        report.of = about::facts(&tree)?;
        print!("{}", soak::totals(&report));
        self.tell(&mut report, &dir, start, |outcome| soak.repeat(outcome))?;
        println!("{}", report.closing_line());
        Ok(verdict(&report))
    }

    /// Builds kernels, and runs each job as soon as its kernels are there; gives the tree,
    /// and when that began.
    fn run_jobs<'j>(
        &self,
        jobs: &'j [Job<'j>],
        topologies: &Topologies,
        run: impl Fn(&'j Job<'j>, &Booter<'_>) -> Result<()> + Sync,
    ) -> Result<(Tree, Instant)> {
        let kernels = Kernels::read(&self.paths.root)?;
        let jobs = Vec::from_iter(jobs);
        let names = kernels.in_order(&kernels_for(&jobs, &kernels));
        let (tools, tree) = self.tools_and_tree()?;
        self.qemu_for(jobs.iter().copied())?;
        let builder = self.builder(&tools, &tree, &self.compiler);
        let booter = self.booter(&tools, topologies);
        let start = Instant::now();
        run_as_built(
            jobs,
            |job| job.needs(),
            &names,
            self.jobs(),
            |name| builder.one(&kernels, name).map(|()| true),
            |job| run(job, &booter),
        )?;
        Ok((tree, start))
    }

    pub fn bench(&self, only: &Only) -> Result<Verdict> {
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

    /// A shell in a topology, or in the machine of a job.
    pub fn shell(&self, name: &str, debug: bool) -> Result<()> {
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
        jobs::shell(&job, &self.booter(&tools, &topologies), debug)
    }
}
