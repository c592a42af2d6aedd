//! What is said about a host, as data: the schema of `--json`. `version` goes up when a
//! field changes its meaning or goes away; fields may be added.

use serde::Serialize;

use crate::rules::Verdict;

/// What `schema` says.
pub const SCHEMA: &str = "p2p-doctor-report";
/// What `version` says.
pub const VERSION: u32 = 1;

/// Everything that is said about a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// `p2p-doctor-report`
    pub schema: &'static str,
    /// Of the schema.
    pub version: u32,
    /// The host.
    pub host: HostReport,
    /// Ends of paths.
    pub devices: Vec<DeviceReport>,
    /// Each pair of them that may have something to say to each other.
    pub pairs: Vec<PairReport>,
    /// What stands in the way; first what helps most if it is removed.
    pub obstacles: Vec<Obstacle>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostReport {
    /// The kernel's release.
    pub kernel: String,
    /// The kernel whose list of host bridges this program has.
    pub bridges_of_kernel: String,
    /// CPU vendor and family.
    pub cpu: String,
    /// The CPU says that it is one of a virtual machine.
    pub is_guest: bool,
    /// IOMMUs, by their names in sysfs.
    pub iommus: Vec<String>,
    /// The series, if the kernel has it.
    pub series: Option<Series>,
    /// Why something could not be read.
    pub unreadable: Vec<String>,
}

/// The series, at work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Series {
    /// `auto`, `switch` or `never`.
    pub policy: String,
    /// Pages by result, since boot.
    pub pages: Vec<Count>,
}

/// How many pages had a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The kernel's name for it.
    pub result: String,
    /// How many.
    pub pages: u64,
    /// What it means.
    pub meaning: &'static str,
}

/// A device that is an end of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceReport {
    /// PCI address.
    pub address: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Vendor and device ID.
    pub ids: String,
    /// The driver that is bound.
    pub driver: Option<String>,
    /// Its RDMA devices.
    pub verbs: Vec<String>,
    /// Bridges above it, from the host bridge on.
    pub below: Vec<String>,
    /// Bytes of the BAR that shows the GPU's memory.
    pub bar: Option<u64>,
    /// Bytes that it can be made.
    pub bar_can_be: Option<u64>,
    /// Bytes of the GPU's memory.
    pub memory: Option<u64>,
    /// `identity`, `DMA`, `DMA-FQ`, ... behind an IOMMU.
    pub iommu: Option<String>,
    /// Bits of an address that it can put out.
    pub dma_mask_bits: Option<u32>,
}

/// What a device is.
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
    /// Nothing that can be seen stands in the way.
    Yes,
    /// Something does.
    No,
    /// It depends on what cannot be read.
    Unknown,
}

/// Two devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairReport {
    /// Their kinds.
    pub kind: PairKind,
    /// Address of the one whose memory is reached.
    pub provider: String,
    /// Address of the one that reaches it.
    pub client: String,
    /// What p2pdma finds, whether or not the kernel has it.
    pub verdict: Verdict,
    /// What it may find, if that is unknown.
    pub possible: Vec<Verdict>,
    /// Ports between them.
    pub distance: usize,
    /// The way, in words.
    pub path: String,
    /// Whether the path works with this kernel.
    pub works: Works,
    /// Whether pages of the GPU's that are a process's memory are reached in place, with
    /// this kernel; nothing where nobody does that.
    pub in_place: Option<Works>,
    /// The kernel parameter that removes ACS redirection from the path.
    pub parameter: Option<String>,
    /// What stands in the way, by its number in `obstacles`.
    pub obstacles: Vec<usize>,
}

/// What an obstacle does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// There is no way.
    Blocks,
    /// It cannot be said whether there is one.
    Unknown,
    /// Pages are not reached in place.
    BlocksInPlace,
    /// It works, but could be better.
    Limits,
    /// It is worth knowing.
    Note,
}

/// What stands in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    /// Its number.
    pub id: usize,
    /// Its name, for programs.
    pub code: Code,
    /// What it does.
    pub effect: Effect,
    /// What it is.
    pub what: String,
    /// Where, with details.
    pub at: Vec<String>,
    /// What to do.
    pub next: String,
    /// What to add to the kernel's command line.
    pub parameter: Option<String>,
    /// `provider client` of each pair; none if it stands in the way of a GPU for which
    /// there is no RDMA device.
    pub pairs: Vec<String>,
}

/// Obstacles; in an effect, those of which more pairs suffer come first, then this order.
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
    CpuUnreadable,
    DmaMask,
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
    BarWindows,
    ThroughHostBridge,
    OtherSocket,
    Iommu,
    DataDirect,
    OptionsUnreadable,
}
