//! What a host needs for peer-to-peer DMA between a GPU's memory and a NIC:
//! what was found, what is missing, and the next step.

use serde::Serialize;

use super::host::Host;
use super::known::Known;
use super::mlx5::{self, Redirect};
use super::pci::{self, Device, Route};

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it must be.
    Ok,
    /// It works, but something is worth knowing.
    Note,
    /// Without it nothing can be tested.
    Missing,
}

/// A check and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: String,
    /// What it came to.
    pub state: State,
    /// What is there.
    pub found: String,
    /// What to do about it; empty if nothing.
    pub next: String,
}

/// What a host has.
pub struct Survey {
    /// Every check, in the order in which they matter.
    pub findings: Vec<Finding>,
    /// A GPU and a NIC that can be tested with each other.
    pub pair: Option<Pair>,
}

/// A GPU and a NIC.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The GPU's PCI address.
    pub gpu: String,
    /// The NIC's name in /sys/class/infiniband.
    pub nic: String,
    /// What the port above the NIC redirects.
    pub redirect: Option<Redirect>,
}

/// The policy knob.
pub const POLICY: &str = "/sys/kernel/mm/hmm/p2p";
/// Counters by result.
pub const STATS: &str = "/sys/kernel/mm/hmm/p2p_stats";

fn finding(check: &str, state: State, found: impl Into<String>, next: &str) -> Finding {
    Finding {
        check: check.to_owned(),
        state,
        found: found.into(),
        next: next.to_owned(),
    }
}

/// Looks at everything.
pub fn survey(host: &Host, known: &Known) -> Survey {
    let mut findings = kernel(host);
    let devices = pci::devices(host);
    let (gpus, more) = gpus(host, known, &devices);
    findings.extend(more);
    let (nics, more) = nics(host);
    findings.extend(more);
    findings.push(iommu(host));
    let (pair, more) = paths(host, known, &gpus, &nics);
    findings.extend(more);
    findings.push(perftest(host));
    let ready = findings.iter().all(|f| f.state != State::Missing);
    Survey {
        findings,
        pair: pair.filter(|_| ready),
    }
}

/// The kernel's configuration, wherever it is kept.
fn config(host: &Host) -> Option<String> {
    let release = host.read("/proc/sys/kernel/osrelease")?;
    for file in [
        format!("/boot/config-{release}"),
        format!("/lib/modules/{release}/config"),
    ] {
        if let Some(text) = host.read(&file) {
            return Some(text);
        }
    }
    let packed = host.path("/proc/config.gz");
    packed.is_file().then_some(())?;
    host.ask("gzip", &["-dc", &packed.to_string_lossy()])
}

fn kernel(host: &Host) -> Vec<Finding> {
    let release = host.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut findings = Vec::new();
    findings.push(match host.read(POLICY).as_deref().map(chosen) {
        Some(Some(choice)) if choice == "never" => finding(
            "kernel",
            State::Note,
            format!("{release} has the series; {POLICY} is \"never\": all of it is switched off"),
            "the test sets it and puts it back; for your own work: echo auto > /sys/kernel/mm/hmm/p2p",
        ),
        Some(Some(choice)) => finding(
            "kernel",
            State::Ok,
            format!("{release} has the series; {POLICY} is \"{choice}\""),
            "",
        ),
        _ => finding(
            "kernel",
            State::Missing,
            format!("{release} has no {POLICY}"),
            "boot a kernel with patches/ applied, CONFIG_HMM_MIRROR and CONFIG_PCI_P2PDMA",
        ),
    });
    match config(host) {
        None => findings.push(finding(
            "config",
            State::Note,
            "neither /boot/config-* nor /proc/config.gz can be read",
            "",
        )),
        Some(text) => {
            let has = |option: &str| {
                ["y", "m"]
                    .iter()
                    .any(|v| text.lines().any(|line| line == format!("{option}={v}")))
            };
            let needed = [
                "CONFIG_PCI_P2PDMA",
                "CONFIG_DEVICE_PRIVATE",
                "CONFIG_INFINIBAND_ON_DEMAND_PAGING",
            ];
            let (on, off): (Vec<_>, Vec<_>) = needed.into_iter().partition(|o| has(o));
            findings.push(if off.is_empty() {
                finding("config", State::Ok, on.join(", "), "")
            } else {
                finding(
                    "config",
                    State::Missing,
                    format!("off: {}", off.join(", ")),
                    "enable what is off and build the kernel again",
                )
            });
        }
    }
    findings
}

