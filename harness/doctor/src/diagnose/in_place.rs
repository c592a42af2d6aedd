//! What keeps a NIC from pages of a GPU's memory that are a process's: what the series
//! needs besides a path.

use super::{Pair, policy};
use crate::capture;
use crate::host::{Device, Gc, Host};
use crate::known::Known;
use crate::mlx5;
use crate::obstacle::Obstacles;
use crate::report::{Code, Effect};
use crate::rules::Verdict;

/// Looks at a pair of GPU and NIC.
pub fn look(host: &Host, known: &Known, pair: &Pair<'_>, obstacles: &mut Obstacles) {
    let n = pair.number;
    let mut blocks = |code, at: &str, next: &str| {
        obstacles.add(n, code, Effect::BlocksInPlace, at, next);
    };
    match policy(host) {
        None => blocks(
            Code::SeriesAbsent,
            &format!("{} has no {}", host.release(), capture::POLICY),
            "boot a kernel with patches/ applied, CONFIG_HMM_MIRROR and CONFIG_PCI_P2PDMA; \
             without it, memory is reached that is exported as a dma-buf",
        ),
        Some(policy @ "never") => blocks(
            Code::Policy,
            &format!("{} is {policy:?}", capture::POLICY),
            "echo auto > /sys/kernel/mm/hmm/p2p",
        ),
        Some(policy @ "switch") if pair.route.verdict == Verdict::ThruHostBridge => blocks(
            Code::Policy,
            &format!("{} is {policy:?}, and no switch is common", capture::POLICY),
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
    let mut blocks = |code, at: &str, next: &str| {
        obstacles.add(n, code, Effect::BlocksInPlace, at, next);
    };
    for device in [pair.provider, pair.client] {
        driver(host, known, device, &mut blocks);
    }
    let nic = pair.client;
    if nic.verbs.is_empty() && nic.driver.as_deref() != Some("p2ptest_nic") {
        let next = "load the driver's RDMA part (mlx5_ib, irdma, bnxt_re, ...); in a virtual \
                    machine the host may have switched RDMA off for this function";
        blocks(Code::NoVerbs, &nic.address.to_string(), next);
    }
    if pair.route.verdict != Verdict::NotSupported
        && nic.driver.as_deref() == Some("mlx5_core")
        && let Some(redirect) = mlx5::redirect(host, nic)
        && let Some((effect, what, next)) = redirect.limit()
    {
        let at = format!("{}, above {}: {what}", redirect.port, nic.address);
        obstacles.add(n, Code::Ordering, effect, &at, next);
    }
}

/// Whether a device's driver can do its part.
fn driver(host: &Host, known: &Known, device: &Device, blocks: &mut impl FnMut(Code, &str, &str)) {
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
            "pages are reached in place with {} for GPUs, mlx5 for NICs; other drivers may know \
             dma-bufs",
            known.drivers()
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
    if let Some(option) = driver.option.as_deref()
        && host.option(option) == Some(false)
    {
        let next = format!("build the kernel with {option}=y, which {name} needs for it");
        blocks(Code::KernelOption, option, &next);
    }
    if name == "amdgpu"
        && let Some(gc) = device.gc.filter(|gc| !gc.is_coherent())
    {
        let at = format!("{place}: GC {gc} {}", Gc::HIDES);
        blocks(Code::Generation, &at, Gc::INSTEAD);
    }
    if name == "nouveau"
        && let Some(generation) = known.generation(device.device)
        && !generation.svm
    {
        let (why, next) = if generation.memory {
            (
                "has device private memory there, and keeps programs from it",
                "a Pascal GPU (GTX 10, Quadro P, Tesla P), or lift the check in nouveau_svm_init()",
            )
        } else {
            (
                "has no device private memory there",
                "a Pascal GPU (GTX 10, Quadro P, Tesla P)",
            )
        };
        let at = format!("{place}: {}; nouveau {why}", generation.name);
        blocks(Code::Generation, &at, next);
    }
}

/// Which of NVIDIA's drivers it is.
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
