//! Shared code of the tests with recorded hosts.
#![allow(dead_code, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};

use doctor::picture::Entry;
use doctor::report::Report;
use doctor::text::{self, Paper};
use doctor::{Host, Known, Picture, capture, diagnose};

pub const PAPER: Paper = Paper {
    width: 100,
    colour: false,
};

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts")
}

/// The kernel tree: `LINUX_TREE`, or the harness's tree. `None` if `LINUX_TREE` is empty:
/// `make test` sets that where there is no tree, and reports a skip.
pub fn tree() -> Option<PathBuf> {
    let set = std::env::var_os("LINUX_TREE").map(PathBuf::from);
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/linux");
    let tree = set.unwrap_or_else(beside);
    if tree.as_os_str().is_empty() {
        return None;
    }
    assert!(
        tree.join("MAINTAINERS").exists(),
        "no kernel in {}: run `make tree`, or set LINUX_TREE",
        tree.display()
    );
    Some(tree)
}

/// A file of the kernel. `None` as for `tree()`.
pub fn source(file: &str) -> Option<String> {
    let path = tree()?.join(file);
    Some(fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}")))
}

/// Names of all recorded hosts.
pub fn names() -> Vec<String> {
    let files = fs::read_dir(folder()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .filter_map(|name| name.strip_suffix(".expected.toml").map(str::to_owned))
        .collect();
    names.sort();
    assert!(names.len() > 10, "{names:?}");
    names
}

pub fn dump(name: &str) -> String {
    fs::read_to_string(folder().join(format!("{name}.toml"))).unwrap()
}

pub fn picture(name: &str) -> Picture {
    Picture::parse(&dump(name)).unwrap_or_else(|error| panic!("{name}: {error:#}"))
}

pub fn report(picture: Picture) -> (Report, String) {
    let host = Host::new(picture);
    let report = diagnose::diagnose(&host, &Known::read().unwrap());
    let text = text::render(&host, &report, PAPER);
    (report, text)
}

pub const GPU: &str = "0000:03:00.0";
pub const GPU_PORT: &str = "0000:02:00.0";
pub const NIC_PORT: &str = "0000:02:01.0";
pub const NIC: &str = "0000:04:00.0";
pub const SWITCH: &str = "0000:01:00.0";
pub const ROOT_PORT: &str = "0000:00:01.0";

/// Offsets in the configuration spaces of the host "switch".
pub const PORT_TYPE: usize = 0x42;
pub const DEVICE_CONTROL: usize = 0x48;
pub const EXTENDED: usize = 0x100;
pub const ACS_CONTROL: usize = 0x106;

/// The host "switch" with changes. Its NIC reads with relaxed ordering.
pub struct Changed(pub Picture);

impl Changed {
    /// Sets ACS at the port above the NIC.
    pub fn redirecting(acs: u8) -> Self {
        Self(picture("switch")).with(NIC_PORT, ACS_CONTROL, &[acs, 0])
    }

    /// Turns ATS on in the NIC, which is behind a translating IOMMU.
    pub fn ats(self) -> Self {
        let capability = [0x0f, 0, 1, 0, 0x60, 0, 0, 0x80];
        self.with(NIC, EXTENDED, &capability)
            .file(NIC, "iommu_group/type", "DMA-FQ")
    }

    /// Changes bytes of a configuration space.
    pub fn with(mut self, device: &str, at: usize, bytes: &[u8]) -> Self {
        let folder = format!("{}/{device}", capture::DEVICES);
        let entry = self.0.folders.get_mut(&folder).unwrap().get_mut("config");
        let Some(Entry::Config { bytes: lines, .. }) = entry else {
            panic!("{folder}");
        };
        let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // This line sorts after the line of 16 bytes that it changes.
        lines.insert(format!("{at:03x}"), hex.join(" "));
        self
    }

    pub fn file(mut self, device: &str, file: &str, text: &str) -> Self {
        let path = format!("{}/{device}/{file}", capture::DEVICES);
        self.0.put(&path, Entry::Text(text.to_owned()));
        self
    }
}
