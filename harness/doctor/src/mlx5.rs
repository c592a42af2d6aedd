//! In which memory mlx5 uses pages of peers, by the PCIe settings of the NIC and
//! of the switch port above it: the rule of drivers/infiniband/hw/mlx5/odp_p2p.h, for
//! one switch. The GPU's port is not looked at there. In a VM that hides its switches
//! there is no such port; the kernel then assumes the worst, and we say nothing.

use crate::config::{Acs, COMPLETION_REDIRECT, DIRECT_TRANSLATED, Port, REQUEST_REDIRECT};
use crate::host::{Device, Host};
use crate::report::Effect;

/// A port above a NIC that redirects reads of peers, or their completions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The port's address.
    pub port: String,
    /// Pages of peers are used in memory that is registered with relaxed ordering.
    pub relaxed: bool,
    /// They are used in memory that is registered without.
    pub strict: bool,
}

impl Redirect {
    /// Whether memory must be registered without relaxed ordering.
    pub fn only_strict(&self) -> bool {
        self.strict && !self.relaxed
    }

    /// What mlx5 makes of a path that is there, if it does not use all of it, and what to do.
    pub fn limit(&self) -> Option<(Effect, &'static str, &'static str)> {
        // For one port alone this would be wrong: the kernel takes all for set alike.
        let alike = "have all ports of the switch redirect both requests and completions, or \
                     neither: pci=config_acs= or pci=disable_acs_redir= on the kernel's command line";
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
            (false, false) => Some((
                Effect::BlocksInPlace,
                "it redirects either requests or completions, and mlx5 then uses no page of a peer",
                alike,
            )),
        }
    }
}

/// What the port above a NIC redirects; nothing if that is nothing.
pub fn redirect(host: &Host, nic: &Device) -> Option<Redirect> {
    let port = host.devices.get(&nic.above()?)?;
    if port.config.port() != Some(Port::Downstream) {
        return None;
    }
    let Acs::Control(acs) = port.config.acs() else {
        return None;
    };
    let redirects_request = acs & REQUEST_REDIRECT != 0;
    let redirects_completion = acs & COMPLETION_REDIRECT != 0;
    if !redirects_request && !redirects_completion {
        return None;
    }
    // It must come back the way that it went.
    let works = |relaxed: bool| {
        let has_ats = nic.is_translated() && nic.config.ats();
        let ats = relaxed && acs & DIRECT_TRANSLATED != 0 && has_ats;
        (redirects_request && !ats) == (redirects_completion && !relaxed)
    };
    Some(Redirect {
        port: port.address.to_string(),
        relaxed: works(relaxed_reads(host, nic)),
        strict: works(false),
    })
}

/// Whether reads can have relaxed ordering. The NIC must also be capable, which
/// nothing tells. A virtual function has no setting of its own.
fn relaxed_reads(host: &Host, nic: &Device) -> bool {
    let physical = nic.physical.and_then(|address| host.devices.get(&address));
    physical.unwrap_or(nic).config.relaxed_ordering()
}
