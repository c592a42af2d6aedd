//! Topologies: the files of qemu/topologies, and the QEMU arguments for them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::json;

use crate::arch::Arch;
use crate::kernels::Kernels;
use host::settings;
use host::status::Usage;

/// A file of qemu/topologies.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The file's name; filled in by [`Topologies::read`].
    #[serde(skip)]
    pub name: String,
    /// The shape, in a line.
    pub summary: String,
    /// Its position in tables. Topologies without one follow by name.
    pub order: Option<u32>,
    /// The kernel that the demo boots.
    pub kernel: String,
    /// The architecture of the machine and of that kernel.
    #[serde(default)]
    pub arch: Arch,
    /// QEMU's CPU model. From it, the kernel decides whether a host bridge can forward
    /// peer-to-peer requests.
    pub cpu: String,
    /// The guest's memory, as QEMU writes sizes, if it is not that of machine.toml.
    #[serde(default)]
    pub memory: Option<String>,
    /// Added to the kernel's command line.
    #[serde(default)]
    pub append: Vec<String>,
    /// More of QEMU's arguments, such as `-numa`. They come before all devices.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// `-device` arguments that come before GPUs and NICs.
    pub devices: Vec<String>,
    /// Test GPUs, in the order in which the guest finds them.
    pub gpus: Vec<Gpu>,
    /// Test NICs, in the same kind of order.
    pub nics: Vec<Nic>,
    /// Whether a wire joins the ports of two NICs. It does only if they are models of a ConnectX.
    #[serde(default)]
    pub wire: bool,
    /// Parameters of each module.
    #[serde(default)]
    pub modules: BTreeMap<String, String>,
    /// Whether the guest may ask for GPUs and NICs to be unplugged and plugged. The guest's driver
    /// for slots of PCIe (pciehp) does its part, and not ACPI.
    #[serde(default)]
    pub hotplug: bool,
    /// Whether an IOMMU translates. Peer addresses are then IOVAs.
    #[serde(default)]
    pub iommu: bool,
    /// The requests that a NIC may send.
    pub requests: Requests,
    /// `P2PTEST_EXPECT` of the selftests.
    pub expect: String,
    /// Text in the reasons for which selftests may skip here.
    #[serde(default)]
    pub skips: Vec<String>,
    /// The scenarios of the demo. A topology without any, or of a foreign architecture, is only
    /// for jobs that name it.
    #[serde(rename = "scenario", default)]
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

/// An edu device. In a parallel machine, a ConnectX.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// The bus it is on.
    pub bus: String,
}

/// The requests that a NIC's driver may make it send. They depend on where the NIC is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    /// Requests with addresses that were translated beforehand (ATS).
    pub ats: bool,
    /// Requests with relaxed ordering to a peer.
    pub relaxed_at_peer: bool,
    /// The numbers of the GPUs that it may reach.
    pub peers: Vec<usize>,
}

/// A scenario of p2p_demo and its expected result.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name in p2p_demo.
    pub name: String,
    /// Size of the buffer.
    pub pages: u64,
    /// `bus_addr`, `host_bridge` or `host`.
    pub kind: String,
    /// Pages that the NIC reaches in the GPU.
    pub peer: u64,
    /// Pages that had to migrate to host memory.
    pub home: u64,
    /// Calls of `hmm_range_fault()` that the test NIC needs. Other NICs report none.
    #[serde(default)]
    pub faults: u64,
}

/// qemu/machine.toml
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// RAM, as QEMU writes sizes.
    pub memory: String,
    /// Number of CPUs.
    pub cpus: u32,
    /// QEMU's `-global`, for devices that no topology names.
    pub globals: Vec<String>,
    /// The kernel's command line.
    pub append: Vec<String>,
    /// Additions for counting machines.
    pub counting: Counting,
    /// Additions for parallel machines.
    pub parallel: Parallel,
    /// Module parameters.
    pub modules: BTreeMap<String, Since>,
    /// Additions for each architecture.
    pub arch: BTreeMap<Arch, Platform>,
    /// Whether parallel machines use KVM, if they can.
    #[serde(skip)]
    pub kvm: bool,
}

