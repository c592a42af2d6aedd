//! Captures the picture of a host. This file names every path that the doctor reads. It
//! writes nothing. It leaves out what could identify the owner: serial numbers, network
//! addresses, names, and irrelevant parts of the kernel's command line and configuration.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::known::Known;
use crate::picture::{Entry, LARGEST, Picture};

/// The directory of PCI devices.
pub const DEVICES: &str = "/sys/bus/pci/devices";
/// The directory of RDMA devices.
pub const INFINIBAND: &str = "/sys/class/infiniband";
/// The directory of IOMMUs.
pub const IOMMUS: &str = "/sys/class/iommu";
/// The policy of the series.
pub const POLICY: &str = "/sys/kernel/mm/hmm/p2p";
/// The counters of the series: pages by result.
pub const STATS: &str = "/sys/kernel/mm/hmm/p2p_stats";
/// The kernel's release.
pub const RELEASE: &str = "/proc/sys/kernel/osrelease";
/// The kernel's command line.
pub const COMMAND_LINE: &str = "/proc/cmdline";
/// The first CPU.
pub const CPU: &str = "/proc/cpuinfo";
/// The kernel's configuration, from any of its locations.
pub const OPTIONS: &str = "/proc/config.gz";
/// The owners of address ranges.
pub const MEMORY: &str = "/proc/iomem";
/// The version of NVIDIA's driver.
pub const NVIDIA: &str = "/proc/driver/nvidia/version";
/// A parameter of amdgpu: whether its GPUs may reach each other by PCI Express.
pub const AMDGPU_P2P: &str = "/sys/module/amdgpu/parameters/pcie_p2p";

/// Text files of a PCI device.
const FILES: [&str; 12] = [
    "class",
    "vendor",
    "device",
    "resource",
    "numa_node",
    "dma_mask_bits",
    "iommu_group/type",
    "current_link_speed",
    "current_link_width",
    "mem_info_vram_total",
    "p2pmem/size",
    "p2pmem/published",
];

/// Kernel options that decide about peer-to-peer DMA.
pub const DECISIVE: [&str; 6] = [
    "CONFIG_PCI_P2PDMA",
    "CONFIG_ZONE_DEVICE",
    "CONFIG_DEVICE_PRIVATE",
    "CONFIG_HMM_MIRROR",
    "CONFIG_INFINIBAND_ON_DEMAND_PAGING",
    "CONFIG_HSA_AMD_P2P",
];

/// Modules whose presence matters.
pub const MODULES: [&str; 4] = ["nvidia", "nvidia_peermem", "ib_uverbs", "mlx5_ib"];

/// Reads the host whose files are below `root`.
pub fn take(root: &Path, known: &Known) -> Picture {
    let mut shot = Shot {
        root: fs::canonicalize(root).unwrap_or_else(|_| root.to_owned()),
        picture: Picture::default(),
    };
    shot.kernel(known);
    shot.devices(known);
    shot.classes();
    shot.series();
    shot.picture
}

struct Shot {
    root: PathBuf,
    picture: Picture,
}

impl Shot {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn bytes(&self, path: &str) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = fs::File::open(self.path(path))?;
        file.take(LARGEST).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Adds a file's text. `keep` selects the part to keep.
    fn text(&mut self, path: &str, keep: impl Fn(&str) -> String) {
        let entry = match self.bytes(path) {
            Ok(bytes) => Entry::Text(keep(String::from_utf8_lossy(&bytes).trim())),
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            Err(error) => Entry::Unreadable {
                unreadable: reason(&error),
            },
        };
        self.picture.put(path, entry);
    }

    fn all(&mut self, path: &str) {
        self.text(path, str::to_owned);
    }

    /// Adds a link with its final target.
    fn link(&mut self, path: &str) {
        if let Some(link) = self.real(path) {
            self.picture.put(path, Entry::Link { link });
        }
    }

    fn real(&self, path: &str) -> Option<String> {
        let real = fs::canonicalize(self.path(path)).ok()?;
        let inside = real.strip_prefix(&self.root).ok()?;
        Some(format!("/{}", inside.to_string_lossy()))
    }

