use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use super::*;
use host::status::status_of;

mod mlx5;
mod selftests;

/// A host's files in a temporary folder.
struct Fixture {
    dir: tempfile::TempDir,
}

/// The addresses of a fixture's cards.
const GPU: &str = "0000:03:00.0";
const NIC: &str = "0000:04:00.0";
const SWITCH: &str = "pci0000:00/0000:00:01.0/0000:01:00.0";
const NIC_PORT: &str = "0000:02:01.0";

/// The port types of the PCI Express capability.
const ROOT_PORT: u8 = 4;
const UPSTREAM_PORT: u8 = 5;
const DOWNSTREAM_PORT: u8 = 6;

/// Offsets in the configuration space of these cards and bridges.
const DEVICE_CONTROL: usize = 0x48;
const ACS_CONTROL: usize = 0x14e;
const ATS_CONTROL: usize = 0x156;

/// A configuration space. Power management comes before PCI Express, and AER before ACS
/// and ATS.
fn config() -> Vec<u8> {
    let mut config = vec![0; 4096];
    config[0x34] = 0x50;
    config[0x50..0x52].copy_from_slice(&[0x01, 0x40]);
    config[0x40..0x43].copy_from_slice(&[0x10, 0x00, 0x02]);
    config[0x100..0x104].copy_from_slice(&0x1481_0001_u32.to_le_bytes());
    config[0x148..0x14c].copy_from_slice(&0x1501_000d_u32.to_le_bytes());
    config[0x150..0x154].copy_from_slice(&0x0001_000f_u32.to_le_bytes());
    config
}

impl Fixture {
    /// A host with only a CPU.
    fn bare() -> Self {
        let fixture = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fixture.write("proc/sys/kernel/osrelease", "7.3.0\n");
        fixture.write("proc/version", "Linux version 7.3.0\n");
        fixture.write(
            "proc/cpuinfo",
            "vendor_id\t: GenuineIntel\ncpu family\t: 6\n",
        );
        fixture.write("proc/cmdline", "root=/dev/sda\n");
        fs::create_dir_all(fixture.path("sys/bus/pci/devices")).unwrap();
        fixture
    }

    /// A host that can be tested: a Pascal and a ConnectX below one switch.
    fn whole() -> Self {
        let fixture = Self::bare();
        fixture.write("sys/kernel/mm/hmm/p2p", "[auto] switch never\n");
        for name in ["bus_addr", "host_bridge", "policy", "topology"] {
            fixture.write(&format!("sys/kernel/mm/hmm/p2p_stats/{name}"), "5\n");
        }
        fixture.write(
            "boot/config-7.3.0",
            "CONFIG_PCI_P2PDMA=y\nCONFIG_DEVICE_PRIVATE=y\n\
             CONFIG_INFINIBAND_ON_DEMAND_PAGING=y\nCONFIG_HMM_MIRROR=y\n\
             CONFIG_DRM_NOUVEAU_SVM=y\nCONFIG_DRM_NOUVEAU_DMEM_P2P=y\n\
             CONFIG_DRM_XE_PAGEMAP=y\n",
        );
        fixture.device("pci0000:00/0000:00:00.0", 0x06_0000, 0x8086, 0x1234, "");
        fixture.bridge("pci0000:00/0000:00:01.0", ROOT_PORT);
        fixture.bridge(SWITCH, UPSTREAM_PORT);
        for (port, card) in [("0000:02:00.0", GPU), (NIC_PORT, NIC)] {
            fixture.bridge(&format!("{SWITCH}/{port}"), DOWNSTREAM_PORT);
            let place = format!("{SWITCH}/{port}/{card}");
            if card == GPU {
                fixture.device(&place, 0x03_0000, 0x10de, 0x1b80, "nouveau");
            } else {
                fixture.device(&place, 0x02_0000, 0x15b3, 0x1017, "mlx5_core");
            }
        }
        fixture.bar(GPU, 1, 16 << 30);
        fixture.infiniband("mlx5_0", NIC);
        fixture.program(
            "ibv_devinfo",
            "echo 'general_odp_caps:\n\t\tODP_SUPPORT\n\trc_odp_caps:\n\t\tSUPPORT_SEND\n\
             \t\tSUPPORT_WRITE\n\t\tSUPPORT_READ\n\tuc_odp_caps:\n\t\tNO SUPPORT'",
        );
        for name in ["ib_write_bw", "ib_read_bw", "ib_write_lat"] {
            fixture.program(name, &fixture.perftest());
        }
        fixture
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn program(&self, name: &str, script: &str) {
        let path = format!("usr/bin/{name}");
        self.write(&path, format!("#!/bin/sh\n{script}\n"));
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.path(&path), mode).unwrap();
    }