/// The kind of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The clock counts instructions and the CPUs take turns. The NIC is edu.
    #[default]
    Counting,
    /// The CPUs run in parallel. The NIC is a model of a ConnectX, in its own process.
    Parallel,
}

/// The devices of a parallel machine that are models in their own processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Models<'a> {
    /// More arguments for the model of a ConnectX.
    pub connectx: &'a [String],
    /// If set, the GPUs are models of a Pascal with these arguments, instead of the test GPU.
    pub pascal: Option<&'a [String]>,
    /// The NICs are QEMU's edu device instead of models.
    pub edu: bool,
}

impl Models<'_> {
    /// Whether the NICs of such a machine are ConnectX models.
    pub fn has_connectx(&self, kind: Kind) -> bool {
        kind == Kind::Parallel && !self.edu
    }

    /// Whether the GPUs are models of a Pascal that can copy pages for their driver.
    pub fn has_copy_engine(&self) -> bool {
        let hides = |argument: &String| {
            argument == "--no-copy-engine" || argument.starts_with("--vbios-flaw")
        };
        self.pascal
            .is_some_and(|arguments| !arguments.iter().any(hides))
    }
}

/// The table `counting` of qemu/machine.toml.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counting {
    /// QEMU's `-icount`.
    pub icount: String,
}

/// The table `parallel` of qemu/machine.toml.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parallel {
    /// QEMU's `-accel`.
    pub accel: String,
}

/// A table `arch.NAME` of qemu/machine.toml.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// QEMU's `-machine`, besides the type.
    pub properties: String,
    /// Added to the kernel's command line.
    #[serde(default)]
    pub append: Vec<String>,
    /// Added to the kernel's command line in counting machines for test jobs, but not for the
    /// demo and the benchmark.
    #[serde(default)]
    pub append_for_tests: Vec<String>,
    /// Added to the kernel's command line in parallel machines.
    #[serde(default)]
    pub append_parallel: Vec<String>,
    /// QEMU's `-global` in parallel machines, besides the ones of every machine.
    #[serde(default)]
    pub globals_parallel: Vec<String>,
}

/// Parameters of a module that need a recent QEMU.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Since {
    /// The lowest major version of QEMU that gets them.
    pub qemu: u32,
    /// Written as for insmod.
    pub parameters: String,
}

impl Machine {
    /// The parameters of a module in a topology, with a QEMU of this major version.
    pub fn parameters(&self, module: &str, qemu: u32, topology: &Topology) -> String {
        let here = self.modules.get(module).filter(|since| qemu >= since.qemu);
        let here = here.map(|since| since.parameters.as_str());
        let there = topology.modules.get(module).map(String::as_str);
        Vec::from_iter(here.into_iter().chain(there)).join(" ")
    }

    /// What the topology's architecture adds.
    ///
    /// # Panics
    ///
    /// If machine.toml has no table for it. [`Topologies::read`] makes sure that it has.
    pub fn platform(&self, topology: &Topology) -> &Platform {
        &self.arch[&topology.arch]
    }

