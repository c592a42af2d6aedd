//! PCI devices as sysfs shows them, and the path between two of them, as
//! calc_map_type_and_dist() of drivers/pci/p2pdma.c finds it.

use super::host::Host;
use super::known::Known;

/// A PCI device.
#[derive(Clone, Debug)]
pub struct Device {
    /// `0000:01:00.0`
    pub address: String,
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
    /// Host bridge, bridges and the device itself.
    path: Vec<String>,
}

/// How one device reaches another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Below this common bridge, and nothing redirects.
    Switch(String),
    /// Through the host bridge, which forwards; why not below a switch.
    HostBridge(String),
    /// Not at all; why.
    None(String),
    /// It cannot be said; why.
    Unknown(String),
}

const DEVICES: &str = "/sys/bus/pci/devices";

/// Every PCI device.
pub fn devices(host: &Host) -> Vec<Device> {
    let names = host.list(DEVICES);
    names.iter().filter_map(|name| device(host, name)).collect()
}

/// The PCI device of that address.
pub fn device(host: &Host, address: &str) -> Option<Device> {
    let dir = format!("{DEVICES}/{address}");
    let hex = |name: &str| {
        let text = host.read(&format!("{dir}/{name}"))?;
        u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    };
    let real = host.real(&dir)?;
    let path = real
        .split('/')
        .skip_while(|part| !part.starts_with("pci"))
        .map(str::to_owned)
        .collect();
    Some(Device {
        address: address.to_owned(),
        class: hex("class")?,
        vendor: u16::try_from(hex("vendor")?).ok()?,
        device: u16::try_from(hex("device")?).ok()?,
        driver: host.leads_to(&format!("{dir}/driver")),
        iommu: host.read(&format!("{dir}/iommu_group/type")),
        path,
    })
}

impl Device {
    /// The bridge above it; a host bridge is none.
    pub fn above(&self) -> Option<&str> {
        let above = self.path.iter().rev().nth(1)?;
        (!above.starts_with("pci")).then_some(above)
    }

    /// A file of the device.
    pub fn file(&self, name: &str) -> String {
        format!("{DEVICES}/{}/{name}", self.address)
    }

    /// Size of a BAR; 0 if there is none.
    pub fn bar(&self, host: &Host, number: usize) -> u64 {
        let text = host.read(&self.file("resource")).unwrap_or_default();
        let Some(line) = text.lines().nth(number) else {
            return 0;
        };
        let mut words = line
            .split_whitespace()
            .map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or_default());
        match (words.next(), words.next()) {
            (Some(first), Some(last)) if last > first => last - first + 1,
            _ => 0,
        }
    }

    /// The largest size that the device lets a BAR have, if it can be resized.
    pub fn largest_bar(&self, host: &Host, number: usize) -> Option<u64> {
        let text = host.read(&self.file(&format!("resource{number}_resize")))?;
        let sizes = u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()?;
        // Bit n: 2^n MiB.
        (sizes != 0).then(|| 1 << (20 + sizes.ilog2()))
    }
}

/// How the two reach each other. The kernel decides; this is what it will find.
pub fn route(host: &Host, known: &Known, provider: &Device, client: &Device) -> Route {
    let shared = provider
        .path
        .iter()
        .zip(&client.path)
        .take_while(|(a, b)| a == b)
        .count();
    if shared < 2 {
        return through_host(host, known, provider, client, "no common switch");
    }
    let common = &provider.path[shared - 1];
    // Also the common bridge itself.
    let on_the_way = provider.path[shared - 1..]
        .iter()
        .chain(&client.path[shared..]);
    let mut redirect = Vec::new();
    for bridge in on_the_way {
        match redirects(host, bridge) {
            Some(true) => redirect.push(bridge.as_str()),
            Some(false) => {}
            None => {
                return Route::Unknown(format!(
                    "common bridge {common}; its ACS settings can only be read by root"
                ));
            }
        }
    }
    if redirect.is_empty() {
        return Route::Switch(common.clone());
    }
    let why = format!(
        "common bridge {common}, but ACS redirects at {0}; for the short way add the kernel \
         parameter pci=disable_acs_redir={0}",
        redirect.join(";")
    );
    through_host(host, known, provider, client, &why)
}

