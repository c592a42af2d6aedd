//! Topologies: the files of qemu/topologies, and what QEMU is told for them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::outcome::Usage;

/// A file of qemu/topologies.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The file's name; filled in by [`Topologies::read`].
    #[serde(skip)]
    pub name: String,
    /// The shape, in a line.
    pub summary: String,
    /// The kernel that the demo boots in it.
    pub kernel: String,
    /// QEMU's CPU model. The kernel decides by it whether a host bridge can
    /// forward peer-to-peer requests.
    pub cpu: String,
    /// Added to the kernel's command line.
    #[serde(default)]
    pub append: Vec<String>,
    /// `-device` arguments, before GPUs and NICs.
    pub devices: Vec<String>,
    /// Test GPUs in the order in which the guest finds them.
    pub gpus: Vec<Gpu>,
    /// Test NICs, likewise.
    pub nics: Vec<Nic>,
    /// Module parameters by module.
    #[serde(default)]
    pub modules: BTreeMap<String, String>,
    /// Whether an IOMMU translates: peer addresses are then IOVAs.
    #[serde(default)]
    pub iommu: bool,
    /// `P2PTEST_EXPECT` of the selftests.
    pub expect: String,
    /// Text in the reasons for which selftests may skip here.
    #[serde(default)]
    pub skips: Vec<String>,
    /// What the demo plays.
    #[serde(rename = "scenario")]
    pub scenarios: Vec<Scenario>,
}

/// An ivshmem device.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// The bus it is on.
    pub bus: String,
    /// Size of its BAR 2, as QEMU writes sizes.
    pub vram: String,
}

/// An edu device.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// The bus it is on.
    pub bus: String,
}

/// A scenario of p2p_demo and what must come of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// p2p_demo's name for it.
    pub name: String,
    /// Size of the buffer.
    pub pages: u64,
    /// `bus_addr`, `host_bridge` or `host`.
    pub kind: String,
    /// Pages that the NIC reaches in the GPU.
    pub peer: u64,
    /// Pages that had to come home.
    pub home: u64,
}

/// qemu/machine.toml
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// RAM, as QEMU writes sizes.
    pub memory: String,
    /// Number of CPUs.
    pub cpus: u32,
    /// QEMU's `-icount`.
    pub icount: String,
    /// QEMU's `-machine`, besides the type.
    pub properties: String,
    /// QEMU's `-global`, for devices that are not named in a topology.
    pub globals: Vec<String>,
    /// The kernel's command line.
    pub append: Vec<String>,
    /// Added to it for jobs of tests; the demo and the benchmark go without.
    pub append_for_tests: Vec<String>,
    /// What modules are loaded with.
    pub modules: BTreeMap<String, Since>,
}

/// Parameters of a module that want a recent QEMU.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Since {
    /// QEMU's major version.
    pub qemu: u32,
    /// As insmod takes them.
    pub parameters: String,
}

impl Machine {
    /// What a module is loaded with in a topology, by a QEMU of this major version.
    pub fn parameters(&self, module: &str, qemu: u32, topology: &Topology) -> String {
        let here = self.modules.get(module).filter(|since| qemu >= since.qemu);
        let here = here.map(|since| since.parameters.as_str());
        let there = topology.modules.get(module).map(String::as_str);
        Vec::from_iter(here.into_iter().chain(there)).join(" ")
    }
}

/// All topologies, and the machine they are in.
pub struct Topologies {
    /// The machine.
    pub machine: Machine,
    by_name: BTreeMap<String, Topology>,
}

/// The order of tables; others follow by name.
const ORDER: [&str; 7] = [
    "switch",
    "host-bridge",
    "iommu",
    "small-bar",
    "two-gpus",
    "blocked",
    "no-p2p",
];

impl Topologies {
    /// Reads qemu/machine.toml and qemu/topologies/.
    pub fn read(root: &Path) -> Result<Self> {
        let machine = read(&root.join("qemu/machine.toml"))?;
        let mut by_name = BTreeMap::new();
        for entry in fs::read_dir(root.join("qemu/topologies"))? {
            let path = entry?.path();
            if path.extension().is_none_or(|ext| ext != "toml") {
                continue;
            }
            let mut topology: Topology = read(&path)?;
            topology.name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            topology
                .check()
                .with_context(|| path.display().to_string())?;
            by_name.insert(topology.name.clone(), topology);
        }
        Ok(Self { machine, by_name })
    }

