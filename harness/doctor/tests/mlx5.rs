//! How mlx5 treats ACS above the NIC, ATS and relaxed ordering.

use common::{
    ACS_CONTROL, Changed, DEVICE_CONTROL, EXTENDED, GPU, GPU_PORT, NIC, NIC_PORT, PORT_TYPE,
    ROOT_PORT,
};
use doctor::picture::Entry;
use doctor::report::{Code, Effect, Obstacle, Works};
use doctor::rules::Verdict;
use doctor::{Host, capture, mlx5};

mod common;

/// Whether mlx5 uses pages of peers in memory with relaxed ordering, and without it.
fn used(host: Changed) -> Option<(bool, bool)> {
    let host = Host::new(host.0);
    let nic = host.devices.values().find(|d| !d.verbs.is_empty()).unwrap();
    let reads = mlx5::reads(&host, nic).unwrap()?;
    Some((reads.relaxed, reads.strict))
}

/// The rows of the table at mlx5_umem_needs_ats() in drivers/infiniband/hw/mlx5, and the
/// cases that it leaves out.
#[test]
fn reads_of_peers_come_back_the_way_they_went() {
    // ACS control: 4 redirects requests, 8 redirects completions, 0x20 is egress control,
    // 0x40 exempts translated requests.
    for (acs, without, with) in [
        (0x00, None, None),
        (0x40, None, None),
        // A vector decides for each peer, and mlx5 does not read it.
        (0x20, Some((false, false)), Some((false, false))),
        (0x2c, Some((false, false)), Some((false, false))),
        (0x6c, Some((false, false)), Some((false, false))),
        (0x04, Some((false, false)), Some((false, false))),
        (0x44, Some((false, false)), Some((true, false))),
        (0x08, Some((true, false)), Some((true, false))),
        (0x48, Some((true, false)), Some((true, false))),
        (0x0c, Some((false, true)), Some((false, true))),
        (0x1d, Some((false, true)), Some((false, true))),
        (0x4c, Some((false, true)), Some((true, true))),
    ] {
        let host = Changed::redirecting(acs);
        assert_eq!(used(host), without, "{acs:#x} without ATS");
        let host = Changed::redirecting(acs).ats();
        assert_eq!(used(host), with, "{acs:#x} with ATS");
    }
}

#[test]
fn ats_is_used_where_all_agree() {
    let host = Changed::redirecting(0x4c)
        .ats()
        .with(NIC, EXTENDED + 6, &[0, 0]);
    assert_eq!(used(host), Some((false, true)));
    let host = Changed::redirecting(0x4c).ats();
    let host = host.file(NIC, "iommu_group/type", "identity");
    assert_eq!(used(host), Some((false, true)));
}

#[test]
fn relaxed_ordering_is_the_physical_functions_matter() {
    let off = |host: Changed| host.with(NIC, DEVICE_CONTROL, &[0]);
    let host = off(Changed::redirecting(0x0c));
    assert_eq!(used(host), Some((true, true)), "it is switched off");
    let mut host = off(Changed::redirecting(0x0c));
    let physical = "0000:04:00.1";
    let folder = |device| format!("{}/{device}", capture::DEVICES);
    let files = host.0.folders[&folder(NIC)].clone();
    host.0.folders.insert(folder(physical), files);
    let link = |to: &str| {
        let place = format!("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/{NIC_PORT}/{to}");
        Entry::Link { link: place }
    };
    host.0.put(&folder(physical), link(physical));
    host.0
        .put(&format!("{}/physfn", folder(NIC)), link(physical));
    let host = host.with(physical, DEVICE_CONTROL, &[0x10]);
    assert_eq!(used(host), Some((false, true)));
}

#[test]
fn only_switch_ports_above_the_nic_matter_to_mlx5() {
    let host = Changed::redirecting(0).with(GPU_PORT, ACS_CONTROL, &[0x0c]);
    assert_eq!(used(host), None, "the GPU's");
    let host = Changed::redirecting(0).with(ROOT_PORT, ACS_CONTROL, &[0x0c]);
    assert_eq!(used(host), None, "the root port further up");
    let host = Changed::redirecting(0x0c).with(NIC_PORT, PORT_TYPE, &[0x42]);
    assert_eq!(used(host), None, "a root port");
}

/// Sets ACS at the NIC's port, and at a port of another switch above.
fn nested(lower: u8, upper: u8) -> Changed {
    let capability = [0x0d, 0, 1, 0, 0x7f, 0, upper, 0];
    Changed::redirecting(lower)
        .with(ROOT_PORT, PORT_TYPE, &[0x62])
        .with(ROOT_PORT, EXTENDED, &capability)
}