    /// The kernel's command line in a machine of this kind.
    pub fn append<'a>(
        &'a self,
        kind: Kind,
        topology: &'a Topology,
    ) -> impl Iterator<Item = &'a String> {
        let platform = self.platform(topology);
        let own = match kind {
            Kind::Counting => &[][..],
            Kind::Parallel => &platform.append_parallel,
        };
        self.append.iter().chain(&platform.append).chain(own)
    }

    /// The guest's memory in a topology, as QEMU writes sizes.
    pub fn memory<'a>(&'a self, topology: &'a Topology) -> &'a str {
        topology.memory.as_deref().unwrap_or(&self.memory)
    }

    /// QEMU's arguments for a kind of machine in a topology. `icount` replaces the
    /// machine's. File names are relative to QEMU's directory.
    pub fn qemu(
        &self,
        kind: Kind,
        models: &Models<'_>,
        icount: Option<&str>,
        topology: &Topology,
    ) -> Vec<String> {
        let mut args = Vec::new();
        let mut add = |option: &str, value: String| {
            args.extend([option.to_owned(), value]);
        };
        match kind {
            Kind::Counting => {
                let icount = icount.unwrap_or(&self.counting.icount);
                add("-icount", icount.to_owned());
            }
            Kind::Parallel => {
                let kvm = self.kvm && !topology.arch.is_foreign();
                let accel = if kvm { "kvm" } else { &self.parallel.accel };
                add("-accel", accel.to_owned());
                // QEMU passes this file to the model, which does DMA in it as a NIC does.
                let memory = self.memory(topology);
                add(
                    "-object",
                    format!("memory-backend-memfd,id=ram,share=on,size={memory}"),
                );
                add("-machine", "memory-backend=ram".to_owned());
            }
        }
        let platform = self.platform(topology);
        add("-machine", platform.properties.clone());
        let own = match kind {
            Kind::Counting => &[][..],
            Kind::Parallel => &platform.globals_parallel,
        };
        for global in self.globals.iter().chain(own) {
            add("-global", global.clone());
        }
        args.extend(topology.qemu(kind, models));
        args
    }
}

/// All topologies, and their machine.
#[derive(Clone)]
pub struct Topologies {
    /// The machine.
    pub machine: Machine,
    by_name: BTreeMap<String, Topology>,
}

impl Topologies {
    /// Makes parallel machines of the host's architecture use KVM. Counting machines cannot,
    /// because KVM counts no instructions.
    pub fn use_kvm(&mut self) {
        self.machine.kvm = true;
    }

    /// The topology of that name, for a test to change.
    pub fn get_mut(&mut self, name: &str) -> &mut Topology {
        self.by_name.get_mut(name).expect("it is there")
    }

