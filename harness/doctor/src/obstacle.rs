//! Collects obstacles. An obstacle of many pairs is reported once.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{COMPLETION_REDIRECT, EGRESS_CONTROL, REQUEST_REDIRECT};
use crate::parameter::Ports;
use crate::report::{Code, Effect, Obstacle};
use crate::rules::Route;

/// Replaces a pair's number for an obstacle of a device without a peer.
pub const NO_PAIR: usize = usize::MAX;

/// The sentence for an obstacle.
fn what(code: Code) -> &'static str {
    match code {
        Code::GuestHidesTopology => {
            "a guest that hides its topology: this is a virtual machine, and it shows no bridges \
             above these devices; what is between them in the host is not to be seen here"
        }
        Code::KernelOption => "options of the kernel are off",
        Code::AcsRedirect => {
            "ACS redirects peer-to-peer requests at switch ports, so they go up to the host \
             bridge (the kernel's default where there is an IOMMU)"
        }
        Code::AcsUnreadable => "ACS settings are not readable as this user",
        Code::HostBridgeUnknown => {
            "the host bridge is not on the kernel's list of those that forward between devices"
        }
        Code::HostBridgeOnlyWithin => {
            "the host bridge is on the kernel's list only for devices below one and the same \
             host bridge"
        }
        Code::HostBridgeUnreadable => "the host bridge cannot be identified",
        Code::CpuUnreadable => "the CPU's vendor and family are not known",
        Code::DmaMask => "the device cannot put out an address as high as the peer's BAR",
        Code::Bounce => "the kernel has all devices bounce",
        Code::BarMissing => "the BAR that shows the GPU's memory has no address",
        Code::SeriesAbsent => "the kernel does not have the series",
        Code::Policy => "the policy forbids it",
        Code::Driver => "a driver that cannot do it is bound",
        Code::Generation => "the driver does not let peers reach this GPU's memory",
        Code::NoDriver => "no driver is bound",
        Code::NoNic => "no RDMA device is visible",
        Code::NoVerbs => "there is no RDMA device for it",
        Code::Ordering => "mlx5 does not use all of this path",
        Code::BarSmall => "the BAR shows only a part of the GPU's memory",
        Code::MemoryUnknown => "the size of the GPU's memory cannot be read",
        Code::BarWindows => "peers reach a part of the GPU's memory at a time",
        Code::ThroughHostBridge => "there is no common switch: requests pass the host bridge",
        Code::OtherSocket => "the devices are on different sockets",
        Code::Iommu => "the IOMMU translates",
        Code::DataDirect => {
            "the ConnectX has a DMA function of its own to reach GPUs with, which a driver may use \
             in place of the NIC's"
        }
        Code::OptionsUnreadable => "the kernel's configuration cannot be read",
    }
}

/// The names of ACS control bits in the PCIe specification.
pub fn bits(control: u16) -> String {
    let names = [
        (REQUEST_REDIRECT, "requests"),
        (COMPLETION_REDIRECT, "completions"),
        (EGRESS_CONTROL, "egress control"),
    ];
    let set = names.iter().filter(|(bit, _)| control & bit != 0);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

/// The ports of a path that redirect.
pub fn redirecting(route: &Route) -> Ports {
    let mut ports = Ports::default();
    ports.add(&route.redirects);
    ports
}

#[derive(Default)]
struct Group {
    at: BTreeSet<String>,
    ports: Ports,
    pairs: BTreeSet<usize>,
}

/// The obstacles found so far.
#[derive(Default)]
pub struct Obstacles {
    groups: BTreeMap<(Effect, Code, String), Group>,
}

impl Obstacles {
    /// Adds an obstacle of a pair.
    pub fn add(&mut self, pair: usize, code: Code, effect: Effect, at: &str, next: &str) {
        let key = (effect, code, next.to_owned());
        let group = self.groups.entry(key).or_default();
        group.pairs.insert(pair);
        if !at.is_empty() {
            group.at.insert(at.to_owned());
        }
    }

    /// Adds the ports that redirect.
    pub fn add_redirects(&mut self, pair: usize, effect: Effect, route: &Route, next: &str) {
        for (port, control) in &route.redirects {
            let at = format!("{port} ({})", bits(*control));
            self.add(pair, Code::AcsRedirect, effect, &at, next);
        }
        self.add_ports(Code::AcsRedirect, effect, redirecting(route), next);
    }

    /// Adds ports that should be changed to an obstacle.
    pub fn add_ports(&mut self, code: Code, effect: Effect, ports: Ports, next: &str) {
        let key = (effect, code, next.to_owned());
        if let Some(group) = self.groups.get_mut(&key) {
            group.ports.extend(ports);
        }
    }

    /// All obstacles for pairs with these names, the most important first. Also returns
    /// the obstacles of each pair.
    pub fn ranked(self, names: &[String]) -> (Vec<Obstacle>, Vec<Vec<usize>>) {
        let mut groups: Vec<_> = self.groups.into_iter().collect();
        groups.sort_by_key(|((effect, code, _), group)| {
            (*effect, std::cmp::Reverse(group.pairs.len()), *code)
        });
        let mut of_pairs = vec![Vec::new(); names.len()];
        let mut obstacles = Vec::new();
        for (id, ((effect, code, next), group)) in (1..).zip(groups) {
            for pair in &group.pairs {
                if let Some(list) = of_pairs.get_mut(*pair) {
                    list.push(id);
                }
            }
            let pairs = group.pairs.iter().filter_map(|pair| names.get(*pair));
            obstacles.push(Obstacle {
                id,
                code,
                effect,
                what: what(code).to_owned(),
                at: group.at.into_iter().collect(),
                next,
                parameter: group.ports.disable_acs_redir(),
                config_acs: group.ports.config_acs(),
                pairs: pairs.cloned().collect(),
            });
        }
        (obstacles, of_pairs)
    }
}
