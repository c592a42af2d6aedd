//! Commands that run jobs in machines: the demo, stress, benchmarks, a shell.

use std::fs;
use std::mem;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::Run;
use super::finish::{aborted, broken, forget, last_words, slowest, verdict};
use crate::cli::about;
use bench::Bench;
use host::paths::Paths;
use host::status::{Usage, Verdict};
use host::ui::seconds;
use jobs::demo;
use jobs::schedule::run_as_built;
use jobs::soak::{self, Soak};
use kernel::build;
use kernel::tree;
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
        let start = Instant::now();
        // In the order of topologies, and within each in the order of the plan.
        let all = topologies.all();
        let place = |job: &Job<'_>| {
            let topology = all.iter().position(|t| t.name == job.topology.name);
            let job = jobs.iter().position(|other| other.name == job.name);
            (topology, job)
        };
        let found = Mutex::new(Vec::new());
        let report = Mutex::new(Report::default());
        let result = self.run_jobs(&jobs, &topologies, &report, |job, booter| {
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
            note_time(&report, job, start);
            let mut found = found.lock().expect("no panic holds it");
            found.push((place(job), rows, outcomes));
            Ok(())
        });
        let mut found = found.into_inner().expect("no panic holds it");
        found.sort_by_key(|(place, ..)| *place);
        let mut report = report.into_inner().expect("no panic holds it");
        let could_not_run = mem::take(&mut report.outcomes);
        let mut rows = Vec::new();
        for (_, played, outcomes) in found {
            rows.extend(played);
            report.outcomes.extend(outcomes);
        }
        report.outcomes.extend(could_not_run);
        report.aborted = aborted(&result);
        host::outln!("\n{}\n{}", slowest(&report), demo::table(&rows));
        let given = about::given();
        let repeat = |outcome: &Outcome| demo::repeat(outcome) + &given;
        report.note_repeats(repeat);
        about::note(&mut report, start);
        host::out!("{}", report.summary(repeat));
        fs::create_dir_all(self.paths.results())?;
        let page = results.with_extension("html");
        let mut written = report::write_page(self.paths, &report, &page);
        // The file is only a table, which cannot say that rows are missing. The page can.
        if report.aborted.is_none() {
            let rows = serde_json::to_string_pretty(&rows)?;
            let file = || results.display().to_string();
            written = written.and(fs::write(&results, rows).with_context(file));
        }
        host::out!("{}", last_words(&report));
        result.and(written).map(|()| verdict(&report))
    }

    pub fn soak(&self, soak: &Soak, only: &Only) -> Result<Verdict> {
        let topologies = self.topologies()?;
        let mut jobs = soak.jobs(&self.paths.root, &topologies)?;
        only.check(&Vec::from_iter(jobs.iter().map(|job| &job.name)))?;
        let dir = self.paths.results().join("soak");
        // If this run is interrupted, nobody must take the last run's results for its own.
        let _ = fs::remove_dir_all(&dir);
        jobs.retain(|job| only.picks(&job.name));
        let start = Instant::now();
        let report = Mutex::new(Report::default());
        let result = self.run_jobs(&jobs, &topologies, &report, |job, booter| {
            let start = Instant::now();
            let outcomes = jobs::run(job, booter)?;
            self.ui
                .say(format!("{}: {}", job.name, seconds(start.elapsed())));
            note_time(&report, job, start);
            let mut report = report.lock().expect("no panic holds it");
            report.outcomes.extend(outcomes);
            Ok(())
        });
        let mut report = report.into_inner().expect("no panic holds it");
        host::out!("{}", soak::totals(&report));
        let repeat = |outcome: &Outcome| soak.repeat(outcome);
        self.conclude(&mut report, &dir, start, result, repeat)
    }

    /// Builds kernels, and runs each job as soon as its kernels are built. `report` gets
    /// what is tested, the durations of builds, and an outcome for each job that lacks a
    /// kernel.
    fn run_jobs<'j>(
        &self,
        jobs: &'j [Job<'j>],
        topologies: &Topologies,
        report: &Mutex<Report>,
        run: impl Fn(&'j Job<'j>, &Booter<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        let kernels = Kernels::read(&self.paths.root)?;
        let jobs = Vec::from_iter(jobs);
        let names = kernels.in_order(&kernels_for(&jobs, &kernels));
        let (tools, tree) = self.tools_and_tree()?;
        self.qemu_for(jobs.iter().copied())?;
        let builder = self.builder(&tools, &tree, &self.compiler);
        let booter = self.booter(&tools, topologies);
        let lock = || report.lock().expect("no panic holds it");
        lock().of = about::facts(&builder, self.qemu.as_deref())?;
        let all = jobs.clone();
        let build = |name: &str| {
            let start = Instant::now();
            let why = broken(builder.one(&kernels, name))?;
            let mut report = lock();
            let taken = start.elapsed().as_secs_f64();
            report.builds.insert(name.to_owned(), taken);
            if let Some(why) = &why {
                self.ui.say(why);
                // Now, because an error in another job may end the run.
                without(name, &all, self.paths, &mut report.outcomes);
            }
            Ok(why.is_none())
        };
        let run = |job| run(job, &booter);
        run_as_built(jobs, |job| job.needs(), &names, self.jobs(), build, run)?;
        Ok(())
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
            recorded: recorded::line(&builder, self.qemu.as_deref())?,
        }
        .run(only, &topologies)
    }

    /// Opens a shell in the machine of a job, or in a topology.
    pub fn shell(&self, name: &str, debug: bool) -> Result<()> {
        let topologies = self.topologies()?;
        let mut jobs = Plan::read(&self.paths.root)?.jobs(&topologies)?;
        jobs.extend(Soak::new(None, None)?.jobs(&self.paths.root, &topologies)?);
        let job = job_of_shell(jobs, name, &topologies)?;
        let kernels = Kernels::read(&self.paths.root)?;
        let tools = self.build(&kernels, &job.needs())?;
        jobs::shell(&job, &self.booter(&tools, &topologies), debug)
    }
}

