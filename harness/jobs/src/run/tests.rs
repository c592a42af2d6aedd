use super::*;

use std::fs;
use std::path::{Path, PathBuf};

use host::paths::Paths;
use plan::filter::Only;
use plan::job::{Plan, Spec};
use plan::topology::{Topologies, Topology};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn ran(console: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, RunResult) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("out")).unwrap();
    for (name, text) in files {
        fs::write(dir.path().join("out").join(name), text).unwrap();
    }
    let ran = RunResult {
        console: console.to_owned(),
        ..RunResult::quiet(dir.path())
    };
    (dir, ran)
}

fn job<'a>(topology: &'a Topology) -> Job<'a> {
    Job {
        name: "selftest/switch".into(),
        kernel: "plain".into(),
        topology,
        spec: toml::from_str("name='selftest'\ntopologies=[]\nlimit=1\n").unwrap(),
        test: None,
    }
}

#[test]
fn a_program_that_dies_after_its_last_result_fails() {
    let topologies = Topologies::read(&root()).unwrap();
    let job = job(topologies.get("switch").unwrap());
    let good = "TAP version 13\n1..1\nok 1 a\n";
    let (_dir, run) = ran("", &[("t.log", good), ("t.status", "0\n")]);
    assert!(
        program(&job, "p2pdma/t", &run)
            .iter()
            .all(|o| o.status == Status::Passed)
    );
    let (_dir, run) = ran("", &[("t.log", good), ("t.status", "139\n")]);
    assert!(
        program(&job, "p2pdma/t", &run)
            .iter()
            .any(|o| o.status == Status::Failed)
    );
    let (_dir, run) = ran("", &[("t.log", good)]);
    assert!(
        program(&job, "p2pdma/t", &run)
            .iter()
            .any(|o| o.status == Status::Failed)
    );
    let (_dir, run) = ran("", &[]);
    assert!(
        program(&job, "p2pdma/t", &run)
            .iter()
            .any(|o| o.status == Status::Failed)
    );
}

#[test]
fn a_skip_that_nobody_expects_fails() {
    let topologies = Topologies::read(&root()).unwrap();
    let mut job = job(topologies.get("switch").unwrap());
    let log = "TAP version 13\n1..3\nok 1 a # SKIP no test NIC\n\
               ok 2 b # SKIP there is one GPU\nok 3 c # SKIP another topology: x\n";
    let (_dir, run) = ran("", &[("t.log", log), ("t.status", "4\n")]);
    let mut end = |skips: Option<&str>| {
        job.spec.skips = skips.map(|text| vec![text.to_owned()]);
        let outcomes = program(&job, "p2pdma/t", &run);
        Vec::from_iter(outcomes.into_iter().map(|outcome| outcome.status))
    };
    assert_eq!(end(None), [Status::Skipped; 3]);
    let one_fails = [Status::Failed, Status::Skipped, Status::Skipped];
    assert_eq!(end(Some("another topology")), one_fails);
}

#[test]
fn a_program_that_skips_everything_says_so_by_its_status() {
    let topologies = Topologies::read(&root()).unwrap();
    let job = job(topologies.get("switch").unwrap());
    let skips = "TAP version 13\n1..1\nok 1 a # SKIP no test NIC\n";
    let passes = "TAP version 13\n1..1\nok 1 a\n";
    for (log, status, fails) in [
        (skips, "4\n", false),
        (skips, "0\n", true),
        (passes, "0\n", false),
        (passes, "4\n", true),
    ] {
        let (_dir, run) = ran("", &[("t.log", log), ("t.status", status)]);
        let outcomes = program(&job, "p2pdma/t", &run);
        let failed = outcomes.iter().any(|o| o.status == Status::Failed);
        assert_eq!(failed, fails, "{log}{status}");
    }
}

#[test]
fn tests_that_do_not_run_are_missed() {
    let mut outcomes = vec![
        Outcome::passed("a", "one"),
        Outcome::passed("a", "two"),
        Outcome::skipped("a", "three", "why"),
    ];
    assert_eq!(too_few(&outcomes, 2), None);
    let told = "2 passed, 0 failed, 1 skipped; at least 3 must pass";
    assert_eq!(too_few(&outcomes, 3).unwrap(), told);
    outcomes[1] = Outcome::failed("a", "two", "no");
    let told = "1 passed, 1 failed, 1 skipped; at least 2 must pass";
    assert_eq!(too_few(&outcomes, 2).unwrap(), told);
}

#[test]
fn a_loud_log_and_a_leak_are_failures() {
    let (_dir, quiet) = ran("[ 0.0] Linux\n", &[("kmemleak", "")]);
    assert_eq!(loud(&quiet, &[]), None);
    assert_eq!(leaks(&quiet), None);
    let (_dir, run) = ran(
        "[ 0.0] BUG: KASAN: use-after-free\n",
        &[("kmemleak", "unreferenced object 0x1 (size 8):\n")],
    );
    assert!(loud(&run, &[]).unwrap().contains("KASAN"));
    assert!(leaks(&run).unwrap().contains("unreferenced"));
    let (_dir, run) = ran("", &[]);
    assert!(leaks(&run).is_some());
    let lost = RunResult {
        end: End::Unheard,
        ..run
    };
    assert!(loud(&lost, &[]).unwrap().contains("not whole"));
}

