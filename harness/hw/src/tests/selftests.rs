//! Selftests from a fake tree.

use super::*;
use crate::checks::Pair;

impl Fixture {
    /// Runs with a kernel tree whose selftests print `cases`.
    fn run_with_tree(&self, cases: &str) -> (Result<Verdict>, String, tempfile::TempDir) {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join("build/linux").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put(
            "Makefile",
            "headers_install:\n\tmkdir -p $(O)/usr/include\n",
        );
        for (folder, name) in [
            ("p2pdma", "one_test"),
            ("p2pdma/gpu", "hmm_p2p_gpu_plugin_test"),
            ("p2pdma/verbs", "hmm_p2p_verbs_gpu_test"),
            ("p2pdma/verbs", "hmm_p2p_verbs_speed_test"),
            ("mm", "hmm-tests"),
        ] {
            let folder = format!("tools/testing/selftests/{folder}");
            put(
                &format!("{folder}/Makefile"),
                &format!(
                    "all: $(OUTPUT)/{name}\n$(OUTPUT)/%: %.sh\n\t\
                     test -d $(lastword $(KHDR_INCLUDES))\n\tinstall $< $@\n"
                ),
            );
            let report = format!("echo TAP version 13; echo 1..1; {cases}");
            put(
                &format!("{folder}/{name}.sh"),
                &format!("#!/bin/sh\n{report}\n"),
            );
        }
        self.run_in(root)
    }

    /// A fake modprobe that knows test_hmm and records its calls.
    fn modprobe(&self) {
        let root = self.dir.path().display();
        self.program(
            "modprobe",
            &format!(
                "echo $* >>{root}/asked\ncase $* in\ntest_hmm) mkdir -p {root}/sys/module/test_hmm;;\n\
                 '-r test_hmm') rmdir {root}/sys/module/test_hmm;;\nesac"
            ),
        );
    }
}

#[test]
fn the_selftests_of_hmm_have_their_module_while_they_run() {
    let fixture = Fixture::whole();
    fixture.modprobe();
    let module = fixture.path("sys/module/test_hmm");
    // The test prints its arguments, and whether the module is loaded.
    let cases = format!(
        "[ -d {0} ] && l=loaded; echo \"ok 1 $* $l\"",
        module.display()
    );
    let (result, report, _root) = fixture.run_with_tree(&cases);
    assert_eq!(status_of(&result), 0, "{report}");
    assert!(
        report.contains("| hw/selftest | one_test: test 1 | passed |"),
        "{report}"
    );
    let hmm = "| hw/selftest | hmm-tests: -f hmm_p2p -f hmm_p2p_refused loaded | passed |";
    assert!(report.contains(hmm), "{report}");
    assert!(!module.is_dir());
    let asked = fs::read_to_string(fixture.path("asked")).unwrap();
    assert_eq!(asked, "test_hmm\n-r test_hmm\n");
}

#[test]
fn a_module_that_was_there_before_stays() {
    let fixture = Fixture::whole();
    fixture.modprobe();
    let module = fixture.path("sys/module/test_hmm");
    fs::create_dir_all(&module).unwrap();
    let (result, report, _root) = fixture.run_with_tree("echo not ok 1 wrong");
    assert_eq!(status_of(&result), 1, "{report}");
    assert!(
        report.contains("| hw/selftest | hmm-tests: wrong | failed |"),
        "{report}"
    );
    assert!(module.is_dir());
    assert!(!fixture.path("asked").exists());
}

#[test]
fn without_test_hmm_its_tests_are_skipped() {
    for (modprobe, why) in [
        (None, "modprobe is not there: install kmod"),
        (
            Some("echo no such module >&2; exit 1"),
            "test_hmm cannot be loaded: build the kernel with CONFIG_TEST_HMM=m<br>no such module",
        ),
    ] {
        let fixture = Fixture::whole();
        if let Some(script) = modprobe {
            fixture.program("modprobe", script);
        }
        let (result, report, _root) = fixture.run_with_tree("echo ok 1 fine");
        assert_eq!(status_of(&result), 0, "{report}");
        let skipped = format!("| hw/selftest | hmm-tests | skipped | {why} |");
        assert!(report.contains(&skipped), "{report}");
        let passed = "| hw/selftest | one_test: fine | passed |";
        assert!(report.contains(passed), "{report}");
    }
}

