//! A host, built from its picture: devices, the bridges above them, the CPU and the kernel.

use std::collections::BTreeMap;

pub use crate::address::{Address, size};
use crate::capture;
use crate::config::{Config, Port};
use crate::known::{Known, Role};
use crate::picture::Picture;

/// A BAR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bar {
    /// Its first address.
    pub first: u64,
    /// Its last address.
    pub last: u64,
}

impl Bar {
    /// Its size in bytes. 0 if it has no address.
    pub fn size(self) -> u64 {
        match self.last.checked_sub(self.first) {
            Some(less) if less > 0 => less.saturating_add(1),
            _ => 0,
        }
    }
}

/// A PCI device.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its PCI address.
    pub address: Address,
    /// Base class, subclass, interface.
    pub class: u32,
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// The driver that is bound.
    pub driver: Option<String>,
    /// `identity`, `DMA`, ... if the device is behind an IOMMU.
    pub iommu: Option<String>,
    /// The socket, if the host has several.
    pub node: Option<i32>,
    /// The number of address bits that it can drive, as its driver has set it.
    pub mask: Option<u32>,
    /// The physical function, if this is a virtual function.
    pub physical: Option<Address>,
    /// Its configuration space.
    pub config: Config,
    /// Its BARs.
    pub bars: [Bar; 6],
    /// The bridges above it, starting below the host bridge, and then the device itself.
    pub path: Vec<Address>,
    /// The host bridge's name in sysfs.
    pub root: String,
    /// Names of its RDMA devices.
    pub verbs: Vec<String>,
    /// The size of the GPU's memory, if sysfs has it.
    pub memory: Option<u64>,
    /// The possible sizes of each BAR: bit n is 2^n MiB.
    sizes: [Option<u64>; 6],
    /// Memory of a disk that peers may use.
    pub published: bool,
    /// Its link, in words.
    pub link: String,
}

/// The first CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// `GenuineIntel`, ...
    pub vendor: String,
    /// Its family, if it has one.
    pub family: Option<u32>,
    /// It reports that it is in a virtual machine.
    pub is_virtual: bool,
    /// Its data could be read.
    pub is_known: bool,
}

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Everything that was read from it.
    pub picture: Picture,
    /// Its relevant PCI devices.
    pub devices: BTreeMap<Address, Device>,
    /// Its CPU.
    pub cpu: Cpu,
}

impl Host {
    /// Parses a picture. Ignores what it cannot parse.
    pub fn new(picture: Picture) -> Self {
        let names = picture.list(capture::DEVICES);
        let devices: BTreeMap<_, _> = names
            .filter_map(|name| Device::read(&picture, name))
            .map(|device| (device.address, device))
            .collect();
        Self {
            cpu: Cpu::read(&picture),
            devices,
            picture,
        }
    }

    /// The kernel's release.
    pub fn release(&self) -> &str {
        self.picture.read(capture::RELEASE).unwrap_or("unknown")
    }

    /// Whether a kernel option is on. `None` if the configuration cannot be read.
    pub fn option(&self, name: &str) -> Option<bool> {
        let text = self.picture.read(capture::OPTIONS)?;
        let mut values = text.lines().filter_map(|line| line.split_once('='));
        Some(values.any(|(option, value)| option == name && matches!(value.trim(), "y" | "m")))
    }

