//! How mutants are tested: qemu/mutants.toml and qemu/mutants-generated.toml.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::file::Tests;
use super::generate::Site;
use plan::job::{Plan, Spec};
use plan::kernels::Kernel;
use plan::topology::{Kind, Topologies};

/// The prefix of KUnit tests in the tables of qemu/mutants.toml.
pub const KUNIT: &str = "kunit/";

/// qemu/mutants.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MutantsConfig {
    /// Where tests run, if the mutant does not say so.
    pub topology: String,
    /// Modules to load first.
    pub load: BTreeMap<String, Vec<String>>,
    /// The kind of machine.
    pub machine: BTreeMap<String, Kind>,
    /// Guest scripts that come first.
    pub prepare: BTreeMap<String, Vec<String>>,
    /// The environment.
    pub env: BTreeMap<String, BTreeMap<String, String>>,
    /// Arguments of the models of a GPU.
    pub pascal: BTreeMap<String, Vec<String>>,
    /// Whether NICs are edu.
    pub edu: BTreeMap<String, bool>,
    /// Seconds until a machine counts as hung.
    pub limit: u64,
    /// The kernel of all mutants.
    pub kernel: Kernel,
}

impl MutantsConfig {
    /// Reads the settings.
    pub fn read(root: &Path) -> Result<Self> {
        host::settings::read(&root.join("qemu/mutants.toml"))
    }

    /// The tests, grouped by machine. The programs of a machine need the same topology,
    /// the same kind of machine, the same models and the same modules. Modules of
    /// different groups may not work together.
    pub fn machines(&self, tests: &Tests) -> Vec<Spec> {
        let mut machines = Vec::<Spec>::new();
        for run in &tests.programs {
            let program = &run.program;
            let kind = longest(&self.machine, program).unwrap_or_default();
            let pascal = longest(&self.pascal, program);
            let machine = Spec {
                machine: kind,
                topologies: vec![run.topology.as_ref().unwrap_or(&self.topology).clone()],
                connectx: match kind {
                    Kind::Counting => Vec::new(),
                    Kind::Parallel => run.connectx.clone(),
                },
                load: longest(&self.load, program).unwrap_or_default(),
                pascal: pascal.map(|pascal| [pascal, run.pascal.clone()].concat()),
                prepare: longest(&self.prepare, program).unwrap_or_default(),
                env: longest(&self.env, program).unwrap_or_default(),
                edu: longest(&self.edu, program).unwrap_or_default(),
                limit: self.limit,
                ..Spec::default()
            };
            let without_programs = |spec: &Spec| Spec {
                programs: Vec::new(),
                ..spec.clone()
            };
            let place = machines
                .iter()
                .position(|other| without_programs(other) == machine);
            let place = place.unwrap_or_else(|| {
                machines.push(machine);
                machines.len() - 1
            });
            let with = &mut machines[place].programs;
            if !with.contains(program) {
                with.push(program.clone());
            }
        }
        let kunit = tests.kunit.iter().map(|filter| self.kunit(filter));
        machines.into_iter().chain(kunit).collect()
    }

    /// The machine for KUnit tests. Tests in modules run when the module is loaded.
    pub fn kunit(&self, filter: &str) -> Spec {
        let of = |table: &BTreeMap<String, Vec<String>>| {
            if filter != "*" {
                return longest(table, &format!("{KUNIT}{filter}")).unwrap_or_default();
            }
            let all = table.iter().filter(|(start, _)| start.starts_with(KUNIT));
            all.flat_map(|(_, values)| values.clone()).collect()
        };
        Spec {
            topologies: vec![self.topology.clone()],
            load: of(&self.load),
            prepare: of(&self.prepare),
            kunit: Some(filter.to_owned()),
            limit: self.limit,
            ..Spec::default()
        }
    }
}

/// The table's value for the longest prefix of `name`.
fn longest<T: Clone>(table: &BTreeMap<String, T>, name: &str) -> Option<T> {
    let mut fitting = table.iter().filter(|(start, _)| name.starts_with(*start));
    // In a sorted map, a longer prefix comes later.
    fitting.next_back().map(|(_, value)| value.clone())
}

/// qemu/mutants-generated.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeneratedConfig {
    /// Seconds until a machine counts as hung, if its job has not less.
    limit: u64,
    /// The jobs for files whose path begins so, in order.
    jobs: BTreeMap<String, Vec<String>>,
    /// Mutants that are no defects.
    #[serde(default)]
    equal: Vec<Equal>,
}

/// Why a change makes no difference that a test could notice.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Equal {
    file: String,
    function: String,
    line: String,
    becomes: String,
    reason: String,
}

impl GeneratedConfig {
    /// Reads the settings.
    pub fn read(root: &Path) -> Result<Self> {
        host::settings::read(&root.join("qemu/mutants-generated.toml"))
    }

    /// Whether mutants of this file are tested.
    pub fn takes(&self, file: &str) -> bool {
        !self.jobs(file).is_empty()
    }