/// The word in brackets.
pub fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn gpus(host: &Host, known: &Known, devices: &[Device]) -> (Vec<Device>, Vec<Finding>) {
    let mut usable = Vec::new();
    let mut findings = Vec::new();
    // Display controllers, and accelerators without a display.
    for gpu in devices.iter().filter(|d| matches!(d.class >> 16, 3 | 0x12)) {
        let (state, found, next) = gpu_memory(host, known, gpu);
        if state != State::Missing {
            usable.push(gpu.clone());
        }
        let check = format!("gpu {}", gpu.address);
        findings.push(finding(&check, state, found, &next));
        if let Some(driver) = gpu.driver.as_deref().and_then(|name| known.driver(name)) {
            findings.push(bar(host, gpu, driver.bar));
        }
    }
    if findings.is_empty() {
        findings.push(finding(
            "gpu",
            State::Missing,
            "no display controller or accelerator on the PCI bus",
            &format!("a GPU whose driver is one of {}", known.drivers()),
        ));
    }
    only_one_must_do(!usable.is_empty(), &mut findings);
    (usable, findings)
}

/// Where one will do, the others are no obstacle.
fn only_one_must_do(one_does: bool, findings: &mut [Finding]) {
    for finding in findings {
        if one_does && finding.state == State::Missing {
            finding.state = State::Note;
        }
    }
}

/// Whether a GPU has device private memory.
fn gpu_memory(host: &Host, known: &Known, gpu: &Device) -> (State, String, String) {
    let ids = format!("{:04x}:{:04x}", gpu.vendor, gpu.device);
    let Some(name) = gpu.driver.as_deref() else {
        let next = format!("load one of {}", known.drivers());
        return (State::Missing, format!("{ids}, no driver is bound"), next);
    };
    let Some(driver) = known.driver(name) else {
        let next = format!(
            "device private memory that peers reach is in {}",
            known.drivers()
        );
        return (State::Missing, format!("{ids}, bound to {name}"), next);
    };
    if config(host).is_some_and(|text| text.contains(&format!("# {} is not set", driver.option))) {
        let next = format!("enable {} and build the kernel again", driver.option);
        return (
            State::Missing,
            format!("{ids}, {name} without {}", driver.option),
            next,
        );
    }
    if name == "nouveau" {
        return match known.generation(gpu.device) {
            Some(kind) if kind.svm => (
                State::Ok,
                format!("{ids}, {}, nouveau", kind.name),
                String::new(),
            ),
            Some(kind) if kind.memory => (
                State::Missing,
                format!(
                    "{ids}, {}: nouveau has device private memory for it, and keeps programs from it",
                    kind.name
                ),
                "a Pascal GPU (GTX 10, Quadro P, Tesla P), or lift the check in nouveau_svm_init()"
                    .into(),
            ),
            kind => (
                State::Missing,
                format!(
                    "{ids}, {}: nouveau has no device private memory for it",
                    kind.map_or("unknown", |kind| &kind.name)
                ),
                "a Pascal GPU (GTX 10, Quadro P, Tesla P)".into(),
            ),
        };
    }
    // xe and amdgpu reserve addresses for their pages when they load.
    let iomem = host.read("/proc/iomem").unwrap_or_default();
    let reserved = iomem
        .lines()
        .any(|line| !line.starts_with(' ') && line.ends_with(&format!(" : {}", gpu.address)));
    if reserved {
        (
            State::Ok,
            format!("{ids}, {name} has device private memory"),
            String::new(),
        )
    } else {
        (
            State::Missing,
            format!("{ids}, {name} registered no device private memory"),
            match name {
                "xe" => "a discrete GPU from Battlemage on; CONFIG_DRM_XE_PAGEMAP=y",
                _ => "a discrete GPU of gfx9 or newer that is not an APU; CONFIG_HSA_AMD_SVM=y",
            }
            .to_owned(),
        )
    }
}

fn bar(host: &Host, gpu: &Device, number: usize) -> Finding {
    let check = format!("bar {}", gpu.address);
    let size = gpu.bar(host, number);
    let vram = vram(host, gpu);
    let mut found = format!("BAR {number} is {}", mib(size));
    if let Some(vram) = vram {
        found.push_str(&format!(", the GPU's memory {}", mib(vram)));
    }
    let largest = gpu.largest_bar(host, number);
    if let Some(largest) = largest {
        found.push_str(&format!(", it can be {}", mib(largest)));
    }
    let resize = "enable Resizable BAR and Above 4G Decoding in the firmware's set-up";
    if size == 0 {
        return finding(&check, State::Missing, found, resize);
    }
    let small = vram.is_some_and(|vram| size < vram) || largest.is_some_and(|most| size < most);
    if !small {
        return finding(&check, State::Ok, found, "");
    }
    found.push_str(": pages outside of it go to host memory (no_alias)");
    finding(&check, State::Note, found, resize)
}