/// Notes how long a job took.
fn note_time(report: &Mutex<Report>, job: &Job<'_>, start: Instant) {
    let mut report = report.lock().expect("no panic holds it");
    let taken = start.elapsed().as_secs_f64();
    report.seconds.insert(job.name.clone(), taken);
}

/// Adds an outcome for each job that needs this kernel, which was not built.
fn without(kernel: &str, jobs: &[&Job<'_>], paths: &Paths, outcomes: &mut Vec<Outcome>) {
    let log = paths.short(&build::log(paths, kernel));
    for job in jobs.iter().filter(|job| job.needs().contains(&kernel)) {
        if !outcomes.iter().any(|outcome| outcome.suite == job.name) {
            let reason = format!("kernel {kernel} is not built");
            let outcome = Outcome::could_not_run(&job.name, "runs", reason);
            outcomes.push(outcome.with_log(log.clone()));
        }
    }
}

/// The job that determines a shell's kernel and modules. For a topology, it is the demo
/// with the test devices. If there is no such demo, no module is loaded.
fn job_of_shell<'j>(
    mut jobs: Vec<Job<'j>>,
    name: &str,
    topologies: &'j Topologies,
) -> Result<Job<'j>> {
    let all = topologies.all();
    let names = jobs.iter().map(|job| &job.name);
    let names = names.chain(all.iter().map(|topology| &topology.name));
    Only::new(Some(name))?.check(&Vec::from_iter(names))?;
    let is_demo = |job: &Job<'_>| job.is_demo() && !job.is_parallel();
    let is_it = |job: &Job<'_>| job.name == name || (job.topology.name == name && is_demo(job));
    match jobs.iter().position(is_it) {
        Some(at) => Ok(jobs.swap_remove(at)),
        // Several jobs, or a job without its topology.
        None if all.iter().all(|topology| topology.name != name) => {
            bail!(Usage(format!(
                "ONLY={name}: it is a topology or one job, as in ONLY=mlx5/switch"
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
        let [first, second] = job.needs()[..] else {
            panic!("it needs two kernels");
        };
        let mut outcomes = Vec::new();
        for name in ["another", first, second] {
            without(name, &[job], &paths, &mut outcomes);
        }
        let [outcome] = &outcomes[..] else {
            panic!("{outcomes:?}");
        };
        assert!(outcome.could_not_run && outcome.suite == job.name);
        assert_eq!(outcome.reason, format!("kernel {first} is not built"));
        let log = outcome.log_file.as_ref().unwrap();
        assert!(log.contains(&first.replace('/', "-")));
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
        for (name, why) in [
            ("mlx5/swich", "did you mean mlx5/switch"),
            ("swich", "did you mean switch"),
            ("mlx5", "a topology or one job"),
            ("mlx5/*", "a topology or one job"),
        ] {
            let error = shell(name).err().unwrap();
            assert!(error.downcast_ref::<Usage>().is_some(), "{error:#}");
            assert!(error.to_string().contains(why), "{error:#}");
        }
    }
}
