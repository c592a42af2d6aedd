//! The arguments that the doctor prints for the kernel's command line: applied as the kernel
//! applies them, they remove what they are printed for.

use common::{ACS_CONTROL, Changed, GPU_PORT, NIC_PORT};
use doctor::capture;
use doctor::picture::Entry;
use doctor::report::{Code, Effect, Obstacle, PairKind, Report};
use doctor::rules::Verdict;

mod common;

const SOURCE_VALIDATION: u16 = 0x01;
const REQUESTS: u16 = 0x04;
const COMPLETIONS: u16 = 0x08;
const FORWARDING: u16 = 0x10;
const EGRESS: u16 = 0x20;
const TRANSLATED: u16 = 0x40;
const BOTH: u16 = REQUESTS | COMPLETIONS;
/// What Linux enables if there is an IOMMU: pci_std_enable_acs()
const LINUX: u16 = SOURCE_VALIDATION | REQUESTS | COMPLETIONS | FORWARDING;

/// The ACS controls of the ports above NIC and GPU.
type Controls = [(&'static str, u16); 2];

fn report(controls: Controls, cpu: &str) -> Report {
    let mut host = Changed::redirecting(0);
    for (port, control) in controls {
        host = host.with(port, ACS_CONTROL, &control.to_le_bytes());
    }
    let cpu = Entry::Text(format!("vendor_id : {cpu}\ncpu family : 25"));
    host.0.put(capture::CPU, cpu);
    common::report(host.0).0
}

fn obstacle(report: &Report, code: Code) -> Option<&Obstacle> {
    report.obstacles.iter().find(|o| o.code == code)
}

/// A port's control after boot with a parameter, as __pci_config_acs() sets it. The firmware
/// has set `firmware`, and the kernel's default would be `default`.
fn booted(argument: &str, port: &str, firmware: u16, default: u16) -> u16 {
    if let Some(ports) = argument.strip_prefix("pci=disable_acs_redir=") {
        let named = ports.split(';').any(|named| named == port);
        let kept = !(REQUESTS | COMPLETIONS | EGRESS);
        return if named { firmware & kept } else { default };
    }
    let ports = argument.strip_prefix("pci=config_acs=").unwrap();
    let entries = ports.split(';').map(|entry| entry.split_once('@').unwrap());
    for (flags, named) in entries {
        assert_eq!(flags.len(), 7, "{argument}");
        if named == port {
            let bits = flags.bytes().rev().enumerate();
            return bits.fold(firmware, |control, (bit, flag)| match flag {
                b'0' => control & !(1 << bit),
                b'1' => control | 1 << bit,
                b'x' => control,
                _ => panic!("{argument}"),
            });
        }
    }
    default
}

/// All arguments for ports with these controls must do what they are for.
fn check(controls: Controls, cpu: &str) -> usize {
    let before = report(controls, cpu);
    let mut checked = 0;
    for code in [Code::AcsRedirect, Code::Ordering] {
        let Some(obstacle) = obstacle(&before, code) else {
            continue;
        };
        for argument in [&obstacle.parameter, &obstacle.config_acs]
            .into_iter()
            .flatten()
        {
            for firmware in [u16::MAX, !LINUX] {
                let after_controls = controls
                    .map(|(port, found)| (port, booted(argument, port, found & firmware, found)));
                let at = format!("{controls:x?} {cpu} {argument} {after_controls:x?}");
                let after = report(after_controls, cpu);
                let pair = after
                    .pairs
                    .iter()
                    .find(|p| p.kind == PairKind::GpuNic)
                    .unwrap();
                let ordering = self::obstacle(&after, Code::Ordering);
                let [nic, gpu] = after_controls.map(|(_, control)| control & BOTH);
                assert_eq!(nic, gpu, "{at}");
                match code {
                    Code::AcsRedirect => assert_eq!(pair.verdict, Verdict::BusAddr, "{at}"),
                    // What remains is a matter of memory with relaxed ordering.
                    _ => assert!(
                        ordering
                            .is_none_or(|o| o.effect == Effect::Limits && o.parameter.is_none()),
                        "{at}: {ordering:?}"
                    ),
                }
                checked += 1;
            }
        }
    }
    checked
}

#[test]
fn each_argument_does_what_it_is_printed_for() {
    let mut checked = 0;
    for set in 0..16 {
        let bits = [
            SOURCE_VALIDATION | FORWARDING,
            REQUESTS,
            COMPLETIONS,
            EGRESS,
        ];
        let on = bits.iter().enumerate().filter(|(n, _)| set & (1 << n) != 0);
        let nic = on.fold(0, |all, (_, bit)| all | bit);
        for gpu in [0, LINUX, COMPLETIONS | EGRESS] {
            checked += check([(NIC_PORT, nic), (GPU_PORT, gpu)], "AuthenticAMD");
        }
    }
    // Without a path through the host bridge, mlx5 has nothing to say.
    checked += check([(NIC_PORT, LINUX), (GPU_PORT, LINUX)], "GenuineIntel");
    assert!(checked > 200, "{checked}");
}

#[test]
fn flags_keep_what_does_not_redirect() {
    for (control, expected) in [
        (LINUX, "x0100x1"),
        (LINUX | TRANSLATED, "10100x1"),
        (REQUESTS, "x0x00xx"),
    ] {
        let report = report([(NIC_PORT, control), (GPU_PORT, 0)], "GenuineIntel");
        let said = obstacle(&report, Code::AcsRedirect).unwrap();
        let expected = format!("pci=config_acs={expected}@{NIC_PORT}");
        assert_eq!(said.config_acs, Some(expected), "{control:#x}");
    }
    // mlx5 requires that all ports are alike, so this is about the port without EC, too.
    let controls = [(NIC_PORT, LINUX | EGRESS), (GPU_PORT, LINUX)];
    let report = report(controls, "AuthenticAMD");
    let said = obstacle(&report, Code::Ordering).unwrap();
    let expected = format!("pci=config_acs=x0100x1@{GPU_PORT};x0100x1@{NIC_PORT}");
    assert_eq!(said.config_acs, Some(expected));
}
