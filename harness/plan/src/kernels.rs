//! The test kernels (qemu/kernels.toml), and what each is built from.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use crate::arch::Arch;
use crate::filter::Only;
use host::settings;
use host::status::Usage;

/// A kernel in qemu/kernels.toml.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Which tree it is built from.
    pub tree: Source,
    /// A patch for that tree: a file of qemu/kernel/, without `.patch`.
    pub patch: Option<String>,
    /// The architecture that it runs on.
    #[serde(default)]
    pub arch: Arch,
    /// Files of qemu/kernel/, without `.config`.
    pub fragments: Vec<String>,
    /// `folder` or `folder/program` of tools/testing/selftests.
    #[serde(default)]
    pub selftests: Vec<String>,
    /// Programs for the guest besides selftests.
    #[serde(default)]
    pub guest: bool,
    /// Targets that make builds instead of a bootable kernel.
    #[serde(default)]
    pub targets: Vec<String>,
    /// Building all modules is a test.
    #[serde(default)]
    pub modules: bool,
    /// LLVM alone can build it.
    #[serde(default)]
    pub llvm: bool,
    /// Another kernel of the same tree. The first build starts from a copy of that
    /// kernel's objects, or from the objects of that kernel's own seed.
    pub seed: Option<String>,
    /// Only built if the user names it.
    #[serde(default)]
    pub on_demand: bool,
}

impl Kernel {
    /// Whether it is only built and never boots.
    pub fn is_built_only(&self) -> bool {
        !self.targets.is_empty()
    }
}

/// What a kernel is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The base with the series.
    Series,
    /// The base alone.
    Base,
}

/// All kernels, by name.
pub struct Kernels(BTreeMap<String, Kernel>);

impl Kernels {
    /// Reads qemu/kernels.toml.
    pub fn read(root: &Path) -> Result<Self> {
        Ok(Self(settings::read(&root.join("qemu/kernels.toml"))?))
    }

    /// The kernel with that name.
    pub fn get(&self, name: &str) -> Result<&Kernel> {
        self.0.get(name).ok_or_else(|| {
            Usage(format!(
                "there is no kernel {name:?}; there are: {}",
                self.names().join(", ")
            ))
            .into()
        })
    }

    /// Whether there is a kernel with that name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// These names in an order where each follows its seed.
    pub fn in_order<'a>(&self, names: &[&'a str]) -> Vec<&'a str> {
        let mut ordered = names.to_vec();
        ordered.sort_by_key(|name| self.seeds(name).count());
        ordered
    }

    /// A kernel's seed, that kernel's seed, and so on.
    pub fn seeds(&self, name: &str) -> impl Iterator<Item = &str> {
        let next = |name: &str| self.0.get(name)?.seed.as_deref();
        // A test finds a cycle of seeds. The iterator must not loop forever on it.
        std::iter::successors(next(name), move |name| next(name)).take(self.0.len())
    }

    /// The names of the kernels of a tree and an architecture. Their headers for user space are
    /// the same.
    pub fn of(&self, tree: Source, arch: Arch) -> impl Iterator<Item = &str> {
        let is = move |kernel: &Kernel| (kernel.tree, kernel.arch) == (tree, arch);
        let of = self.0.iter().filter(move |(_, kernel)| is(kernel));
        of.map(|(name, _)| name.as_str())
    }

    /// Whether building it is a test.
    pub fn is_test(&self, name: &str) -> bool {
        let kernel = self.0.get(name);
        kernel.is_some_and(|kernel| kernel.modules || kernel.is_built_only())
    }

    /// The names of the kernels whose build is a test.
    pub fn tests(&self) -> Vec<&str> {
        let tests = self.0.iter().filter(|(name, _)| self.is_test(name));
        tests.map(|(name, _)| name.as_str()).collect()
    }

    /// The names of the kernels that `only` picks. On-demand kernels must be picked by name.
    pub fn picked(&self, only: &Only) -> Vec<&str> {
        let is_picked = |name: &str, kernel: &Kernel| match kernel.on_demand {
            true => only.picks_by_name(name),
            false => only.picks(name),
        };
        let kernels = self
            .0
            .iter()
            .filter(|(name, kernel)| is_picked(name, kernel));
        kernels.map(|(name, _)| name.as_str()).collect()
    }

    /// All names.
    pub fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_of_this_repository() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let kernels = Kernels::read(&root).unwrap();
        for name in kernels.names() {
            let kernel = kernels.get(name).unwrap();
            for fragment in &kernel.fragments {
                let file = format!("qemu/kernel/{fragment}.config");
                assert!(root.join(file).is_file(), "{fragment}");
            }
            assert!(kernels.seeds(name).count() < kernels.names().len());
            if let Some(seed) = &kernel.seed {
                let seed = kernels.get(seed).unwrap();
                assert_eq!((seed.tree, seed.arch), (kernel.tree, kernel.arch), "{name}");
            }
            // For a foreign architecture only LLVM compiles.
            assert!(kernel.llvm || !kernel.arch.is_foreign(), "{name}");
            // `guest` compiles for the host's.
            assert!(!kernel.guest || !kernel.arch.is_foreign(), "{name}");
            // Programs need a bootable kernel.
            assert!(!kernel.is_built_only() || kernel.selftests.is_empty());
        }
        assert!(!kernels.tests().is_empty());
        let base = kernels.of(Source::Base, Arch::default());
        assert!(base.count() > 0);
        let error = kernels.get("debgu").unwrap_err();
        assert!(error.downcast_ref::<Usage>().is_some());
        assert!(error.to_string().contains("debug"), "{error}");
    }
    #[test]
    fn order_tests_and_picks() {
        let all = "[plain]\ntree='series'\nfragments=[]\n\
             [rdma]\ntree='series'\nfragments=[]\nseed='plain'\n\
             [debug]\ntree='series'\nfragments=[]\nseed='rdma'\nmodules=true\n\
             [drivers]\ntree='series'\nfragments=[]\ntargets=['x/']\non_demand=true\n\
             [base]\ntree='base'\nfragments=[]\n\
             [arm64]\ntree='base'\narch='arm64'\nfragments=[]\non_demand=true\n";
        let kernels = Kernels(toml::from_str(all).unwrap());
        assert_eq!(kernels.tests(), ["debug", "drivers"]);
        let order = kernels.in_order(&["debug", "base", "rdma", "plain"]);
        assert_eq!(order, ["base", "plain", "rdma", "debug"]);
        let base = |arch| Vec::from_iter(kernels.of(Source::Base, arch));
        assert_eq!(base(Arch::X86_64), ["base"]);
        assert_eq!(base(Arch::Arm64), ["arm64"]);
        let picked = |text| kernels.picked(&Only::new(text).unwrap());
        // An on-demand kernel must be named in full.
        assert!(!picked(None).contains(&"drivers"));
        assert!(!picked(Some("!plain")).contains(&"drivers"));
        assert_eq!(picked(Some("drivers")), ["drivers"]);
        assert_eq!(picked(Some("d*")), ["debug"]);
    }
}
