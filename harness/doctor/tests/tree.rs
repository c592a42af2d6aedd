//! Checks that known.toml matches the kernel.

use std::collections::BTreeMap;
use std::fs;

use common::{source, tree};
use doctor::Known;
use doctor::known::Role;

mod common;

/// An entry of the list: vendor, device (or `None` for all), and whether only within one
/// host bridge.
type Bridge = (u16, Option<u16>, bool);

fn number(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Parses `pci_p2pdma_whitelist[]`. `names` has the values of its names.
fn list(source: &str, names: &BTreeMap<&str, &str>) -> Vec<Bridge> {
    let begin = source.find("pci_p2pdma_whitelist[] = {").unwrap();
    let value = |word: &str| {
        let text = names.get(word).copied().unwrap_or(word);
        number(text).unwrap_or_else(|| panic!("{word} is no number"))
    };
    let lines = source[begin..].lines().skip(1).map(str::trim);
    let entries = lines.take_while(|line| *line != "{}");
    entries
        .filter_map(|line| line.strip_prefix('{')?.strip_suffix("},"))
        .map(|entry| {
            let fields: Vec<_> = entry.split(',').map(str::trim).collect();
            let [vendor, device, flags] = fields[..] else {
                panic!("{entry}");
            };
            let device = (device != "PCI_ANY_ID").then(|| value(device));
            assert!(matches!(flags, "0" | "REQ_SAME_HOST_BRIDGE"), "{entry}");
            (value(vendor), device, flags != "0")
        })
        .collect()
}

#[test]
fn the_list_of_host_bridges_is_the_kernels() {
    let Some(p2pdma) = source("drivers/pci/p2pdma.c") else {
        return;
    };
    let ids = source("include/linux/pci_ids.h").unwrap();
    let names: BTreeMap<_, _> = ids
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("#define ")?.split_whitespace();
            Some((words.next()?, words.next()?))
        })
        .collect();
    let kernel = list(&p2pdma, &names);
    assert!(kernel.len() > 20, "{kernel:x?}");
    let known = Known::read().unwrap();
    let ours: Vec<_> = known.list.entries().collect();
    assert_eq!(
        ours, kernel,
        "data/known.toml: {ours:x?}\np2pdma.c: {kernel:x?}"
    );
    let release = source("Makefile").unwrap();
    let part = |name: &str| {
        let line = release.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    let version = format!("{}.{}", part("VERSION = "), part("PATCHLEVEL = "));
    assert_eq!(known.list.kernel, version);
}

/// Lines that other rules rely on. If one changes, the rule must be reviewed.
#[test]
fn the_rules_are_the_kernels() {
    for (file, lines) in [
        (
            "drivers/pci/p2pdma.c",
            &[
                "if (c->x86_vendor == X86_VENDOR_AMD && c->x86 >= 0x17)",
                "(PCI_ACS_RR | PCI_ACS_CR | PCI_ACS_EC)",
                "if (root->devfn == PCI_DEVFN(0, 0))",
                "if (pci_pcie_type(root) == PCI_EXP_TYPE_ROOT_PORT)",
                "if (entry->flags & REQ_SAME_HOST_BRIDGE && !same_host_bridge)",
                "if (!cpu_supports_p2pdma() &&",
                "if (pci_pcie_type(port) != PCI_EXP_TYPE_DOWNSTREAM)",
                "return found || !switches_may_be_hidden() ? 0 : -ENODATA;",
            ][..],
        ),
        (
            "drivers/infiniband/hw/mlx5/odp_p2p.h",
            &[
                "const u16 assumed = PCI_ACS_CR | PCI_ACS_RR | PCI_ACS_DT;",
                "((any & PCI_ACS_RR) && !(ats && (all & PCI_ACS_DT))) ||",
                "((any & PCI_ACS_CR) && !ro);",
                "((all & PCI_ACS_RR) && !(ats && (any & PCI_ACS_DT))) &&",
                "return !(any & PCI_ACS_EC) && (redirects_all || !may_redirect);",
                "return path->known && can_use_ats && ro &&",
            ],
        ),
        (
            "drivers/gpu/drm/nouveau/nouveau_svm.c",
            &["device.info.family > NV_DEVICE_INFO_V0_PASCAL)"],
        ),
        (
            "drivers/gpu/drm/nouveau/nouveau_dmem_p2p.c",
            &["(bar_size / 2) >> shift,"],
        ),
    ] {
        let Some(source) = source(file) else { return };
        for line in lines {
            assert!(source.contains(line), "{file} has no longer: {line}");
        }
    }
}

