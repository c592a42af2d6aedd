//! The list of host bridges is the kernel's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use doctor::Known;

/// An entry of the list: vendor, device or any, whether only within one host bridge.
type Bridge = (u16, Option<u16>, bool);

/// The kernel at hand: `LINUX_TREE`, or what the harness has made.
fn tree() -> PathBuf {
    let tree = std::env::var_os("LINUX_TREE").map(PathBuf::from);
    tree.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/linux"))
}

fn number(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// `pci_p2pdma_whitelist[]`, whose names are in `names`.
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
    let tree = tree();
    let Ok(source) = fs::read_to_string(tree.join("drivers/pci/p2pdma.c")) else {
        // As other crates do; CI makes the tree first.
        eprintln!(
            "NOT TESTED: no kernel in {}: set LINUX_TREE",
            tree.display()
        );
        return;
    };
    let ids = fs::read_to_string(tree.join("include/linux/pci_ids.h")).unwrap();
    let names: BTreeMap<_, _> = ids
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("#define ")?.split_whitespace();
            Some((words.next()?, words.next()?))
        })
        .collect();
    let kernel = list(&source, &names);
    assert!(kernel.len() > 20, "{kernel:x?}");
    let known = Known::read().unwrap();
    let ours: Vec<_> = known.list.entries().collect();
    assert_eq!(
        ours, kernel,
        "data/known.toml: {ours:x?}\np2pdma.c: {kernel:x?}"
    );
    let release = fs::read_to_string(tree.join("Makefile")).unwrap();
    let part = |name: &str| {
        let line = release.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    let version = format!("{}.{}", part("VERSION = "), part("PATCHLEVEL = "));
    assert_eq!(known.list.kernel, version);
}

/// What else is taken from p2pdma.c; a change there must be looked at.
#[test]
fn the_rules_are_the_kernels() {
    let Ok(source) = fs::read_to_string(tree().join("drivers/pci/p2pdma.c")) else {
        eprintln!("NOT TESTED: no kernel: set LINUX_TREE");
        return;
    };
    for line in [
        "if (c->x86_vendor == X86_VENDOR_AMD && c->x86 >= 0x17)",
        "(PCI_ACS_RR | PCI_ACS_CR | PCI_ACS_EC)",
        "if (root->devfn == PCI_DEVFN(0, 0))",
        "if (pci_pcie_type(root) == PCI_EXP_TYPE_ROOT_PORT)",
        "if (entry->flags & REQ_SAME_HOST_BRIDGE && !same_host_bridge)",
        "if (!cpu_supports_p2pdma() &&",
    ] {
        assert!(source.contains(line), "p2pdma.c has no longer: {line}");
    }
}