    /// The policy of the series. `None` if the kernel does not have the series.
    pub fn policy(&self) -> Option<&str> {
        let text = self.picture.read(capture::POLICY)?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0)
    }

    /// Whether a GPU's driver has registered device private memory for it. `None` if that
    /// cannot be read.
    pub fn has_device_memory(&self, gpu: &Device) -> Option<bool> {
        let mut owners = self.picture.read(capture::MEMORY)?.lines();
        Some(owners.any(|owner| owner == gpu.address.to_string()))
    }

    /// The role of a device that can be an end of a path.
    pub fn role(&self, known: &Known, device: &Device) -> Option<Role> {
        let driver = device.driver.as_deref().and_then(|name| known.driver(name));
        match driver.map(|driver| driver.role) {
            Some(Role::Nic) if self.is_served_by_another(device) => return None,
            Some(role) if role != Role::Any => return Some(role),
            _ if !device.verbs.is_empty() => return Some(Role::Nic),
            _ => {}
        }
        match device.class >> 8 {
            0x0300..=0x03ff if !known.displays.contains(&device.vendor) => Some(Role::Gpu),
            0x1200 => Some(Role::Gpu),
            0x0108 => Some(Role::Nvme),
            0x0207 => Some(Role::Nic),
            // A ConnectX without a driver.
            0x0200 if device.vendor == 0x15b3 => Some(Role::Nic),
            _ => None,
        }
    }

    /// Whether another function of a card has the RDMA device of this one: with a bond, mlx5
    /// has one RDMA device for all ports, at the first.
    fn is_served_by_another(&self, device: &Device) -> bool {
        let has = |other: &Device| {
            other.address.is_same_card(device.address)
                && other.driver == device.driver
                && other.physical.is_none()
                && !other.verbs.is_empty()
        };
        device.verbs.is_empty() && device.physical.is_none() && self.devices.values().any(has)
    }

    /// The device that p2pdma treats as the host bridge: device 00.0, or a root port that
    /// is the first device on the bus.
    pub fn host_bridge(&self, root: &str) -> Option<&Device> {
        let first = self.devices.get(&self.first_below(root)?)?;
        let is_port = first.config.port().map_or_else(
            // Without root, only the header can be read, and it does not have the port type.
            || !first.config.is_readable() && first.is_bridge(),
            |port| port == Port::Root,
        );
        (first.address.is_first() || is_port).then_some(first)
    }

    /// Whether the device that p2pdma treats as the host bridge could be read.
    pub fn is_bridge_known(&self, root: &str) -> bool {
        let first = self.first_below(root);
        first.is_none_or(|first| self.devices.contains_key(&first))
    }

    /// The first device on a host bridge's bus, by the places of all devices: its own files
    /// may be missing.
    fn first_below(&self, root: &str) -> Option<Address> {
        let names = self.picture.list(capture::DEVICES);
        let links = names.filter_map(|name| {
            let link = self.picture.link(&format!("{}/{name}", capture::DEVICES))?;
            place(link)
        });
        let below = links.filter(|(place, _)| place == root);
        below.filter_map(|(_, path)| path.first().copied()).min()
    }
}

impl Device {
    fn read(picture: &Picture, name: &str) -> Option<Self> {
        let address = Address::parse(name)?;
        let dir = format!("{}/{name}", capture::DEVICES);
        let text = |file: &str| picture.read(&format!("{dir}/{file}"));
        let number = |file: &str| number(text(file)?);
        let (root, path) = place(picture.link(&dir)?)?;
        if path.last() != Some(&address) {
            return None;
        }
        let config = Config::new(picture.config(&format!("{dir}/config")).unwrap_or_default());
        let sizes = std::array::from_fn(|bar| {
            let sizes = text(&format!("resource{bar}_resize"))
                .and_then(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok());
            sizes.or_else(|| config.sizes(bar))
        });
        let infiniband = capture::INFINIBAND;
        let is_mine =
            |verbs: &&str| picture.leads_to(&format!("{infiniband}/{verbs}/device")) == Some(name);
        let link = match (text("current_link_speed"), text("current_link_width")) {
            (Some(speed), Some(width)) if width != "0" => format!("{speed} x{width}"),
            _ => String::new(),
        };
        Some(Self {
            address,
            class: u32::try_from(number("class")?).ok()?,
            vendor: u16::try_from(number("vendor")?).ok()?,
            device: u16::try_from(number("device")?).ok()?,
            driver: picture
                .leads_to(&format!("{dir}/driver"))
                .map(str::to_owned),
            iommu: text("iommu_group/type").map(str::to_owned),
            node: text("numa_node")
                .and_then(|text| text.parse().ok())
                .filter(|node| *node >= 0),
            mask: text("dma_mask_bits")
                .and_then(|text| text.parse().ok())
                .filter(|bits| (1..=64).contains(bits)),
            physical: picture
                .leads_to(&format!("{dir}/physfn"))
                .and_then(Address::parse),
            bars: bars(text("resource").unwrap_or_default()),
            verbs: picture
                .list(infiniband)
                .filter(is_mine)
                .map(str::to_owned)
                .collect(),
            memory: number("mem_info_vram_total"),
            published: text("p2pmem/published") == Some("1"),
            config,
            path,
            root,
            sizes,
            link,
        })
    }

