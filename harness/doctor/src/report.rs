//! The report about a host, as data: the schema of `--json`. `version` increases when a
//! field changes its meaning or is removed. New fields do not change it.

use serde::Serialize;

use crate::rules::Verdict;

/// The value of `schema`.
pub const SCHEMA: &str = "p2p-doctor-report";
/// The value of `version`.
pub const VERSION: u32 = 1;

/// The whole report about a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// `p2p-doctor-report`
    pub schema: &'static str,
    /// The version of the schema.
    pub version: u32,
    /// The host.
    pub host: HostReport,
    /// Devices that can be ends of paths.
    pub devices: Vec<DeviceReport>,
    /// The pairs of devices that may exchange data.
    pub pairs: Vec<PairReport>,
    /// The obstacles. The most important one comes first.
    pub obstacles: Vec<Obstacle>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostReport {
    /// The kernel's release.
    pub kernel: String,
    /// The kernel version of this program's list of host bridges.
    pub bridges_of_kernel: String,
    /// CPU vendor and family.
    pub cpu: String,
    /// The CPU reports that it is in a virtual machine.
    pub is_guest: bool,
    /// The names of IOMMUs in sysfs.
    pub iommus: Vec<String>,
    /// The series, if the kernel has it.
    pub series: Option<Series>,
    /// What could not be read, and why.
    pub unreadable: Vec<String>,
}

/// The state of the series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Series {
    /// `auto`, `switch` or `never`.
    pub policy: String,
    /// Pages by result, since boot.
    pub pages: Vec<Count>,
}

/// The number of pages with one result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The kernel's name for the result.
    pub result: String,
    /// How many.
    pub pages: u64,
    /// The meaning of the result.
    pub meaning: &'static str,
}

/// A device that is an end of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceReport {
    /// PCI address.
    pub address: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// Vendor and device ID.
    pub ids: String,
    /// The driver that is bound.
    pub driver: Option<String>,
    /// Its RDMA devices.
    pub verbs: Vec<String>,
    /// The bridges above it, starting at the host bridge.
    pub below: Vec<String>,
    /// The size of the BAR for the GPU's memory, in bytes.
    pub bar: Option<u64>,
    /// The largest possible size of that BAR, in bytes.
    pub bar_can_be: Option<u64>,
    /// The size of the GPU's memory, in bytes.
    pub memory: Option<u64>,
    /// The type of its IOMMU domain, e.g. `identity`, `DMA` or `DMA-FQ`, if it is behind
    /// an IOMMU.
    pub iommu: Option<String>,
    /// The number of address bits that it can drive.
    pub dma_mask_bits: Option<u32>,
}

impl DeviceReport {
    /// Its PCI address, and the names of its RDMA devices.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.address).chain(&self.verbs)
    }
}

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A GPU or another accelerator.
    Gpu,
    /// An RDMA device.
    Nic,
    /// A disk.
    Nvme,
}

/// What kinds of device a pair has; the one whose memory is reached comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PairKind {
    /// A GPU's memory, an RDMA device.
    GpuNic,
    /// Two GPUs.
    GpuGpu,
    /// A GPU's memory, a disk.
    GpuNvme,
    /// A disk's memory that peers may use, an RDMA device.
    NvmeNic,
}

/// Whether something works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Works {
    /// No obstacle is visible.
    Yes,
    /// There is an obstacle.
    No,
    /// It depends on something that cannot be read.
    Unknown,
}

/// Two devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairReport {
    /// Their kinds.
    pub kind: PairKind,
    /// The address of the device whose memory is accessed.
    pub provider: String,
    /// The address of the device that accesses it.
    pub client: String,
    /// p2pdma's result, even if the kernel does not have p2pdma.
    pub verdict: Verdict,
    /// The possible results, if the result is unknown.
    pub possible: Vec<Verdict>,
    /// The number of ports between them.
    pub distance: usize,
    /// The path in words.
    pub path: String,
    /// Whether the path works with this kernel.
    pub works: Works,
    /// Whether pages of a process in GPU memory are accessed in place with this kernel.
    /// `None` for pairs without in-place access.
    pub in_place: Option<Works>,
    /// The kernel parameter that removes ACS redirection from the path.
    pub parameter: Option<String>,
    /// The numbers of its obstacles in `obstacles`.
    pub obstacles: Vec<usize>,
}

/// The effect of an obstacle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// There is no path.
    Blocks,
    /// It is unknown whether there is a path.
    Unknown,
    /// Pages are not accessed in place.
    BlocksInPlace,
    /// It is unknown whether pages are accessed in place.
    UnknownInPlace,
    /// It works, but could be better.
    Limits,
    /// For information only.
    Note,
}

/// An obstacle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    /// Its number.
    pub id: usize,
    /// Its name, for programs.
    pub code: Code,
    /// Its effect.
    pub effect: Effect,
    /// A description.
    pub what: String,
    /// Where, with details.
    pub at: Vec<String>,
    /// What to do.
    pub next: String,
    /// What to add to the kernel's command line.
    pub parameter: Option<String>,
    /// What to add instead from Linux 6.15 on, to keep ACS controls that need no change.
    pub config_acs: Option<String>,
    /// `provider client` of each pair. Empty if it is an obstacle for a GPU on a host
    /// without an RDMA device.
    pub pairs: Vec<String>,
}

/// Obstacles. Within an effect, the obstacle of more pairs comes first, then this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "obstacle.rs has a sentence for each")]
pub enum Code {
    GuestHidesTopology,
    KernelOption,
    AcsRedirect,
    AcsUnreadable,
    HostBridgeUnknown,
    HostBridgeOnlyWithin,
    HostBridgeUnreadable,
    CpuUnreadable,
    DmaMask,
    Bounce,
    BarMissing,
    SeriesAbsent,
    Policy,
    Driver,
    Generation,
    NoDriver,
    NoNic,
    NoVerbs,
    Ordering,
    BarSmall,
    MemoryUnknown,
    BarWindows,
    ThroughHostBridge,
    OtherSocket,
    Iommu,
    DataDirect,
    OptionsUnreadable,
}