    fn list(&mut self, folder: &str) -> Vec<String> {
        let entries = match fs::read_dir(self.path(folder)) {
            Ok(entries) => entries,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    let unreadable = reason(&error);
                    self.picture.put(folder, Entry::Unreadable { unreadable });
                }
                return Vec::new();
            }
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut names: Vec<_> = names
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn kernel(&mut self, known: &Known) {
        self.all(RELEASE);
        self.text(COMMAND_LINE, |line| {
            let words = line.split_whitespace().filter(|word| decides(word, known));
            words.collect::<Vec<_>>().join(" ")
        });
        self.text(CPU, first_cpu);
        self.text(MEMORY, |text| {
            // Names of the ranges that drivers reserved for device private memory.
            // Addresses are secrets of the kernel and are not needed.
            let outermost = text.lines().filter(|line| !line.starts_with(' '));
            let names = outermost.filter_map(|line| line.split_once(" : ").map(|(_, name)| name));
            let cards = names.filter(|name| is_address(name));
            cards.collect::<Vec<_>>().join("\n")
        });
        self.text(NVIDIA, |text| {
            // The rest of the line names the builder.
            let line = text.lines().next().unwrap_or_default();
            line.split("Release Build")
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned()
        });
        self.all(AMDGPU_P2P);
        for module in MODULES {
            self.link(&format!("/sys/module/{module}"));
        }
        self.options(known);
    }

    /// Reads the kernel's configuration from any of its locations. Only the first is sure to
    /// be that of the running kernel.
    fn options(&mut self, known: &Known) {
        let mut files = vec![OPTIONS.to_owned()];
        if let Some(release) = self.picture.read(RELEASE) {
            files.extend([
                format!("/boot/config-{release}"),
                format!("/lib/modules/{release}/config"),
                format!("/usr/lib/modules/{release}/config"),
                format!("/lib/modules/{release}/build/.config"),
            ]);
        }
        let mut last = None;
        for file in files {
            match self.unpacked(&file) {
                Ok(text) => return self.keep_options(&text, known),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => last = Some(reason(&error)),
            }
        }
        if let Some(unreadable) = last {
            self.picture.put(OPTIONS, Entry::Unreadable { unreadable });
        }
    }

    /// A file's contents, unpacked if its name ends with .gz.
    fn unpacked(&self, file: &str) -> std::io::Result<Vec<u8>> {
        let bytes = self.bytes(file)?;
        if !file.ends_with(".gz") {
            return Ok(bytes);
        }
        let mut text = Vec::new();
        let unpacked = flate2::read::GzDecoder::new(bytes.as_slice());
        unpacked.take(LARGEST).read_to_end(&mut text)?;
        Ok(text)
    }

    fn keep_options(&mut self, text: &[u8], known: &Known) {
        let text = String::from_utf8_lossy(text);
        let is_kept = |line: &str| {
            let line = line.trim_start_matches("# ");
            let name = line.split(['=', ' ']).next().unwrap_or_default();
            DECISIVE.contains(&name) || known.is_option(name)
        };
        let kept: Vec<_> = text.lines().filter(|line| is_kept(line)).collect();
        self.picture.put(OPTIONS, Entry::Text(kept.join("\n")));
    }

    fn devices(&mut self, known: &Known) {
        let names: Vec<_> = self.list(DEVICES);
        let mut places = Vec::new();
        for name in names.into_iter().filter(|name| is_address(name)) {
            let Some(place) = self.real(&format!("{DEVICES}/{name}")) else {
                continue;
            };
            places.push((name, place));
        }
        let mut last_root = String::new();
        for (name, place) in places {
            // p2pdma treats the first device below a host bridge as the host bridge.
            let root = place.rsplit_once('/').map_or("", |(root, _)| root);
            let is_first =
                *root != last_root && root.rsplit('/').next().is_some_and(is_host_bridge);
            if is_first {
                root.clone_into(&mut last_root);
            }
            if is_first || self.is_relevant(&name, known) {
                self.device(&name);
            }
        }
    }

