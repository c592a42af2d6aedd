//! Compares the doctor with `rdma_topo check` of rdma-core 691953d8d, whose results for the
//! host "inline" are recorded here. It checks ACS on NVIDIA's platforms only.

use common::{ACS_CONTROL, Changed};
use doctor::report::{Code, PairKind, Works};
use doctor::rules::Verdict;

mod common;

const NIC_PORT: &str = "0000:02:00.0";
const GPU_PORT: &str = "0000:02:01.0";
const LOWER_PORT: &str = "0000:05:00.0";
const ROOT_PORT: &str = "0000:00:01.0";
const PORTS: [&str; 4] = [NIC_PORT, GPU_PORT, LOWER_PORT, ROOT_PORT];
const SWITCH_PORTS: [&str; 3] = [NIC_PORT, GPU_PORT, LOWER_PORT];

/// ACS control of each of `PORTS`, and the ports whose ACS `check --no-virt` and `check --virt`
/// call incorrect.
type Row = ([u8; 4], &'static [&'static str], &'static [&'static str]);

const CHECKED: [Row; 10] = [
    ([0x00; 4], &[], &PORTS),
    // What Linux sets if there is an IOMMU, and the same with direct translated P2P.
    ([0x1d; 4], &PORTS, &[NIC_PORT]),
    ([0x5d, 0x1d, 0x1d, 0x1d], &PORTS, &[]),
    // What the doctor's config_acs= makes of it.
    ([0x11, 0x11, 0x11, 0x1d], &PORTS, &SWITCH_PORTS),
    ([0x1d, 0, 0, 0], &[NIC_PORT], &PORTS),
    (
        [0, 0x1d, 0, 0],
        &[GPU_PORT],
        &[NIC_PORT, LOWER_PORT, ROOT_PORT],
    ),
    (
        [0, 0, 0x1d, 0],
        &[LOWER_PORT],
        &[NIC_PORT, GPU_PORT, ROOT_PORT],
    ),
    ([0x04, 0, 0, 0], &[NIC_PORT], &PORTS),
    ([0x08, 0, 0, 0], &[NIC_PORT], &PORTS),
    ([0, 0, 0, 0x1d], &[ROOT_PORT], &SWITCH_PORTS),
];

#[test]
fn the_doctor_agrees_with_rdma_topo() {
    for (controls, without_guests, with_guests) in CHECKED {
        let mut host = Changed(common::picture("inline"));
        for (port, control) in PORTS.iter().zip(controls) {
            host = host.with(port, ACS_CONTROL, &[control]);
        }
        let (report, text) = common::report(host.0);
        let pair = report.pairs.iter().find(|p| p.kind == PairKind::GpuNic);
        let pair = pair.unwrap();
        let codes: Vec<_> = report.obstacles.iter().map(|o| o.code).collect();
        let is_limited = |code| codes.contains(&code);
        let at = format!("{controls:x?}\n{text}");
        if without_guests.is_empty() {
            assert_eq!(pair.verdict, Verdict::BusAddr, "{at}");
            assert!(!is_limited(Code::Ordering), "{at}");
        }
        // Then it is up to the NIC to use translated requests. p2pdma does not know of them.
        if with_guests.is_empty() {
            assert_eq!(pair.verdict, Verdict::ThruHostBridge, "{at}");
            assert!(!is_limited(Code::Ordering), "{at}");
        }
        if without_guests.is_empty() || with_guests.is_empty() {
            assert_eq!(pair.in_place, Some(Works::Yes), "{at}");
        }
        // Both name the same ports, except that rdma_topo also wants the root port, source
        // validation and upstream forwarding off. These do not redirect between the two.
        let redirects = |port| {
            let place = PORTS.iter().position(|other| *other == port).unwrap();
            controls[place] & 0x0c != 0
        };
        let theirs = without_guests.iter().filter(|port| **port != ROOT_PORT);
        let theirs: Vec<_> = theirs.copied().filter(|port| redirects(*port)).collect();
        let ours = pair.parameter.as_deref().unwrap_or_default();
        let ours = ours.trim_start_matches("pci=disable_acs_redir=").split(';');
        let ours: Vec<_> = ours.filter(|port| !port.is_empty()).collect();
        assert_eq!(ours, theirs, "{at}");
    }
}