    /// Adds a device at its place below /sys/devices.
    fn device(&self, place: &str, class: u32, vendor: u16, device: u16, driver: &str) {
        let dir = format!("sys/devices/{place}");
        self.write(&format!("{dir}/class"), format!("{class:#08x}\n"));
        self.write(&format!("{dir}/vendor"), format!("{vendor:#06x}\n"));
        self.write(&format!("{dir}/device"), format!("{device:#06x}\n"));
        self.write(&format!("{dir}/config"), config());
        let address = place.rsplit('/').next().unwrap();
        let link = self.path(&format!("sys/bus/pci/devices/{address}"));
        symlink(format!("../../../devices/{place}"), link).unwrap();
        if !driver.is_empty() {
            let drivers = format!("sys/bus/pci/drivers/{driver}");
            fs::create_dir_all(self.path(&drivers)).unwrap();
            symlink(self.path(&drivers), self.path(&format!("{dir}/driver"))).unwrap();
        }
    }

    /// Adds a bridge with this port type.
    fn bridge(&self, place: &str, port: u8) {
        self.device(place, 0x06_0400, 0x104c, 0x8232, "");
        let mut config = config();
        config[0x42] |= port << 4;
        self.write(&format!("sys/devices/{place}/config"), config);
    }

    /// Changes a word of a device's configuration space.
    fn config(&self, address: &str, at: usize, word: u16) {
        let path = format!("sys/bus/pci/devices/{address}/config");
        let mut config = fs::read(self.path(&path)).unwrap();
        config[at..at + 2].copy_from_slice(&word.to_le_bytes());
        self.write(&path, config);
    }

    fn set(&self, address: &str, file: &str, text: impl AsRef<[u8]>) {
        self.write(&format!("sys/bus/pci/devices/{address}/{file}"), text);
    }

    fn bar(&self, address: &str, number: usize, size: u64) {
        let mut text = "0x0 0x0 0x0\n".repeat(number);
        text.push_str(&format!(
            "0x1000000000 {:#x} 0x14220c\n",
            0x10_0000_0000 + size - 1
        ));
        self.set(address, "resource", text);
    }

    /// Binds the GPU to another driver.
    fn bind(&self, driver: &str) {
        let link = self.path(&format!("sys/bus/pci/devices/{GPU}/driver"));
        let driver = self.path(&format!("sys/bus/pci/drivers/{driver}"));
        fs::remove_file(&link).unwrap();
        fs::create_dir_all(&driver).unwrap();
        symlink(driver, link).unwrap();
    }

    fn infiniband(&self, name: &str, address: &str) {
        let dir = format!("sys/class/infiniband/{name}");
        self.write(&format!("{dir}/ports/1/state"), "4: ACTIVE\n");
        let device = self.path(&format!("sys/bus/pci/devices/{address}"));
        symlink(device, self.path(&format!("{dir}/device"))).unwrap();
    }

    /// A fake perftest that counts like the kernel: it reads the policy.
    fn perftest(&self) -> String {
        let root = self.dir.path().display();
        format!(
            r#"root={root}
echo "$*" >>$root/args
case "$*" in
*--help*) echo "--odp --use_opencl= --gpu_touch="; exit 1;;
*localhost*)
	case $(cat $root/sys/kernel/mm/hmm/p2p) in
	*never*) f=$root/sys/kernel/mm/hmm/p2p_stats/policy;;
	*) f=$root/sys/kernel/mm/hmm/p2p_stats/bus_addr;;
	esac
	echo $(($(cat $f) + 100)) >$f
	rm -f $root/proc/net/tcp
	echo ' #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   t_avg[usec]'
	echo ' 65536      5000             11600.10            11500.20        9.4';;
