//! Arguments of the kernel parameters that change ACS. The kernel's
//! Documentation/admin-guide/kernel-parameters.txt defines them.

use std::collections::BTreeMap;

use crate::config::REDIRECTS;
use crate::host::Address;

/// The number of ACS controls that `config_acs=` knows.
const CONTROLS: usize = 7;

/// Ports that redirect, and their ACS controls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports(BTreeMap<Address, u16>);

impl Ports {
    /// Adds those of the ports that redirect.
    pub fn add(&mut self, ports: &[(Address, u16)]) {
        let redirecting = ports.iter().filter(|(_, acs)| acs & REDIRECTS != 0);
        self.0.extend(redirecting.copied());
    }

    /// Adds the ports of another obstacle.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The argument that stops redirection, for Linux 4.19 or newer.
    pub fn disable_acs_redir(&self) -> Option<String> {
        self.list("disable_acs_redir", |port, _| port.to_string())
    }

    /// The argument that stops redirection and keeps the other controls.
    pub fn config_acs(&self) -> Option<String> {
        self.list("config_acs", |port, acs| format!("{}@{port}", flags(acs)))
    }

    fn list(&self, name: &str, entry: impl Fn(Address, u16) -> String) -> Option<String> {
        let ports: Vec<_> = self
            .0
            .iter()
            .map(|(port, acs)| entry(*port, *acs))
            .collect();
        (!ports.is_empty()).then(|| format!("pci={name}={}", ports.join(";")))
    }
}

/// The flags of a port, the highest control first. With `x`, the kernel takes the control from
/// the firmware and drops its own default. So `x` is only for controls that are off.
fn flags(acs: u16) -> String {
    let controls = (0..CONTROLS).rev().map(|bit| 1 << bit);
    let flag = |bit| match () {
        () if REDIRECTS & bit != 0 => '0',
        () if acs & bit != 0 => '1',
        () => 'x',
    };
    controls.map(flag).collect()
}
