//! The test plan (qemu/tests.toml): which jobs there are, and what each one needs.

use std::cmp::Reverse;
use std::collections::BTreeMap;
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
    /// Jobs whose results must be the same.
    #[serde(default)]
    pub same: Vec<Same>,
}

/// What a job does; qemu/tests.toml says what the fields mean.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Its name; `job/topology` is that of its results.
    pub name: String,
    /// Where it runs; `*` for all topologies with scenarios.
    pub topologies: Vec<String>,
    /// The kernel, if not the topology's.
    pub kernel: Option<String>,
    /// The kind of its machine.
    #[serde(default)]
    pub machine: Kind,
    /// Diff to the arguments of the model that is the NIC of a parallel machine.
    #[serde(default)]
    pub connectx: Vec<String>,
    /// The GPUs are models of a Pascal, with these arguments.
    pub pascal: Option<Vec<String>>,
    /// The NICs of a parallel machine are edu.
    #[serde(default)]
    pub edu: bool,
    /// The programs, as in `programs`, that play scenarios.
    #[serde(default)]
    pub scenarios: Vec<String>,
    /// What it plays, if not the topology's scenarios.
    #[serde(default, rename = "scenario")]
    pub own: Vec<Scenario>,
    /// Modules that are loaded first.
    #[serde(default)]
    pub load: Vec<String>,
    /// `folder/program` of the selftests, and its arguments.
    #[serde(default)]
    pub programs: Vec<String>,
    /// The kernel whose selftests the programs are, if not the one that boots.
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
    /// Memory that nothing leads to is a failure.
    #[serde(default)]
    pub kmemleak: bool,
    /// The NIC must have read and written each GPU that it may reach.
    #[serde(default)]
    pub at_peer: bool,
    /// What the model of a ConnectX may take, by topology.
    #[serde(default)]
    pub bounds: BTreeMap<String, Bounds>,
    /// What the kernel runs is kept, for `patches::coverage`.
    #[serde(default)]
    pub coverage: bool,
    /// QEMU's `-icount`, if not the machine's.
    pub icount: Option<String>,
    /// Diff to the kernel's command line.
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

/// The most that the model of a ConnectX may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Median of RDMA writes of 4 KiB between resident pages, from doorbell to completion, in
    /// microseconds.
    pub write_us: u64,
    /// Memory at its peak, without the machine's.
    pub memory_mib: u64,
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
    /// Where.
    pub topology: &'a Topology,
    /// What it does.
    pub spec: Spec,
    /// The one test of its programs that it runs (`TEST=`); all if none.
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
        !self.spec.scenarios.is_empty()
    }
}

/// A script of the guest's side that jobs may have run first.
pub fn guest_script(root: &Path, name: &str) -> PathBuf {
    root.join("harness/guest").join(format!("{name}.sh"))
}

/// Folder and name of a program.
pub fn split(program: &str) -> (&str, &str) {
    program.rsplit_once('/').unwrap_or((".", program))
}

/// A program, and its arguments as a shell takes them.
pub fn words(program: &str) -> (&str, &str) {
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
    /// What its result belongs to.
    pub fn suite(&self) -> String {
        format!("same/{}", self.name)
    }
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
