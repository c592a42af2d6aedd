//! Facts about hardware and drivers that cannot be read from a host: known.toml.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::address::size;

/// known.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// RDMA drivers that can register a dma-buf.
    pub dmabuf: Vec<String>,
    /// Vendors of displays that are no GPUs.
    pub displays: Vec<u16>,
    generation: Vec<Generation>,
    /// Host bridges that forward.
    pub list: List,
    /// Drivers.
    pub driver: Vec<Driver>,
}

/// GPUs that a driver treats in the same way.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    driver: String,
    ids: Vec<(u16, u16)>,
    /// For people.
    pub name: String,
    /// Why peers cannot access pages of its memory.
    pub not: Option<String>,
    /// What to do instead.
    #[serde(default)]
    pub next: String,
}

/// The kernel's list of host bridges.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// The version of the kernel with this list.
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

/// Whether a host bridge forwards, by the kernel's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwards {
    /// It is not on the list.
    No,
    /// Only between devices below it.
    Within,
    /// Also to other host bridges.
    Everywhere,
}

/// A driver.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Driver {
    /// Its name.
    pub name: String,
    /// The role of its devices.
    pub role: Role,
    /// The BAR for the GPU's memory.
    pub bar: Option<usize>,
    /// The option that device private memory depends on.
    pub option: Option<String>,
    /// The option of the series that it also needs.
    pub series: Option<String>,
    /// How pages get into the BAR.
    pub pages: Option<Pages>,
    /// Why pages are not accessed in place.
    pub not: Option<String>,
    /// What to do instead.
    #[serde(default)]
    pub next: String,
}

/// How a program's pages in GPU memory become reachable through the BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
    /// The BAR maps the first part of the memory. Pages get free memory from the end.
    TopDown,
    /// Windows in one half of the BAR move to the pages.
    Windows,
}

impl Pages {
    /// The effect of a BAR that is smaller than the memory.
    pub const TOP_DOWN: &str =
        "pages of SVM get memory from its end, so nearly all of them are outside of the BAR";

    /// How much the windows reach at a time.
    pub fn windows(bar: u64) -> String {
        let at_a_time = size(bar / 2);
        format!("windows in half of it move to the pages that are reached, {at_a_time} at a time")
    }
}

/// The role of a driver's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// GPUs.
    Gpu,
    /// RDMA devices.
    Nic,
    /// Disks.
    Nvme,
    /// The device's class decides.
    Any,
}

impl Known {
    /// Reads known.toml, which is part of the program.
    pub fn read() -> Result<Self> {
        toml::from_str(include_str!("../data/known.toml")).context("known.toml")
    }

    /// The driver with that name.
    pub fn driver(&self, name: &str) -> Option<&Driver> {
        self.driver.iter().find(|driver| driver.name == name)
    }

    /// The names of the GPU drivers that support in-place access.
    pub fn drivers(&self) -> String {
        let all = self.driver.iter();
        let names: Vec<_> = all
            .filter(|driver| driver.option.is_some())
            .map(|driver| driver.name.as_str())
            .collect();
        names.join(", ")
    }

    /// Whether a driver needs this kernel option for device private memory.
    pub fn is_option(&self, name: &str) -> bool {
        let options = |driver: &Driver| driver.options(true).any(|option| option == name);
        self.driver.iter().any(options)
    }

    /// A driver's entry for a GPU: the first range that contains its ID.
    pub fn generation(&self, driver: &str, device: u16) -> Option<&Generation> {
        let mut all = self.generation.iter().filter(|g| g.driver == driver);
        all.find(|g| {
            g.ids
                .iter()
                .any(|(from, to)| (from..=to).contains(&&device))
        })
    }
}

impl Driver {
    /// The kernel options for device private memory, with or without the series.
    pub fn options(&self, has_series: bool) -> impl Iterator<Item = &str> {
        let series = self.series.iter().filter(move |_| has_series);
        self.option.iter().chain(series).map(String::as_str)
    }
}

impl List {
    /// Every entry: vendor, device (or `None` for all), and whether only within one host
    /// bridge.
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

    /// Whether a host bridge forwards. The first matching entry counts.
    pub fn forwards(&self, vendor: u16, device: u16) -> Forwards {
        let mut entries = self.entries();
        match entries.find(|(v, d, _)| *v == vendor && d.is_none_or(|d| d == device)) {
            None => Forwards::No,
            Some((_, _, true)) => Forwards::Within,
            Some((_, _, false)) => Forwards::Everywhere,
        }
    }
}