    /// Reads qemu/machine.toml and qemu/topologies/.
    pub fn read(root: &Path) -> Result<Self> {
        let machine: Machine = settings::read(&root.join("qemu/machine.toml"))?;
        let mut by_name = BTreeMap::new();
        let kernels = Kernels::read(root)?;
        for entry in fs::read_dir(root.join(FOLDER))? {
            let path = entry?.path();
            if path.extension().is_none_or(|ext| ext != "toml") {
                continue;
            }
            let mut topology: Topology = settings::read(&path)?;
            topology.name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            topology
                .check()
                .with_context(|| path.display().to_string())?;
            if !kernels.has(&topology.kernel) {
                let kernel = &topology.kernel;
                bail!("{}: there is no kernel {kernel:?}", path.display());
            }
            if !machine.arch.contains_key(&topology.arch) {
                bail!(
                    "{}: machine.toml has no table for {:?}",
                    path.display(),
                    topology.arch
                );
            }
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

    /// All of them, in the order of tables.
    pub fn all(&self) -> Vec<&Topology> {
        let mut all: Vec<_> = self.by_name.values().collect();
        // The list is sorted by name already, and the sort is stable.
        all.sort_by_key(|topology| topology.order.unwrap_or(u32::MAX));
        all
    }
}

/// The folder of all topologies.
const FOLDER: &str = "qemu/topologies";

/// The file of a topology.
pub fn file(root: &Path, name: &str) -> PathBuf {
    root.join(FOLDER).join(format!("{name}.toml"))
}

impl Scenario {
    /// Fails if the expected result is impossible.
    pub fn check(&self) -> Result<()> {
        if !matches!(&*self.kind, "bus_addr" | "host_bridge" | "host") {
            bail!("scenario {}: there is no kind {:?}", self.name, self.kind);
        }
        if self.peer + self.home > self.pages {
            bail!("scenario {}: more pages expected than there are", self.name);
        }
        if (self.peer == 0) != (self.kind == "host") {
            bail!(
                "scenario {}: kind and peer contradict each other",
                self.name
            );
        }
        Ok(())
    }
}

impl Topology {
    /// Whether jobs run in it that do not name their topologies.
    pub fn is_for_all(&self) -> bool {
        !self.scenarios.is_empty() && !self.arch.is_foreign()
    }

    fn check(&self) -> Result<()> {
        self.scenarios.iter().try_for_each(Scenario::check)?;
        if self.wire && self.nics.len() != 2 {
            bail!("a wire joins two NICs, and there are {}", self.nics.len());
        }
        // Selftests' expectations are from the first NIC's point of view.
        let peers = &self.requests.peers;
        for (number, path) in self.expect.split(',').enumerate() {
            let is_peer = matches!(path, "bus_addr" | "host_bridge");
            if is_peer != peers.contains(&number) && (is_peer || self.nics.len() == 1) {
                bail!("expect says {path:?} of GPU {number}, and requests has peers = {peers:?}");
            }
        }
        match peers.iter().find(|number| **number >= self.gpus.len()) {
            Some(number) => bail!("requests may reach GPU {number}, which is not there"),
            None => Ok(()),
        }
    }

    /// CPU and devices, as QEMU's arguments.
    fn qemu(&self, kind: Kind, models: &Models<'_>) -> Vec<String> {
        let mut args = self.arguments.clone();
        let mut add = |option: &str, value: String| {
            args.push(option.to_owned());
            args.push(value);
        };
        if self.hotplug {
            let by_acpi = "ICH9-LPC.acpi-pci-hotplug-with-bridge-support";
            add("-global", format!("{by_acpi}=off"));
        }
        add("-cpu", self.cpu.clone());
        for device in &self.devices {
            // A device in another process sees a mapping only if the guest's driver
            // notifies the IOMMU of it. Caching mode makes the driver do so.
            let is_iommu = device.split(',').next() == Some("intel-iommu");
            let more = match kind {
                Kind::Parallel if is_iommu => ",caching-mode=on",
                _ => "",
            };
            add("-device", format!("{device}{more}"));
        }
        for (n, gpu) in self.gpus.iter().enumerate() {
            if models.pascal.is_some() {
                add("-device", vfio_user(&gpu.bus, &pascal(n)));
                continue;
            }
            let gpu = gpu.qemu(n);
            if let Some(object) = gpu.object {
                add("-object", object);
            }
            add("-device", gpu.device);
        }
        for (n, nic) in self.nics.iter().enumerate() {
            let device = if models.has_connectx(kind) {
                vfio_user(&nic.bus, &connectx(n))
            } else {
                nic.qemu(n).device
            };
            add("-device", device);
        }
        args
    }

    /// The ports above GPUs and NICs, by the name of the device. QEMU's monitor lets them report
    /// errors, whoever emulates the device.
    pub fn ports(&self) -> BTreeMap<String, String> {
        let gpus = self.gpus.iter().map(|gpu| &gpu.bus).enumerate();
        let nics = self.nics.iter().map(|nic| &nic.bus).enumerate();
        let gpus = gpus.map(|(n, bus)| (format!("gpu{n}"), bus.clone()));
        gpus.chain(nics.map(|(n, bus)| (format!("nic{n}"), bus.clone())))
            .filter(|_| self.hotplug)
            .collect()
    }

    /// The devices that can be unplugged and plugged, by name. Those of models are not among them,
    /// because a model ends when its device goes.
    pub fn pluggable(&self, kind: Kind, models: &Models<'_>) -> BTreeMap<String, Device> {
        let mut all = BTreeMap::new();
        if self.hotplug && models.pascal.is_none() {
            let gpus = self.gpus.iter().enumerate();
            all.extend(gpus.map(|(n, gpu)| (format!("gpu{n}"), gpu.qemu(n))));
        }
        if self.hotplug && !models.has_connectx(kind) {
            let nics = self.nics.iter().enumerate();
            all.extend(nics.map(|(n, nic)| (format!("nic{n}"), nic.qemu(n))));
        }
        all
    }
}

/// A device that QEMU emulates, as QEMU's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// `-object`: the memory that it needs, if it needs any.
    pub object: Option<String>,
    /// `-device`
    pub device: String,
}

impl Gpu {
    fn qemu(&self, n: usize) -> Device {
        let (file, size) = (vram(n), &self.vram);
        let object = format!("memory-backend-file,id=vram{n},share=on,mem-path={file},size={size}");
        Device {
            object: Some(object),
            device: format!("ivshmem-plain,id=gpu{n},memdev=vram{n},bus={}", self.bus),
        }
    }
}

impl Nic {
    /// The device can use all address bits. The driver sets its own mask.
    fn qemu(&self, n: usize) -> Device {
        let bus = &self.bus;
        Device {
            object: None,
            device: format!("edu,id=nic{n},bus={bus},dma_mask=0xffffffffffffffff"),
        }
    }
}

/// A model, as a device on this bus.
///
/// QEMU does not wait for writes, as a CPU does not. A read waits for all writes before
/// it, so on a busy host it may take longer than QEMU's default timeout of 5 s.
fn vfio_user(bus: &str, model: &str) -> String {
    // A nested property needs JSON.
    json!({
        "driver": "vfio-user-pci",
        "bus": bus,
        "socket": { "type": "unix", "path": format!("{model}.sock") },
        "x-msg-timeout": 60000,
    })
    .to_string()
}

/// The file that holds the VRAM of GPU `n`.
pub fn vram(n: usize) -> String {
    format!("vram{n}")
}

/// The base name of the files of the model for NIC `n` of a parallel machine.
pub fn connectx(n: usize) -> String {
    format!("connectx{n}")
}

/// The base name of the files of the model for GPU `n` of a parallel machine.
pub fn pascal(n: usize) -> String {
    format!("pascal{n}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_has_two_ends() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut topologies = Topologies::read(&root).unwrap();
        let wire = topologies.get_mut("wire");
        assert!(wire.wire && wire.check().is_ok());
        wire.nics.pop();
        let told = wire.check().unwrap_err().to_string();
        assert_eq!(told, "a wire joins two NICs, and there are 1");
    }

    #[test]
    fn a_gpu_may_have_nothing_to_copy_with() {
        let copies = |argument: &str| {
            let models = Models {
                pascal: Some(&[argument.to_owned()]),
                ..Models::default()
            };
            models.has_copy_engine()
        };
        assert!(copies("--tlb") && copies("--vbios=rom"));
        assert!(!copies("--no-copy-engine") && !copies("--vbios-flaw=tables"));
        assert!(!Models::default().has_copy_engine());
    }

    #[test]
    fn the_topologies_of_this_repository() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let kernels = crate::kernels::Kernels::read(&root).unwrap();
        for topology in topologies.all() {
            let kernel = kernels.get(&topology.kernel).unwrap();
            assert_eq!(kernel.arch, topology.arch, "{}", topology.name);
            for kind in [Kind::Counting, Kind::Parallel] {
                let args = topologies
                    .machine
                    .qemu(kind, &Models::default(), None, topology);
                assert!(args.iter().all(|arg| !arg.contains(' ')), "{args:?}");
            }
        }
        let error = topologies.get("swich").unwrap_err();
        assert!(error.downcast_ref::<Usage>().is_some());
    }

