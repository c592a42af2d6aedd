//! Obstacles for in-place access by a NIC to a process's pages in GPU memory: what the
//! series needs besides a path.

use super::{Pair, path};
use crate::capture::{self, INFINIBAND};
use crate::gpu;
use crate::host::{Device, Host, size};
use crate::known::{Known, Pages, Role};
use crate::mlx5;
use crate::obstacle::{NO_PAIR, Obstacles};
use crate::report::{Code, Effect};
use crate::rules::Verdict;

/// Examines a pair of GPU and NIC.
pub fn look(host: &Host, known: &Known, pair: &Pair<'_>, obstacles: &mut Obstacles) {
    let n = pair.number;
    kernel(host, n, pair.route.verdict, obstacles);
    for device in [pair.provider, pair.client] {
        driver(host, known, n, device, obstacles);
    }
    let nic = pair.client;
    if nic.verbs.is_empty() && nic.driver.as_deref() != Some("p2ptest_nic") {
        let next = "load the driver's RDMA part (mlx5_ib, irdma, bnxt_re, ...); in a virtual \
                    machine the host may have switched RDMA off for this function";
        let at = nic.address.to_string();
        obstacles.add(n, Code::NoVerbs, Effect::BlocksInPlace, &at, next);
    }
    if pair.route.verdict != Verdict::NotSupported && nic.driver.as_deref() == Some("mlx5_core") {
        ordering(host, pair, obstacles);
    }
}

/// Checks whether mlx5 uses the path.
fn ordering(host: &Host, pair: &Pair<'_>, obstacles: &mut Obstacles) {
    let (n, nic) = (pair.number, pair.client);
    let reads = match mlx5::reads(host, nic) {
        Ok(reads) => reads,
        // The path depends on it, too, and look() of path.rs says so.
        Err(mlx5::Unreadable(port)) if pair.route.hidden.contains(&port) => return,
        Err(mlx5::Unreadable(port)) => {
            let (effect, at) = (Effect::UnknownInPlace, port.to_string());
            return obstacles.add(n, Code::AcsUnreadable, effect, &at, path::AS_ROOT);
        }
    };
    if let Some(reads) = reads
        && let Some((effect, what, next)) = reads.limit()
    {
        let at = format!("{}: {}: {what}", nic.address, reads.why);
        obstacles.add(n, Code::Ordering, effect, &at, next);
        let ports = reads.changes(host, nic, pair.provider);
        obstacles.add_ports(Code::Ordering, effect, ports, next);
    }
}

/// Examines a GPU on a host without a NIC: the obstacles that a NIC would have.
pub fn alone(host: &Host, known: &Known, gpu: &Device, obstacles: &mut Obstacles) {
    let next = "if the host has one, load its driver (mlx5_core and mlx5_ib for a ConnectX); a \
                virtual machine has only what its hypervisor passes through";
    let at = format!("{INFINIBAND} is empty, and no PCI device is a known NIC");
    obstacles.add(NO_PAIR, Code::NoNic, Effect::Blocks, &at, next);
    path::options(host, NO_PAIR, obstacles);
    kernel(host, NO_PAIR, Verdict::Unknown, obstacles);
    driver(host, known, NO_PAIR, gpu, obstacles);
}

