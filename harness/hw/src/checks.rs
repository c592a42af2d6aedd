//! The requirements of a host for peer-to-peer DMA between a GPU's memory and a NIC: what
//! was found, what is missing, and the next step.

use std::collections::BTreeMap;

use doctor::capture::{self, POLICY};
use doctor::gpu;
use doctor::host::{Device, size};
use doctor::known::{Pages, Role};
use doctor::mlx5::{self, Reads, Unreadable};
use doctor::report::{Code, Effect, PairKind, PairReport, Report, Works};
use doctor::rules::Verdict;
use doctor::{Known, Picture};
use serde::Serialize;

use super::sysroot::Host;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As required.
    Ok,
    /// It works, but there is something to know.
    Note,
    /// Without it, nothing can be tested.
    Missing,
}

/// A check and its result.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was checked.
    pub check: String,
    /// The result.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do about it. Empty if nothing.
    pub next: String,
}

/// The results for a host.
pub struct Survey {
    /// Every check, in order of importance.
    pub findings: Vec<Finding>,
    /// A GPU and a NIC that can be tested together.
    pub pair: Option<Pair>,
    /// perftest can put its buffer into GPU memory.
    pub has_perftest: bool,
}

/// A GPU and a NIC.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The GPU's PCI address.
    pub gpu: String,
    /// Its driver.
    pub driver: String,
    /// p2pdma's result for the path.
    pub verdict: Verdict,
    /// The NIC's name in /sys/class/infiniband.
    pub nic: String,
    /// The NIC's port.
    pub port: String,
    /// mlx5's limits for reads from peers, if not all of them work. An error if that is not
    /// known.
    pub reads: Result<Option<Reads>, Unreadable>,
}

impl Pair {
    /// mlx5's known limits.
    pub fn limit(&self) -> Option<&Reads> {
        self.reads.as_ref().ok()?.as_ref()
    }
}

fn finding(check: &str, state: State, found: impl Into<String>, next: &str) -> Finding {
    Finding {
        check: check.to_owned(),
        state,
        found: found.into(),
        next: next.to_owned(),
    }
}

/// Checks everything. `seen` is the doctor's view of the host, and `report` its report.
pub fn survey(host: &Host, seen: &doctor::Host, known: &Known, report: &Report) -> Survey {
    let mut findings = kernel(seen);
    let (gpus, more) = gpus(seen, known);
    findings.extend(more);
    let (nics, more) = nics(host, seen);
    findings.extend(more);
    findings.push(iommu(&seen.picture));
    let (pair, more) = paths(seen, report, &gpus, &nics);
    findings.extend(more);
    let perftest = perftest(host);
    let has_perftest = perftest.state == State::Ok;
    findings.push(perftest);
    let ready = findings.iter().all(|f| f.state != State::Missing);
    Survey {
        findings,
        pair: pair.filter(|_| ready),
        has_perftest,
    }
}