    /// Why the change of a site is no defect.
    pub fn equal(&self, site: &Site) -> Option<&str> {
        let is_it = |equal: &&Equal| {
            (equal.file.as_str(), equal.function.as_str()) == (&site.file, &site.function)
                && equal.line.trim() == site.line.trim()
                && equal.becomes.trim() == site.change.becomes.trim()
        };
        let found = self.equal.iter().find(is_it);
        found.map(|equal| equal.reason.as_str())
    }

    /// The jobs for mutants of this file.
    pub fn jobs(&self, file: &str) -> Vec<String> {
        longest(&self.jobs, file).unwrap_or_default()
    }

    /// The machines of these jobs of the plan, for the mutants' kernel.
    pub fn machines(
        &self,
        jobs: &[String],
        settings: &MutantsConfig,
        plan: &Plan,
        topologies: &Topologies,
    ) -> Result<Vec<Spec>> {
        let all = plan.jobs(topologies)?;
        let machine = |name: &String| {
            if name == "kunit" {
                return Ok(settings.kunit("*"));
            }
            let job = all.iter().find(|job| job.name == *name);
            let job = job.with_context(|| {
                format!("qemu/mutants-generated.toml: qemu/tests.toml has no job {name}")
            })?;
            let mut spec = job.spec.clone();
            spec.topologies = vec![job.topology.name.clone()];
            spec.limit = spec.limit.min(self.limit);
            if job.kernel == "debug" {
                // The mutants' kernel is not as slow, and has no kmemleak.
                spec.icount = None;
                spec.kmemleak = false;
            }
            Ok(spec)
        };
        jobs.iter().map(machine).collect()
    }

    /// All jobs, each once.
    pub fn all_jobs(&self) -> Vec<String> {
        let mut all = Vec::new();
        for job in self.jobs.values().flatten() {
            if !all.contains(job) {
                all.push(job.clone());
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    /// The data of this repository.
    fn data() -> (Topologies, MutantsConfig, GeneratedConfig, Plan) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        (
            Topologies::read(&root).unwrap(),
            MutantsConfig::read(&root).unwrap(),
            GeneratedConfig::read(&root).unwrap(),
            Plan::read(&root).unwrap(),
        )
    }

    /// The mutants' kernel must have what the jobs need: they are of other kernels.
    #[test]
    fn the_jobs_of_this_repository() {
        let (topologies, settings, config, plan) = data();
        let all = config.all_jobs();
        let machines = config
            .machines(&all, &settings, &plan, &topologies)
            .unwrap();
        assert_eq!(machines.len(), all.len());
        for spec in &machines {
            spec.check().unwrap();
            assert_eq!(spec.topologies.len(), 1, "{}", spec.name);
            assert!(
                spec.limit <= config.limit && !spec.kmemleak,
                "{}",
                spec.name
            );
            for program in spec.programs.iter().chain(&spec.scenarios) {
                let path = program.split(' ').next().unwrap();
                let folder = path.rsplit_once('/').unwrap().0;
                let built = |entry: &String| entry == path || entry == folder;
                assert!(settings.kernel.selftests.iter().any(built), "{program}");
            }
            assert!(
                spec.from.is_none() && spec.commands.is_empty(),
                "{}",
                spec.name
            );
        }
        // Each file is tested in several topologies, where its jobs have them.
        for (files, jobs) in &config.jobs {
            let places = |place: &str| jobs.iter().any(|job| job.ends_with(place));
            let is_many = places("/iommu") && (places("/host-bridge") || places("/blocked"));
            let is_alone = ["sw/rxe/", "drivers/iommu/"]
                .iter()
                .any(|end| files.ends_with(end));
            assert!(
                is_many || is_alone || jobs.is_empty() || files == "include/rdma/",
                "{files}"
            );
        }
    }

    #[test]
    fn a_job_that_is_not_in_the_plan_is_an_error() {
        let (topologies, settings, config, plan) = data();
        let machines = |job: &str| {
            let jobs = [job.to_owned()];
            config.machines(&jobs, &settings, &plan, &topologies)
        };
        assert!(machines("rdma/switch").is_ok());
        let error = machines("rdma/nowhere").unwrap_err().to_string();
        assert!(error.ends_with("has no job rdma/nowhere"), "{error}");
        let kunit = &machines("kunit").unwrap()[0];
        assert_eq!(kunit.kunit.as_deref(), Some("*"));
    }

    #[test]
    fn the_longest_beginning_of_a_path_counts_and_a_file_without_jobs_has_no_mutants() {
        let config: GeneratedConfig = toml::from_str(
            "limit = 1\n[jobs]\n\"a/\" = [\"x\", \"y\"]\n\"a/b\" = []\n\"c\" = [\"y\"]\n",
        )
        .unwrap();
        assert!(config.takes("a/c.c") && config.takes("c.c"));
        assert!(!config.takes("a/b.c") && !config.takes("d.c"));
        assert_eq!(config.all_jobs(), ["x", "y"]);
    }
}