    /// Whether a device can be on a path, or at one of its ends.
    fn is_relevant(&self, name: &str, known: &Known) -> bool {
        let dir = format!("{DEVICES}/{name}");
        let class = self.bytes(&format!("{dir}/class")).unwrap_or_default();
        let class = String::from_utf8_lossy(&class);
        let class = class.trim().trim_start_matches("0x");
        // NVIDIA's NICs also have functions of other classes.
        let vendor = self.bytes(&format!("{dir}/vendor")).unwrap_or_default();
        let driver = self.real(&format!("{dir}/driver"));
        let driver = driver.as_deref().and_then(|path| path.rsplit('/').next());
        matches!(class.get(..2), Some("02" | "03" | "06" | "12"))
            || class.starts_with("0108")
            || vendor.starts_with(b"0x15b3")
            || driver.is_some_and(|driver| known.driver(driver).is_some())
            || self.path(&format!("{dir}/infiniband")).is_dir()
    }

    fn device(&mut self, name: &str) {
        let dir = format!("{DEVICES}/{name}");
        self.link(&dir);
        for file in FILES {
            self.all(&format!("{dir}/{file}"));
        }
        for bar in 0..6 {
            self.all(&format!("{dir}/resource{bar}_resize"));
        }
        for link in ["driver", "physfn"] {
            self.link(&format!("{dir}/{link}"));
        }
        let path = format!("{dir}/config");
        match self.bytes(&path) {
            Ok(bytes) => {
                let (size, bytes) = Config::new(bytes).without_secrets();
                self.picture.put(&path, Entry::Config { size, bytes });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                let unreadable = reason(&error);
                self.picture.put(&path, Entry::Unreadable { unreadable });
            }
        }
    }

    fn classes(&mut self) {
        for name in self.list(INFINIBAND) {
            self.link(&format!("{INFINIBAND}/{name}"));
            self.link(&format!("{INFINIBAND}/{name}/device"));
            for port in self.list(&format!("{INFINIBAND}/{name}/ports")) {
                self.all(&format!("{INFINIBAND}/{name}/ports/{port}/state"));
            }
        }
        for name in self.list(IOMMUS) {
            self.link(&format!("{IOMMUS}/{name}"));
        }
    }

    fn series(&mut self) {
        self.all(POLICY);
        for name in self.list(STATS) {
            self.all(&format!("{STATS}/{name}"));
        }
    }
}

/// Why a read failed, in words that do not depend on the machine.
fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => "not readable as this user".to_owned(),
        kind => kind.to_string(),
    }
}

/// Whether a word of the kernel's command line affects peer-to-peer DMA.
fn decides(word: &str, known: &Known) -> bool {
    let name = word.split(['=', '.']).next().unwrap_or_default();
    matches!(name, "pci" | "hmm_p2p" | "swiotlb")
        || name.contains("iommu")
        || (word.contains('.') && known.driver(name).is_some())
}

/// The relevant fields of the first CPU.
fn first_cpu(text: &str) -> String {
    let first = text.lines().take_while(|line| !line.trim().is_empty());
    let kept = first.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        match name.trim() {
            "vendor_id" | "cpu family" | "model" => Some(line.to_owned()),
            "flags" => {
                let is_guest = value.split_whitespace().any(|flag| flag == "hypervisor");
                is_guest.then(|| "flags\t: hypervisor".to_owned())
            }
            _ => None,
        }
    });
    kept.collect::<Vec<_>>().join("\n")
}

/// `0000:01:00.0`
pub fn is_address(name: &str) -> bool {
    crate::address::Address::parse(name).is_some()
}

/// `pci0000:00`
pub fn is_host_bridge(name: &str) -> bool {
    let place = name.strip_prefix("pci").and_then(|rest| {
        let (domain, bus) = rest.split_once(':')?;
        let is_hex = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
        (is_hex(domain) && is_hex(bus)).then_some(())
    });
    place.is_some()
}