fn ordering(host: Changed) -> Option<Obstacle> {
    let (report, _) = common::report(host.0);
    let mut all = report.obstacles.into_iter();
    all.find(|obstacle| obstacle.code == Code::Ordering)
}

#[test]
fn all_switch_ports_above_the_nic_must_route_alike() {
    assert_eq!(used(nested(0, 0)), None);
    assert_eq!(used(nested(0x0c, 0x0c)), Some((false, true)));
    assert_eq!(used(nested(0, 0x0c)), Some((false, false)));
    assert_eq!(used(nested(0x0c, 0)), Some((false, false)));
    assert_eq!(used(nested(0, 0x08)), Some((true, false)));
    assert_eq!(used(nested(0x4c, 0x4c).ats()), Some((true, true)));
    assert_eq!(used(nested(0x4c, 0x0c).ats()), Some((false, true)));
    // p2pdma finds the path below the lower switch, but mlx5 does not use it.
    let said = ordering(nested(0, 0x0c)).unwrap();
    assert_eq!(said.effect, Effect::BlocksInPlace);
    assert!(said.at[0].contains(ROOT_PORT), "{said:?}");
    assert!(!said.at[0].contains(NIC_PORT), "{said:?}");
}

/// A host whose host bridge forwards.
fn zen(mut host: Changed, flags: &str) -> Changed {
    let text = format!("vendor_id : AuthenticAMD\ncpu family : 25\nflags : {flags}");
    host.0.put(capture::CPU, Entry::Text(text));
    host
}

#[test]
fn egress_control_is_said() {
    let said = ordering(zen(Changed::redirecting(0x20), "")).unwrap();
    assert_eq!(said.effect, Effect::BlocksInPlace);
    assert!(said.at[0].contains("egress control"), "{said:?}");
    let expected = format!("pci=config_acs=x0x00xx@{NIC_PORT}");
    assert_eq!(said.config_acs, Some(expected));
}

/// mlx5 then assumes the ACS settings that Linux uses with an IOMMU.
#[test]
fn a_guest_that_shows_no_switch() {
    let bare = |flags| {
        let host = Changed::redirecting(0).with(NIC_PORT, PORT_TYPE, &[0x42]);
        // The setting of a guest's NIC does not matter.
        zen(host.with(NIC, DEVICE_CONTROL, &[0]), flags)
    };
    assert_eq!(used(bare("")), None);
    assert_eq!(used(bare("hypervisor")), Some((false, true)));
    assert_eq!(used(bare("hypervisor").ats()), Some((false, true)));
    assert_eq!(used(zen(Changed::redirecting(0), "hypervisor")), None);
    let said = ordering(bare("hypervisor")).unwrap();
    assert_eq!(said.effect, Effect::Limits);
    assert!(said.at[0].contains("shows no switch"), "{said:?}");
    assert!(said.next.contains("--disable_pcie_relaxed"), "{said:?}");
}

/// Without root, a switch port above the NIC alone may limit mlx5, or not.
#[test]
fn ports_that_cannot_be_read_are_said() {
    let hide = |mut host: Changed, device: &str| {
        let unreadable = "not readable as this user".to_owned();
        let path = format!("{}/{device}/config", capture::DEVICES);
        host.0.put(&path, Entry::Unreadable { unreadable });
        host
    };
    // p2pdma needs no ACS for a path through the host bridge.
    let apart = || {
        let gpu = format!("{}/{GPU}", capture::DEVICES);
        let mut host = zen(Changed::redirecting(0x0c), "");
        let link = format!("/sys/devices/pci0000:40/{GPU}");
        host.0.put(&gpu, Entry::Link { link });
        host
    };
    let in_place = |host: Changed| {
        let (report, _) = common::report(host.0);
        let pair = report.pairs.into_iter().next().unwrap();
        (pair.verdict, pair.works, pair.in_place.unwrap())
    };
    let forwards = Verdict::ThruHostBridge;
    assert_eq!(in_place(apart()), (forwards, Works::Yes, Works::Yes));
    let hidden = hide(hide(apart(), NIC_PORT), NIC);
    let (report, _) = common::report(hidden.0.clone());
    assert_eq!(in_place(hidden), (forwards, Works::Yes, Works::Unknown));
    let unknown = |o: &&Obstacle| o.effect == Effect::UnknownInPlace;
    let obstacle = report.obstacles.iter().find(unknown).unwrap();
    assert_eq!(obstacle.code, Code::AcsUnreadable);
    assert_eq!(obstacle.at, [NIC_PORT]);
    // The root port is none of a switch.
    let hidden = hide(apart(), ROOT_PORT);
    assert_eq!(in_place(hidden), (forwards, Works::Yes, Works::Yes));
}