    /// `10de:1b80`
    pub fn ids(&self) -> String {
        format!("{:04x}:{:04x}", self.vendor, self.device)
    }

    /// Whether it is a bridge between PCI buses.
    pub fn is_bridge(&self) -> bool {
        self.class >> 8 == 0x0604
    }

    /// The bridge above it. A host bridge does not count.
    pub fn above(&self) -> Option<Address> {
        self.path.iter().rev().nth(1).copied()
    }

    /// The BAR for its memory: the one that known.toml names for its driver, or else the
    /// largest.
    pub fn memory_bar(&self, known: &Known) -> Option<(usize, Bar)> {
        let driver = self.driver.as_deref().and_then(|name| known.driver(name));
        if let Some(number) = driver.and_then(|driver| driver.bar) {
            return Some((number, *self.bars.get(number)?));
        }
        let all = self.bars.into_iter().enumerate();
        all.filter(|(_, bar)| bar.size() > 0)
            .max_by_key(|(_, bar)| bar.size())
    }

    /// The largest size that the device allows for a BAR, if it can be resized.
    pub fn largest_bar(&self, number: usize) -> Option<u64> {
        let most = (*self.sizes.get(number)?)?.checked_ilog2()?;
        1_u64.checked_shl(most.checked_add(20)?)
    }

    /// Whether a BAR shows only a part of its memory. A BAR that could be larger than the
    /// memory shows all of it.
    pub fn is_small(&self, number: usize) -> bool {
        let now = self.bars.get(number).copied().unwrap_or_default().size();
        let all = self.memory.or_else(|| self.largest_bar(number));
        all.is_some_and(|all| now < all)
    }

    /// Whether an IOMMU translates its addresses.
    pub fn is_translated(&self) -> bool {
        self.iommu
            .as_deref()
            .is_some_and(|kind| kind.starts_with("DMA"))
    }
}

impl Cpu {
    fn read(picture: &Picture) -> Self {
        let file = picture.read(capture::CPU);
        let text = file.unwrap_or_default();
        let value = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(field, _)| field.trim() == name)?;
            Some(found.1.trim())
        };
        Self {
            vendor: value("vendor_id").unwrap_or_default().to_owned(),
            family: value("cpu family").and_then(|family| family.parse().ok()),
            is_virtual: value("flags").is_some_and(|flags| flags.contains("hypervisor")),
            // A CPU without a vendor is not from AMD.
            is_known: file.is_some(),
        }
    }

    /// AMD CPUs forward between host bridges since Zen: `cpu_supports_p2pdma()`.
    pub fn forwards(&self) -> bool {
        self.vendor == "AuthenticAMD" && self.family.is_some_and(|family| family >= 0x17)
    }
}

/// The host bridge and the devices of a sysfs path. A VMD bridge has its own host bridge
/// below it. That one counts.
fn place(path: &str) -> Option<(String, Vec<Address>)> {
    let parts: Vec<_> = path.split('/').collect();
    let at = parts
        .iter()
        .rposition(|part| capture::is_host_bridge(part))?;
    let devices = parts[at + 1..].iter();
    let path: Vec<_> = devices.filter_map(|part| Address::parse(part)).collect();
    // A domain has at most 256 buses.
    if path.len() > 256 {
        return None;
    }
    Some((parts[at].to_owned(), path))
}

fn bars(text: &str) -> [Bar; 6] {
    let mut bars = [Bar::default(); 6];
    for (bar, line) in bars.iter_mut().zip(text.lines()) {
        let mut words = line.split_whitespace().map(number);
        if let (Some(Some(first)), Some(Some(last))) = (words.next(), words.next()) {
            *bar = Bar { first, last };
        }
    }
    bars
}

/// A number. With the prefix 0x, it is hexadecimal.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}
