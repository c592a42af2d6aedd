//! What is known about hardware and drivers without asking them: known.toml.

use anyhow::{Context, Result};
use serde::Deserialize;

/// known.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    nvidia: Vec<Generation>,
    /// Host bridges that forward.
    pub list: List,
    driver: Vec<Driver>,
}

/// A generation of NVIDIA's GPUs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    from: u16,
    to: u16,
    /// For people.
    pub name: String,
    /// nouveau has device private memory there.
    pub memory: bool,
    /// Programs can have it migrated.
    pub svm: bool,
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
    /// Why pages are not reached in place.
    pub not: Option<String>,
    /// What to do instead.
    #[serde(default)]
    pub next: String,
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
        let mut options = self.driver.iter().filter_map(|d| d.option.as_deref());
        options.any(|option| option == name)
    }

    /// The generation of an NVIDIA GPU; the first range that holds its ID.
    pub fn generation(&self, device: u16) -> Option<&Generation> {
        self.nvidia
            .iter()
            .find(|range| (range.from..=range.to).contains(&device))
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
