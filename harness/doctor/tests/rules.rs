//! Tests each rule of p2pdma on the host "switch", whose host bridge does not forward.

use common::{Changed, EXTENDED, GPU, GPU_PORT, NIC, NIC_PORT, ROOT_PORT, SWITCH};
use doctor::picture::Entry;
use doctor::report::{Code, PairKind, Works};
use doctor::rules::Verdict;
use doctor::{Picture, capture};

mod common;

/// The result for GPU and NIC, and the ports that it names.
fn verdict(picture: Picture) -> (Verdict, String) {
    let (report, _) = common::report(picture);
    let mut pairs = report.pairs.into_iter();
    let pair = pairs.find(|pair| pair.kind == PairKind::GpuNic).unwrap();
    let parameter = pair.parameter.unwrap_or_default();
    (
        pair.verdict,
        parameter.replace("pci=disable_acs_redir=", ""),
    )
}

/// Sets the ACS control register of a device.
fn acs(device: &str, control: u8) -> Picture {
    let capability = [0x0d, 0, 1, 0, 0x7f, 0, control, 0];
    Changed(common::picture("switch"))
        .with(device, EXTENDED, &capability)
        .0
}

#[test]
fn three_bits_of_acs_redirect() {
    for bit in 0..7 {
        let expected = match bit {
            2 | 3 | 5 => (Verdict::NotSupported, NIC_PORT.to_owned()),
            _ => (Verdict::BusAddr, String::new()),
        };
        assert_eq!(verdict(acs(NIC_PORT, 1 << bit)), expected, "bit {bit}");
    }
}

#[test]
fn every_device_on_the_way_can_redirect_and_none_above() {
    for device in [GPU, GPU_PORT, SWITCH, NIC_PORT, NIC] {
        let expected = (Verdict::NotSupported, device.to_owned());
        assert_eq!(verdict(acs(device, 0x04)), expected);
    }
    assert_eq!(verdict(acs(ROOT_PORT, 0x04)).0, Verdict::BusAddr);
    assert_eq!(verdict(acs("0000:02:02.0", 0x04)).0, Verdict::BusAddr);
}

#[test]
fn ports_are_named_as_the_kernel_does() {
    // From the GPU up to the common device, then from the NIC.
    let redirecting = common::picture("switch-acs");
    assert_eq!(verdict(redirecting).1, format!("{GPU_PORT};{NIC_PORT}"));
}

#[test]
fn zen_forwards_and_what_is_like_it_does_not() {
    for (cpu, expected) in [
        (
            "vendor_id : AuthenticAMD\ncpu family : 22",
            Verdict::NotSupported,
        ),
        (
            "vendor_id : AuthenticAMD\ncpu family : 23",
            Verdict::ThruHostBridge,
        ),
        (
            "vendor_id : AuthenticAMD\ncpu family : 26",
            Verdict::ThruHostBridge,
        ),
        (
            "vendor_id : HygonGenuine\ncpu family : 24",
            Verdict::NotSupported,
        ),
        (
            "vendor_id : GenuineIntel\ncpu family : 25",
            Verdict::NotSupported,
        ),
        ("", Verdict::NotSupported),
    ] {
        let mut picture = acs(NIC_PORT, 0x1d);
        picture.put(capture::CPU, Entry::Text(cpu.to_owned()));
        assert_eq!(verdict(picture).0, expected, "{cpu}");
    }
    // Without /proc/cpuinfo, the CPU is unknown.
    let mut picture = acs(NIC_PORT, 0x1d);
    picture.folders.get_mut("/proc").unwrap().remove("cpuinfo");
    assert_eq!(verdict(picture.clone()).0, Verdict::Unknown);
    let (report, text) = common::report(picture);
    let codes = report.obstacles.iter().map(|obstacle| obstacle.code);
    assert_eq!(codes.filter(|code| *code == Code::CpuUnreadable).count(), 1);
    assert!(text.contains("have /proc/cpuinfo"), "{text}");
}

