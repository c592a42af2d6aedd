//! Whether mlx5 uses pages of peers, for memory with and without relaxed ordering.
//! Implements the rules of drivers/infiniband/hw/mlx5/odp_p2p.h. They depend on ACS at the
//! switch ports above the NIC, which pci_p2pdma_path_acs() collects, but not on the ports
//! above the GPU.

use crate::config::{
    Acs, COMPLETION_REDIRECT, DIRECT_TRANSLATED, EGRESS_CONTROL, Port, REDIRECTS, REQUEST_REDIRECT,
};
use crate::host::{Address, Device, Host};
use crate::obstacle::bits;
use crate::parameter::Ports;
use crate::report::Effect;

/// Whether mlx5 expects reads from peers to work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reads {
    /// The reason.
    pub why: String,
    /// mlx5 uses pages of peers in memory that is registered with relaxed ordering.
    pub relaxed: bool,
    /// mlx5 uses them in memory that is registered without relaxed ordering.
    pub strict: bool,
    path: Path,
}

/// The ACS controls that are on at any port, and at all ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Path {
    is_known: bool,
    any: u16,
    all: u16,
}

impl Path {
    /// The kernel's assumption if it can see no switch.
    const HIDDEN: Self = Self {
        is_known: false,
        any: REQUEST_REDIRECT | COMPLETION_REDIRECT | DIRECT_TRANSLATED,
        all: REQUEST_REDIRECT | COMPLETION_REDIRECT | DIRECT_TRANSLATED,
    };

    /// mlx5_odp_p2p_works()
    fn works(self, ats: bool, relaxed: bool) -> bool {
        let Self { any, all, .. } = self;
        let request = |one: u16, other: u16| {
            one & REQUEST_REDIRECT != 0 && !(ats && other & DIRECT_TRANSLATED != 0)
        };
        let completion = |one: u16| one & COMPLETION_REDIRECT != 0 && !relaxed;
        let may_redirect = request(any, all) || completion(any);
        let redirects_all = request(all, any) && completion(all);
        any & EGRESS_CONTROL == 0 && (redirects_all || !may_redirect)
    }

    /// mlx5_odp_p2p_needs_ats()
    fn needs_ats(self, can_use: bool, relaxed: bool) -> bool {
        self.is_known
            && can_use
            && relaxed
            && self.all & REQUEST_REDIRECT != 0
            && self.works(true, relaxed)
    }
}

impl Reads {
    /// Whether memory must be registered without relaxed ordering.
    pub fn only_strict(&self) -> bool {
        self.strict && !self.relaxed
    }

    /// The limit of mlx5 on an existing path, if there is one, and what to do.
    pub fn limit(&self) -> Option<(Effect, &'static str, &'static str)> {
        let alike = "have all switch ports above NIC and GPU redirect both requests and \
                     completions, or neither: with a parameter below they redirect neither";
        match (self.relaxed, self.strict) {
            (true, true) => None,
            (false, true) => Some((
                Effect::Limits,
                "no page of a peer in memory that the NIC reads with relaxed ordering",
                "register memory without IBV_ACCESS_RELAXED_ORDERING (perftest: \
                 --disable_pcie_relaxed)",
            )),
            (true, false) => Some((
                Effect::Limits,
                "pages of peers only in memory that the NIC reads with relaxed ordering, which \
                 ib_write_lat never asks for",
                alike,
            )),
            (false, false) if self.path.any & EGRESS_CONTROL != 0 => Some((
                Effect::BlocksInPlace,
                "mlx5 uses no page of a peer where there is egress control",
                "switch egress control off at these ports, with a parameter below (it stops all \
                 redirection there)",
            )),
            (false, false) => Some((
                Effect::BlocksInPlace,
                "requests and completions are not redirected alike at all ports, and mlx5 then \
                 uses no page of a peer",
                alike,
            )),
        }
    }

    /// The ports to change so that memory without relaxed ordering works. The kernel requires
    /// that all ports above the NIC are alike. Those above the peer must be like them, because
    /// completions pass there.
    pub fn changes(&self, host: &Host, nic: &Device, peer: &Device) -> Ports {
        let mut ports = Ports::default();
        if !self.strict {
            for device in [nic, peer] {
                ports.add(&switch_ports(host, device).unwrap_or_default());
            }
        }
        ports
    }
}

/// A port whose ACS controls cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable(pub Address);

/// The switch ports above a device and their ACS controls.
fn switch_ports(host: &Host, device: &Device) -> Result<Vec<(Address, u16)>, Unreadable> {
    let mut ports = Vec::new();
    for address in device.path.iter().rev().skip(1) {
        let port = host.devices.get(address).ok_or(Unreadable(*address))?;
        match port.config.acs() {
            // The port of a switch is not directly below a host bridge.
            Acs::Unreadable if device.path.first() == Some(address) => {}
            Acs::Unreadable => return Err(Unreadable(*address)),
            Acs::Control(acs) if port.config.port() == Some(Port::Downstream) => {
                ports.push((*address, acs));
            }
            Acs::Control(_) => {}
        }
    }
    Ok(ports)
}

/// Whether a NIC's reads work. `None` if nothing affects them.
///
/// # Errors
///
/// If the ACS controls of a port above the NIC cannot be read.
pub fn reads(host: &Host, nic: &Device) -> Result<Option<Reads>, Unreadable> {
    let ports = switch_ports(host, nic)?;
    let path = if ports.is_empty() && host.cpu.is_virtual {
        Path::HIDDEN
    } else {
        let controls = || ports.iter().map(|(_, acs)| *acs);
        Path {
            is_known: true,
            any: controls().fold(0, |any, acs| any | acs),
            all: controls().reduce(|all, acs| all & acs).unwrap_or_default(),
        }
    };
    if path.any & REDIRECTS == 0 {
        return Ok(None);
    }
    let redirecting = ports.iter().filter(|(_, acs)| acs & REDIRECTS != 0);
    let redirecting: Vec<_> = redirecting
        .map(|(port, acs)| format!("{port} ({})", bits(*acs)))
        .collect();
    let why = if path.is_known {
        format!("ACS redirects at {}", redirecting.join(", "))
    } else {
        "this virtual machine shows no switch".to_owned()
    };
    let works = |relaxed: bool| {
        let can_use = nic.is_translated() && nic.config.ats();
        path.works(path.needs_ats(can_use, relaxed), relaxed)
    };
    Ok(Some(Reads {
        why,
        // If a guest sees no switch, the NIC's setting in the guest does not matter.
        relaxed: works(!path.is_known || relaxed_reads(host, nic)),
        strict: works(false),
        path,
    }))
}

/// Whether reads can use relaxed ordering. The NIC must also support it, which cannot be
/// read from the host. A virtual function uses the setting of its physical function.
fn relaxed_reads(host: &Host, nic: &Device) -> bool {
    let physical = nic.physical.and_then(|address| host.devices.get(&address));
    physical.unwrap_or(nic).config.relaxed_ordering()
}