/// Size of the GPU's memory, where sysfs has it.
fn vram(host: &Host, gpu: &Device) -> Option<u64> {
    if let Some(text) = host.read(&gpu.file("mem_info_vram_total")) {
        return text.parse().ok();
    }
    let text = host.read(&gpu.file("tile0/physical_vram_size_bytes"))?;
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn mib(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        mib if mib % 1024 == 0 => format!("{} GiB", mib / 1024),
        mib => format!("{mib} MiB"),
    }
}

/// A NIC that can be tested.
struct Nic {
    name: String,
    device: Device,
}

fn nics(host: &Host) -> (Vec<Nic>, Vec<Finding>) {
    let mut usable = Vec::new();
    let mut findings = Vec::new();
    for name in host.list("/sys/class/infiniband") {
        let check = format!("nic {name}");
        let address = host.leads_to(&format!("/sys/class/infiniband/{name}/device"));
        let device = address.and_then(|address| pci::device(host, &address));
        let Some(device) = device else {
            findings.push(finding(
                &check,
                State::Missing,
                "no PCI device: it does not do DMA by itself (rxe, siw)",
                "a ConnectX-4 or newer (mlx5)",
            ));
            continue;
        };
        let (state, found, next) = nic(host, &name, &device);
        findings.push(finding(&check, state, found, next));
        if state != State::Missing {
            usable.push(Nic { name, device });
        }
    }
    if findings.is_empty() {
        findings.push(finding(
            "nic",
            State::Missing,
            "/sys/class/infiniband has no device",
            "a ConnectX-4 or newer; modprobe mlx5_ib",
        ));
    }
    only_one_must_do(!usable.is_empty(), &mut findings);
    (usable, findings)
}

fn nic(host: &Host, name: &str, device: &Device) -> (State, String, &'static str) {
    let driver = device.driver.as_deref().unwrap_or("no driver");
    let what = format!("{}, {driver}", device.address);
    if driver != "mlx5_core" {
        let next = "the driver must fault through ib_umem_odp: that is mlx5";
        return (State::Missing, what, next);
    }
    let Some(said) = host.ask("ibv_devinfo", &["-v", "-d", name]) else {
        let next = "install ibv_devinfo (Debian: ibverbs-utils) and load ib_uverbs";
        return (
            State::Missing,
            format!("{what}; ibv_devinfo gives no answer"),
            next,
        );
    };
    let rc = said
        .lines()
        .map(str::trim)
        .skip_while(|line| !line.starts_with("rc_odp_caps"));
    let rc: Vec<_> = rc
        .skip(1)
        .take_while(|line| !line.ends_with(':'))
        .filter(|line| line.starts_with("SUPPORT_"))
        .collect();
    if !said.contains("ODP_SUPPORT") || !rc.contains(&"SUPPORT_WRITE") {
        let next = "enable ODP in the NIC's firmware (mlxconfig ODP_...), \
                    or take a ConnectX-4 or newer";
        return (State::Missing, format!("{what}; no on-demand paging"), next);
    }
    let port = host
        .read(&format!("/sys/class/infiniband/{name}/ports/1/state"))
        .unwrap_or_default();
    if !port.contains("ACTIVE") {
        let next = "bring the port up: the test talks to itself through it";
        return (
            State::Missing,
            format!("{what}; ODP, but port 1 is {port:?}"),
            next,
        );
    }
    (
        State::Ok,
        format!("{what}; ODP for RC: {}", rc.join(" ")),
        "",
    )
}

fn iommu(host: &Host) -> Finding {
    let units = host.list("/sys/class/iommu");
    if units.is_empty() {
        return finding(
            "iommu",
            State::Ok,
            "none: devices use physical addresses",
            "",
        );
    }
    let line = host.read("/proc/cmdline").unwrap_or_default();
    let said: Vec<_> = line
        .split_whitespace()
        .filter(|word| word.contains("iommu"))
        .collect();
    let mut found = units.join(", ");
    if !said.is_empty() {
        found.push_str(&format!("; command line: {}", said.join(" ")));
    }
    finding("iommu", State::Ok, found, "")
}