#[test]
fn the_list_has_entries_for_a_vendor_and_for_devices() {
    for (vendor, device, expected) in [
        ("0x8086", "0x2030", Verdict::ThruHostBridge),
        ("0x8086", "0x2034", Verdict::NotSupported),
        // This entry is for devices below the same host bridge, which these are.
        ("0x8086", "0x3c00", Verdict::ThruHostBridge),
        ("0x1ae0", "0x1234", Verdict::ThruHostBridge),
        ("0x10de", "0x2f95", Verdict::ThruHostBridge),
        ("0x10de", "0x22b1", Verdict::NotSupported),
    ] {
        let mut picture = acs(NIC_PORT, 0x1d);
        let bridge = format!("{}/0000:00:00.0", capture::DEVICES);
        for (file, text) in [("vendor", vendor), ("device", device)] {
            picture.put(&format!("{bridge}/{file}"), Entry::Text(text.to_owned()));
        }
        assert_eq!(verdict(picture).0, expected, "{vendor} {device}");
    }
}

/// Without a device 00.0, a root port that is the first device represents the host bridge.
/// Another kind of port does not.
#[test]
fn who_stands_for_the_host_bridge() {
    let without = |port: u8| {
        let mut host = Changed(acs(NIC_PORT, 0x1d)).with(ROOT_PORT, common::PORT_TYPE, &[port]);
        let devices = host.0.folders.get_mut(capture::DEVICES).unwrap();
        devices.remove("0000:00:00.0");
        let root = format!("{}/{ROOT_PORT}", capture::DEVICES);
        host = host.file(ROOT_PORT, "device", "0x2030");
        assert!(host.0.folders.contains_key(&root));
        verdict(host.0).0
    };
    assert_eq!(without(0x42), Verdict::ThruHostBridge);
    assert_eq!(without(0x92), Verdict::NotSupported);
}

/// A second copy of the host "switch" in another PCI domain (segment). Bus numbers are the same
/// there, and so is all but the domain.
fn two_domains(bridge: (&str, &str)) -> Picture {
    let mut both = common::picture("switch");
    let other = common::dump("switch").replace("0000:", "0001:");
    let other = Picture::parse(&other.replace("mlx5_0", "mlx5_1")).unwrap();
    for (folder, entries) in other.folders {
        both.folders.entry(folder).or_default().extend(entries);
    }
    for domain in ["0000", "0001"] {
        let root = format!("{}/{domain}:00:00.0", capture::DEVICES);
        for (file, text) in [("vendor", bridge.0), ("device", bridge.1)] {
            both.put(&format!("{root}/{file}"), Entry::Text(text.to_owned()));
        }
    }
    both
}

/// Two domains have no device in common and two host bridges, although the bus numbers are the
/// same.
#[test]
fn domains_are_told_apart() {
    let other = |address: &str| address.replace("0000:", "0001:");
    for (bridge, across) in [
        (("0x8086", "0x1234"), Verdict::NotSupported),
        (("0x8086", "0x2030"), Verdict::ThruHostBridge),
        // For devices below the same host bridge only.
        (("0x8086", "0x3c00"), Verdict::NotSupported),
    ] {
        let (report, _) = common::report(two_domains(bridge));
        let mut seen = 0;
        for pair in report.pairs.iter().filter(|p| p.kind == PairKind::GpuNic) {
            let expected = match pair.provider[..4] == pair.client[..4] {
                true => Verdict::BusAddr,
                false => across,
            };
            assert_eq!(pair.verdict, expected, "{bridge:?} {pair:?}");
            seen += 1;
        }
        assert_eq!(seen, 4, "{:#?}", report.pairs);
    }
    // A kernel parameter has the domain, too.
    let dump = other(&common::dump("switch-acs"));
    let moved = verdict(Picture::parse(&dump).unwrap());
    let (verdict, ports) = verdict(common::picture("switch-acs"));
    assert_eq!(moved, (verdict, other(&ports)));
    assert!(moved.1.contains("0001:02"), "{moved:?}");
}

/// A guest whose host bridge cannot be identified may have a path.
#[test]
fn a_guest_with_an_unknown_host_bridge_is_unknown() {
    let mut picture = common::picture("guest");
    let folder = format!("{}/0000:00:00.0", capture::DEVICES);
    picture.folders.get_mut(&folder).unwrap().remove("vendor");
    let (report, text) = common::report(picture);
    let pair = &report.pairs[0];
    assert_eq!(pair.verdict, Verdict::Unknown);
    assert_eq!(pair.works, Works::Unknown, "{text}");
    let (report, _) = common::report(common::picture("guest"));
    assert_eq!(report.pairs[0].works, Works::No);
}
