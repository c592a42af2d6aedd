//! The kernel's rules: predicts what calc_map_type_and_dist() in drivers/pci/p2pdma.c
//! finds for two devices. The kernel makes the decision.

use serde::Serialize;

use crate::config::{Acs, REDIRECTS};
use crate::host::{Address, Device, Host};
use crate::known::{Forwards, Known};

/// p2pdma's result, with the kernel's names without PCI_P2PDMA_MAP_.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Verdict {
    /// Below a common switch, with the peer's bus address.
    BusAddr,
    /// Through the host bridge, which forwards.
    ThruHostBridge,
    /// No path.
    NotSupported,
    /// It depends on something that cannot be read.
    Unknown,
}

impl Verdict {
    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::BusAddr => "BUS_ADDR",
            Self::ThruHostBridge => "THRU_HOST_BRIDGE",
            Self::NotSupported => "NOT_SUPPORTED",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// A host bridge that does not forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its name in sysfs.
    pub root: String,
    /// The IDs of the device that represents it.
    pub ids: Option<String>,
    /// It is on the list, but only for devices below it.
    pub only_within: bool,
}

/// The path from one device to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// p2pdma's result.
    pub verdict: Verdict,
    /// The possible results, if the result is unknown.
    pub possible: Vec<Verdict>,
    /// The lowest device above both: a switch's upstream port, a root port, ...
    pub common: Option<Address>,
    /// The devices on the path where ACS redirects, and their ACS controls.
    pub redirects: Vec<(Address, u16)>,
    /// The devices on the path whose ACS cannot be read.
    pub hidden: Vec<Address>,
    /// Host bridges that do not forward between the two.
    pub refusals: Vec<Refusal>,
    /// The number of ports between them, by the kernel's count.
    pub distance: usize,
}

/// Finds the path.
pub fn route(host: &Host, known: &Known, provider: &Device, client: &Device) -> Route {
    let shared = if provider.root == client.root {
        let pairs = provider.path.iter().zip(&client.path);
        pairs.take_while(|(a, b)| a == b).count()
    } else {
        0
    };
    let below = |path: &[Address]| path.len() - shared;
    let mut route = Route {
        verdict: Verdict::NotSupported,
        possible: Vec::new(),
        common: shared.checked_sub(1).map(|last| provider.path[last]),
        redirects: Vec::new(),
        hidden: Vec::new(),
        refusals: Vec::new(),
        distance: below(&provider.path) + below(&client.path),
    };
    // From the provider up to and including the common device, then from the client up to
    // but not including it.
    let first = shared.saturating_sub(1);
    let on_the_way = provider.path[first..].iter().rev();
    let on_the_way = on_the_way.chain(client.path[shared..].iter().rev());
    for address in on_the_way {
        let acs = host.devices.get(address).map(|device| device.config.acs());
        match acs.unwrap_or(Acs::Unreadable) {
            Acs::Control(control) if control & REDIRECTS != 0 => {
                route.redirects.push((*address, control));
            }
            Acs::Control(_) => {}
            Acs::Unreadable => route.hidden.push(*address),
        }
    }
    let through = through_host_bridge(host, known, provider, client, &mut route);
    let has_short_way = route.common.is_some();
    let mut possible = Vec::new();
    if has_short_way && route.redirects.is_empty() {
        possible.push(Verdict::BusAddr);
    }
    let is_certain = possible.len() == 1 && route.hidden.is_empty();
    if !is_certain {
        possible.extend(through);
    }
    if let [verdict] = possible[..] {
        route.verdict = verdict;
    } else {
        route.verdict = Verdict::Unknown;
        route.possible = possible;
    }
    if !has_short_way {
        // Without a short path, these have no effect.
        route.redirects.clear();
        route.hidden.clear();
    }
    route
}

/// The possible results for a request that reaches the host bridge.
fn through_host_bridge(
    host: &Host,
    known: &Known,
    provider: &Device,
    client: &Device,
    route: &mut Route,
) -> Vec<Verdict> {
    if host.cpu.forwards() {
        return vec![Verdict::ThruHostBridge];
    }
    let is_same = provider.root == client.root;
    for root in [&provider.root, &client.root] {
        let bridge = host.host_bridge(root);
        let forwards = bridge.map_or(Forwards::No, |bridge| {
            known.list.forwards(bridge.vendor, bridge.device)
        });
        let does = match forwards {
            Forwards::No => false,
            Forwards::Within => is_same,
            Forwards::Everywhere => true,
        };
        let refusal = Refusal {
            root: root.clone(),
            ids: bridge.map(Device::ids),
            only_within: forwards == Forwards::Within,
        };
        if !does && !route.refusals.contains(&refusal) {
            route.refusals.push(refusal);
        }
    }
    let is_known = |refusal: &Refusal| host.is_bridge_known(&refusal.root);
    if route.refusals.is_empty() {
        vec![Verdict::ThruHostBridge]
    } else if host.cpu.is_known && route.refusals.iter().any(is_known) {
        vec![Verdict::NotSupported]
    } else {
        vec![Verdict::ThruHostBridge, Verdict::NotSupported]
    }
}
