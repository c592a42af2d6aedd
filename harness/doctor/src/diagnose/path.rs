//! Obstacles for any DMA between two devices.

use super::Pair;
use crate::capture;
use crate::config::Port;
use crate::host::{Device, Host, size};
use crate::known::{Known, Pages};
use crate::obstacle::Obstacles;
use crate::report::{Code, Effect, PairKind};
use crate::rules::{Refusal, Verdict};

const ABOVE_4G: &str = "enable Above 4G Decoding and Resizable BAR in the firmware's set-up";

/// What to do if ACS settings cannot be read.
pub const AS_ROOT: &str = "run p2p-doctor as root, with CAP_SYS_ADMIN: without, 64 bytes of each \
     device's configuration space can be read, and ACS is not in them";

/// Checks the kernel's options and parameters without which there is no path.
pub fn options(host: &Host, n: usize, obstacles: &mut Obstacles) {
    let line = host.picture.read(capture::COMMAND_LINE).unwrap_or_default();
    let values = || {
        line.split_whitespace()
            .filter_map(|word| word.strip_prefix("swiotlb="))
    };
    let has = |what| values().any(|value| value.split(',').any(|part| part == what));
    if has("force") && !has("noforce") {
        let next = "boot without swiotlb=force; a confidential guest cannot";
        obstacles.add(n, Code::Bounce, Effect::Blocks, "swiotlb=force", next);
    }
    if host.option("CONFIG_PCI_P2PDMA") != Some(false) {
        return;
    }
    let next = "build the kernel with CONFIG_PCI_P2PDMA=y (it depends on CONFIG_ZONE_DEVICE)";
    let at = ["CONFIG_PCI_P2PDMA", "CONFIG_ZONE_DEVICE"];
    for option in at.iter().filter(|o| host.option(o) == Some(false)) {
        obstacles.add(n, Code::KernelOption, Effect::Blocks, option, next);
    }
}

/// Examines a pair.
pub fn look(host: &Host, known: &Known, pair: &Pair<'_>, obstacles: &mut Obstacles) {
    options(host, pair.number, obstacles);
    if is_hidden(host, pair) {
        hidden(host, pair, obstacles);
    } else {
        way(host, pair, obstacles);
    }
    if let Some(function) = data_direct(host)
        && pair.client.vendor == DATA_DIRECT.0
    {
        let at = function.address.to_string();
        let next = "what is said here is about the NIC's own function; of the other one, rdma_topo \
                    of rdma-core says what it needs (rdma_topo check, rdma_topo write-grub-acs)";
        obstacles.add(pair.number, Code::DataDirect, Effect::Note, &at, next);
    }
    let (provider, client) = (pair.provider, pair.client);
    let mut ways = vec![(provider, client)];
    if pair.kind == PairKind::GpuGpu {
        // GPUs reach each other's memory in both directions.
        ways.push((client, provider));
        amdgpu(host, pair, obstacles);
    }
    for (provider, client) in ways {
        mask(known, pair, provider, client, obstacles);
        if pair.kind != PairKind::NvmeNic {
            bar(known, pair, provider, obstacles);
        }
    }
}

/// Whether a virtual machine shows no switch above one of the two. A root port of a virtual
/// machine says nothing about the device's place in the host.
fn is_hidden(host: &Host, pair: &Pair<'_>) -> bool {
    let is_bare = |device: &Device| {
        let above = device.path.iter().rev().skip(1);
        let mut ports = above.map(|address| host.devices.get(address)?.config.port());
        // A switch is at least two bridges. Without root, their types are not known.
        device.path.len() < 3 || ports.all(|port| port.is_some_and(|port| port != Port::Downstream))
    };
    host.cpu.is_virtual
        && (is_bare(pair.provider) || is_bare(pair.client))
        && pair.route.common.is_none()
}