#[test]
fn without_a_scan_nobody_knows_of_leaks() {
    let lib = fs::read_to_string(root().join("harness/guest/lib.sh")).unwrap();
    // A kmemleak that accepts every write but reports nothing, one that accepts no writes,
    // and none.
    let files = [("/dev/null", true), ("/", false), ("/nonexistent/x", false)];
    for (file, is_well) in files {
        let (dir, run) = ran("", &[]);
        let lib = lib
            .replace("/sys/kernel/debug/kmemleak", file)
            .replace(">/dev/kmsg", ">/dev/null")
            .replace("sleep 6", "true");
        let mut sh = std::process::Command::new("sh");
        sh.args(["-c", &format!("out=out\n{lib}\nkmemleak\n")]);
        host::proc::capture(sh.current_dir(dir.path())).unwrap();
        let told = leaks(&run);
        assert_eq!(told.is_none(), is_well, "{file}: {told:?}");
        assert!(told.is_none_or(|told| told.contains("no scan")));
    }
}

#[test]
fn what_a_machine_does_after_its_last_scenario_counts() {
    let topologies = Topologies::read(&root()).unwrap();
    let jobs = Plan::read(&root()).unwrap().jobs(&topologies).unwrap();
    let paths = Paths::within(Path::new("/p2p"));
    let failures = |ran: &RunResult| {
        let mut outcomes = of_machine("demo/switch", ran, &[], &paths);
        outcomes.retain(|outcome| outcome.status == Status::Failed);
        // The results of a machine that died name its console.
        let is_console = |log: &String| log.ends_with("console.log");
        assert!(
            outcomes
                .iter()
                .all(|o| o.log_file.as_ref().is_some_and(is_console))
        );
        results::report::Report::from(outcomes).summary(crate::demo::repeat)
    };
    let (_dir, good) = ran("[ 0.0] Linux\n", &[]);
    assert_eq!(failures(&good), "");
    let (_dir, oops) = ran("[ 9.0] BUG: unable to handle page fault\n", &[]);
    let told = failures(&oops);
    assert!(told.starts_with("FAILED demo/switch: a quiet kernel log\n"));
    assert!(told.contains("unable to handle"), "{told}");
    let hung = RunResult {
        end: End::TimedOut(Duration::from_secs(300)),
        ..good
    };
    let told = failures(&hung);
    assert!(told.starts_with("FAILED demo/switch: the machine ends well\n"));
    assert!(told.contains("300 s") && told.contains("console.log"));
    let (_, repeat) = told.split_once("to repeat: make demo ONLY=").unwrap();
    // `make demo` picks jobs by their names, and by topology.
    let demos = jobs.iter().filter(|job| job.is_demo());
    let names = Vec::from_iter(demos.map(|job| job.name.as_str()));
    let picked = |only: &str| {
        let only = Only::new(Some(only)).unwrap();
        only.check(&names).unwrap();
        let mut picked = Vec::from_iter(names.iter().copied().filter(|name| only.picks(name)));
        picked.sort_unstable();
        picked
    };
    let (repeat, log) = repeat.split_once('\n').unwrap();
    assert!(log.trim_start().starts_with("log: "), "{log}");
    assert_eq!(picked(repeat.trim()), ["demo/switch"]);
    assert_eq!(
        picked("switch"),
        [
            "demo-mlx5/switch",
            "demo-nouveau-mlx5/switch",
            "demo/switch"
        ]
    );
}

#[test]
fn two_jobs_are_compared_test_by_test() {
    let same = Same {
        name: "x".into(),
        jobs: ["a".into(), "b".into()],
    };
    let mut outcomes = vec![
        Outcome::passed("a", "one"),
        Outcome::skipped("a", "two", "why"),
        Outcome::passed("b", "one"),
        Outcome::skipped("b", "two", "another why"),
    ];
    assert_eq!(compare(&same, &outcomes).unwrap().status, Status::Passed);
    outcomes[3] = Outcome::failed("b", "two", "no");
    let outcome = compare(&same, &outcomes).unwrap();
    assert_eq!(outcome.status, Status::Failed);
    assert_eq!(outcome.reason, "two: skipped in a, failed in b");
    outcomes.pop();
    assert!(
        compare(&same, &outcomes)
            .unwrap()
            .reason
            .contains("absent in b")
    );
    assert!(compare(&same, &outcomes[..2]).is_none());
}

