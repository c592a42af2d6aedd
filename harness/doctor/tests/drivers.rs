//! How drivers of GPUs and NICs treat an existing path: the host "switch" with other drivers.

use common::{Changed, GPU, NIC};
use doctor::picture::Entry;
use doctor::report::{Code, Effect, Obstacle, PairKind, Works};
use doctor::{capture, host};

mod common;

/// Binds a device to another driver.
fn bound(host: Changed, device: &str, driver: &str) -> Changed {
    let mut host = host;
    let link = format!("/sys/bus/pci/drivers/{driver}");
    let path = format!("{}/{device}/driver", capture::DEVICES);
    host.0.put(&path, Entry::Link { link });
    host
}

/// Replaces the GPU.
fn gpu(driver: &str, id: u16) -> Changed {
    let host = bound(Changed(common::picture("switch")), GPU, driver);
    host.file(GPU, "device", &format!("{id:#06x}"))
}

/// Replaces a file of the kernel. `None` removes it.
fn file(mut host: Changed, path: &str, text: Option<&str>) -> Changed {
    match text {
        Some(text) => host.0.put(path, Entry::Text(text.to_owned())),
        None => {
            let (folder, name) = path.rsplit_once('/').unwrap();
            host.0.folders.get_mut(folder).unwrap().remove(name);
        }
    }
    host
}

/// Whether pages are accessed in place by the NIC, and the obstacles.
fn told(host: Changed) -> (Option<Works>, Vec<Obstacle>) {
    let (report, _) = common::report(host.0);
    let mut pairs = report.pairs.into_iter();
    let pair = pairs.find(|pair| pair.kind == PairKind::GpuNic).unwrap();
    let mut all = report.obstacles;
    all.retain(|obstacle| pair.obstacles.contains(&obstacle.id));
    (pair.in_place, all)
}

/// The only obstacle to in-place access: its code, where it is, what to do.
fn refused(host: Changed) -> (Code, String, String) {
    let (in_place, mut all) = told(host);
    assert_eq!(in_place, Some(Works::No));
    all.retain(|obstacle| obstacle.effect == Effect::BlocksInPlace);
    let [obstacle] = &all[..] else {
        panic!("{all:#?}");
    };
    (obstacle.code, obstacle.at.join("; "), obstacle.next.clone())
}

/// Fails if there is an obstacle to in-place access.
fn is_in_place(host: Changed) {
    let (_, all) = told(host);
    let blocks = |o: &&Obstacle| o.effect == Effect::BlocksInPlace;
    assert_eq!(all.iter().find(blocks), None);
}

#[test]
fn nouveau_needs_an_option_of_the_series_besides() {
    let host = || Changed(common::picture("switch"));
    is_in_place(host());
    let options = host().0.read(capture::OPTIONS).unwrap().to_owned();
    let options = options.replace("CONFIG_DRM_NOUVEAU_DMEM_P2P=y\n", "");
    let without = || file(host(), capture::OPTIONS, Some(&options));
    let (code, at, next) = refused(without());
    assert_eq!(code, Code::KernelOption);
    assert_eq!(at, "CONFIG_DRM_NOUVEAU_DMEM_P2P");
    assert!(next.contains("CONFIG_DRM_NOUVEAU_DMEM_P2P=y"), "{next}");
    // A kernel without the series does not have the option.
    let (code, ..) = refused(file(without(), capture::POLICY, None));
    assert_eq!(code, Code::SeriesAbsent);
}

/// Windows move, so the size of the BAR is no limit and nothing suggests resizing it.
#[test]
fn nouveau_moves_windows() {
    let bar = "0x0 0x0 0x0\n0x90000000 0x9fffffff 0x0014220c";
    let host = Changed(common::picture("switch")).file(GPU, "resource", bar);
    let host = host.file(GPU, "resource1_resize", "0000000000007f00");
    let (in_place, all) = told(host);
    assert_eq!(in_place, Some(Works::Yes));
    let codes: Vec<_> = all.iter().map(|o| (o.code, o.effect)).collect();
    assert_eq!(codes, [(Code::BarWindows, Effect::Note)]);
    assert!(all[0].at[0].contains("128 MiB at a time"), "{all:#?}");
}