fn hidden(host: &Host, pair: &Pair<'_>, obstacles: &mut Obstacles) {
    let (effect, next) = match pair.route.verdict {
        Verdict::ThruHostBridge | Verdict::Unknown => (
            Effect::Unknown,
            "the guest's kernel goes by its CPU and host bridge, which say nothing of the real \
             path: have p2p-doctor run in the host, and test by a transfer whose bytes you compare",
        ),
        _ => (
            Effect::Blocks,
            "nothing in the guest helps: run p2p-doctor in the host; ask for a machine that shows \
             its PCIe switches, or give the guest its devices below an emulated switch that is \
             like the real one (QEMU: x3130-upstream, xio3130-downstream). Modules from outside of \
             the kernel, such as nvidia_peermem, do not ask p2pdma, and may work or not",
        ),
    };
    let roots = [pair.provider, pair.client].map(|device| {
        let bridge = host.host_bridge(&device.root).map(Device::ids);
        let bridge = bridge.map_or(String::new(), |ids| format!(", host bridge {ids}"));
        format!("{}{bridge}", device.root)
    });
    for root in &roots {
        obstacles.add(pair.number, Code::GuestHidesTopology, effect, root, next);
    }
}

fn way(host: &Host, pair: &Pair<'_>, obstacles: &mut Obstacles) {
    let route = &pair.route;
    let n = pair.number;
    let is_blocked = route.verdict == Verdict::NotSupported;
    if !route.hidden.is_empty() && route.verdict == Verdict::Unknown {
        for at in &route.hidden {
            let at = at.to_string();
            obstacles.add(n, Code::AcsUnreadable, Effect::Unknown, &at, AS_ROOT);
        }
    } else if !route.redirects.is_empty() {
        let effect = if is_blocked {
            Effect::Blocks
        } else {
            Effect::Limits
        };
        let next = redirect_next(host, route);
        obstacles.add_redirects(n, effect, route, &next);
        for refusal in &route.refusals {
            let at = format!("above, {}, which does not forward", named(refusal));
            obstacles.add(n, Code::AcsRedirect, effect, &at, &next);
        }
    } else if is_blocked {
        for refusal in &route.refusals {
            refused(pair, refusal, obstacles);
        }
    }
    if !host.cpu.is_known && route.verdict == Verdict::Unknown {
        let next = "an AMD CPU from Zen on forwards between its host bridges, others do so if \
                    they are on the kernel's list: have /proc/cpuinfo in the picture";
        obstacles.add(n, Code::CpuUnreadable, Effect::Unknown, "", next);
    }
    let unread = |refusal: &&Refusal| !host.is_bridge_known(&refusal.root);
    let unread = route.refusals.iter().filter(unread);
    for refusal in unread.filter(|_| route.verdict == Verdict::Unknown) {
        let next = "the kernel looks up the first device on this bus in its list of host bridges: \
                    see that its files class, vendor and device are there, and in the dump";
        let code = Code::HostBridgeUnreadable;
        obstacles.add(n, code, Effect::Unknown, &refusal.root, next);
    }
    if route.verdict == Verdict::ThruHostBridge {
        if route.redirects.is_empty() {
            let next = "it works; for the short way, put both cards below one PCIe switch";
            obstacles.add(n, Code::ThroughHostBridge, Effect::Note, "", next);
        }
        if pair.client.is_translated() {
            let at = pair.client.address.to_string();
            let next = "it works, by an address of the IOMMU; each access is looked up there. \
                        iommu.passthrough=1 on the kernel's command line saves that";
            obstacles.add(n, Code::Iommu, Effect::Note, &at, next);
        }
    }
    if route.common.is_none()
        && let (Some(a), Some(b)) = (pair.provider.node, pair.client.node)
        && a != b
    {
        let at = |device: &Device, node| format!("{} (node {node})", device.address);
        let next = "pair each GPU with a device of its own socket";
        obstacles.add(
            n,
            Code::OtherSocket,
            Effect::Limits,
            &at(pair.provider, a),
            next,
        );
        obstacles.add(
            n,
            Code::OtherSocket,
            Effect::Limits,
            &at(pair.client, b),
            next,
        );
    }
}