#[test]
fn what_a_job_adds_to_the_command_line() {
    let topologies = Topologies::read(&root()).unwrap();
    let switch = topologies.get("switch").unwrap();
    let mut machine = topologies.machine.clone();
    let platform = machine.arch.get_mut(&switch.arch).unwrap();
    platform.append_for_tests = vec!["all".to_owned()];
    let of = |own: &[&str], kunit: Option<&str>| {
        let spec = Spec {
            append: own.iter().map(|&word| word.to_owned()).collect(),
            kunit: kunit.map(str::to_owned),
            ..Spec::default()
        };
        append(
            &Job::alone("a/switch".to_owned(), "plain", switch, spec),
            &machine,
        )
    };
    // If an option appears twice, the kernel uses the last one.
    assert_eq!(of(&["own"], None), ["all", "own"]);
    assert_eq!(of(&[], Some("*")), ["all", "kunit.enable=1"]);
    let filtered = ["all", "kunit.enable=1", "kunit.filter_glob=rust_*"];
    assert_eq!(of(&[], Some("rust_*")), filtered);
    let parallel = Spec {
        machine: Kind::Parallel,
        ..Spec::default()
    };
    let job = Job::alone("a/switch".to_owned(), "plain", switch, parallel);
    assert!(job.is_parallel() && append(&job, &machine).is_empty());
}

#[test]
fn the_nic_of_a_parallel_machine_is_a_witness() {
    let names = |witness| {
        let ran = RunResult {
            dir: PathBuf::new(),
            end: End::Done(0),
            console: String::new(),
            time: Duration::ZERO,
            witness,
        };
        let paths = Paths::within(Path::new(""));
        let outcomes = of_machine("mlx5/switch", &ran, &[], &paths);
        let last = outcomes.last().unwrap();
        (outcomes.len(), last.name.clone(), last.status)
    };
    assert_eq!(names(None).0, 2);
    let witness = "the NIC's witness".to_owned();
    assert_eq!(names(Some(None)), (3, witness.clone(), Status::Passed));
    let broken = Some(Some("DMA after unmap".to_owned()));
    assert_eq!(names(broken), (3, witness, Status::Failed));
}

#[test]
fn a_program_may_lack_the_test_that_is_picked() {
    let topologies = Topologies::read(&root()).unwrap();
    let mut job = job(topologies.get("switch").unwrap());
    let empty = "TAP version 13\n1..0\n# PASSED: 0 / 0 tests passed.\n";
    let (_dir, run) = ran("", &[("t.log", empty), ("t.status", "0\n")]);
    // Without TEST=, a program without tests fails.
    assert_eq!(program(&job, "p2pdma/t", &run)[0].status, Status::Failed);
    job.test = Some("x".to_owned());
    assert!(program(&job, "p2pdma/t", &run).is_empty());
}

#[test]
fn a_demo_is_a_job_like_any_other() {
    let topologies = Topologies::read(&root()).unwrap();
    let spec = "name='d'\ntopologies=[]\nlimit=1\nscenarios=['p2pdma/p2p_demo', 'x/y_card']\n\
                load=['p2ptest']\nprograms=['mm/a']\nfrom='debug'\nkmemleak=true\n\
                [env]\nA='b'\n[[scenario]]\nname='thp'\npages=8\nkind='bus_addr'\npeer=8\nhome=0\n";
    let topology = topologies.get("switch").unwrap();
    let job = Job {
        spec: toml::from_str(spec).unwrap(),
        ..job(topology)
    };
    let paths = Paths::within(Path::new("/p2p"));
    let tools = setup::Tools {
        bindgen: "bindgen".into(),
        vng_dir: "vng".into(),
    };
    let booter = Booter {
        paths: &paths,
        ui: &host::ui::Ui::new(false),
        tools: &tools,
        qemu: Some(Path::new("/nowhere/qemu")),
        qemu_args: &[],
        machine: &topologies.machine,
    };
    let text = script(&job, &booter).unwrap();
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(at("load p2ptest") < at("export A=b"), "{text}");
    let demo = at("run 0-thp /p2p/build/debug/selftests/p2pdma/p2p_demo");
    let card = at("run 1-thp /p2p/build/debug/selftests/x/y_card");
    assert!(at("export A=b") < demo && demo < card, "{text}");
    assert!(card < at("run a /p2p"), "{text}");
    assert!(text.ends_with("kmemleak\n"), "{text}");
    assert!(!text.contains("P2PTEST_HOTPLUG"), "{text}");
    let with_slots = Job {
        spec: job.spec.clone(),
        ..self::job(topologies.get("hotplug").unwrap())
    };
    let text = script(&with_slots, &booter).unwrap();
    let (before, _) = text.split_once("run a /p2p").unwrap();
    assert!(before.contains("find_judge\n"), "{text}");
    assert!(
        before.contains("export P2PTEST_HOTPLUG=\"$judge\"\n"),
        "{text}"
    );
    // Without the program's result, each scenario fails with a reason.
    let (_dir, none) = ran("", &[]);
    let rows = crate::demo::rows(&job, &none);
    assert_eq!(rows.len(), 2);
    assert!(rows[0].trouble.as_ref().unwrap().contains("no result"));
    let devices = [rows[0].devices, rows[1].devices];
    assert_eq!(devices, ["p2ptest + edu", "p2ptest + card"]);
    // They are tests of one job, so their names must differ.
    let name = |row: &ScenarioResult| row.outcome("d", &paths).name;
    assert_ne!(name(&rows[0]), name(&rows[1]));
}
