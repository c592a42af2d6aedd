//! Recorded hosts: the report about each is as its file expects. A host with the same
//! files gets the same report as its dump.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use doctor::cli::{self, Require};
use doctor::picture::Entry;
use doctor::report::Report;
use doctor::{Known, Picture, capture};
use serde::Deserialize;

mod common;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    exit: u8,
    exit_in_place: u8,
    /// The codes of the obstacles of a GPU without a NIC.
    #[serde(default)]
    alone: Vec<String>,
    #[serde(default, rename = "pair")]
    pairs: Vec<Pair>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    provider: String,
    client: String,
    kind: String,
    verdict: String,
    works: String,
    in_place: Option<String>,
    /// The codes of the obstacles.
    obstacles: Vec<String>,
    #[serde(default)]
    possible: Vec<String>,
    parameter: Option<String>,
    path: Option<String>,
}

/// A value as a JSON string.
fn word(value: impl serde::Serialize) -> String {
    serde_json::to_value(value)
        .unwrap()
        .as_str()
        .unwrap()
        .to_owned()
}

fn compare(name: &str, report: &Report, expected: &Expected) {
    assert_eq!(report.pairs.len(), expected.pairs.len(), "{name}");
    for (pair, expected) in report.pairs.iter().zip(&expected.pairs) {
        let at = format!("{name}: {} {}", pair.provider, pair.client);
        assert_eq!(pair.provider, expected.provider, "{at}");
        assert_eq!(pair.client, expected.client, "{at}");
        assert_eq!(word(pair.kind), expected.kind, "{at}");
        assert_eq!(word(pair.verdict), expected.verdict, "{at}");
        let possible: Vec<_> = pair.possible.iter().map(word).collect();
        assert_eq!(possible, expected.possible, "{at}");
        let mut obstacles: Vec<_> = pair
            .obstacles
            .iter()
            .map(|id| word(report.obstacles.iter().find(|o| o.id == *id).unwrap().code))
            .collect();
        let mut wanted = expected.obstacles.clone();
        obstacles.sort();
        wanted.sort();
        assert_eq!(obstacles, wanted, "{at}");
        assert_eq!(word(pair.works), expected.works, "{at}");
        assert_eq!(pair.in_place.map(word), expected.in_place, "{at}");
        assert_eq!(pair.parameter, expected.parameter, "{at}");
        if let Some(path) = &expected.path {
            assert_eq!(&pair.path, path, "{at}");
        }
    }
    let alone = report
        .obstacles
        .iter()
        .filter(|obstacle| obstacle.pairs.is_empty());
    let mut codes: Vec<_> = alone.map(|obstacle| word(obstacle.code)).collect();
    let mut wanted = expected.alone.clone();
    codes.sort();
    wanted.sort();
    assert_eq!(codes, wanted, "{name}");
    let exit = cli::verdict(report, Require::Path);
    assert_eq!(exit, expected.exit, "{name}");
    let exit = cli::verdict(report, Require::InPlace);
    assert_eq!(exit, expected.exit_in_place, "{name}");
}

#[test]
fn what_is_said_is_what_is_expected() {
    for name in common::names() {
        let (report, _) = common::report(common::picture(&name));
        let file = common::folder().join(format!("{name}.expected.toml"));
        let expected = toml::from_str(&fs::read_to_string(file).unwrap());
        compare(
            &name,
            &report,
            &expected.unwrap_or_else(|e| panic!("{name}: {e}")),
        );
    }
}

/// Writes the files of a picture to a folder.
fn lay_out(picture: &Picture, root: &Path) {
    let at = |path: &str| root.join(path.trim_start_matches('/'));
    for (folder, entries) in &picture.folders {
        fs::create_dir_all(at(folder)).unwrap();
        for (name, entry) in entries {
            let path = at(&format!("{folder}/{name}"));
            match entry {
                // A module is a folder.
                Entry::Link { link } if *link == format!("{folder}/{name}") => {
                    fs::create_dir_all(path).unwrap();
                }
                Entry::Link { link } => {
                    fs::create_dir_all(at(link)).unwrap();
                    symlink(at(link), path).unwrap();
                }
                Entry::Text(text) if name == "config.gz" => {
                    let file = fs::File::create(path).unwrap();
                    let mut packed =
                        flate2::write::GzEncoder::new(file, flate2::Compression::fast());
                    packed.write_all(text.as_bytes()).unwrap();
                }
                Entry::Text(text) if name == "iomem" => {
                    let lines = text.lines().map(|owner| format!("0-1 : {owner}\n"));
                    fs::write(path, lines.collect::<String>()).unwrap();
                }
                Entry::Text(text) => fs::write(path, format!("{text}\n")).unwrap(),
                Entry::Config { .. } => {
                    let bytes = picture.config(&format!("{folder}/{name}")).unwrap();
                    fs::write(path, bytes).unwrap();
                }
                Entry::Unreadable { .. } => {}
            }
        }
    }
}

#[test]
fn a_host_and_its_dump_are_told_the_same() {
    for name in common::names() {
        let recorded = common::picture(&name);
        let root = tempfile::tempdir().unwrap();
        lay_out(&recorded, root.path());
        let live = capture::take(root.path(), &Known::read().unwrap());
        let again = Picture::parse(&live.dump().unwrap()).unwrap();
        let live = common::report(live);
        assert_eq!(live, common::report(again), "{name}");
        if recorded_has_no_gaps(&recorded) {
            assert_eq!(live, common::report(recorded), "{name}");
        }
    }
}

