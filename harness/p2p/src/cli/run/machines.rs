//! Commands that run jobs in machines: the demo, stress, benchmarks, a shell.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Result, bail};

use super::Run;
use super::finish::{broken, forget, verdict};
use crate::cli::about;
use bench::Bench;
use host::paths::Paths;
use host::status::{Usage, Verdict};
use host::ui::seconds;
use jobs::demo;
use jobs::schedule::run_as_built;
use jobs::soak::{self, Soak};
use kernel::build;
use kernel::tree::{self, Tree};
use machine::vm::Booter;
use patches::recorded;
use plan::filter::Only;
use plan::job::{Job, Plan, Spec, kernels_for};
use plan::kernels::Kernels;
use plan::topology::Topologies;
use results::report::{self, Outcome, Report};

impl Run<'_> {
    pub fn demo(&self, only: &Only) -> Result<Verdict> {
        let topologies = self.topologies()?;
        let mut jobs = Plan::read(&self.paths.root)?.jobs(&topologies)?;
        jobs.retain(Job::is_demo);
        only.check(&Vec::from_iter(jobs.iter().map(|job| &job.name)))?;
        jobs.retain(|job| only.picks(&job.name));
        let results = self.paths.results().join("demo.json");
        forget(&self.paths.results(), &["demo.json", "demo.html"]);
        // In the order of topologies, and within each in the order of the plan.
        let all = topologies.all();
        let place = |job: &Job<'_>| {
            let topology = all.iter().position(|t| t.name == job.topology.name);
            let job = jobs.iter().position(|other| other.name == job.name);
            (topology, job)
        };
        let found = Mutex::new(Vec::new());
        let (tree, start, left) = self.run_jobs(&jobs, &topologies, |job, booter| {
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
        report.outcomes.extend(left);
        fs::create_dir_all(self.paths.results())?;
        fs::write(&results, serde_json::to_string_pretty(&rows)?)?;
        println!("\n{}", demo::table(&rows));
        report.note_repeats(demo::repeat);
        report.of = about::facts(&tree)?;
        about::note(&mut report, start);
        print!("{}", report.summary(demo::repeat));
        report::write_page(self.paths, &report, &results.with_extension("html"))?;
        Ok(verdict(&report))
    }

    pub fn soak(&self, soak: &Soak, only: &Only) -> Result<Verdict> {
        let topologies = self.topologies()?;
        let mut jobs = soak.jobs(&self.paths.root, &topologies)?;
        only.check(&Vec::from_iter(jobs.iter().map(|job| &job.name)))?;
        let dir = self.paths.results().join("soak");
        // If this run is interrupted, nobody must take the last run's results for its own.
        let _ = fs::remove_dir_all(&dir);
        jobs.retain(|job| only.picks(&job.name));
        let report = Mutex::new(Report::default());
        let (tree, start, left) = self.run_jobs(&jobs, &topologies, |job, booter| {
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
        report.outcomes.extend(left);
        report.of = about::facts(&tree)?;
        print!("{}", soak::totals(&report));
        self.finish(&mut report, &dir, start, |outcome| soak.repeat(outcome))?;
        println!("{}", report.closing_line());
        Ok(verdict(&report))
    }

    /// Builds kernels, and runs each job as soon as its kernels are built. Returns the
    /// tree, the start time, and an outcome for each job that lacks a kernel.
    fn run_jobs<'j>(
        &self,
        jobs: &'j [Job<'j>],
        topologies: &Topologies,
        run: impl Fn(&'j Job<'j>, &Booter<'_>) -> Result<()> + Sync,
    ) -> Result<(Tree, Instant, Vec<Outcome>)> {
        let kernels = Kernels::read(&self.paths.root)?;
        let jobs = Vec::from_iter(jobs);
        let names = kernels.in_order(&kernels_for(&jobs, &kernels));
        let (tools, tree) = self.tools_and_tree()?;
        self.qemu_for(jobs.iter().copied())?;
        let builder = self.builder(&tools, &tree, &self.compiler);
        let booter = self.booter(&tools, topologies);
        let start = Instant::now();
        let unusable = Mutex::new(BTreeSet::new());
        let build = |name: &str| {
            let why = broken(builder.one(&kernels, name))?;
            if let Some(why) = &why {
                self.ui.say(why);
                let mut unusable = unusable.lock().expect("no panic holds it");
                unusable.insert(name.to_owned());
            }
            Ok(why.is_none())
        };
        let run = |job| run(job, &booter);
        let left = run_as_built(jobs, |job| job.needs(), &names, self.jobs(), build, run)?;
        let unusable = unusable.into_inner().expect("no panic holds it");
        let left = left.iter().map(|job| without(job, &unusable, self.paths));
        Ok((tree, start, left.collect()))
    }

    pub fn bench(&self, only: &Only) -> Result<Verdict> {
        let settings = bench::BenchConfig::read(&self.paths.root)?;
        let topologies = self.topologies()?;
        let kernels = Kernels::read(&self.paths.root)?;
        let names = settings.kernels(only)?;
        forget(&self.paths.results(), &bench::RESULTS);
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

    /// Opens a shell in the machine of a job, or in a topology.
    pub fn shell(&self, name: &str, debug: bool) -> Result<()> {
        let topologies = self.topologies()?;
        let jobs = Plan::read(&self.paths.root)?.jobs(&topologies)?;
        let job = job_of_shell(jobs, name, &topologies)?;
        let kernels = Kernels::read(&self.paths.root)?;
        let tools = self.build(&kernels, &job.needs())?;
        jobs::shell(&job, &self.booter(&tools, &topologies), debug)
    }
}

/// The outcome of a job whose kernel was not built.
fn without(job: &Job<'_>, unusable: &BTreeSet<String>, paths: &Paths) -> Outcome {
    let needs = job.needs();
    let mut needs = needs.iter().filter(|name| unusable.contains(**name));
    let name = needs.next().expect("it would have run");
    let log = paths.short(&build::log(paths, name));
    let reason = format!("kernel {name} is not built");
    Outcome::could_not_run(&job.name, "runs", reason).with_log(log)
}

/// The job that determines a shell's kernel and modules. For a topology, it is the demo
/// with the test devices. If there is no such demo, no module is loaded.
fn job_of_shell<'j>(
    mut jobs: Vec<Job<'j>>,
    name: &str,
    topologies: &'j Topologies,
) -> Result<Job<'j>> {
    let is_demo = |job: &Job<'_>| job.is_demo() && !job.is_parallel();
    let is_it = |job: &Job<'_>| job.name == name || (job.topology.name == name && is_demo(job));
    match jobs.iter().position(is_it) {
        Some(at) => Ok(jobs.swap_remove(at)),
        None if name.contains('/') => {
            bail!(Usage(format!(
                "there is no job {name:?} in qemu/tests.toml"
            )))
        }
        None => {
            let topology = topologies.get(name)?;
            let name = format!("shell/{name}");
            let kernel = &topology.kernel;
            Ok(Job::alone(name, kernel, topology, Spec::default()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_job_without_its_kernel_is_an_error_with_the_builds_log() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let paths = Paths::new(&root, None, None).unwrap();
        let topologies = Topologies::read(&root).unwrap();
        let jobs = Plan::read(&root).unwrap().jobs(&topologies).unwrap();
        let job = jobs.iter().find(|job| job.needs().len() == 2).unwrap();
        for name in job.needs() {
            let unusable = BTreeSet::from([name.to_owned(), "another".to_owned()]);
            let outcome = without(job, &unusable, &paths);
            assert!(outcome.could_not_run && outcome.suite == job.name);
            assert_eq!(outcome.reason, format!("kernel {name} is not built"));
            assert!(outcome.log_file.unwrap().contains(&name.replace('/', "-")));
        }
    }

    #[test]
    fn a_shell_has_the_modules_of_a_job_or_of_the_topologys_demo() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let shell = |name: &str| {
            let jobs = Plan::read(&root).unwrap().jobs(&topologies).unwrap();
            job_of_shell(jobs, name, &topologies)
        };
        let iommu = shell("iommu").unwrap();
        assert_eq!(iommu.spec.load, ["p2ptest_gpu", "p2ptest_nic"]);
        assert_eq!(iommu.kernel, iommu.topology.kernel);
        let mlx5 = shell("mlx5/switch").unwrap();
        assert!(mlx5.spec.load.iter().any(|module| module == "mlx5_ib"));
        assert_eq!(mlx5.name, "mlx5/switch");
        // This topology has no demo.
        assert!(shell("root-buses").unwrap().spec.load.is_empty());
        for name in ["mlx5/nowhere", "nowhere"] {
            let error = shell(name).err().unwrap();
            assert!(error.downcast_ref::<Usage>().is_some(), "{error:#}");
        }
    }
}
