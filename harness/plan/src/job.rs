//! The test plan (qemu/tests.toml): the jobs, and what each one needs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use host::settings;
use serde::Deserialize;

use crate::kernels::{Kernels, Source};
use crate::topology::{Kind, Models, Scenario, Topologies, Topology};

/// qemu/tests.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    #[serde(rename = "job")]
    jobs: Vec<Spec>,
    /// Pairs of jobs that must have the same results.
    #[serde(default)]
    pub same: Vec<Same>,
}

/// What a job does. qemu/tests.toml documents the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Its name. Its results are called `job/topology`.
    pub name: String,
    /// The topologies it runs in. `*` means all of the host's architecture with scenarios.
    pub topologies: Vec<String>,
    /// The kernel, if it differs from the topology's.
    pub kernel: Option<String>,
    /// The kind of its machine.
    #[serde(default)]
    pub machine: Kind,
    /// More arguments for the ConnectX models of a parallel machine.
    #[serde(default)]
    pub connectx: Vec<String>,
    /// If set, the GPUs are models of a Pascal, with these arguments.
    pub pascal: Option<Vec<String>>,
    /// The NICs of a parallel machine are QEMU's edu device.
    #[serde(default)]
    pub edu: bool,
    /// The programs that play scenarios, written as in `programs`.
    #[serde(default)]
    pub scenarios: Vec<String>,
    /// The scenarios it plays, if not the topology's.
    #[serde(default, rename = "scenario")]
    pub own: Vec<Scenario>,
    /// Modules to load first.
    #[serde(default)]
    pub load: Vec<String>,
    /// `folder/program` of the selftests, with arguments.
    #[serde(default)]
    pub programs: Vec<String>,
    /// The kernel that the selftests come from, if not the one that boots.
    pub from: Option<String>,
    /// Guest scripts that run before the programs.
    #[serde(default)]
    pub prepare: Vec<String>,
    /// Modules of rdma-core's tests.
    #[serde(default)]
    pub pyverbs: Vec<String>,
    /// Commands that the guest scripts define. They print KTAP as programs do.
    #[serde(default)]
    pub commands: Vec<String>,
    /// The filter of the KUnit tests that run at boot.
    pub kunit: Option<String>,
    /// Memory that kmemleak reports is a failure.
    #[serde(default)]
    pub kmemleak: bool,
    /// The NIC must have read and written each GPU that it may reach.
    #[serde(default)]
    pub at_peer: bool,
    /// Pages of the GPU may be in use at the end, because the GPU was pulled out.
    #[serde(default)]
    pub vram_lost: bool,
    /// The limits of the ConnectX model, by topology.
    #[serde(default)]
    pub bounds: BTreeMap<String, Bounds>,
    /// Record code coverage of the kernel, for `patches::coverage`.
    #[serde(default)]
    pub coverage: bool,
    /// QEMU's `-icount`, if it differs from the machine's.
    pub icount: Option<String>,
    /// How many processors the machine has, if not as many as machine.toml says.
    pub cpus: Option<u32>,
    /// Added to the kernel's command line.
    #[serde(default)]
    pub append: Vec<String>,
    /// The environment of programs and commands.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Text of a kernel log report that a test causes on purpose.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Text in the reasons for which tests may skip, in addition to the topology's. `None`
    /// allows any reason.
    pub skips: Option<Vec<String>>,
    /// The minimum number of tests that must run and pass, not counting the machine's own.
    pub at_least: Option<usize>,
    /// Seconds until the machine counts as hung.
    pub limit: u64,
}

/// The limits of a ConnectX model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Median time of 4 KiB RDMA writes between resident pages, from doorbell to
    /// completion, in microseconds.
    pub write_us: u64,
    /// Peak memory, without the machine's, in MiB.
    pub memory_mib: u64,
}

/// Two jobs that must have the same result in every test.
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
    /// Where it runs.
    pub topology: &'a Topology,
    /// What it does.
    pub spec: Spec,
    /// The one test that its programs run (`TEST=`), or `None` for all.
    pub test: Option<String>,
}

impl Plan {
    /// Reads qemu/tests.toml.
    pub fn read(root: &Path) -> Result<Self> {
        Self::read_file(root, "qemu/tests.toml")
    }

    /// Reads another file with jobs.
    pub fn read_file(root: &Path, file: &str) -> Result<Self> {
        let file = root.join(file);
        let plan: Self = settings::read(&file)?;
        let kernels = Kernels::read(root)?;
        for spec in &plan.jobs {
            let found = spec.check().and_then(|()| spec.check_names(root, &kernels));
            found.with_context(|| file.display().to_string())?;
        }
        Ok(plan)
    }

    /// The jobs, for changes before they are placed in topologies.
    pub fn specs(&mut self) -> &mut [Spec] {
        &mut self.jobs
    }