/// The function with which a ConnectX-8 accesses GPUs.
const DATA_DIRECT: (u16, u16) = (0x15b3, 0x2100);

fn data_direct(host: &Host) -> Option<&Device> {
    let mut devices = host.devices.values();
    devices.find(|device| (device.vendor, device.device) == DATA_DIRECT)
}

/// What to do about redirecting ports. The command line may already name them.
fn redirect_next(host: &Host, route: &crate::rules::Route) -> String {
    if data_direct(host).is_some() {
        return "where the ConnectX has a DMA function of its own for GPUs, each port needs other \
                settings, which rdma_topo knows; for any other pair, a parameter below"
            .to_owned();
    }
    let line = host.picture.read(capture::COMMAND_LINE).unwrap_or_default();
    let has_some = ["disable_acs_redir=", "config_acs="].map(|name| line.contains(name));
    let has_some = has_some.contains(&true);
    let named = route.redirects.iter().any(|(port, _)| {
        let short = port.to_string();
        let short = short.strip_prefix("0000:").unwrap_or(&short);
        has_some && line.contains(short)
    });
    if named {
        return "the kernel's command line names such a port already, and it still redirects: see \
                whether the address is still the same, and what the kernel's log says of ACS; \
                somebody may have set it since boot (setpci)"
            .to_owned();
    }
    let others = match has_some {
        true => {
            ", together with the ports that the command line has (the last such parameter counts)"
        }
        false => "",
    };
    // GRUB ends a command at a semicolon.
    format!(
        "add a parameter below to the kernel's command line{others} and boot; in /etc/default/grub \
         write \\\" before and after it, because of its semicolons. It takes isolation from these \
         devices (IOMMU groups grow), so not where one of them is given to a virtual machine"
    )
}

/// The name of a host bridge.
fn named(refusal: &Refusal) -> String {
    let ids = refusal.ids.as_deref().unwrap_or("cannot be identified");
    format!("{} ({ids})", refusal.root)
}

fn refused(pair: &Pair<'_>, refusal: &Refusal, obstacles: &mut Obstacles) {
    let at = named(refusal);
    let (code, next) = if refusal.only_within {
        (
            Code::HostBridgeOnlyWithin,
            "pair devices that are below the same host bridge, or put both below one PCIe switch",
        )
    } else {
        (
            Code::HostBridgeUnknown,
            "put both cards below one PCIe switch, or take a machine whose host bridge forwards: \
             AMD from Zen on, or one of pci_p2pdma_whitelist[] in drivers/pci/p2pdma.c. If you \
             know that this one forwards, add it there and tell linux-pci@vger.kernel.org",
        )
    };
    obstacles.add(pair.number, code, Effect::Blocks, &at, next);
}

fn mask(
    known: &Known,
    pair: &Pair<'_>,
    provider: &Device,
    client: &Device,
    obstacles: &mut Obstacles,
) {
    let Some((number, bar)) = provider.memory_bar(known) else {
        return;
    };
    // Without a driver, the mask has the kernel's default. An IOMMU assigns low addresses.
    let is_mapped = client.is_translated() && pair.route.verdict == Verdict::ThruHostBridge;
    let Some(bits) = client.mask.filter(|bits| *bits < 64) else {
        return;
    };
    if client.driver.is_some() && !is_mapped && bar.last >> bits != 0 {
        let at = format!(
            "{} ({bits} bits), BAR {number} of {} ends at {:#x}",
            client.address, provider.address, bar.last
        );
        // A bus address is not translated.
        let or = match pair.route.verdict {
            Verdict::ThruHostBridge => ", or let an IOMMU translate",
            _ => "",
        };
        let next = format!(
            "have the firmware place the BAR lower (MMIO High Base, Above 4G Decoding){or}"
        );
        obstacles.add(pair.number, Code::DmaMask, Effect::Blocks, &at, &next);
    }
}