*)
	mkdir -p $root/proc/net
	printf 'head\n 0: 00000000:4853 00000000:0000 0A\n' >$root/proc/net/tcp
	exec sleep 60;;
esac"#
        )
    }

    fn survey(&self) -> Survey {
        let known = doctor::Known::read().unwrap();
        let picture = doctor::capture::take(self.dir.path(), &known);
        let seen = doctor::Host::new(picture);
        let report = doctor::diagnose::diagnose(&seen, &known);
        checks::survey(&Host::at(self.dir.path()), &seen, &known, &report)
    }

    fn found(&self, check: &str) -> Finding {
        let survey = self.survey();
        let found = survey.findings.iter().find(|f| f.check.starts_with(check));
        found
            .unwrap_or_else(|| panic!("{}", in_words(&survey.findings)))
            .clone()
    }

    fn run(&self) -> (Result<Verdict>, String, tempfile::TempDir) {
        self.run_in(tempfile::tempdir().unwrap())
    }

    fn run_in(&self, root: tempfile::TempDir) -> (Result<Verdict>, String, tempfile::TempDir) {
        let paths = Paths::within(root.path());
        let result = run(&paths, &Ui::new(false), self.dir.path(), GPU_OPTIONS);
        let report = fs::read_to_string(paths.results().join("hw-report.md")).unwrap();
        // Columns are as wide as their longest cell.
        let narrow = |line: &str| match line.starts_with('|') {
            true => Vec::from_iter(line.split_whitespace()).join(" "),
            false => line.to_owned(),
        };
        let report = Vec::from_iter(report.lines().map(narrow)).join("\n");
        (result, report, root)
    }

    fn policy(&self) -> String {
        fs::read_to_string(self.path("sys/kernel/mm/hmm/p2p")).unwrap()
    }
}

#[test]
fn a_host_with_nothing_is_told_what_it_lacks() {
    let fixture = Fixture::bare();
    let (result, report, _root) = fixture.run();
    assert_eq!(status_of(&result), 2);
    for check in ["kernel", "gpu", "nic", "path"] {
        assert!(
            report.contains(&format!("MISSING  {check}: ")),
            "{check}: {report}"
        );
    }
    assert!(report.contains("note     perftest: "), "{report}");
    let row = "| hw | all | skipped | see the checks kernel, gpu, nic, path |";
    assert!(report.contains(row), "{report}");
}

/// The console and the report list the findings, and then the results.
#[test]
fn each_finding_is_told_once() {
    let without_perftest = Fixture::whole();
    fs::remove_file(without_perftest.path("usr/bin/ib_write_bw")).unwrap();
    for fixture in [Fixture::bare(), without_perftest] {
        let findings = fixture.survey().findings;
        let (_, report, _root) = fixture.run();
        for finding in findings {
            let times = report.matches(&finding.found).count();
            assert_eq!(times, 1, "{}: {report}", finding.check);
        }
    }
}

#[test]
fn the_page_says_what_is_missing() {
    let (result, _, root) = Fixture::bare().run();
    let page = fs::read_to_string(root.path().join("build/results/hw-report.html")).unwrap();
    assert!(page.contains("<h1>make hw-test</h1>"), "{page}");
    assert!(page.contains("<span class=\"word missing\">missing</span> <b>gpu</b>"));
    let error = format!("{:#}", result.err().unwrap());
    let (begin, _) = error.split_once(';').unwrap();
    assert!(
        page.contains("Aborted") && page.contains(begin),
        "{begin}: {page}"
    );
}

