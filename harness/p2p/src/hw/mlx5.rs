//! In which memory mlx5 uses pages of peers, by the PCIe settings of the NIC and
//! of the switch port above it: the rule of drivers/infiniband/hw/mlx5/odp_p2p.h, for
//! one switch. The GPU's port is not looked at there. In a VM that hides its switches
//! there is no such port; the kernel then assumes the worst, and we say nothing.

use super::host::Host;
use super::pci::{COMPLETION_REDIRECT, Config, DIRECT_TRANSLATED, Device, REQUEST_REDIRECT};

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
}

/// What the port above a NIC redirects; nothing if that is nothing.
pub fn redirect(host: &Host, nic: &Device) -> Option<Redirect> {
    let port = nic.above()?;
    let config = Config::read(host, port)?;
    if !config.is_downstream_port() {
        return None;
    }
    let acs = config.acs()?;
    let redirects_request = acs & REQUEST_REDIRECT != 0;
    let redirects_completion = acs & COMPLETION_REDIRECT != 0;
    if !redirects_request && !redirects_completion {
        return None;
    }
    // It must come back the way that it went.
    let works = |relaxed: bool| {
        let ats = relaxed && acs & DIRECT_TRANSLATED != 0 && ats(host, nic);
        (redirects_request && !ats) == (redirects_completion && !relaxed)
    };
    Some(Redirect {
        port: port.to_owned(),
        relaxed: works(relaxed_reads(host, nic)),
        strict: works(false),
    })
}

/// Whether reads can have relaxed ordering. The NIC must also be capable, which
/// nothing tells. A virtual function has no setting of its own.
fn relaxed_reads(host: &Host, nic: &Device) -> bool {
    let physical = host.leads_to(&nic.file("physfn"));
    let config = Config::read(host, physical.as_deref().unwrap_or(&nic.address));
    config.is_some_and(|config| config.relaxed_ordering())
}

/// Whether memory that is registered with relaxed ordering gets ATS, if the port
/// lets translated requests go straight to a peer.
fn ats(host: &Host, nic: &Device) -> bool {
    let translated = nic.iommu.as_deref();
    translated.is_some_and(|kind| kind.starts_with("DMA"))
        && Config::read(host, &nic.address).is_some_and(|config| config.ats())
}