#[test]
fn of_intels_gpus_battlemage_has_page_faults_and_memory() {
    for (id, word) in [
        (0x4905, "DG1"),
        (0x5690, "DG2"),
        (0x56a0, "DG2"),
        (0x56c1, "DG2"),
        (0x7d55, "integrated"),
        (0x64a0, "integrated"),
    ] {
        let (code, at, next) = refused(gpu("xe", id));
        assert_eq!(code, Code::Generation);
        assert!(at.contains(word), "{id:x}: {at}");
        assert!(next.contains("Battlemage"), "{id:x}: {next}");
    }
    for id in [0xe20b, 0xe223, 0x674c] {
        is_in_place(gpu("xe", id));
    }
}

/// xe has no page faults for i915's GPUs, and i915's dma-bufs migrate to host memory.
#[test]
fn i915_is_not_told_that_xe_helps() {
    let (code, at, next) = refused(gpu("i915", 0x56a0));
    assert_eq!(code, Code::Driver);
    assert!(at.contains("to the host"), "{at}");
    assert!(next.starts_with("another GPU"), "{next}");
}

#[test]
fn nics_without_dmabufs_are_not_told_to_register_one() {
    let with = |driver| bound(Changed(common::picture("switch")), NIC, driver);
    let (_, _, next) = refused(with("mlx4_core"));
    assert!(next.contains("cannot register a dma-buf"), "{next}");
    let (_, _, next) = refused(with("bnxt_en"));
    assert!(next.contains("ibv_reg_dmabuf_mr()"), "{next}");
    let (_, _, next) = refused(with("qede"));
    assert!(next.contains("efa, ionic, irdma"), "{next}");
}

/// Neither the GPU nor amdgpu's parameter for other GPUs changes that.
#[test]
fn no_page_of_amdgpu_is_reached_in_place() {
    for id in [0x687f, 0x7408, 0x74a1, 0x744c] {
        for p2p in [None, Some("Y"), Some("N")] {
            let mut host = gpu("amdgpu", id);
            if p2p.is_some() {
                host = file(host, capture::AMDGPU_P2P, p2p);
            }
            let (code, at, next) = refused(host);
            assert_eq!(code, Code::Driver);
            assert!(at.contains("HDP"), "{at}");
            assert!(next.contains("ibv_reg_dmabuf_mr()"), "{next}");
        }
    }
}

#[test]
fn nearly_no_page_is_in_a_small_bar() {
    let small = "0x90000000 0x9fffffff 0x0\n".repeat(3);
    let host = gpu("xe", 0xe20b).file(GPU, "resource", &small);
    let host = || Changed(host.0.clone());
    let (code, at, next) = refused(host().file(GPU, "resource2_resize", "0000000000007f00"));
    assert_eq!(code, Code::BarSmall);
    assert!(at.contains(&host::size(16 << 30)), "{at}");
    assert!(at.contains("nearly all of them"), "{at}");
    assert!(next.contains("Above 4G"), "{next}");
    // It cannot be larger.
    let (in_place, _) = told(host().file(GPU, "resource2_resize", "0000000000000100"));
    assert_eq!(in_place, Some(Works::Yes));
    // xe does not say in sysfs how large the memory is.
    let (in_place, all) = told(host());
    assert_eq!(in_place, Some(Works::Unknown));
    let unknown = |o: &&Obstacle| o.effect == Effect::UnknownInPlace;
    let unknown = all.iter().find(unknown).unwrap();
    assert_eq!(unknown.code, Code::MemoryUnknown);
    assert!(unknown.next.contains("Small BAR device"), "{unknown:?}");
}

#[test]
fn a_device_without_a_driver_is_told_which_one_helps() {
    for (device, word) in [(GPU, "nouveau"), (NIC, "mlx5")] {
        let mut host = Changed(common::picture("switch"));
        let folder = format!("{}/{device}", capture::DEVICES);
        host.0.folders.get_mut(&folder).unwrap().remove("driver");
        let (code, at, next) = refused(host);
        assert_eq!(code, Code::NoDriver);
        assert!(at.starts_with(device), "{at}");
        assert!(next.contains(word), "{next}");
    }
}

