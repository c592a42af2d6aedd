//! The test plan (qemu/tests.toml): which jobs there are, how one is run, and
//! what its results are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ktap::Status;
use serde::Deserialize;

use crate::demo::Demo;
use crate::kernel::{Built, Kernels, Source};
use crate::logscan;
use crate::paths::Paths;
use crate::proc::{quote, tail};
use crate::report::Outcome;
use crate::setup::rdma_core;
use crate::shell;
use crate::topology::{Kind, Machine, Models, Scenario, Topologies, Topology};
use crate::vm::{Boot, Booter, End, Ran};
use crate::witness::speed;

mod claims;
mod inputs;
mod nic;
mod only;
mod shard;

pub use only::Only;
pub use shard::{Shard, Unit};

/// qemu/tests.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    #[serde(rename = "job")]
    jobs: Vec<Spec>,
    /// Jobs whose results must be the same.
    #[serde(default)]
    pub same: Vec<Same>,
}

/// What a job does; qemu/tests.toml says what the fields mean.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub name: String,
    pub topologies: Vec<String>,
    pub kernel: Option<String>,
    #[serde(default)]
    pub machine: Kind,
    /// Added to the arguments of the model that is the NIC of a parallel machine.
    #[serde(default)]
    pub connectx: Vec<String>,
    /// The GPUs are models of a Pascal, with these arguments.
    pub pascal: Option<Vec<String>>,
    /// The NICs of a parallel machine are edu.
    #[serde(default)]
    pub edu: bool,
    /// The program, as in `programs`, that plays scenarios.
    pub scenarios: Option<String>,
    /// What it plays, if not the topology's scenarios.
    #[serde(default, rename = "scenario")]
    pub own: Vec<Scenario>,
    /// Modules that are loaded first.
    #[serde(default)]
    pub load: Vec<String>,
    /// `folder/program` of the selftests, and its arguments.
    #[serde(default)]
    pub programs: Vec<String>,
    pub from: Option<String>,
    /// Scripts of the guest's side that come before the programs.
    #[serde(default)]
    pub prepare: Vec<String>,
    /// Modules of rdma-core's own tests.
    #[serde(default)]
    pub pyverbs: Vec<String>,
    /// Commands that those scripts define, which report as programs do.
    #[serde(default)]
    pub commands: Vec<String>,
    /// The kernel's own tests at boot, by filter.
    pub kunit: Option<String>,
    #[serde(default)]
    pub kmemleak: bool,
    /// The NIC must have read and written each GPU that it may reach.
    #[serde(default)]
    pub at_peer: bool,
    /// What the model of a ConnectX may take, by topology.
    #[serde(default)]
    pub bounds: BTreeMap<String, nic::Bounds>,
    /// What the kernel runs is kept, for [`crate::coverage`].
    #[serde(default)]
    pub coverage: bool,
    pub icount: Option<String>,
    /// Added to the kernel's command line.
    #[serde(default)]
    pub append: Vec<String>,
    /// The environment of programs and commands.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Text in a report of the kernel's log that a test provokes.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Text in the reasons for which tests may skip, besides those of the topology;
    /// nothing: any reason will do.
    pub skips: Option<Vec<String>>,
    /// How many tests must run and pass; others than those of its machine.
    pub at_least: Option<usize>,
    /// Seconds until the machine counts as hung.
    pub limit: u64,
}

/// Two jobs that must come out the same, test by test.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Same {
    /// Name of the comparison.
    pub name: String,
    /// The jobs.
    pub jobs: [String; 2],
}

/// A job in one topology.
pub struct Job<'a> {
    /// `job/topology`
    pub name: String,
    /// The kernel it boots.
    pub kernel: String,
    topology: &'a Topology,
    spec: Spec,
    /// The one test of its programs that it runs (`TEST=`); all if none.
    test: Option<String>,
}

