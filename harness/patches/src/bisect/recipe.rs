//! The configurations of qemu/bisect.toml, and the inputs of a result.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use super::{Bisect, Commit, DIR, topic};
use host::paths::digest;
use kernel::config;
use plan::arch::Arch;
use plan::job::Job;
use plan::kernels::Kernels;
use plan::topology::Kind;
use results::cache::Inputs;
use setup::search_path;

/// A configuration of qemu/bisect.toml.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    fragments: Vec<String>,
    pub arch: Option<String>,
    #[serde(default)]
    pub llvm: bool,
    pub boot: Option<String>,
    /// A kernel of qemu/kernels.toml. The build makes its targets.
    targets: Option<String>,
    /// Jobs of qemu/tests.toml to run after the last patch of a topic.
    #[serde(default)]
    pub jobs: Vec<String>,
}

/// All configurations, by their names.
pub fn read(root: &Path) -> Result<BTreeMap<String, Configuration>> {
    host::settings::read(&root.join("qemu/bisect.toml"))
}

/// All inputs of a result besides the tree.
pub struct Recipe<'a> {
    pub configuration: &'a Configuration,
    /// All its options.
    pub wanted: config::Options,
    /// The objects to build instead of a kernel. Empty for a kernel.
    pub objects: Vec<String>,
    /// What runs after the last patch. Empty unless there is a single topic.
    pub jobs: Vec<Job<'a>>,
    /// The tools that build and boot it.
    means: String,
}

impl Recipe<'_> {
    /// A digest of all inputs of a result.
    pub fn key(&self, commit: &Commit) -> String {
        let Self {
            configuration,
            wanted,
            objects,
            jobs,
            means,
        } = self;
        let mut what = format!("{configuration:?}\n{wanted:?}\n{objects:?}");
        for job in jobs.iter().filter(|_| commit.is_last) {
            what.push_str(&format!("\n{:?}\n{:?}", job.spec, job.topology));
        }
        digest(format!("{}\n{what}\n{means}", commit.tree).as_bytes())
    }
}

impl Bisect<'_> {
    /// Reads everything that a configuration names.
    pub(super) fn recipe<'b>(
        &'b self,
        name: &str,
        configuration: &'b Configuration,
    ) -> Result<Recipe<'b>> {
        let root = &self.paths.root;
        let objects = match &configuration.targets {
            Some(kernel) => Kernels::read(root)?.get(kernel)?.targets.clone(),
            None => Vec::new(),
        };
        let jobs = match self.scope {
            "" => Vec::new(),
            _ => {
                let kernel = format!("{DIR}/{name}");
                topic::jobs(root, self.topologies, &kernel, &configuration.jobs)?
            }
        };
        let compiler = self.builder.compiler;
        let path = search_path(self.builder.tools)?;
        let machine = configuration.boot.as_deref().map(|topology| {
            let mut inputs = Inputs::of_running(root)?;
            inputs.text(&format!("{:?}", self.topologies.get(topology)?));
            self.booter
                .inputs(&mut inputs, Arch::default(), Kind::Counting)?;
            anyhow::Ok(inputs.key())
        });
        let machine = machine.transpose()?.unwrap_or_default();
        let versions = compiler.versions(configuration.llvm, &path);
        Ok(Recipe {
            configuration,
            wanted: config::wanted(root, &configuration.fragments)?,
            objects,
            jobs,
            means: format!("{compiler:?}\n{versions}\n{machine}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::topology::Topologies;

    #[test]
    fn the_configurations_of_this_repository() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        for (name, configuration) in read(&root).unwrap() {
            for fragment in &configuration.fragments {
                assert!(
                    !config::fragment(&root, fragment).unwrap().is_empty(),
                    "{name}"
                );
            }
            if let Some(topology) = &configuration.boot {
                topologies.get(topology).unwrap();
                assert_eq!(configuration.arch, None, "{name}: only x86-64 is booted");
                assert_eq!(configuration.targets, None, "{name}: objects do not boot");
            }
            if let Some(kernel) = &configuration.targets {
                let kernels = Kernels::read(&root).unwrap();
                assert!(kernels.get(kernel).unwrap().is_built_only(), "{name}");
            }
        }
    }
}