/// The driver of the NIC's network part is bound, and that of its RDMA part is not loaded.
#[test]
fn a_nic_needs_its_rdma_part() {
    let mut host = Changed(common::picture("switch"));
    host.0.folders.remove(capture::INFINIBAND);
    let (code, at, next) = refused(host);
    assert_eq!((code, &*at), (Code::NoVerbs, NIC));
    assert!(next.contains("mlx5_ib"), "{next}");
}

/// The firmware found no room for the BAR, so it has no address.
#[test]
fn a_bar_without_an_address_blocks() {
    let none = "0x0 0x0 0x0\n".repeat(6);
    let host = gpu("amdgpu", 0x7408).file(GPU, "resource", &none);
    let (report, _) = common::report(host.0);
    let pair = |kind| report.pairs.iter().find(|pair| pair.kind == kind).unwrap();
    for kind in [PairKind::GpuNic, PairKind::GpuNvme] {
        assert_eq!(pair(kind).works, Works::No, "{kind:?}");
    }
    let missing = |o: &&Obstacle| o.code == Code::BarMissing;
    let obstacle = report.obstacles.iter().find(missing).unwrap();
    assert_eq!(obstacle.effect, Effect::Blocks);
    assert!(obstacle.at[0].contains(GPU), "{obstacle:?}");
    assert!(obstacle.next.contains("Above 4G"), "{obstacle:?}");
}

/// With a bond, the RDMA device of all ports is that of the first port.
#[test]
fn a_port_of_a_bond_is_no_nic_of_its_own() {
    let with = |physical: Option<&str>| {
        let mut host = Changed(common::picture("switch"));
        let folder = |device| format!("{}/{device}", capture::DEVICES);
        let other = NIC.replace(".0", ".1");
        let files = host.0.folders[&folder(NIC)].clone();
        host.0.folders.insert(folder(&*other), files);
        let Some(Entry::Link { link }) = host.0.folders[capture::DEVICES].get(NIC).cloned() else {
            panic!("{NIC} has no place");
        };
        let link = link.replace(NIC, &other);
        host.0.put(&folder(&*other), Entry::Link { link });
        if let Some(physical) = physical {
            let link = Entry::Link {
                link: format!("/{physical}"),
            };
            host.0.put(&format!("{}/physfn", folder(&*other)), link);
        }
        let (report, _) = common::report(host.0);
        let pairs = report
            .pairs
            .iter()
            .filter(|pair| pair.kind == PairKind::GpuNic);
        pairs.map(|pair| pair.client.clone()).collect::<Vec<_>>()
    };
    assert_eq!(with(None), [NIC]);
    // A virtual function has, or lacks, one of its own.
    assert_eq!(with(Some(NIC)).len(), 2);
}

/// The console of a server, or of a virtual machine.
#[test]
fn a_display_is_no_gpu() {
    for (vendor, gpus) in [("0x1234", 0), ("0x1af4", 0), ("0x1a03", 0), ("0x1ed5", 1)] {
        let mut host = Changed(common::picture("switch"));
        let folder = format!("{}/{GPU}", capture::DEVICES);
        host.0.folders.get_mut(&folder).unwrap().remove("driver");
        let host = host
            .file(GPU, "class", "0x030000")
            .file(GPU, "vendor", vendor);
        let (report, _) = common::report(host.0);
        let found = report.devices.iter().filter(|d| d.address == GPU).count();
        assert_eq!(found, gpus, "{vendor}");
    }
}

/// Neither an address of the bus nor one of the host gets through.
#[test]
fn bounce_buffers_block() {
    for (line, works) in [
        ("swiotlb=force", Works::No),
        ("swiotlb=65536,force", Works::No),
        ("swiotlb=force swiotlb=noforce", Works::Yes),
        ("swiotlb=65536", Works::Yes),
    ] {
        let host = Changed(common::picture("switch"));
        let (report, _) = common::report(file(host, capture::COMMAND_LINE, Some(line)).0);
        assert_eq!(report.pairs[0].works, works, "{line}");
    }
}