fn through_host(
    host: &Host,
    known: &Known,
    provider: &Device,
    client: &Device,
    why: &str,
) -> Route {
    if zen(host) {
        return Route::HostBridge(format!("{why}; AMD Zen or newer forwards"));
    }
    let same = provider.path.first() == client.path.first();
    let mut refused = Vec::new();
    for root in [&provider.path, &client.path].map(|path| path.first().cloned()) {
        let root = root.unwrap_or_default();
        match first_on_root_bus(host, &root) {
            Some(device) if known.forwards(&device, same) => {}
            Some(device) => refused.push(format!(
                "host bridge {root} ({:04x}:{:04x}) is not on the list in drivers/pci/p2pdma.c",
                device.vendor, device.device
            )),
            None => refused.push(format!("host bridge {root} cannot be identified")),
        }
    }
    refused.dedup();
    if refused.is_empty() {
        Route::HostBridge(format!("{why}; the host bridge forwards"))
    } else {
        Route::None(format!("{why}; {}", refused.join("; ")))
    }
}

/// Any AMD CPU from Zen on forwards.
fn zen(host: &Host) -> bool {
    let cpu = host.read("/proc/cpuinfo").unwrap_or_default();
    let value = |name: &str| {
        let line = cpu.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    value("vendor_id").is_some_and(|vendor| vendor == "AuthenticAMD")
        && value("cpu family").is_some_and(|family| family.parse().is_ok_and(|n: u32| n >= 0x17))
}

/// What p2pdma takes for the host bridge: device 00.0, or a root port that is
/// the first on the bus.
fn first_on_root_bus(host: &Host, root: &str) -> Option<Device> {
    let names = host.list(&format!("/sys/devices/{root}"));
    let first = names.iter().find(|name| name.matches(':').count() == 2)?;
    let device = device(host, first)?;
    (first.ends_with(":00.0") || device.class >> 8 == 0x0604).then_some(device)
}

/// ACS control: requests to a peer go to the root complex.
pub const REQUEST_REDIRECT: u16 = 0x04;
/// ACS control: completions do.
pub const COMPLETION_REDIRECT: u16 = 0x08;
/// ACS control: requests with translated addresses do not.
pub const DIRECT_TRANSLATED: u16 = 0x40;
const EGRESS_CONTROL: u16 = 0x20;

/// Whether ACS of a bridge sends requests upstream; nothing if it cannot be read.
fn redirects(host: &Host, address: &str) -> Option<bool> {
    let acs = Config::read(host, address)?.acs().unwrap_or_default();
    Some(acs & (REQUEST_REDIRECT | COMPLETION_REDIRECT | EGRESS_CONTROL) != 0)
}

/// A device's configuration space.
pub struct Config(Vec<u8>);

impl Config {
    /// Reads it; only root can.
    pub fn read(host: &Host, address: &str) -> Option<Self> {
        let bytes = host.bytes(&format!("{DEVICES}/{address}/config"))?;
        // What those who are not root see.
        (bytes.len() > 64).then_some(Self(bytes))
    }

    fn word(&self, at: usize) -> Option<u16> {
        let bytes = self.0.get(at..at + 2)?;
        Some(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// The PCI Express capability, found by ID, then place of the next one.
    fn express(&self) -> Option<usize> {
        let mut at = usize::from(*self.0.get(0x34)?);
        for _ in 0..48 {
            if at < 0x40 {
                break;
            }
            let [id, next] = self.word(at)?.to_le_bytes();
            if id == 0x10 {
                return Some(at);
            }
            at = next.into();
        }
        None
    }

    /// An extended capability, found by ID, then version and place of the next one.
    fn extended(&self, id: u16) -> Option<usize> {
        let mut at = 0x100;
        for _ in 0..64 {
            if self.word(at)? == id {
                return Some(at);
            }
            at = usize::from(self.word(at + 2)? >> 4);
            if at < 0x100 {
                break;
            }
        }
        None
    }

    /// Whether it is a switch's port towards devices.
    pub fn is_downstream_port(&self) -> bool {
        let flags = self.express().and_then(|at| self.word(at + 2));
        flags.is_some_and(|flags| flags >> 4 & 0xf == 6)
    }

    /// Whether requests may have relaxed ordering.
    pub fn relaxed_ordering(&self) -> bool {
        let control = self.express().and_then(|at| self.word(at + 8));
        control.is_some_and(|control| control & 0x10 != 0)
    }

    /// ACS control, if the device has ACS.
    pub fn acs(&self) -> Option<u16> {
        self.word(self.extended(0x0d)? + 6)
    }

    /// Whether ATS is enabled.
    pub fn ats(&self) -> bool {
        let control = self.extended(0x0f).and_then(|at| self.word(at + 6));
        control.is_some_and(|control| control & 0x8000 != 0)
    }
}
