//! What is known about hardware without asking a driver: known.toml.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::pci::Device;

/// known.toml
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    nvidia: Vec<Generation>,
    bridge: Vec<Bridge>,
    driver: Vec<Driver>,
}

/// A generation of NVIDIA's GPUs.
#[derive(Deserialize)]
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bridge {
    vendor: u16,
    device: Option<Vec<u16>>,
    same: bool,
}

/// A GPU driver that can have device private memory.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Driver {
    /// Its name.
    pub name: String,
    /// The BAR that shows the GPU's memory.
    pub bar: usize,
    /// The option that it needs for it.
    pub option: String,
}

impl Known {
    /// Reads known.toml, which is part of the program.
    pub fn read() -> Result<Self> {
        toml::from_str(include_str!("known.toml")).context("known.toml")
    }

    /// The driver of that name.
    pub fn driver(&self, name: &str) -> Option<&Driver> {
        self.driver.iter().find(|driver| driver.name == name)
    }

    /// Names of all drivers.
    pub fn drivers(&self) -> String {
        let names: Vec<_> = self.driver.iter().map(|d| d.name.as_str()).collect();
        names.join(", ")
    }

    /// The generation of an NVIDIA GPU; the first range that holds its ID.
    pub fn generation(&self, device: u16) -> Option<&Generation> {
        self.nvidia
            .iter()
            .find(|range| (range.from..=range.to).contains(&device))
    }

    /// Whether a host bridge forwards requests between devices.
    pub fn forwards(&self, root: &Device, same_bridge: bool) -> bool {
        self.bridge.iter().any(|bridge| {
            let listed = bridge.device.as_ref();
            bridge.vendor == root.vendor
                && listed.is_none_or(|ids| ids.contains(&root.device))
                && (same_bridge || !bridge.same)
        })
    }
}