/// Root can read every file, so unreadable files cannot be written for the test.
fn recorded_has_no_gaps(picture: &Picture) -> bool {
    let mut entries = picture.folders.values().flat_map(|folder| folder.values());
    !entries.any(|entry| matches!(entry, Entry::Unreadable { .. }))
}

#[test]
fn what_tells_who_owns_a_host_is_not_kept() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("proc/sys/kernel/osrelease", "7.3.0\n");
    write(
        "proc/cmdline",
        "root=UUID=SECRET ip=10.0.0.1::SECRET pci=realloc intel_iommu=on nouveau.debug=SEEN\n",
    );
    write(
        "proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: SECRET\nflags\t\t: fpu hypervisor\n\n\
         processor\t: 1\nvendor_id\t: SECRET\n",
    );
    write(
        "boot/config-7.3.0",
        "CONFIG_PCI_P2PDMA=y\nCONFIG_DEFAULT_HOSTNAME=\"SECRET\"\n",
    );
    write(
        "proc/iomem",
        "1234567890-1234567899 : System RAM\n99-aa : 0000:03:00.0\n",
    );
    write(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1  Release Build  (SECRET@SECRET)\n",
    );
    write("sys/class/infiniband/mlx5_0/node_guid", "SECRET\n");
    write("sys/class/infiniband/mlx5_0/node_desc", "SECRET\n");
    let picture = capture::take(root.path(), &Known::read().unwrap());
    let dump = picture.dump().unwrap();
    assert!(!dump.contains("SECRET"), "{dump}");
    assert!(!dump.contains("1234567"), "{dump}");
    for kept in [
        "pci=realloc intel_iommu=on nouveau.debug=SEEN",
        "hypervisor",
        "Open Kernel",
    ] {
        assert!(dump.contains(kept), "{kept}: {dump}");
    }
}

/// The other files may be of a build that was not booted.
#[test]
fn the_running_kernels_own_configuration_counts() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    for dir in ["proc/sys/kernel", "boot"] {
        fs::create_dir_all(at(dir)).unwrap();
    }
    fs::write(at("proc/sys/kernel/osrelease"), "7.3.0\n").unwrap();
    fs::write(at("boot/config-7.3.0"), "CONFIG_PCI_P2PDMA=y\n").unwrap();
    let has = || {
        let picture = capture::take(root.path(), &Known::read().unwrap());
        doctor::Host::new(picture).option("CONFIG_PCI_P2PDMA")
    };
    assert_eq!(has(), Some(true));
    let file = fs::File::create(at("proc/config.gz")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    packed
        .write_all(b"# CONFIG_PCI_P2PDMA is not set\n")
        .unwrap();
    packed.finish().unwrap();
    assert_eq!(has(), Some(false));
}

#[test]
fn the_ends_of_lines_do_not_count() {
    for name in common::names() {
        let dump = common::dump(&name);
        let by_mail = Picture::parse(&dump.replace('\n', "\r\n")).unwrap();
        assert_eq!(by_mail, Picture::parse(&dump).unwrap(), "{name}");
    }
}

#[test]
fn what_is_no_dump_is_told_in_a_line() {
    for text in [
        "schema \u{1b}[31m = 1".to_owned(),
        format!("[in]\n{} = \"", "x".repeat(1 << 20)),
        format!("schema = \"{}\"\nversion = 1\n", "x".repeat(1 << 20)),
    ] {
        let error = format!("{:#}", Picture::parse(&text).unwrap_err());
        assert!(error.contains("not a dump of p2p-doctor"), "{error}");
        assert!(error.len() < 500 && !error.contains('\u{1b}'), "{error}");
    }
}

#[test]
fn a_dump_obeys_no_terminal_and_is_whole() {
    let dump = common::picture("switch").dump().unwrap();
    let evil = dump.replace("nouveau", "\\u001b[2Jnouveau");
    let (_, text) = common::report(Picture::parse(&evil).unwrap());
    assert!(
        text.contains("\\x1b[2Jnouveau") && !text.contains('\u{1b}'),
        "{text}"
    );
    // A file cut off at the end of a table is still valid TOML.
    let cut = &dump[..dump.rfind("\n[in.").unwrap()];
    let error = Picture::parse(cut).unwrap_err().to_string();
    assert!(error.contains("cut off"), "{error}");
    assert!(Picture::parse("schema = \"another\"\nversion = 1").is_err());
    assert!(Picture::parse("schema = \"p2p-doctor-host\"\nversion = 2").is_err());
}

/// Snapshots of the schema and the text output.
#[test]
fn the_report_of_a_switch_that_redirects() {
    let (report, text) = common::report(common::picture("switch-acs"));
    let json = serde_json::to_string_pretty(&report).unwrap() + "\n";
    for (file, said) in [("switch-acs.json", json), ("switch-acs.txt", text)] {
        let path = common::folder().join(file);
        if std::env::var_os("DOCTOR_WRITE").is_some() {
            fs::write(&path, &said).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            said, expected,
            "if this is meant: DOCTOR_WRITE=1 cargo test -p doctor"
        );
    }
}