    #[test]
    fn a_topology_is_a_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let dir = tempfile::tempdir().unwrap();
        let qemu = dir.path().join("qemu");
        fs::create_dir_all(qemu.join("topologies")).unwrap();
        for file in ["machine.toml", "kernels.toml"] {
            fs::copy(root.join("qemu").join(file), qemu.join(file)).unwrap();
        }
        let names = |files: &[(&str, &str)]| {
            for (name, order) in files {
                let text = format!(
                    "summary='s'\nkernel='plain'\ncpu='c'\ndevices=[]\ngpus=[]\nnics=[]\nexpect=''\n\
                     {order}\n[requests]\nats=false\nrelaxed_at_peer=false\npeers=[]\n"
                );
                fs::write(qemu.join(format!("topologies/{name}.toml")), text).unwrap();
            }
            let all = Topologies::read(dir.path()).unwrap();
            let all = all.all().into_iter().map(|topology| topology.name.clone());
            all.collect::<Vec<_>>()
        };
        assert_eq!(names(&[("b", ""), ("a", "")]), ["a", "b"]);
        assert_eq!(
            names(&[("z", "order = 2"), ("y", "order = 1")]),
            ["y", "z", "a", "b"]
        );
        let file = qemu.join("topologies/z.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("plain", "plian")).unwrap();
        let error = Topologies::read(dir.path()).err().unwrap().to_string();
        assert!(
            error.ends_with("z.toml: there is no kernel \"plian\""),
            "{error}"
        );
    }