impl Plan {
    /// Reads qemu/tests.toml.
    pub fn read(root: &Path) -> Result<Self> {
        Self::read_file(root, "qemu/tests.toml")
    }

    /// Reads another file with jobs.
    pub fn read_file(root: &Path, file: &str) -> Result<Self> {
        let file = root.join(file);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let plan: Self = toml::from_str(&text).with_context(|| file.display().to_string())?;
        for spec in &plan.jobs {
            spec.check().with_context(|| file.display().to_string())?;
        }
        Ok(plan)
    }

    /// The jobs, to be changed before they are placed in topologies.
    pub fn specs(&mut self) -> &mut [Spec] {
        &mut self.jobs
    }

    /// All jobs in all of their topologies. Those that may take long come first, so that
    /// in the end no processor waits for another.
    pub fn jobs<'a>(&self, topologies: &'a Topologies) -> Result<Vec<Job<'a>>> {
        let mut jobs = Vec::new();
        for spec in &self.jobs {
            let shapes = if spec.topologies == ["*"] {
                // One without scenarios is for jobs that name it.
                let mut all = topologies.all();
                all.retain(|topology| !topology.scenarios.is_empty());
                all
            } else {
                let named = spec.topologies.iter().map(|name| topologies.get(name));
                named.collect::<Result<_>>()?
            };
            for topology in shapes {
                let kernel = spec.kernel.as_ref().unwrap_or(&topology.kernel);
                jobs.push(Job {
                    name: format!("{}/{}", spec.name, topology.name),
                    kernel: kernel.clone(),
                    topology,
                    spec: spec.clone(),
                    test: None,
                });
            }
        }
        jobs.sort_by_key(|job| Reverse(job.spec.limit));
        Ok(jobs)
    }
}

impl Spec {
    /// What its kind of machine does not have.
    pub fn check(&self) -> Result<()> {
        let name = &self.name;
        for scenario in &self.own {
            scenario.check().with_context(|| format!("job {name}"))?;
        }
        if !self.own.is_empty() && self.scenarios.is_none() {
            bail!("job {name}: nothing plays its scenarios");
        }
        if let Some(topology) = self.bounds.keys().find(|t| !self.topologies.contains(t)) {
            bail!("job {name}: bounds are for {topology}, where it does not run");
        }
        if (self.at_peer || !self.bounds.is_empty()) && !self.models().has_connectx(self.machine) {
            bail!("job {name}: at_peer and bounds are of machines with a ConnectX only");
        }
        match self.machine {
            Kind::Parallel if self.icount.is_some() => {
                bail!("job {name}: icount is of counting machines only")
            }
            Kind::Counting if !self.connectx.is_empty() || self.pascal.is_some() || self.edu => {
                bail!("job {name}: connectx, pascal and edu are of parallel machines only")
            }
            _ => Ok(()),
        }
    }

    fn models(&self) -> Models<'_> {
        Models {
            connectx: &self.connectx,
            pascal: self.pascal.as_deref(),
            edu: self.edu,
        }
    }
}

impl<'a> Job<'a> {
    /// A job that is not in the plan.
    pub fn alone(name: String, kernel: &str, topology: &'a Topology, spec: Spec) -> Self {
        Self {
            name,
            kernel: kernel.to_owned(),
            topology,
            spec,
            test: None,
        }
    }

    /// The name of its topology.
    pub fn topology(&self) -> &str {
        &self.topology.name
    }

    /// Seconds until its machine counts as hung.
    pub fn limit(&self) -> u64 {
        self.spec.limit
    }

    /// What is run in its machine, by short names.
    pub fn runs(&self) -> Vec<String> {
        let spec = &self.spec;
        let programs = spec.scenarios.iter().chain(&spec.programs);
        let mut all = Vec::from_iter(programs.map(|program| {
            let (path, arguments) = words(program);
            format!("{} {arguments}", split(path).1)
                .trim_end()
                .to_owned()
        }));
        all.extend(spec.pyverbs.iter().cloned());
        all.extend(spec.commands.iter().cloned());
        all.extend(spec.kunit.iter().map(|filter| format!("kunit {filter}")));
        all
    }

