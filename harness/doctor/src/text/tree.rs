//! Draws the tree of relevant devices and their bridges.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use console::Style;

use super::Paper;
use crate::config::{Acs, REDIRECTS};
use crate::host::{Address, Device, Host, size};
use crate::obstacle::bits;
use crate::report::{DeviceKind, Report};
use crate::words;

/// The children of host bridges and of bridges.
#[derive(Default)]
struct Tree {
    roots: BTreeMap<String, BTreeSet<Address>>,
    below: BTreeMap<Address, BTreeSet<Address>>,
}

/// Draws the tree.
pub fn draw(host: &Host, report: &Report, paper: Paper, text: &mut String) {
    let mut tree = Tree::default();
    for told in &report.devices {
        let device = Address::parse(&told.address).and_then(|at| host.devices.get(&at));
        let Some(device) = device else { continue };
        if let Some(first) = device.path.first() {
            let root = tree.roots.entry(device.root.clone()).or_default();
            root.insert(*first);
        }
        for pair in device.path.windows(2) {
            tree.below.entry(pair[0]).or_default().insert(pair[1]);
        }
    }
    for (root, children) in &tree.roots {
        let ids = host.host_bridge(root).map_or(String::new(), |bridge| {
            format!(" host bridge {}", bridge.ids())
        });
        let _ = writeln!(text, "{root}{}", paper.dim(&ids));
        branch(host, report, &tree, children, "", paper, text);
    }
}

fn branch(
    host: &Host,
    report: &Report,
    tree: &Tree,
    children: &BTreeSet<Address>,
    before: &str,
    paper: Paper,
    text: &mut String,
) {
    for (n, address) in children.iter().enumerate() {
        let is_last = n + 1 == children.len();
        let (corner, trunk) = if is_last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        let what = label(host, report, *address, paper);
        let _ = writeln!(text, "{before}{corner}{address} {what}");
        if let Some(below) = tree.below.get(address) {
            let before = format!("{before}{trunk}");
            branch(host, report, tree, below, &before, paper, text);
        }
    }
}

fn label(host: &Host, report: &Report, address: Address, paper: Paper) -> String {
    let Some(device) = host.devices.get(&address) else {
        return paper.dim("(not in the picture)");
    };
    let told = report.devices.iter();
    let told = told
        .clone()
        .find(|told| told.address == address.to_string());
    let mut label = match told {
        None => paper.dim(words::bridge(device)),
        Some(told) => {
            let kind = match told.kind {
                DeviceKind::Gpu => "GPU",
                DeviceKind::Nic => "NIC",
                DeviceKind::Nvme => "NVMe",
            };
            let mut words = paper.bold(kind);
            for verbs in &told.verbs {
                let _ = write!(words, " {verbs}");
            }
            let driver = told.driver.as_deref().unwrap_or("no driver");
            let _ = write!(words, " {} {driver}", told.ids);
            if let Some(bar) = told.bar.filter(|bar| *bar > 0) {
                let _ = write!(words, ", BAR {}", size(bar));
            }
            if let Some(memory) = told.memory {
                let _ = write!(words, " of {}", size(memory));
            }
            words
        }
    };
    if !device.link.is_empty() {
        label.push_str(&paper.dim(&format!(", {}", device.link)));
    }
    label.push_str(&acs(device, paper));
    label
}

fn acs(device: &Device, paper: Paper) -> String {
    match device.config.acs() {
        Acs::Control(control) if control & REDIRECTS != 0 => {
            let what = format!("  ACS redirects: {}", bits(control));
            paper.style(Style::new().red(), &what)
        }
        Acs::Unreadable if device.is_bridge() => paper.dim("  ACS not readable as this user"),
        _ => String::new(),
    }
}