#[test]
fn a_host_with_everything_is_tested_and_left_as_it_was() {
    let fixture = Fixture::whole();
    let survey = fixture.survey();
    assert!(survey.pair.is_some(), "{}", in_words(&survey.findings));
    let (result, report, _root) = fixture.run();
    assert_eq!(status_of(&result), 0, "{report}");
    assert!(
        report.contains("| ib_write_bw | never | 11500.2 | MB/s |"),
        "{report}"
    );
    assert!(
        report.contains("| ib_write_lat | auto | 9.4 | us |"),
        "{report}"
    );
    assert!(
        report.contains("| hw/selftest | all | skipped | no kernel tree"),
        "{report}"
    );
    assert_eq!(fixture.policy(), "auto");
}

#[test]
fn a_kernel_that_ignores_the_policy_is_a_failure() {
    let fixture = Fixture::whole();
    let broken = fixture.perftest().replace("*never*", "*nowhere*");
    fixture.program("ib_read_bw", &broken);
    let (result, report, _root) = fixture.run();
    assert_eq!(status_of(&result), 1, "{report}");
    assert!(
        report.contains("| hw/never | ib_read_bw | failed |"),
        "{report}"
    );
}

#[test]
fn a_program_that_fails_is_told_and_the_policy_put_back() {
    let fixture = Fixture::whole();
    fixture.write("sys/kernel/mm/hmm/p2p", "auto [switch] never\n");
    let script = "case $* in *--help*) echo --odp --use_opencl --gpu_touch;; \
                  *) echo no SVM; exit 1;; esac";
    fixture.program("ib_write_bw", script);
    let (result, report, _root) = fixture.run();
    assert_eq!(status_of(&result), 1, "{report}");
    assert!(report.contains("no SVM"), "{report}");
    assert_eq!(fixture.policy(), "switch");
}

#[test]
fn the_kernel_and_its_options() {
    let fixture = Fixture::whole();
    fixture.write(
        "boot/config-7.3.0",
        "# CONFIG_PCI_P2PDMA is not set\nCONFIG_DEVICE_PRIVATE=y\n",
    );
    let found = fixture.found("config");
    assert_eq!(found.state, State::Missing);
    assert!(found.found.contains("CONFIG_PCI_P2PDMA"), "{}", found.found);
    assert!(!found.found.contains("DEVICE_PRIVATE"), "{}", found.found);
    fixture.write("sys/kernel/mm/hmm/p2p", "auto switch [never]\n");
    assert_eq!(fixture.found("kernel").state, State::Note);
    fs::remove_file(fixture.path("sys/kernel/mm/hmm/p2p")).unwrap();
    assert_eq!(fixture.found("kernel").state, State::Missing);
}

#[test]
fn gpus_that_have_no_device_private_memory() {
    for (device, word) in [
        (0x2204, "Ampere"),
        (0x1e84, "Turing"),
        (0x1d81, "Volta"),
        (0x13c2, "older"),
    ] {
        let fixture = Fixture::whole();
        fixture.set(GPU, "device", format!("{device:#x}\n"));
        let found = fixture.found("gpu");
        assert_eq!(found.state, State::Missing, "{word}");
        assert!(found.found.contains(word), "{}", found.found);
        assert!(found.next.contains("Pascal"), "{}", found.next);
    }
    let fixture = Fixture::whole();
    fs::remove_file(fixture.path(&format!("sys/bus/pci/devices/{GPU}/driver"))).unwrap();
    assert!(fixture.found("gpu").found.contains("no driver"));
}

#[test]
fn xe_is_believed_when_it_reserves_addresses() {
    let fixture = Fixture::whole();
    fixture.bind("xe");
    fixture.set(GPU, "device", "0xe20b\n");
    fixture.write("proc/iomem", format!("0-1 : PCI Bus\n  0-1 : {GPU}\n"));
    assert_eq!(fixture.found("gpu").state, State::Note, "not yet");
    fixture.write(
        "proc/iomem",
        format!("0-1 : PCI Bus\n  0-1 : {GPU}\n0-1 : {GPU}\n"),
    );
    assert_eq!(fixture.found("gpu").state, State::Ok);
    fixture.set(GPU, "device", "0x56a0\n");
    let found = fixture.found("gpu");
    assert_eq!(found.state, State::Missing, "never");
    assert!(found.found.contains("no page faults"), "{}", found.found);
}