fn bar(known: &Known, pair: &Pair<'_>, gpu: &Device, obstacles: &mut Obstacles) {
    let driver = gpu.driver.as_deref().and_then(|name| known.driver(name));
    let Some((number, bar)) = gpu.memory_bar(known) else {
        return;
    };
    let now = bar.size();
    let at = format!("{}: BAR {number} is {}", gpu.address, size(now));
    if now == 0 {
        if driver.is_some_and(|driver| driver.bar.is_some()) {
            let next = format!("{ABOVE_4G}; if that is on, try pci=realloc");
            obstacles.add(pair.number, Code::BarMissing, Effect::Blocks, &at, &next);
        }
        return;
    }
    let pages = driver.and_then(|driver| driver.pages);
    if pages == Some(Pages::Windows) {
        return;
    }
    let largest = gpu.largest_bar(number);
    let is_nics = pair.kind == PairKind::GpuNic;
    if is_nics && pages == Some(Pages::TopDown) && gpu.memory.or(largest).is_none() {
        let next = "look for \"Small BAR device\" in the kernel's log: if it is there, nearly no page \
                    is in the BAR";
        obstacles.add(
            pair.number,
            Code::MemoryUnknown,
            Effect::UnknownInPlace,
            &at,
            next,
        );
    }
    if !gpu.is_small(number) {
        return;
    }
    let memory = gpu.memory.map_or(String::new(), |memory| {
        format!(", the GPU's memory {}", size(memory))
    });
    let (can, next) = match largest.filter(|largest| *largest > now) {
        Some(largest) => (
            format!(", and it can be {}", size(largest)),
            format!(
                "{ABOVE_4G}; some drivers resize it when they load, where the bridges above have \
                 the room"
            ),
        ),
        None if gpu.config.is_readable() => (
            ", and it cannot be resized".to_owned(),
            "peers cannot reach what is outside of it; only another GPU helps".to_owned(),
        ),
        None => (
            String::new(),
            "run p2p-doctor as root: whether it can be resized is not readable as this user"
                .to_owned(),
        ),
    };
    let filled = match pages {
        Some(Pages::TopDown) => format!("; {}", Pages::TOP_DOWN),
        _ => String::new(),
    };
    // amdgpu needs a large enough BAR for access from other GPUs.
    let is_amdgpu = |device: &Device| device.driver.as_deref() == Some("amdgpu");
    let effect =
        if pair.kind == PairKind::GpuGpu && is_amdgpu(pair.provider) && is_amdgpu(pair.client) {
            Effect::Blocks
        } else if is_nics && pages == Some(Pages::TopDown) {
            Effect::BlocksInPlace
        } else {
            Effect::Limits
        };
    obstacles.add(
        pair.number,
        Code::BarSmall,
        effect,
        &format!("{at}{memory}{can}{filled}"),
        &next,
    );
}

/// The other conditions of amdgpu_device_is_peer_accessible().
fn amdgpu(host: &Host, pair: &Pair<'_>, obstacles: &mut Obstacles) {
    let both = [pair.provider, pair.client];
    if both.iter().any(|d| d.driver.as_deref() != Some("amdgpu")) {
        return;
    }
    let n = pair.number;
    if host.option("CONFIG_HSA_AMD_P2P") == Some(false) {
        let next = "build the kernel with CONFIG_HSA_AMD_P2P=y";
        let at = "CONFIG_HSA_AMD_P2P";
        obstacles.add(n, Code::KernelOption, Effect::Blocks, at, next);
    }
    if host.picture.read(capture::AMDGPU_P2P) == Some("N") {
        let next = "amdgpu.pcie_p2p=1 on the kernel's command line";
        obstacles.add(n, Code::Policy, Effect::Blocks, capture::AMDGPU_P2P, next);
    }
}
