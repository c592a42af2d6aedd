//! What mlx5 makes of ACS above the NIC, ATS and relaxed ordering.

use common::{ACS_CONTROL, Changed, DEVICE_CONTROL, EXTENDED, GPU_PORT, NIC, NIC_PORT, PORT_TYPE};
use doctor::picture::Entry;
use doctor::{Host, capture, mlx5};

mod common;

/// Whether mlx5 uses pages of peers in memory with relaxed ordering, and without.
fn used(host: Changed) -> Option<(bool, bool)> {
    let host = Host::new(host.0);
    let nic = host.devices.values().find(|d| !d.verbs.is_empty()).unwrap();
    let redirect = mlx5::redirect(&host, nic)?;
    assert_eq!(redirect.port, NIC_PORT);
    Some((redirect.relaxed, redirect.strict))
}

/// The rows of the table at mlx5_umem_needs_ats() of drivers/infiniband/hw/mlx5,
/// and those that it leaves out.
#[test]
fn reads_of_peers_come_back_the_way_they_went() {
    // ACS control: 4 redirects requests, 8 completions, 0x40 spares translated requests.
    for (acs, without, with) in [
        (0x00, None, None),
        (0x40, None, None),
        (0x20, None, None),
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
fn only_the_switch_port_above_the_nic_matters_to_mlx5() {
    let host = Changed::redirecting(0).with(GPU_PORT, ACS_CONTROL, &[0x0c]);
    assert_eq!(used(host), None, "the GPU's");
    let host = Changed::redirecting(0).with("0000:00:01.0", ACS_CONTROL, &[0x0c]);
    assert_eq!(used(host), None, "the one further up");
    let host = Changed::redirecting(0x0c).with(NIC_PORT, PORT_TYPE, &[0x42]);
    assert_eq!(used(host), None, "a root port");
}