fn paths(
    host: &Host,
    known: &Known,
    gpus: &[Device],
    nics: &[Nic],
) -> (Option<Pair>, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut best: Option<(u8, Pair)> = None;
    for gpu in gpus {
        for nic in nics {
            let redirect = mlx5::redirect(host, &nic.device);
            let check = format!("path {} to {}", nic.name, gpu.address);
            let (mut rank, mut state, mut found, mut next) = match pci::route(
                host,
                known,
                gpu,
                &nic.device,
            ) {
                Route::Switch(bridge) => (
                    3,
                    State::Ok,
                    format!("below common bridge {bridge}: bus addresses"),
                    "",
                ),
                Route::HostBridge(why) => (
                    2,
                    State::Ok,
                    format!("through the host bridge: {why}; {}", domain(&nic.device)),
                    "",
                ),
                Route::Unknown(why) => (1, State::Note, why, "run as root"),
                Route::None(why) => (
                    0,
                    State::Missing,
                    format!("none: {why}; pages go to host memory (topology)"),
                    "put both cards below one PCIe switch, or use an AMD Zen or listed Xeon machine",
                ),
            };
            if let Some((worse, why, step)) = redirect.as_ref().and_then(limit)
                && rank > 0
            {
                if worse == State::Missing {
                    rank = 0;
                }
                state = worse;
                found = format!("{found}; {why}");
                next = step;
            }
            findings.push(finding(&check, state, found, next));
            if rank > 0 && best.as_ref().is_none_or(|(other, _)| rank > *other) {
                let pair = Pair {
                    gpu: gpu.address.clone(),
                    nic: nic.name.clone(),
                    redirect,
                };
                best = Some((rank, pair));
            }
        }
    }
    if findings.is_empty() {
        findings.push(finding(
            "path",
            State::Missing,
            "there is no pair of GPU and NIC to look at",
            "",
        ));
    }
    only_one_must_do(best.is_some(), &mut findings);
    (best.map(|(_, pair)| pair), findings)
}

/// What mlx5 makes of a path that is there, if it does not use all of it.
fn limit(redirect: &Redirect) -> Option<(State, String, &'static str)> {
    let port = &redirect.port;
    // For one port alone this would be wrong: the kernel takes all for set alike.
    let alike = "have all ports of the switch redirect both requests and completions, or \
                 neither: pci=config_acs= or pci=disable_acs_redir= on the kernel's command line";
    match (redirect.relaxed, redirect.strict) {
        (true, true) => None,
        (false, true) => Some((
            State::Note,
            format!(
                "ACS redirects at {port}, above the NIC, so mlx5 uses no page of a peer in \
                 memory that the NIC reads with relaxed ordering"
            ),
            "the test has perftest do without relaxed ordering; in your own work, register \
             memory without IBV_ACCESS_RELAXED_ORDERING",
        )),
        (true, false) => Some((
            State::Note,
            format!(
                "ACS redirects at {port}, above the NIC, so mlx5 uses pages of peers only in \
                 memory that the NIC reads with relaxed ordering, which ib_write_lat never asks for"
            ),
            alike,
        )),
        (false, false) => Some((
            State::Missing,
            format!(
                "ACS redirects at {port}, above the NIC, either requests or completions, so mlx5 \
                 uses no page of a peer"
            ),
            alike,
        )),
    }
}

fn domain(nic: &Device) -> String {
    match nic.iommu.as_deref() {
        None => "no IOMMU".to_owned(),
        Some("identity") => "the IOMMU passes addresses through".to_owned(),
        Some(kind) => format!("the IOMMU translates ({kind})"),
    }
}

fn perftest(host: &Host) -> Finding {
    let next = "build perftest of April 2025 or newer from source: ./configure --enable-opencl";
    let Some(help) = host.said("ib_write_bw", &["--help"]) else {
        return finding("perftest", State::Missing, "ib_write_bw is not there", next);
    };
    let lacking: Vec<_> = ["--odp", "--use_opencl", "--gpu_touch"]
        .into_iter()
        .filter(|option| !help.contains(option))
        .collect();
    if lacking.is_empty() {
        finding(
            "perftest",
            State::Ok,
            "ib_write_bw knows --odp and --use_opencl",
            "",
        )
    } else {
        finding(
            "perftest",
            State::Missing,
            format!("ib_write_bw knows no {}", lacking.join(", ")),
            next,
        )
    }
}
