//! Draws the topologies of `qemu/topologies` as trees, with the ways that the demo used.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::picture::{Kind, Node, Picture, Route, Way};
use crate::report::{Report, Row};

/// The fields of a topology that the drawing needs. The tool checks all fields.
#[derive(Deserialize)]
struct Topology {
    #[serde(skip)]
    name: String,
    summary: String,
    cpu: String,
    #[serde(default)]
    iommu: bool,
    devices: Vec<String>,
    gpus: Vec<Gpu>,
    nics: Vec<Nic>,
    expect: String,
}

#[derive(Deserialize)]
struct Gpu {
    bus: String,
    vram: String,
}

#[derive(Deserialize)]
struct Nic {
    bus: String,
}

/// The pictures of all topologies: the demo's first, in its order, then the others by name.
pub fn pictures(root: &Path, report: &Report) -> Result<Vec<Picture>> {
    let dir = root.join("qemu/topologies");
    let mut all = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
        let file = entry?.path();
        if file.extension().is_none_or(|end| end != "toml") {
            continue;
        }
        let mut topology: Topology = host::settings::read(&file)?;
        let name = file.file_stem().unwrap_or_default();
        topology.name = name.to_string_lossy().into_owned();
        all.push(topology);
    }
    let place = |topology: &Topology| {
        let place = report.rows().position(|row| row.topology == topology.name);
        (place.unwrap_or(usize::MAX), topology.name.clone())
    };
    all.sort_by_cached_key(place);
    let picture = |topology: &Topology| {
        let rows = report.rows().filter(|row| row.topology == topology.name);
        topology.picture(&Vec::from_iter(rows))
    };
    Ok(all.iter().map(picture).collect())
}

/// QEMU's name of the first host bridge.
const ROOT: &str = "pcie.0";

/// The value of `key=` in an argument of `-device`.
fn property<'a>(device: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = device.split(',').filter_map(|part| part.split_once('='));
    pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
}

impl Topology {
    /// The machine's tree: the host, host bridges, ports and switches, devices.
    fn tree(&self) -> Node {
        let mut host = Node::new("host", Kind::Host, &[&format!("{}, host memory", self.cpu)]);
        let iommu = if self.iommu { " and IOMMU" } else { "" };
        let bridge = format!("host bridge{iommu}");
        host.children
            .push(Node::new(ROOT, Kind::Bridge, &[&bridge]));
        for device in &self.devices {
            let driver = device.split(',').next().unwrap_or_default();
            let (Some(id), Some(bus)) = (property(device, "id"), property(device, "bus")) else {
                // An IOMMU. No device can be below it.
                continue;
            };
            if driver == "pxb-pcie" {
                let text = format!("host bridge {id}");
                host.children.push(Node::new(id, Kind::Bridge, &[&text]));
                continue;
            }
            let text = match driver {
                "x3130-upstream" => format!("switch {id}"),
                _ => format!("port {id}"),
            };
            if let Some(above) = host.find(bus) {
                above.children.push(Node::new(id, Kind::Bridge, &[&text]));
            }
        }
        let gpus = self.gpus.iter().zip(0..).map(|(gpu, number)| {
            let text = [&*format!("GPU {number}"), &*format!("VRAM {}", gpu.vram)];
            (&gpu.bus, Node::new(&id_of_gpu(number), Kind::Gpu, &text))
        });
        let nics = self.nics.iter().zip(0..).map(|(nic, number)| {
            let text = format!("NIC {number}");
            (
                &nic.bus,
                Node::new(&id_of_nic(number), Kind::Client, &[&text]),
            )
        });
        for (bus, node) in gpus.chain(nics) {
            if let Some(above) = host.find(bus) {
                above.children.push(node);
            }
        }
        host
    }

    /// The ways between each GPU and the first NIC: from the demo's rows, or else the one
    /// that the topology's tests expect.
    fn ways(&self, rows: &[&Row]) -> Vec<Way> {
        let expected = Vec::from_iter(self.expect.split(',').map(|word| match word {
            "bus_addr" => Route::Bus,
            "host_bridge" if self.iommu => Route::Translated,
            "host_bridge" => Route::HostBridge,
            _ => Route::Host,
        }));
        let all_reached = expected.iter().all(|route| *route != Route::Host);
        let mut ways = Vec::new();
        for (number, expected) in expected.iter().enumerate() {
            let mut seen: Vec<(Route, Vec<&str>)> = Vec::new();
            for row in rows {
                let (first, is_mixed) = route(&row.map_type);
                // These pages belong to a GPU that the NIC does not reach, or have no alias.
                let falls_back = is_mixed && (all_reached || *expected == Route::Host);
                let reached = (all_reached || *expected != Route::Host).then_some(first);
                let host = (falls_back || first == Some(Route::Host)).then_some(Route::Host);
                for route in reached.flatten().into_iter().chain(host) {
                    match seen.iter_mut().find(|(other, _)| *other == route) {
                        Some((_, devices)) if devices.contains(&&*row.devices) => {}
                        Some((_, devices)) => devices.push(&row.devices),
                        None => seen.push((route, vec![&row.devices])),
                    }
                }
            }
            let between = match self.gpus.len() {
                1 => String::new(),
                _ => format!("GPU {number}: "),
            };
            let mut add = |route, is_seen, what: &str| {
                ways.push(Way {
                    gpu: id_of_gpu(number),
                    client: id_of_nic(0),
                    route,
                    is_seen,
                    words: format!("{between}{what}"),
                });
            };
            for (route, devices) in &seen {
                add(*route, true, &devices.join(", "));
            }
            if seen.is_empty() {
                add(*expected, false, "expected; the demo did not run here");
            }
        }
        ways
    }

    /// The machine with the ways from these rows.
    fn picture(&self, rows: &[&Row]) -> Picture {
        Picture::new(&self.name, &self.summary, &self.tree(), &self.ways(rows))
    }
}

/// The route of a map type in the demo's table, and whether some pages fell back.
fn route(map_type: &str) -> (Option<Route>, bool) {
    let (name, is_mixed) = match map_type.strip_suffix(", mixed") {
        Some(name) => (name, true),
        None => (map_type, false),
    };
    let routes = [
        Route::Bus,
        Route::HostBridge,
        Route::Translated,
        Route::Host,
    ];
    let route = routes.into_iter().find(|route| route.name() == name);
    (route, is_mixed)
}

fn id_of_gpu(number: usize) -> String {
    format!("gpu{number}")
}

fn id_of_nic(number: usize) -> String {
    format!("nic{number}")
}