/// Although it has reserved addresses for its pages.
#[test]
fn amdgpu_gives_peers_no_page() {
    let fixture = Fixture::whole();
    fixture.bind("amdgpu");
    fixture.write("proc/iomem", format!("0-1 : {GPU}\n"));
    fixture.bar(GPU, 0, 256 << 20);
    fixture.set(GPU, "resource0_resize", "0000000000007fc0\n");
    let found = fixture.found("gpu");
    assert_eq!(found.state, State::Missing);
    assert!(found.found.contains("HDP"), "{}", found.found);
    assert!(found.next.contains("dma-buf"), "{}", found.next);
    let survey = fixture.survey();
    assert!(survey.pair.is_none());
    let is_bar = |f: &Finding| f.check.starts_with("bar");
    assert!(
        !survey.findings.iter().any(is_bar),
        "a larger one is no help"
    );
}

#[test]
fn options_of_drivers() {
    let fixture = Fixture::whole();
    let path = fixture.path("boot/config-7.3.0");
    let options = fs::read_to_string(&path).unwrap();
    let without = options.replace("CONFIG_DRM_NOUVEAU_DMEM_P2P=y\n", "");
    fs::write(&path, without).unwrap();
    let found = fixture.found("gpu").found;
    let why = "nouveau without CONFIG_DRM_NOUVEAU_DMEM_P2P";
    assert!(found.contains(why), "{found}");
}

#[test]
fn a_small_bar_is_no_obstacle_but_said() {
    let fixture = Fixture::whole();
    fixture.bar(GPU, 1, 256 << 20);
    fixture.set(GPU, "resource1_resize", "0000000000007fc0\n");
    let found = fixture.found("bar");
    assert_eq!(found.state, State::Ok, "nouveau's windows move");
    assert!(found.found.contains("128 MiB at a time"), "{}", found.found);
    fixture.bind("xe");
    fixture.set(GPU, "device", "0xe20b\n");
    fs::remove_file(fixture.path(&format!("sys/bus/pci/devices/{GPU}/resource1_resize"))).unwrap();
    fixture.bar(GPU, 2, 256 << 20);
    assert_eq!(fixture.found("bar").state, State::Ok);
    fixture.set(GPU, "resource2_resize", "0000000000007fc0\n");
    let found = fixture.found("bar");
    assert_eq!(found.state, State::Missing);
    assert!(found.found.contains("256 MiB"), "{}", found.found);
    assert!(found.found.contains("nearly all"), "{}", found.found);
    assert!(found.found.contains("it can be 16 GiB"), "{}", found.found);
    assert!(found.next.contains("Resizable BAR"), "{}", found.next);
    // It could be larger than the memory, all of which it shows.
    let memory = "mem_info_vram_total";
    fixture.set(GPU, memory, "268435456\n");
    assert_eq!(fixture.found("bar").state, State::Ok);
    fixture.set(GPU, memory, "268435457\n");
    assert_eq!(fixture.found("bar").state, State::Missing);
    fixture.set(GPU, "resource", "");
    assert_eq!(fixture.found("bar").state, State::Missing);
}