    /// All jobs in all of their topologies. Jobs that may take long come first, so that
    /// they do not finish last alone.
    pub fn jobs<'a>(&self, topologies: &'a Topologies) -> Result<Vec<Job<'a>>> {
        let mut jobs = Vec::new();
        for spec in &self.jobs {
            let shapes = if spec.topologies == ["*"] {
                // Other topologies are only for jobs that name them.
                let mut all = topologies.all();
                all.retain(|topology| topology.is_for_all());
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
        let mut names = BTreeSet::new();
        if let Some(job) = jobs.iter().find(|job| !names.insert(&*job.name)) {
            bail!("there are two jobs {}", job.name);
        }
        jobs.sort_by_key(|job| Reverse(job.spec.limit));
        Ok(jobs)
    }
}

impl Spec {
    /// Fails if the job needs something that its kind of machine does not have.
    pub fn check(&self) -> Result<()> {
        let name = &self.name;
        for scenario in &self.own {
            scenario.check().with_context(|| format!("job {name}"))?;
        }
        if !self.own.is_empty() && self.scenarios.is_empty() {
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

    /// Fails if there is no such kernel or topology.
    fn check_names(&self, root: &Path, kernels: &Kernels) -> Result<()> {
        let name = &self.name;
        let mut used = self.kernel.iter().chain(&self.from);
        if let Some(kernel) = used.find(|kernel| !kernels.has(kernel)) {
            bail!("job {name}: there is no kernel {kernel:?}");
        }
        let mut named = self.topologies.iter().filter(|name| *name != "*");
        if let Some(topology) = named.find(|name| !crate::topology::file(root, name).is_file()) {
            bail!("job {name}: there is no topology {topology:?}");
        }
        Ok(())
    }

    /// The models of its machine.
    pub fn models(&self) -> Models<'_> {
        Models {
            connectx: &self.connectx,
            pascal: self.pascal.as_deref(),
            edu: self.edu,
        }
    }
}

impl<'a> Job<'a> {
    /// Makes a job that is not in the plan.
    pub fn alone(name: String, kernel: &str, topology: &'a Topology, spec: Spec) -> Self {
        Self {
            name,
            kernel: kernel.to_owned(),
            topology,
            spec,
            test: None,
        }
    }

    /// Seconds until its machine counts as hung.
    pub fn limit(&self) -> u64 {
        self.spec.limit
    }

    /// Short names of the programs and tests that run in its machine.
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

    /// Limits its programs to that test. The requirements on all of its tests together no
    /// longer apply.
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

    /// The kernels that must be built for it.
    pub fn needs(&self) -> Vec<&str> {
        let mut needs = vec![self.kernel.as_str()];
        needs.extend(self.spec.from.as_deref());
        needs
    }

    /// Whether the kernel that it boots has the series.
    pub fn boots_series(&self, kernels: &Kernels) -> Result<bool> {
        Ok(kernels.get(&self.kernel)?.tree == Source::Series)
    }

    /// Whether one of its kernels has the series: the one that it boots, or the one that its
    /// programs are from.
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

    /// Whether its machine is parallel.
    pub fn is_parallel(&self) -> bool {
        self.spec.machine == Kind::Parallel
    }

    /// Whether it plays scenarios.
    pub fn is_demo(&self) -> bool {
        !self.spec.scenarios.is_empty()
    }
}

/// A guest script that jobs can run first.
pub fn guest_script(root: &Path, name: &str) -> PathBuf {
    root.join("harness/guest").join(format!("{name}.sh"))
}

/// Folder and name of a program.
pub fn split(program: &str) -> (&str, &str) {
    program.rsplit_once('/').unwrap_or((".", program))
}

/// A program and its arguments, as shell words.
pub fn words(program: &str) -> (&str, &str) {
    program.split_once(' ').unwrap_or((program, ""))
}

/// A program with the options of `kselftest_harness.h` that pick one test. Of its own
/// arguments, only exclusions remain.
fn with_test(program: &str, test: &str) -> String {
    let (path, arguments) = words(program);
    let words = Vec::from_iter(arguments.split_whitespace());
    let pairs = words.chunks(2);
    let excluded = pairs.filter(|pair| matches!(pair[0], "-T" | "-F" | "-V"));
    // `fixture.test` and `fixture.variant.test` are full names.
    let option = if test.contains('.') { "-r" } else { "-t" };
    let words = [path].into_iter().chain(excluded.flatten().copied());
    Vec::from_iter(words.chain([option, test])).join(" ")
}

/// The base name of the log files of a program's run. Other arguments make another name.
pub fn log_name(program: &str) -> String {
    let (path, arguments) = words(program);
    let (_, name) = split(path);
    let mut log = name.to_owned();
    for argument in arguments.split_whitespace() {
        log.push('.');
        log.push_str(&argument.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
    }
    log
}

impl Same {
    /// The suite of its results.
    pub fn suite(&self) -> String {
        format!("same/{}", self.name)
    }
}

/// The kernels that these jobs need, without duplicates. A kernel that more jobs wait for
/// comes first.
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