    /// The topology of that name.
    pub fn get(&self, name: &str) -> Result<&Topology> {
        self.by_name.get(name).ok_or_else(|| {
            let names: Vec<_> = self.all().iter().map(|t| t.name.as_str()).collect();
            Usage(format!(
                "there is no topology {name:?}; there are: {}",
                names.join(", ")
            ))
            .into()
        })
    }

    /// All, in the order of tables.
    pub fn all(&self) -> Vec<&Topology> {
        let place = |topology: &&Topology| {
            ORDER
                .iter()
                .position(|name| *name == topology.name)
                .unwrap_or(ORDER.len())
        };
        let mut all: Vec<_> = self.by_name.values().collect();
        all.sort_by_key(place);
        all
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

impl Topology {
    fn check(&self) -> Result<()> {
        for scenario in &self.scenarios {
            if scenario.peer + scenario.home > scenario.pages {
                bail!(
                    "scenario {}: more pages expected than there are",
                    scenario.name
                );
            }
            if (scenario.peer == 0) != (scenario.kind == "host") {
                bail!(
                    "scenario {}: kind and peer contradict each other",
                    scenario.name
                );
            }
        }
        Ok(())
    }

    /// QEMU's arguments. Files are named relative to QEMU's directory.
    pub fn qemu(&self, icount: &str) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut add = |option: &str, value: String| {
            args.push(option.to_owned());
            args.push(value);
        };
        add("-icount", icount.to_owned());
        add("-cpu", self.cpu.clone());
        for device in &self.devices {
            add("-device", device.clone());
        }
        for (n, gpu) in self.gpus.iter().enumerate() {
            let size = &gpu.vram;
            let file = vram(n);
            add(
                "-object",
                format!("memory-backend-file,id=vram{n},share=on,mem-path={file},size={size}"),
            );
            add(
                "-device",
                format!("ivshmem-plain,memdev=vram{n},bus={}", gpu.bus),
            );
        }
        for nic in &self.nics {
            // All of an address reaches the bus; the driver sets its own mask.
            add(
                "-device",
                format!("edu,bus={},dma_mask=0xffffffffffffffff", nic.bus),
            );
        }
        args
    }
}

/// The file that is the VRAM of GPU `n`.
pub fn vram(n: usize) -> String {
    format!("vram{n}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topologies_of_this_repository() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let kernels = crate::kernel::Kernels::read(&root).unwrap();
        let names: Vec<_> = topologies.all().iter().map(|t| t.name.clone()).collect();
        assert_eq!(names, ORDER);
        for topology in topologies.all() {
            kernels.get(&topology.kernel).unwrap();
            let args = topology.qemu(&topologies.machine.icount);
            assert!(args.iter().all(|arg| !arg.contains(' ')), "{args:?}");
            assert!(!topology.scenarios.is_empty());
        }
        let error = topologies.get("swich").unwrap_err();
        assert!(error.downcast_ref::<Usage>().is_some());
    }

    #[test]
    fn modules_have_what_qemu_and_topology_want() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let (machine, small) = (&topologies.machine, topologies.get("small-bar").unwrap());
        assert_eq!(machine.parameters("p2ptest_nic", 7, small), "");
        let recent = machine.parameters("p2ptest_nic", 10, small);
        assert_eq!(recent, "max_transfer=4096");
        assert_eq!(machine.parameters("p2ptest_gpu", 10, small), "window=2");
    }

    #[test]
    fn expectations_that_contradict_each_other() {
        let text = |peer: u64, home: u64, kind: &str| {
            format!(
                "summary=''\nkernel=''\ncpu=''\ndevices=[]\ngpus=[]\nnics=[]\nexpect=''\n\
                 [[scenario]]\nname='x'\npages=8\nkind='{kind}'\npeer={peer}\nhome={home}\n"
            )
        };
        let check = |text: String| toml::from_str::<Topology>(&text).unwrap().check();
        assert!(check(text(4, 4, "bus_addr")).is_ok());
        assert!(check(text(5, 4, "bus_addr")).is_err());
        assert!(check(text(0, 8, "bus_addr")).is_err());
        assert!(check(text(8, 0, "host")).is_err());
    }
}