fn kernel(seen: &doctor::Host) -> Vec<Finding> {
    let release = seen.release();
    let mut findings = Vec::new();
    findings.push(match seen.picture.read(POLICY).map(chosen) {
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
    let needed = [
        "CONFIG_PCI_P2PDMA",
        "CONFIG_DEVICE_PRIVATE",
        "CONFIG_INFINIBAND_ON_DEMAND_PAGING",
    ];
    let (on, off): (Vec<_>, Vec<_>) = needed
        .into_iter()
        .partition(|option| seen.option(option) == Some(true));
    findings.push(if seen.picture.read(capture::OPTIONS).is_none() {
        let found = "neither /boot/config-* nor /proc/config.gz can be read";
        finding("config", State::Note, found, "")
    } else if off.is_empty() {
        finding("config", State::Ok, on.join(", "), "")
    } else {
        finding(
            "config",
            State::Missing,
            format!("off: {}", off.join(", ")),
            "enable what is off and build the kernel again",
        )
    });
    findings
}

/// The word in brackets.
pub fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// The addresses of GPUs whose memory is reachable, and the findings of all GPUs.
fn gpus(seen: &doctor::Host, known: &Known) -> (Vec<String>, Vec<Finding>) {
    let mut usable = Vec::new();
    let mut findings = Vec::new();
    let all = seen.devices.values();
    for gpu in all.filter(|device| seen.role(known, device) == Some(Role::Gpu)) {
        let (state, found, next) = gpu_memory(seen, known, gpu);
        let check = format!("gpu {}", gpu.address);
        let mut about = vec![finding(&check, state, found, &next)];
        // A BAR helps only if the driver gives peers pages in it.
        let driver = gpu.driver.as_deref().and_then(|name| known.driver(name));
        if let Some(driver) = driver.filter(|driver| driver.not.is_none())
            && let Some(number) = driver.bar
        {
            about.push(bar(gpu, number, driver.pages));
        }
        if about.iter().all(|finding| finding.state != State::Missing) {
            usable.push(gpu.address.to_string());
        }
        findings.extend(about);
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

/// If one device is usable, problems of the others are only notes.
fn only_one_must_do(one_does: bool, findings: &mut [Finding]) {
    for finding in findings {
        if one_does && finding.state == State::Missing {
            finding.state = State::Note;
        }
    }
}

/// Whether a GPU has device private memory.
fn gpu_memory(seen: &doctor::Host, known: &Known, gpu: &Device) -> (State, String, String) {
    let ids = gpu.ids();
    let Some(name) = gpu.driver.as_deref() else {
        let next = format!("load one of {}", known.drivers());
        return (State::Missing, format!("{ids}, no driver is bound"), next);
    };
    let Some(driver) = known.driver(name).filter(|driver| driver.not.is_none()) else {
        let other = known.driver(name);
        let found = other.and_then(|driver| driver.not.clone());
        let next = other.map_or_else(
            || {
                let drivers = known.drivers();
                format!("device private memory that peers reach is in {drivers}")
            },
            |driver| driver.next.clone(),
        );
        let found = found.unwrap_or_else(|| format!("bound to {name}"));
        return (State::Missing, format!("{ids}, {found}"), next);
    };
    if let Some(refusal) = gpu::refusals(seen, known, driver, gpu).into_iter().next() {
        let why = match refusal.code {
            Code::KernelOption => format!("{name} without {}", refusal.why),
            _ => format!("{name}: {}", refusal.why),
        };
        return (State::Missing, format!("{ids}, {why}"), refusal.next);
    }
    if name == "nouveau" {
        let kind = known.generation(name, gpu.device);
        let kind = kind.map_or("unknown", |kind| &kind.name);
        return (State::Ok, format!("{ids}, {kind}, nouveau"), String::new());
    }
    // xe reserves addresses for its pages when the first program creates a VM with page
    // faults, the test GPU when it is loaded.
    if seen.has_device_memory(gpu) == Some(true) {
        (
            State::Ok,
            format!("{ids}, {name} has device private memory"),
            String::new(),
        )
    } else if name == "xe" {
        (
            State::Note,
            format!("{ids}, xe has registered no device private memory yet"),
            "it does so when a program makes a VM with page faults".to_owned(),
        )
    } else {
        (
            State::Missing,
            format!("{ids}, /proc/iomem names no device private memory of {name}"),
            "see whether that file can be read here".to_owned(),
        )
    }
}

fn bar(gpu: &Device, number: usize, pages: Option<Pages>) -> Finding {
    let check = format!("bar {}", gpu.address);
    let now = gpu.bars.get(number).copied().unwrap_or_default().size();
    let mut found = format!("BAR {number} is {}", size(now));
    if let Some(memory) = gpu.memory {
        found.push_str(&format!(", the GPU's memory {}", size(memory)));
    }
    if let Some(largest) = gpu.largest_bar(number) {
        found.push_str(&format!(", it can be {}", size(largest)));
    }
    let resize = "enable Resizable BAR and Above 4G Decoding in the firmware's set-up";
    if now == 0 {
        return finding(&check, State::Missing, found, resize);
    }
    if pages == Some(Pages::Windows) {
        found = format!("{found}; {}", Pages::windows(now));
        return finding(&check, State::Ok, found, "");
    }
    if !gpu.is_small(number) {
        return finding(&check, State::Ok, found, "");
    }
    found.push_str(": pages outside of it go to host memory (no_alias)");
    if pages == Some(Pages::TopDown) {
        found = format!("{found}; {}", Pages::TOP_DOWN);
        return finding(&check, State::Missing, found, resize);
    }
    finding(&check, State::Note, found, resize)
}

/// The names of NICs that can be tested, with a port, and the findings of all NICs.
fn nics(host: &Host, seen: &doctor::Host) -> (BTreeMap<String, String>, Vec<Finding>) {
    let mut usable = BTreeMap::new();
    let mut findings = Vec::new();
    for name in host.list(capture::INFINIBAND) {
        let check = format!("nic {name}");
        let device = seen.devices.values().find(|d| d.verbs.contains(&name));
        let Some(device) = device else {
            findings.push(finding(
                &check,
                State::Missing,
                "no PCI device: it does not do DMA by itself (rxe, siw)",
                "a ConnectX-4 or newer (mlx5)",
            ));
            continue;
        };
        let port = port(host, &name);
        let (state, found, next) = nic(host, &name, port.as_deref(), device);
        findings.push(finding(&check, state, found, next));
        if state != State::Missing {
            usable.extend(port.map(|port| (name, port)));
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

/// The first active port of a NIC, or that of P2P_VERBS_PORT, which the selftests know, too.
fn port(host: &Host, name: &str) -> Option<String> {
    let ports = format!("{}/{name}/ports", capture::INFINIBAND);
    let mut all = match std::env::var("P2P_VERBS_PORT") {
        Ok(port) if !port.is_empty() => vec![port],
        _ => host.list(&ports),
    };
    all.retain(|port| {
        let state = host.read(&format!("{ports}/{port}/state"));
        state.is_some_and(|state| state.contains("ACTIVE"))
    });
    all.into_iter().next()
}

fn nic(
    host: &Host,
    name: &str,
    port: Option<&str>,
    device: &Device,
) -> (State, String, &'static str) {
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
    // ib_write_bw and ib_read_bw need these.
    let needed = ["SUPPORT_WRITE", "SUPPORT_READ"];
    let lacking: Vec<_> = needed.into_iter().filter(|op| !rc.contains(op)).collect();
    if !said.contains("ODP_SUPPORT") || !lacking.is_empty() {
        let next = "enable ODP in the NIC's firmware (mlxconfig ODP_...), \
                    or take a ConnectX-4 or newer";
        let found = match lacking.len() {
            1 => format!("{what}; on-demand paging for RC without {}", lacking[0]),
            _ => format!("{what}; no on-demand paging"),
        };
        return (State::Missing, found, next);
    }
    let Some(port) = port else {
        let next = "bring a port up: the test talks to itself through it";
        return (
            State::Missing,
            format!("{what}; ODP, but no port is active"),
            next,
        );
    };
    (
        State::Ok,
        format!("{what}; ODP for RC: {}; port {port}", rc.join(" ")),
        "",
    )
}

fn iommu(picture: &Picture) -> Finding {
    let units: Vec<_> = picture.list(capture::IOMMUS).collect();
    if units.is_empty() {
        return finding(
            "iommu",
            State::Ok,
            "none: devices use physical addresses",
            "",
        );
    }
    let line = picture.read(capture::COMMAND_LINE).unwrap_or_default();
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

/// The best pair that can be tested, and the doctor's findings about all pairs.
fn paths(
    seen: &doctor::Host,
    report: &Report,
    gpus: &[String],
    nics: &BTreeMap<String, String>,
) -> (Option<Pair>, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut best: Option<(Verdict, Pair)> = None;
    let pairs = report.pairs.iter();
    for pair in pairs.filter(|pair| pair.kind == PairKind::GpuNic) {
        let device = seen
            .devices
            .values()
            .find(|device| device.address.to_string() == pair.client);
        let Some(device) = device else { continue };
        let (state, found, next) = path(report, pair);
        let name = device.verbs.first().unwrap_or(&pair.client);
        let check = format!("path {name} to {}", pair.provider);
        findings.push(finding(&check, state, found, &next));
        let port = nics.get(name).filter(|_| gpus.contains(&pair.provider));
        let is_better = best.as_ref().is_none_or(|(other, _)| pair.verdict < *other);
        if state != State::Missing
            && is_better
            && let Some(port) = port
        {
            let reads = mlx5::reads(seen, device);
            let mut all = seen.devices.values();
            let gpu = all.find(|gpu| gpu.address.to_string() == pair.provider);
            let found = Pair {
                gpu: pair.provider.clone(),
                driver: gpu.and_then(|gpu| gpu.driver.clone()).unwrap_or_default(),
                verdict: pair.verdict,
                nic: name.clone(),
                port: port.clone(),
                reads,
            };
            best = Some((pair.verdict, found));
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

/// The doctor's finding about a path, with mlx5's limits.
fn path(report: &Report, pair: &PairReport) -> (State, String, String) {
    let obstacles = report.obstacles.iter();
    let obstacles: Vec<_> = obstacles
        .filter(|o| pair.obstacles.contains(&o.id))
        .filter(|o| match o.effect {
            Effect::Blocks | Effect::Unknown | Effect::UnknownInPlace => true,
            _ => o.code == Code::Ordering,
        })
        .collect();
    let is_blocked =
        pair.works == Works::No || obstacles.iter().any(|o| o.effect == Effect::BlocksInPlace);
    let state = match pair.works {
        _ if is_blocked => State::Missing,
        Works::Yes if obstacles.is_empty() => State::Ok,
        _ => State::Note,
    };
    let mut found = format!("{}: {}", pair.path, pair.verdict.name());
    let mut next = Vec::new();
    for obstacle in obstacles {
        found.push_str(&format!("; {} ({})", obstacle.what, obstacle.at.join("; ")));
        let parameter = match obstacle.code {
            Code::AcsRedirect => pair.parameter.as_deref().unwrap_or_default(),
            _ => obstacle.parameter.as_deref().unwrap_or_default(),
        };
        next.push(format!("{} {parameter}", obstacle.next).trim().to_owned());
    }
    (state, found, next.join("; "))
}

fn perftest(host: &Host) -> Finding {
    let next = "for speeds, build perftest of April 2025 or newer from source: ./configure --enable-opencl";
    let Some(help) = host.output_of("ib_write_bw", &["--help"]) else {
        return finding("perftest", State::Note, "ib_write_bw is not there", next);
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
            State::Note,
            format!("ib_write_bw knows no {}", lacking.join(", ")),
            next,
        )
    }
}
