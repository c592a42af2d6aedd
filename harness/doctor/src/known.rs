//! What is known about hardware and drivers without asking them: known.toml.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::address::{Gc, size};

/// known.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// RDMA drivers that can register a dma-buf.
    pub dmabuf: Vec<String>,
    generation: Vec<Generation>,
    /// AMD's GPUs that are part of a CPU.
    pub apu: Apu,
    /// Host bridges that forward.
    pub list: List,
    /// Drivers.
    pub driver: Vec<Driver>,
}

/// GPUs that are alike to a driver.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    driver: String,
    ids: Vec<(u16, u16)>,
    /// For people.
    pub name: String,
    /// Why peers get no page of its memory.
    pub not: Option<String>,
    /// What to do instead.
    #[serde(default)]
    pub next: String,
}

/// AMD's GPUs that are part of a CPU.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apu {
    /// Versions of their graphics core.
    pub gc: Vec<String>,
    /// PCI device IDs of those that need not tell it.
    pub ids: Vec<u16>,
}

/// The kernel's list of host bridges.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// The kernel that has it.
    pub kernel: String,
    bridge: Vec<Bridge>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bridge {
    vendor: u16,
    device: Option<Vec<u16>>,
    same: bool,
}

/// What the kernel's list says of a host bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwards {
    /// Nothing.
    No,
    /// Between its own devices.
    Within,
    /// To other host bridges, too.
    Everywhere,
}

/// A driver.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Driver {
    /// Its name.
    pub name: String,
    /// What its devices are.
    pub role: Role,
    /// The BAR that shows the GPU's memory.
    pub bar: Option<usize>,
    /// The option that device private memory depends on.
    pub option: Option<String>,
    /// The option of the series that it needs besides.
    pub series: Option<String>,
    /// How pages get into the BAR.
    pub pages: Option<Pages>,
    /// Why pages are not reached in place.
    pub not: Option<String>,
    /// What to do instead.
    #[serde(default)]
    pub next: String,
}

/// How pages of programs in a GPU's memory get into its BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
    /// The BAR shows the first part of the memory, and they get the last that is free.
    TopDown,
    /// Windows in one half of the BAR move to where they are.
    Windows,
}

impl Pages {
    /// What comes of a BAR that is smaller than the memory.
    pub const TOP_DOWN: &str =
        "pages of SVM get memory from its end, so nearly all of them are outside of the BAR";

    /// What can be reached at a time through windows.
    pub fn windows(bar: u64) -> String {
        let at_a_time = size(bar / 2);
        format!("windows in half of it move to the pages that are reached, {at_a_time} at a time")
    }
}

/// What a driver's devices are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// GPUs.
    Gpu,
    /// RDMA devices.
    Nic,
    /// Disks.
    Nvme,
    /// Its class tells.
    Any,
}

impl Known {
    /// Reads known.toml, which is part of the program.
    pub fn read() -> Result<Self> {
        toml::from_str(include_str!("../data/known.toml")).context("known.toml")
    }

    /// The driver of that name.
    pub fn driver(&self, name: &str) -> Option<&Driver> {
        self.driver.iter().find(|driver| driver.name == name)
    }

    /// Names of the GPU drivers with which pages are reached in place.
    pub fn drivers(&self) -> String {
        let all = self.driver.iter();
        let names: Vec<_> = all
            .filter(|driver| driver.option.is_some())
            .map(|driver| driver.name.as_str())
            .collect();
        names.join(", ")
    }

    /// Whether a driver's device private memory depends on this option of the kernel.
    pub fn is_option(&self, name: &str) -> bool {
        let options = |driver: &Driver| driver.options(true).any(|option| option == name);
        self.driver.iter().any(options)
    }

    /// What a GPU is to its driver; the first range that holds its ID.
    pub fn generation(&self, driver: &str, device: u16) -> Option<&Generation> {
        let mut all = self.generation.iter().filter(|g| g.driver == driver);
        all.find(|g| {
            g.ids
                .iter()
                .any(|(from, to)| (from..=to).contains(&&device))
        })
    }

    /// Whether an AMD GPU is part of a CPU.
    pub fn is_apu(&self, gc: Option<Gc>, device: u16) -> bool {
        match gc {
            Some(gc) => self.apu.gc.contains(&gc.to_string()),
            None => self.apu.ids.contains(&device),
        }
    }
}

impl Driver {
    /// Options that device private memory depends on, in a kernel with the series or without.
    pub fn options(&self, has_series: bool) -> impl Iterator<Item = &str> {
        let series = self.series.iter().filter(move |_| has_series);
        self.option.iter().chain(series).map(String::as_str)
    }
}

impl List {
    /// Every entry: vendor, device or all of them, whether only within one host bridge.
    pub fn entries(&self) -> impl Iterator<Item = (u16, Option<u16>, bool)> {
        self.bridge.iter().flat_map(|bridge| {
            let devices = match &bridge.device {
                Some(devices) => devices.iter().copied().map(Some).collect(),
                None => vec![None],
            };
            devices
                .into_iter()
                .map(|device| (bridge.vendor, device, bridge.same))
        })
    }

    /// What it says of a host bridge; the first entry counts.
    pub fn forwards(&self, vendor: u16, device: u16) -> Forwards {
        let mut entries = self.entries();
        match entries.find(|(v, d, _)| *v == vendor && d.is_none_or(|d| d == device)) {
            None => Forwards::No,
            Some((_, _, true)) => Forwards::Within,
            Some((_, _, false)) => Forwards::Everywhere,
        }
    }
}