/// The text between two words, if the line begins with the first one.
fn between<'a>(line: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let (inner, _) = line.trim().strip_prefix(begin)?.split_once(end)?;
    Some(inner)
}

#[test]
fn pages_are_reached_with_the_drivers_that_tell_where_they_are() {
    let known = Known::read().unwrap();
    let reached = known.drivers();
    let reached: Vec<_> = reached.split(", ").collect();
    for (driver, file) in [
        ("nouveau", "nouveau/nouveau_dmem.c"),
        ("xe", "xe/xe_svm.c"),
        ("amdgpu", "amd/amdkfd/kfd_migrate.c"),
    ] {
        let Some(source) = source(&format!("drivers/gpu/drm/{file}")) else {
            return;
        };
        let tells = source.contains("device_private_dma_phys = ");
        assert_eq!(reached.contains(&driver), tells, "{driver}");
    }
}

/// The IDs in a macro of pciids.h, which may name other macros.
fn ids(source: &str, name: &str) -> Vec<u16> {
    let begin = source.find(&format!("#define {name}(")).unwrap();
    let (text, _) = source[begin..].split_once("\n\n").unwrap();
    let entries = text.lines().skip(1).map(str::trim);
    let all = entries.flat_map(|line| {
        let (word, rest) = line.split_once('(').unwrap();
        match word {
            "MACRO__" => {
                let (id, _) = rest.split_once(',').unwrap();
                vec![number(&id.to_lowercase()).unwrap()]
            }
            other => ids(source, other),
        }
    });
    all.collect()
}

/// Discrete GPUs whose graphics version is read from the GPU. From Xe2 on, these have page
/// faults.
#[test]
fn xe_reaches_pages_of_the_gpus_that_known_toml_says() {
    let Some(xe) = source("drivers/gpu/drm/xe/xe_pci.c") else {
        return;
    };
    let macros = source("include/drm/intel/pciids.h").unwrap();
    let known = Known::read().unwrap();
    let (_, list) = xe.split_once("pciidlist[] = {").unwrap();
    let mut able = 0;
    for line in list
        .lines()
        .skip(1)
        .take_while(|line| !line.contains("{ }"))
    {
        let (name, rest) = line.trim().split_once('(').unwrap();
        let description = between(rest.split_once('&').unwrap().1, "", ")").unwrap();
        let begin = format!("xe_device_desc {description} = {{");
        let (_, body) = xe.split_once(&begin).unwrap();
        let (body, _) = body.split_once("\n};").unwrap();
        let is_discrete = body.contains("DGFX_FEATURES") || body.contains("DG2_FEATURES");
        let can = is_discrete && !body.contains("pre_gmdid_graphics_ip");
        for id in ids(&macros, name) {
            let generation = known.generation("xe", id).unwrap();
            assert_eq!(generation.not.is_none(), can, "{name} {id:#x}");
            able += usize::from(can);
        }
    }
    assert!(able > 10, "{able}");
    for name in ["graphics_xelp", "graphics_xehpg"] {
        let (_, body) = xe.split_once(&format!("{name} = {{")).unwrap();
        let (body, _) = body.split_once("\n};").unwrap();
        assert!(!body.contains("has_usm"), "{name}");
    }
    let (_, xe2) = xe.split_once("#define XE2_GFX_FEATURES").unwrap();
    assert!(xe2.split_once("\n\n").unwrap().0.contains(".has_usm = 1"));
}

#[test]
fn drivers_that_register_dmabufs_are_the_kernels() {
    let known = Known::read().unwrap();
    // A driver that is advised to register a dma-buf can do so.
    for driver in &known.driver {
        let says = driver.next.contains("ibv_reg_dmabuf_mr()");
        let rdma = driver.not.as_deref().unwrap_or_default();
        let rdma = rdma.split(' ').next().unwrap_or_default().to_owned();
        if driver.role == Role::Nic && driver.not.is_some() {
            assert_eq!(says, known.dmabuf.contains(&rdma), "{}", driver.name);
        }
    }
    let Some(tree) = tree() else { return };
    let hw = tree.join("drivers/infiniband/hw");
    let mut able = Vec::new();
    for driver in fs::read_dir(hw).unwrap().map(|entry| entry.unwrap()) {
        let files = fs::read_dir(driver.path()).into_iter().flatten();
        let mut texts = files.map(|file| fs::read_to_string(file.unwrap().path()));
        if texts.any(|text| text.is_ok_and(|text| text.contains(".reg_user_mr_dmabuf ="))) {
            able.push(driver.file_name().into_string().unwrap());
        }
    }
    able.sort();
    assert_eq!(known.dmabuf, able);
}