    /// Whether it has programs, of which one test can be picked.
    pub fn has_programs(&self) -> bool {
        !self.spec.programs.is_empty()
    }

    /// Makes it run only that test of its programs. What it demands of all of its tests
    /// together is not asked of one.
    pub fn pick_test(&mut self, test: &str) {
        let spec = &mut self.spec;
        let mut programs = Vec::from_iter(spec.programs.iter().map(|p| with_test(p, test)));
        programs.dedup();
        *spec = Spec {
            programs,
            pyverbs: Vec::new(),
            commands: Vec::new(),
            kunit: None,
            at_peer: false,
            bounds: BTreeMap::new(),
            at_least: None,
            ..spec.clone()
        };
        self.test = Some(test.to_owned());
    }

    /// What it does.
    #[cfg(test)]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The kernels that must be built for it.
    pub fn needs(&self) -> Vec<&str> {
        let mut needs = vec![self.kernel.as_str()];
        needs.extend(self.spec.from.as_deref());
        needs
    }

    /// Whether one of its kernels has the series.
    pub fn needs_series(&self, kernels: &Kernels) -> Result<bool> {
        for name in self.needs() {
            if kernels.get(name)?.tree == Source::Series {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether it runs rdma-core's own tests.
    pub fn needs_rdma_core(&self) -> bool {
        !self.spec.pyverbs.is_empty()
    }

    /// Whether its machine is a parallel one.
    pub fn is_parallel(&self) -> bool {
        self.spec.machine == Kind::Parallel
    }

    /// Whether it plays scenarios.
    pub fn is_demo(&self) -> bool {
        self.spec.scenarios.is_some()
    }

    /// What plays scenarios, if that is what it does.
    pub fn demo(&self, booter: &Booter<'_>, paths: &Paths) -> Option<Demo<'_>> {
        let (folder, program) = split(self.spec.scenarios.as_deref()?);
        let kernel = Built::at(paths, &self.kernel);
        Some(Demo {
            name: &self.name,
            program: kernel.selftests(folder).join(program),
            kernel,
            topology: self.topology,
            scenarios: match &self.spec.own[..] {
                [] => &self.topology.scenarios,
                own => own,
            },
            kind: self.spec.machine,
            models: self.spec.models(),
            prepare: self.prepare(booter, paths),
            limit: Duration::from_secs(self.spec.limit),
        })
    }

    /// A shell in its machine, with its modules loaded.
    pub fn shell(&self, booter: &Booter<'_>, paths: &Paths) -> Result<()> {
        let boot = Boot {
            name: "shell",
            kernel: &Built::at(paths, &self.kernel),
            topology: self.topology,
            kind: self.spec.machine,
            models: self.spec.models(),
            append: &self.append(booter.machine),
            icount: self.spec.icount.as_deref(),
            coverage: false,
            job: self.prepare(booter, paths),
            limit: Duration::MAX,
        };
        shell::run(booter, &boot)
    }

    /// Boots it and gives its results.
    pub fn run(&self, booter: &Booter<'_>, paths: &Paths) -> Result<Vec<Outcome>> {
        let kernel = Built::at(paths, &self.kernel);
        let limit = Duration::from_secs(self.spec.limit);
        let mut outcomes = Vec::new();
        let ran = if let Some(demo) = self.demo(booter, paths) {
            let (rows, ran) = demo.play(booter)?;
            let rows = rows.iter();
            outcomes.extend(rows.map(|row| row.outcome(&self.name, paths)));
            ran
        } else {
            let ran = self.boot(booter, paths, &kernel, limit)?;
            let program = |program: &str| {
                let log = paths.short(&ran.log_of(&log_name(program)));
                let outcomes = self.program(program, &ran).into_iter();
                outcomes.map(move |outcome| outcome.with_log(log.clone()))
            };
            for name in &self.spec.programs {
                outcomes.extend(program(name));
            }
            if let Some(test) = self.test.as_ref().filter(|_| outcomes.is_empty()) {
                let reason = format!("no program of this job has a test {test}");
                outcomes.push(Outcome::could_not_run(&self.name, test, reason));
            }
            if self.needs_rdma_core() {
                outcomes.extend(program("pyverbs"));
            }
            if !self.spec.commands.is_empty() {
                let commands = self.spec.commands.iter();
                let told = Vec::from_iter(commands.flat_map(|name| program(name)));
                if self.spec.models().has_connectx(self.spec.machine) {
                    let trouble = claims::contradicted(&told, &ran);
                    outcomes.push(Outcome::unless(&self.name, "the NIC's log agrees", trouble));
                }
                outcomes.extend(told);
            }
            ran
        };
        if self.spec.kunit.is_some() {
            for case in ktap::parse(&ran.console) {
                outcomes.push(Outcome::from_ktap(&self.name, "kunit", case));
            }
        }
        if let Some(floor) = self.spec.at_least {
            let trouble = too_few(&outcomes, floor);
            outcomes.push(Outcome::unless(&self.name, "enough tests pass", trouble));
        }
        outcomes.extend(of_machine(&self.name, &ran, &self.spec.allow, paths));
        if self.spec.models().has_connectx(self.spec.machine) {
            outcomes.extend(nic::outcomes(&self.name, &self.spec, self.topology, &ran));
        }
        if self.spec.pascal.is_some() {
            let gpus = self.topology.gpus.len();
            outcomes.push(speed::outcome(&self.name, &self.kernel, &ran.dir, gpus));
        }
        if self.spec.kmemleak {
            outcomes.push(Outcome::unless(
                &self.name,
                "no memory is leaked",
                leaks(&ran),
            ));
        }
        // Of the rest the console tells most; its folder has everything.
        let console = paths.short(&ran.console());
        for outcome in &mut outcomes {
            outcome.log_file.get_or_insert_with(|| console.clone());
        }
        Ok(outcomes)
    }

    /// What it adds to the kernel's command line.
    fn append(&self, machine: &Machine) -> Vec<String> {
        let for_tests = match self.spec.machine {
            Kind::Counting => &machine.counting.append_for_tests[..],
            Kind::Parallel => &[],
        };
        let mut append = [for_tests, &self.spec.append].concat();
        if let Some(filter) = &self.spec.kunit {
            append.push("kunit.enable=1".to_owned());
            if filter != "*" {
                append.push(format!("kunit.filter_glob={filter}"));
            }
        }
        append
    }

    /// Loads modules and runs the scripts that come first, as lines of shell.
    fn prepare(&self, booter: &Booter<'_>, paths: &Paths) -> String {
        let mut job = booter.load(&self.spec.load, self.topology);
        let guest = paths.root.join("harness/guest");
        job.push_str(&format!("guest={}\n", quote(&guest.to_string_lossy())));
        for script in &self.spec.prepare {
            let file = guest_script(&paths.root, script);
            job.push_str(&format!(". {}\n", quote(&file.to_string_lossy())));
        }
        job
    }

    fn boot(
        &self,
        booter: &Booter<'_>,
        paths: &Paths,
        kernel: &Built,
        limit: Duration,
    ) -> Result<Ran> {
        let step = booter.ui.step(format!("run: {}", self.name));
        let append = self.append(booter.machine);
        let programs = match &self.spec.from {
            Some(name) => Built::at(paths, name),
            None => kernel.clone(),
        };
        let mut job = self.prepare(booter, paths);
        for (name, value) in &self.spec.env {
            job.push_str(&format!("export {name}={}\n", quote(value)));
        }
        if !self.spec.programs.is_empty() {
            job.push_str("find_judge\nexport P2PTEST_JUDGE=\"$judge\"\n");
        }
        for program in &self.spec.programs {
            let (path, arguments) = words(program);
            let (folder, name) = split(path);
            let file = programs.selftests(folder).join(name);
            job.push_str(&format!(
                "run {} {} {arguments}\n",
                log_name(program),
                quote(&file.to_string_lossy())
            ));
        }
        if self.needs_rdma_core() {
            let tests = rdma_core::tests(paths, booter.ui)?;
            job.push_str(&format!(
                "run pyverbs pyverbs {} {}\n",
                quote(&tests.to_string_lossy()),
                self.spec.pyverbs.join(" "),
            ));
        }
        for command in &self.spec.commands {
            job.push_str(&format!("run {command} {command}\n"));
        }
        if self.spec.kmemleak {
            job.push_str("kmemleak\n");
        }
        if self.spec.coverage {
            job.push_str("coverage\n");
        }
        booter.boot(
            &Boot {
                name: &self.name,
                kernel,
                topology: self.topology,
                kind: self.spec.machine,
                models: self.spec.models(),
                append: &append,
                icount: self.spec.icount.as_deref(),
                coverage: self.spec.coverage,
                job,
                limit,
            },
            &step,
        )
    }

    /// A machine of ours has what tests want: a skip that nobody expects hides a failure.
    fn may_skip(&self, outcome: Outcome) -> Outcome {
        let Some(skips) = &self.spec.skips else {
            return outcome;
        };
        let mut known = skips.iter().chain(&self.topology.skips);
        if outcome.status != Status::Skipped || known.any(|text| outcome.reason.contains(text)) {
            return outcome;
        }
        let reason = format!("skipped, and not expected to: {}", outcome.reason);
        Outcome::failed(&outcome.suite, &outcome.name, reason)
    }

    fn program(&self, program: &str, ran: &Ran) -> Vec<Outcome> {
        let (_, name) = split(words(program).0);
        let file = log_name(program);
        let Some(log) = ran.file(&format!("{file}.log")) else {
            return vec![Outcome::failed(&self.name, name, "it was not started")];
        };
        // Another program of the job may have the test.
        if self.test.is_some() && log.lines().any(|line| line == "1..0") {
            return Vec::new();
        }
        let cases = ktap::parse(&log);
        let all_passed = cases.iter().all(|case| case.status != Status::Failed);
        let mut outcomes: Vec<_> = cases
            .into_iter()
            .map(|case| Outcome::from_ktap(&self.name, name, case))
            .map(|outcome| self.may_skip(outcome))
            .collect();
        // 4: everything was skipped.
        let status = ran.file(&format!("{file}.status")).unwrap_or_default();
        if all_passed && !matches!(status.trim(), "0" | "4") {
            outcomes.push(Outcome::failed(
                &self.name,
                &format!("{name}: exit status"),
                format!("{:?}; its last lines:\n{}", status.trim(), tail(&log, 10)),
            ));
        }
        outcomes
    }
}

/// Why these are fewer tests that pass than there must be.
fn too_few(outcomes: &[Outcome], floor: usize) -> Option<String> {
    let count = |status| {
        let all = outcomes.iter();
        all.filter(|outcome| outcome.status == status).count()
    };
    let passed = count(Status::Passed);
    (passed < floor).then(|| {
        format!(
            "{passed} passed, {} failed, {} skipped; at least {floor} must pass",
            count(Status::Failed),
            count(Status::Skipped)
        )
    })
}

/// A script of the guest's side that jobs may have run first.
fn guest_script(root: &Path, name: &str) -> PathBuf {
    root.join("harness/guest").join(format!("{name}.sh"))
}

fn split(program: &str) -> (&str, &str) {
    program.rsplit_once('/').unwrap_or((".", program))
}

/// A program, and its arguments as a shell takes them.
fn words(program: &str) -> (&str, &str) {
    program.split_once(' ').unwrap_or((program, ""))
}

/// A program with the arguments that pick one test of it, as `kselftest_harness.h` takes
/// them; its own arguments remain as far as they exclude something.
fn with_test(program: &str, test: &str) -> String {
    let (path, arguments) = words(program);
    let words = Vec::from_iter(arguments.split_whitespace());
    let pairs = words.chunks(2);
    let excluded = pairs.filter(|pair| matches!(pair[0], "-T" | "-F" | "-V"));
    // `fixture.test` and `fixture.variant.test` are whole names.
    let option = if test.contains('.') { "-r" } else { "-t" };
    let words = [path].into_iter().chain(excluded.flatten().copied());
    Vec::from_iter(words.chain([option, test])).join(" ")
}

/// Names the files of a program's run; with other arguments, it is another run.
fn log_name(program: &str) -> String {
    let (path, arguments) = words(program);
    let (_, name) = split(path);
    let mut log = name.to_owned();
    for argument in arguments.split_whitespace() {
        log.push('.');
        log.push_str(&argument.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
    }
    log
}

/// What came of a job's machine itself.
pub fn of_machine(job: &str, ran: &Ran, allowed: &[String], paths: &Paths) -> Vec<Outcome> {
    let mut machine = Outcome::unless(job, "the machine ends well", ran.trouble());
    machine.seconds = Some(ran.time.as_secs_f64());
    let quiet = Outcome::unless(job, "a quiet kernel log", loud(ran, allowed));
    let mut outcomes = vec![machine, quiet];
    if let Some(complaint) = &ran.witness {
        outcomes.push(Outcome::unless(job, "the NIC's witness", complaint.clone()));
    }
    let log = |outcome: Outcome| outcome.with_log(paths.short(&ran.console()));
    outcomes.into_iter().map(log).collect()
}

fn loud(ran: &Ran, allowed: &[String]) -> Option<String> {
    if ran.end == End::Unheard {
        return Some("the log is not whole".to_owned());
    }
    let mut reports = logscan::reports(&ran.console);
    reports.retain(|report| !logscan::is_allowed(report, allowed));
    let first = reports.first()?;
    Some(format!("{} reports; the first:\n{first}", reports.len()))
}

fn leaks(ran: &Ran) -> Option<String> {
    match ran.file("kmemleak") {
        None => Some("kmemleak did not answer".to_owned()),
        Some(text) if text.trim().is_empty() => None,
        Some(text) => Some(text),
    }
}

impl Same {
    /// What its result belongs to.
    pub fn suite(&self) -> String {
        format!("same/{}", self.name)
    }

    /// Compares the two jobs' results; nothing if one of them was not run.
    pub fn compare(&self, outcomes: &[Outcome]) -> Option<Outcome> {
        let results = |job: &str| -> BTreeMap<String, Status> {
            outcomes
                .iter()
                .filter(|outcome| outcome.suite == job)
                .map(|outcome| (outcome.name.clone(), outcome.status))
                .collect()
        };
        let [a, b] = &self.jobs;
        let (one, other) = (results(a), results(b));
        if one.is_empty() || other.is_empty() {
            return None;
        }
        let names: BTreeSet<_> = one.keys().chain(other.keys()).collect();
        let differ: Vec<_> = names
            .into_iter()
            .filter(|name| one.get(*name) != other.get(*name))
            .map(|name| {
                let told = |status: Option<&Status>| match status {
                    Some(status) => format!("{status:?}").to_lowercase(),
                    None => "absent".to_owned(),
                };
                format!(
                    "{name}: {} in {a}, {} in {b}",
                    told(one.get(name)),
                    told(other.get(name))
                )
            })
            .collect();
        let what = format!("{a} and {b} come out the same, {} tests", one.len());
        let trouble = (!differ.is_empty()).then(|| differ.join("\n"));
        Some(Outcome::unless(&self.suite(), &what, trouble))
    }
}

/// Runs jobs, some at a time. The first error ends it; results stay.
pub fn run_all<T: Send>(
    jobs: Vec<T>,
    at_a_time: usize,
    run: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    run_as_built(jobs, |_| Vec::new(), &[], at_a_time, |_| Ok(true), run)?;
    Ok(())
}

/// Builds kernels in their order, and runs each job as soon as all its kernels are built.
/// `build` returns whether the kernel can be used. Returns the jobs that were not run,
/// because one of their kernels cannot be used.
///
/// While kernels are built, one job runs at a time: a build leaves a processor idle now
/// and then. The first error ends the run; results stay.
pub fn run_as_built<'k, T: Send>(
    jobs: Vec<T>,
    needs: impl Fn(&T) -> Vec<&'k str> + Sync,
    kernels: &[&'k str],
    at_a_time: usize,
    build: impl Fn(&'k str) -> Result<bool>,
    run: impl Fn(T) -> Result<()> + Sync,
) -> Result<Vec<T>> {
    let queue = Mutex::new(Queue {
        waiting: jobs,
        there: BTreeSet::new(),
        is_building: true,
        failed: None,
    });
    let changed = Condvar::new();
    let lock = || queue.lock().expect("no panic holds it");
    let fail = |error| {
        lock().failed.get_or_insert(error);
        changed.notify_all();
    };
    // The next job, once its kernels are there; nothing if there will be none.
    let next = || {
        let mut queue = lock();
        while queue.failed.is_none() {
            let has_all = |job: &T| needs(job).iter().all(|name| queue.there.contains(name));
            match queue.waiting.iter().position(has_all) {
                Some(at) => return Some(queue.waiting.remove(at)),
                None if queue.is_building => {
                    queue = changed.wait(queue).expect("no panic holds it");
                }
                None => break,
            }
        }
        None
    };
    let work = || {
        while let Some(job) = next() {
            if let Err(error) = run(job) {
                fail(error);
            }
        }
    };
    std::thread::scope(|scope| {
        // Who wants one thing at a time gets that.
        let beside = usize::from(at_a_time > 1);
        for _ in 0..beside {
            scope.spawn(work);
        }
        let building = Building(|| {
            lock().is_building = false;
            changed.notify_all();
        });
        for kernel in kernels {
            if lock().failed.is_some() {
                break;
            }
            match build(kernel) {
                Ok(true) => {
                    lock().there.insert(kernel);
                    changed.notify_all();
                }
                Ok(false) => (),
                Err(error) => fail(error),
            }
        }
        drop(building);
        for _ in beside..at_a_time.max(1) {
            scope.spawn(work);
        }
    });
    let queue = queue.into_inner().expect("no panic holds it");
    queue.failed.map_or(Ok(queue.waiting), Err)
}

/// Ends the time of building; also if a build panics, or the jobs would wait for ever.
struct Building<F: Fn()>(F);

impl<F: Fn()> Drop for Building<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// Jobs that kernels are built for.
struct Queue<'k, T> {
    waiting: Vec<T>,
    /// Kernels that are built.
    there: BTreeSet<&'k str>,
    /// Whether there will be more.
    is_building: bool,
    /// The first error.
    failed: Option<anyhow::Error>,
}

/// Every kernel that these jobs need, once. Those that most jobs wait for come first.
pub fn kernels_for<'a>(jobs: &[&Job<'_>], kernels: &'a Kernels) -> Vec<&'a str> {
    let waiting = |name: &str| {
        jobs.iter()
            .filter(|job| job.needs().contains(&name))
            .count()
    };
    let mut names = kernels.names();
    names.retain(|name| waiting(name) > 0);
    names.sort_by_key(|name| Reverse(waiting(name)));
    names
}

#[cfg(test)]
mod tests;