    #[test]
    fn the_two_kinds_of_machines() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let iommu = topologies.get("iommu").unwrap();
        let with = |kind, models: &Models<'_>| {
            let args = topologies.machine.qemu(kind, models, None, iommu);
            format!("{} ", args.join(" "))
        };
        let said = |kind| with(kind, &Models::default());
        let counting = said(Kind::Counting);
        assert!(counting.contains("-icount ") && !counting.contains("vfio-user"));
        assert!(counting.contains("-device intel-iommu,intremap=off -device"));
        let parallel = said(Kind::Parallel);
        assert!(!parallel.contains("-icount") && !parallel.contains("edu,"));
        assert!(parallel.contains("-accel tcg,thread=multi "));
        assert!(parallel.contains("size=2G -machine memory-backend=ram "));
        let large = topologies.get("large").unwrap();
        assert_eq!(topologies.machine.memory(large), "6G");
        let models = &Models::default();
        let large = topologies.machine.qemu(Kind::Parallel, models, None, large);
        assert!(
            large
                .join(" ")
                .contains("size=6G -machine memory-backend=ram ")
        );
        // In a counting machine, this option would change the figures.
        let fast_strings = "-global x86_64-cpu.erms=off ";
        assert!(parallel.contains(fast_strings) && !counting.contains(fast_strings));
        // The NIC looks up its IOMMU when QEMU creates it, so the IOMMU comes first.
        let (before, nic) = parallel.split_once("-device {").unwrap();
        assert!(before.contains("-device intel-iommu,intremap=off,caching-mode=on "));
        let nic: serde_json::Value = serde_json::from_str(&format!("{{{nic}")).unwrap();
        assert_eq!(nic["bus"], "rp1");
        assert_eq!(nic["socket"]["path"], "connectx0.sock");
        let models = Models {
            pascal: Some(&[]),
            edu: true,
            ..Models::default()
        };
        let pascal = with(Kind::Parallel, &models);
        assert!(pascal.contains("pascal0.sock") && pascal.contains("-device edu,id=nic0,bus=rp1"));
        assert!(!pascal.contains("ivshmem") && !pascal.contains("connectx"));
        let models = Models {
            edu: false,
            ..models
        };
        let both = with(Kind::Parallel, &models);
        assert!(both.contains("pascal0.sock") && both.contains("connectx0.sock"));
        let models = Models::default();
        let other = topologies
            .machine
            .qemu(Kind::Counting, &models, Some("shift=0"), iommu);
        assert_eq!(other[..2], ["-icount", "shift=0"]);
    }

    #[test]
    fn arguments_come_before_devices() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let (machine, numa) = (&topologies.machine, topologies.get("numa").unwrap());
        let args = machine.qemu(Kind::Counting, &Models::default(), None, numa);
        let args = args.join(" ");
        let (before, _) = args.split_once("-device ").unwrap();
        assert!(before.contains("-numa node,nodeid=1,memdev=node1"));
    }

    #[test]
    fn what_qemu_itself_emulates_can_be_unplugged() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let hotplug = topologies.get("hotplug").unwrap();
        let models = Models::default();
        let all = hotplug.pluggable(Kind::Counting, &models);
        let machine = &topologies.machine;
        let args = machine.qemu(Kind::Counting, &models, None, hotplug);
        assert_eq!(Vec::from_iter(all.keys()), ["gpu0", "nic0"]);
        for Device { object, device } in all.values() {
            assert!(args.contains(device), "{args:?}");
            assert!(
                object.iter().all(|object| args.contains(object)),
                "{args:?}"
            );
        }
        assert!(all["gpu0"].object.is_some());
        assert!(args.contains(&"ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off".to_owned()));
        let in_parallel = hotplug.pluggable(Kind::Parallel, &models);
        assert_eq!(Vec::from_iter(in_parallel.keys()), ["gpu0"]);
        let ports = hotplug.ports();
        assert_eq!(Vec::from_iter(ports.keys()), ["gpu0", "nic0"]);
        assert_eq!(Vec::from_iter(ports.values()), ["dp0", "dp1"]);
        assert!(topologies.by_name["switch"].ports().is_empty());
        let models = Models {
            pascal: Some(&[]),
            edu: true,
            ..models
        };
        let with_pascal = hotplug.pluggable(Kind::Parallel, &models);
        assert_eq!(Vec::from_iter(with_pascal.keys()), ["nic0"]);
        let switch = topologies.by_name["switch"].pluggable(Kind::Counting, &models);
        assert!(switch.is_empty());
    }

    #[test]
    fn kvm_is_for_parallel_machines() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut topologies = Topologies::read(&root).unwrap();
        topologies.use_kvm();
        let (machine, switch) = (&topologies.machine, topologies.get("switch").unwrap());
        let args = |kind| {
            machine
                .qemu(kind, &Models::default(), None, switch)
                .join(" ")
        };
        assert!(args(Kind::Parallel).contains("-accel kvm "));
        let counting = args(Kind::Counting);
        assert!(counting.contains("-icount ") && !counting.contains("kvm"));
        let foreign = topologies.get("arm64").unwrap();
        let foreign = machine.qemu(Kind::Parallel, &Models::default(), None, foreign);
        assert!(foreign.join(" ").contains("-accel tcg,"), "{foreign:?}");
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
                 requests={{ats=false,relaxed_at_peer=false,peers=[]}}\n\
                 [[scenario]]\nname='x'\npages=8\nkind='{kind}'\npeer={peer}\nhome={home}\n"
            )
        };
        let check = |text: String| toml::from_str::<Topology>(&text).unwrap().check();
        assert!(check(text(4, 4, "bus_addr")).is_ok());
        assert!(check(text(5, 4, "bus_addr")).is_err());
        assert!(check(text(0, 8, "bus_addr")).is_err());
        assert!(check(text(8, 0, "host")).is_err());
        assert!(check(text(4, 4, "bus-addr")).is_err());
    }

    #[test]
    fn peers_are_those_that_selftests_expect() {
        let check = |expect: &str, peers: &str, nics: &str| {
            let gpu = "{bus='',vram=''}";
            let text = format!(
                "summary=''\nkernel=''\ncpu=''\ndevices=[]\ngpus=[{gpu},{gpu}]\nnics=[{nics}]\n\
                 expect='{expect}'\n\
                 requests={{ats=false,relaxed_at_peer=false,peers=[{peers}]}}\n"
            );
            toml::from_str::<Topology>(&text).unwrap().check().is_ok()
        };
        let one = "{bus=''}";
        assert!(check("bus_addr,topology", "0", one));
        assert!(check("host_bridge,bus_addr", "0,1", one));
        assert!(check("none", "", one));
        assert!(!check("bus_addr,topology", "", one));
        assert!(!check("bus_addr,topology", "0,1", one));
        assert!(!check("topology,topology", "0", one));
        assert!(!check("bus_addr,bus_addr,bus_addr", "0,1,2", one));
        // Another NIC may reach a GPU that the first NIC does not reach, but not vice versa.
        let two = format!("{one},{one}");
        assert!(check("bus_addr,topology", "0,1", &two));
        assert!(!check("bus_addr,topology", "1", &two));
    }
}