/// Contents are compared between the found devices. The expected path is the doctor's.
#[test]
fn the_devices_and_the_path_are_named() {
    let cases = "echo ok 1 $P2PTEST_GPU $P2P_VERBS_DEVICE $P2PTEST_EXPECT";
    let zen = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\n";
    let fixture = Fixture::whole();
    let redirected = Fixture::whole();
    redirected.config(NIC_PORT, ACS_CONTROL, 0x1d);
    redirected.write("proc/cpuinfo", zen);
    for (fixture, path) in [(fixture, "bus_addr"), (redirected, "host_bridge")] {
        let (_, report, _root) = fixture.run_with_tree(cases);
        for program in [
            "hmm_p2p_gpu_plugin_test",
            "hmm_p2p_verbs_gpu_test",
            "hmm_p2p_verbs_speed_test",
        ] {
            let named = format!("| {program}: nouveau@{GPU} mlx5_0 {path} | passed |");
            assert!(report.contains(&named), "{report}");
        }
        // The other tests look for test devices.
        assert!(report.contains("| one_test: test 1 | passed |"), "{report}");
    }
}

/// A container's root may lack the capability that reading ACS takes.
#[test]
fn no_path_is_expected_if_mlx5s_limits_are_not_known() {
    let mut pair = Fixture::whole().survey().pair.unwrap();
    let expects = |pair: &Pair| {
        let told = crate::selftests::environment(pair);
        told.iter().any(|(name, _)| *name == "P2PTEST_EXPECT")
    };
    assert!(expects(&pair));
    let port = doctor::host::Address::parse(NIC_PORT).unwrap();
    pair.reads = Err(doctor::mlx5::Unreadable(port));
    assert!(!expects(&pair));
}

/// perftest with OpenCL is rare, and the comparison of contents does not need it.
#[test]
fn contents_are_compared_without_perftest() {
    let fixture = Fixture::whole();
    fs::remove_file(fixture.path("usr/bin/ib_write_bw")).unwrap();
    let (result, report, _root) = fixture.run_with_tree("echo not ok 1 wrong bytes");
    assert_eq!(status_of(&result), 1, "{report}");
    let skipped = "| hw | perftest | skipped | see the check perftest |";
    assert!(report.contains(skipped), "{report}");
    let failed = "| hmm_p2p_verbs_gpu_test: wrong bytes | failed |";
    assert!(report.contains(failed), "{report}");
    assert_eq!(fixture.policy(), "auto");
}

/// What the test prints becomes a table and a picture, in the report and on its page.
#[test]
fn speed_is_shown() {
    let fixture = Fixture::whole();
    let line = "speed in-place READ 65536 0.000010 21 peer=16 home=0";
    let cases = format!("case $0 in *speed*) echo '# {line}';; esac; echo ok 1 fine");
    let (_, report, root) = fixture.run_with_tree(&cases);
    let row = "10.0 us, 6554 MB/s";
    assert!(report.contains(row), "{report}");
    let results = root.path().join("build/results");
    let page = fs::read_to_string(results.join("hw-report.html")).unwrap();
    assert!(
        page.contains(row) && page.contains("data:image/svg+xml"),
        "{page}"
    );
    let json = fs::read_to_string(results.join("hw-report.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["speeds"][0]["peer"], 16);

    let (_, report, root) = fixture.run_with_tree("echo ok 1 fine");
    assert!(!report.contains("hw-speed.svg"), "{report}");
    assert!(!root.path().join("build/results/hw-speed.svg").exists());
}