/// Checks the series, its policy, and the kernel's options.
fn kernel(host: &Host, n: usize, verdict: Verdict, obstacles: &mut Obstacles) {
    let mut blocks = |code, at: &str, next: &str| {
        obstacles.add(n, code, Effect::BlocksInPlace, at, next);
    };
    match host.policy() {
        None => blocks(
            Code::SeriesAbsent,
            &format!("{} has no {}", host.release(), capture::POLICY),
            "boot a kernel with patches/ applied, CONFIG_HMM_MIRROR and CONFIG_PCI_P2PDMA; \
             without it, only memory that is exported as a dma-buf is reached, by drivers that can",
        ),
        Some(policy @ "never") => blocks(
            Code::Policy,
            &format!("{} is {policy:?}", capture::POLICY),
            "echo auto > /sys/kernel/mm/hmm/p2p",
        ),
        Some(policy @ "switch") if verdict == Verdict::ThruHostBridge => blocks(
            Code::Policy,
            &format!(
                "{} is {policy:?}, and the path is through the host bridge",
                capture::POLICY
            ),
            "echo auto > /sys/kernel/mm/hmm/p2p",
        ),
        Some(_) => {}
    }
    for option in [
        "CONFIG_DEVICE_PRIVATE",
        "CONFIG_HMM_MIRROR",
        "CONFIG_INFINIBAND_ON_DEMAND_PAGING",
    ] {
        if host.option(option) == Some(false) {
            let next = "build the kernel with them";
            blocks(Code::KernelOption, option, next);
        }
    }
    let config = &host.picture;
    if config.read(capture::OPTIONS).is_none() {
        let why = config.unreadable(capture::OPTIONS).unwrap_or("not there");
        let at = format!("/boot/config-{}, /proc/config.gz: {why}", host.release());
        let next = "see that these are on: CONFIG_DEVICE_PRIVATE, CONFIG_HMM_MIRROR, \
                    CONFIG_INFINIBAND_ON_DEMAND_PAGING";
        obstacles.add(n, Code::OptionsUnreadable, Effect::Note, &at, next);
    }
}

/// Checks whether a device's driver supports it.
fn driver(host: &Host, known: &Known, n: usize, device: &Device, obstacles: &mut Obstacles) {
    let mut blocks = |code, at: &str, next: &str| {
        obstacles.add(n, code, Effect::BlocksInPlace, at, next);
    };
    let place = format!("{} ({})", device.address, device.ids());
    let Some(name) = device.driver.as_deref() else {
        let next = format!(
            "load its driver; pages are reached in place with {} for GPUs, mlx5 for NICs",
            known.drivers()
        );
        return blocks(Code::NoDriver, &place, &next);
    };
    let Some(driver) = known.driver(name) else {
        let next = format!(
            "pages are reached in place with {} for GPUs, mlx5 for NICs; of RDMA drivers, {} can \
             register a dma-buf",
            known.drivers(),
            known.dmabuf.join(", ")
        );
        return blocks(Code::Driver, &format!("{place}: {name}"), &next);
    };
    if let Some(not) = &driver.not {
        let not = if name == "nvidia" {
            nvidia(host, not)
        } else {
            not.clone()
        };
        return blocks(Code::Driver, &format!("{place}: {not}"), &driver.next);
    }
    if driver.role != Role::Gpu {
        return;
    }
    let refusals = gpu::refusals(host, known, driver, device);
    for refusal in &refusals {
        let at = match refusal.code {
            Code::Generation => format!("{place}: {}", refusal.why),
            _ => refusal.why.clone(),
        };
        obstacles.add(n, refusal.code, Effect::BlocksInPlace, &at, &refusal.next);
    }
    if refusals.is_empty()
        && host.policy().is_some()
        && driver.pages == Some(Pages::Windows)
        && let Some((number, bar)) = device.memory_bar(known)
        && bar.size() > 0
    {
        let (now, windows) = (size(bar.size()), Pages::windows(bar.size()));
        let at = format!("{}: BAR {number} is {now}; {windows}", device.address);
        let next = format!("{name} does not resize the BAR; only a GPU with a larger one helps");
        obstacles.add(n, Code::BarWindows, Effect::Note, &at, &next);
    }
}

/// The kind of NVIDIA's driver.
fn nvidia(host: &Host, not: &str) -> String {
    let said = host.picture.read(capture::NVIDIA);
    let kind = match said {
        Some(line) if line.contains("Open Kernel Module") => "nvidia, the open kernel module",
        Some(_) => "nvidia, the proprietary module",
        None => "nvidia",
    };
    let peermem = match host.picture.link("/sys/module/nvidia_peermem") {
        Some(_) => "; nvidia_peermem is loaded",
        None => "",
    };
    format!("{kind}{peermem}: {not}")
}
