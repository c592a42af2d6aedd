//! Words for numbers and codes of the kernel and the bus.

use crate::config::Port;
use crate::host::{Device, Host};
use crate::rules::Route;

/// The kind of a bridge.
pub fn bridge(device: &Device) -> &'static str {
    match device.config.port() {
        Some(Port::Root) => "root port",
        Some(Port::Upstream) => "switch",
        Some(Port::Downstream) => "switch port",
        Some(Port::Other) | None if device.is_bridge() => "bridge",
        _ => "device",
    }
}

/// The path from one device to another.
pub fn path(host: &Host, route: &Route, provider: &Device, client: &Device) -> String {
    if let Some(common) = route.common {
        let what = host.devices.get(&common).map_or("bridge", bridge);
        let up = if route.redirects.is_empty() {
            String::new()
        } else {
            format!(", but up to {}", provider.root)
        };
        return format!("{what} {common}{up}");
    }
    let (a, b) = (&provider.root, &client.root);
    if a == b {
        return format!("host bridge {a}");
    }
    match (provider.node, client.node) {
        (Some(x), Some(y)) if x != y => {
            format!("across sockets: {a} (node {x}), {b} (node {y})")
        }
        _ => format!("host bridges {a}, {b}"),
    }
}

/// The meaning of a result of the series.
pub fn result(name: &str) -> &'static str {
    match name {
        "bus_addr" => "reached in place, below a common switch",
        "host_bridge" => "reached in place, through the host bridge",
        "no_op" => "the GPU's driver does not tell peers where a page is",
        "no_alias" => "the page had no place in the BAR, for instance because that is small",
        "unregistered" => "a fault of the GPU's driver: a place outside of what it registered",
        "topology" => {
            "p2pdma knows no path between the devices, or the NIC cannot address the BAR, or has \
             to bounce (swiotlb=force)"
        }
        "policy" => "the policy forbids it",
        "read_only" => "write access to a page that is read-only, or userfaultfd tracks the page",
        "map_failed" => "the DMA mapping failed",
        _ => "",
    }
}