#[test]
fn nics() {
    let fixture = Fixture::whole();
    assert!(fixture.found("nic").found.contains("SUPPORT_WRITE"));
    fixture.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    assert_eq!(fixture.found("nic").state, State::Missing);
    assert!(fixture.found("nic").next.contains("bring a port up"));
    fixture.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    fixture.program("ibv_devinfo", "echo 'rc_odp_caps:\n\tNO SUPPORT\n'");
    assert!(fixture.found("nic").found.contains("no on-demand paging"));
    let only_writes = "echo 'ODP_SUPPORT\nrc_odp_caps:\n\tSUPPORT_WRITE\nuc_odp_caps:\n'";
    fixture.program("ibv_devinfo", only_writes);
    let found = fixture.found("nic");
    assert_eq!(found.state, State::Missing);
    assert!(
        found.found.contains("without SUPPORT_READ"),
        "{}",
        found.found
    );
    // A software NIC is a problem only if there is no other NIC.
    let fixture = Fixture::whole();
    fs::create_dir_all(fixture.path("sys/class/infiniband/rxe0")).unwrap();
    assert_eq!(fixture.found("nic rxe0").state, State::Note);
    fs::remove_dir_all(fixture.path("sys/class/infiniband/mlx5_0")).unwrap();
    let found = fixture.found("nic rxe0");
    assert_eq!(found.state, State::Missing);
    assert!(found.found.contains("rxe"), "{}", found.found);
}

#[test]
fn the_port_is_the_active_one() {
    let fixture = Fixture::whole();
    let port = |fixture: &Fixture| fixture.survey().pair.unwrap().port;
    fixture.write("sys/class/infiniband/mlx5_0/ports/2/state", "4: ACTIVE\n");
    assert_eq!(port(&fixture), "1");
    fixture.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    assert_eq!(port(&fixture), "2");
    assert!(fixture.found("nic").found.ends_with("port 2"));
    let told = super::selftests::environment(&fixture.survey().pair.unwrap());
    assert!(told.contains(&("P2P_VERBS_PORT", "2".to_owned())));
    let (result, report, _root) = fixture.run();
    assert_eq!(status_of(&result), 0, "{report}");
    let args = fs::read_to_string(fixture.path("args")).unwrap();
    let runs = args.lines().filter(|line| line.contains("mlx5_0"));
    assert!(runs.clone().count() >= 12, "{args}");
    assert!(runs.clone().all(|line| line.contains("-i 2")), "{args}");
}

/// Who sends the report sends the host along, for `p2p-doctor --from`.
#[test]
fn the_host_is_attached() {
    for fixture in [Fixture::bare(), Fixture::whole()] {
        let (_, _, root) = fixture.run();
        let results = root.path().join("build/results");
        let dump = fs::read_to_string(results.join("hw-host.toml")).unwrap();
        let seen = doctor::Host::new(doctor::Picture::parse(&dump).unwrap());
        let known = doctor::Known::read().unwrap();
        let again = doctor::diagnose::diagnose(&seen, &known);
        let report = fs::read_to_string(results.join("hw-report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!(serde_json::to_value(again).unwrap(), report["doctor"]);
    }
}

#[test]
fn the_path_is_what_the_doctor_says() {
    let fixture = Fixture::whole();
    let path = fixture.found("path");
    assert_eq!(path.state, State::Ok);
    assert_eq!(path.found, "switch 0000:01:00.0: BUS_ADDR");
    // A user other than root sees only the header.
    fixture.set("0000:02:00.0", "config", [0; 64]);
    assert_eq!(fixture.found("path").state, State::Note);
    let fixture = Fixture::whole();
    fixture.config(NIC_PORT, ACS_CONTROL, 0x1d);
    let path = fixture.found("path");
    assert_eq!(path.state, State::Missing);
    let parameter = "pci=disable_acs_redir=0000:02:01.0";
    assert!(path.next.ends_with(parameter), "{}", path.next);
    assert!(path.found.contains("8086:1234"), "{}", path.found);
    assert!(fixture.survey().pair.is_none());
    let zen = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\n";
    fixture.write("proc/cpuinfo", zen);
    assert!(fixture.survey().pair.is_some());
}

/// A GPU has a path even if its driver does not support the series.
#[test]
fn paths_of_gpus_that_cannot_be_tested_are_told() {
    let fixture = Fixture::whole();
    fixture.bind("nvidia");
    let gpu = fixture.found("gpu");
    assert_eq!(gpu.state, State::Missing);
    assert!(gpu.next.contains("dma-buf"), "{}", gpu.next);
    assert_eq!(fixture.found("path").state, State::Ok);
    assert!(fixture.survey().pair.is_none());
}
