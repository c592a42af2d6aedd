use super::*;

use std::path::PathBuf;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_plan_of_this_repository() {
    let topologies = Topologies::read(&root()).unwrap();
    let kernels = Kernels::read(&root()).unwrap();
    let plan = Plan::read(&root()).unwrap();
    let jobs = plan.jobs(&topologies).unwrap();
    assert!(jobs.is_sorted_by(|a, b| a.spec.limit >= b.spec.limit));
    for job in &jobs {
        for kernel in job.needs() {
            let kernel = kernels.get(kernel).unwrap();
            assert!(!kernel.fragments.is_empty());
            assert!(!kernel.is_built_only(), "{} cannot boot it", job.name);
        }
        assert!(
            job.spec.scenarios.is_some()
                || job.spec.kunit.is_some()
                || !job.spec.programs.is_empty()
                || !job.spec.pyverbs.is_empty()
                || !job.spec.commands.is_empty()
                // Its NIC is a witness.
                || job.is_parallel(),
            "{} has nothing to do",
            job.name
        );
        // Any reason will do where none is named.
        let has_tests = !job.spec.programs.is_empty()
            || !job.spec.pyverbs.is_empty()
            || !job.spec.commands.is_empty();
        assert_eq!(job.spec.skips.is_some(), has_tests, "{}", job.name);
        // How many tests there are is not written in what is ours.
        let is_foreign = !job.spec.pyverbs.is_empty() || job.spec.kunit.is_some();
        assert!(
            job.spec.at_least.is_some() || !is_foreign,
            "{} has no floor",
            job.name
        );
        for script in &job.spec.prepare {
            assert!(guest_script(&root(), script).is_file(), "{script}");
        }
        let source = kernels.get(job.needs().last().unwrap()).unwrap();
        for program in job.spec.programs.iter().chain(&job.spec.scenarios) {
            let (program, _) = words(program);
            let built = source
                .selftests
                .iter()
                .any(|entry| entry == program || split(program).0 == entry);
            assert!(built, "{}: {program} is not built", job.name);
        }
    }
    for same in &plan.same {
        for name in &same.jobs {
            assert!(jobs.iter().any(|job| job.name == *name), "{name}");
        }
    }
    // Every topology that has scenarios is judged.
    let has_scenarios = |t: &&&crate::topology::Topology| !t.scenarios.is_empty();
    for topology in topologies.all().iter().filter(has_scenarios) {
        assert!(
            jobs.iter()
                .any(|job| job.name == format!("demo/{}", topology.name))
        );
    }
}

fn ran(console: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, Ran) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("out")).unwrap();
    for (name, text) in files {
        fs::write(dir.path().join("out").join(name), text).unwrap();
    }
    let ran = Ran {
        dir: dir.path().to_owned(),
        end: End::Done(0),
        console: console.to_owned(),
        time: Duration::ZERO,
        witness: None,
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
fn what_a_job_plays_itself_must_be_possible() {
    let spec = |peer: u64| -> Spec {
        let text = format!(
            "name='demo'\ntopologies=['switch']\nscenarios='a/b'\nlimit=1\n\
             [[scenario]]\nname='thp'\npages=8\nkind='bus_addr'\npeer={peer}\nhome=4\n"
        );
        toml::from_str(&text).unwrap()
    };
    spec(4).check().unwrap();
    let error = format!("{:#}", spec(5).check().unwrap_err());
    assert!(
        error.contains("job demo: scenario thp: more pages"),
        "{error}"
    );
}

#[test]
fn a_program_that_dies_after_its_last_result_fails() {
    let topologies = Topologies::read(&root()).unwrap();
    let job = job(topologies.get("switch").unwrap());
    let good = "TAP version 13\n1..1\nok 1 a\n";
    let (_dir, run) = ran("", &[("t.log", good), ("t.status", "0\n")]);
    assert!(
        job.program("p2pdma/t", &run)
            .iter()
            .all(|o| o.status == Status::Passed)
    );
    let (_dir, run) = ran("", &[("t.log", good), ("t.status", "139\n")]);
    assert!(
        job.program("p2pdma/t", &run)
            .iter()
            .any(|o| o.status == Status::Failed)
    );
    let (_dir, run) = ran("", &[("t.log", good)]);
    assert!(
        job.program("p2pdma/t", &run)
            .iter()
            .any(|o| o.status == Status::Failed)
    );
    let (_dir, run) = ran("", &[]);
    assert!(
        job.program("p2pdma/t", &run)
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
    let (_dir, run) = ran("", &[("t.log", log), ("t.status", "0\n")]);
    let mut end = |skips: Option<&str>| {
        job.spec.skips = skips.map(|text| vec![text.to_owned()]);
        let outcomes = job.program("p2pdma/t", &run);
        Vec::from_iter(outcomes.into_iter().map(|outcome| outcome.status))
    };
    assert_eq!(end(None), [Status::Skipped; 3]);
    let one_fails = [Status::Failed, Status::Skipped, Status::Skipped];
    assert_eq!(end(Some("another topology")), one_fails);
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
    let lost = Ran {
        end: End::Unheard,
        ..run
    };
    assert!(loud(&lost, &[]).unwrap().contains("not whole"));
}

#[test]
fn without_a_scan_nobody_knows_of_leaks() {
    let lib = fs::read_to_string(root().join("harness/guest/lib.sh")).unwrap();
    // kmemleak takes everything and knows nothing, takes nothing, or is not there.
    let files = [("/dev/null", true), ("/", false), ("/nonexistent/x", false)];
    for (file, is_well) in files {
        let (dir, run) = ran("", &[]);
        let lib = lib
            .replace("/sys/kernel/debug/kmemleak", file)
            .replace(">/dev/kmsg", ">/dev/null")
            .replace("sleep 6", "true");
        let mut sh = std::process::Command::new("sh");
        sh.args(["-c", &format!("out=out\n{lib}\nkmemleak\n")]);
        crate::proc::capture(sh.current_dir(dir.path())).unwrap();
        let told = leaks(&run);
        assert_eq!(told.is_none(), is_well, "{file}: {told:?}");
        assert!(told.is_none_or(|told| told.contains("no scan")));
    }
}

#[test]
fn what_a_machine_does_after_its_last_scenario_counts() {
    let topologies = Topologies::read(&root()).unwrap();
    let jobs = Plan::read(&root()).unwrap().jobs(&topologies).unwrap();
    let paths = Paths {
        root: "/p2p".into(),
        work: "/p2p/build".into(),
        output: "/p2p/build".into(),
        cache: "/p2p/cache".into(),
        kdir: None,
    };
    let failures = |ran: &Ran| {
        let mut outcomes = of_machine("demo/switch", ran, &[], &paths);
        outcomes.retain(|outcome| outcome.status == Status::Failed);
        // Results of a machine that died name its console.
        let is_console = |log: &String| log.ends_with("console.log");
        assert!(
            outcomes
                .iter()
                .all(|o| o.log_file.as_ref().is_some_and(is_console))
        );
        crate::report::Report::from(outcomes).tell(crate::demo::repeat)
    };
    let (_dir, good) = ran("[ 0.0] Linux\n", &[]);
    assert_eq!(failures(&good), "");
    let (_dir, oops) = ran("[ 9.0] BUG: unable to handle page fault\n", &[]);
    let told = failures(&oops);
    assert!(told.starts_with("FAILED demo/switch: a quiet kernel log\n"));
    assert!(told.contains("unable to handle"), "{told}");
    let hung = Ran {
        end: End::TimedOut(Duration::from_secs(300)),
        ..good
    };
    let told = failures(&hung);
    assert!(told.starts_with("FAILED demo/switch: the machine ends well\n"));
    assert!(told.contains("300 s") && told.contains("console.log"));
    let (_, repeat) = told.split_once("to repeat: make demo ONLY=").unwrap();
    // `make demo` knows jobs by their names, and those of a topology.
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
    assert_eq!(same.compare(&outcomes).unwrap().status, Status::Passed);
    outcomes[3] = Outcome::failed("b", "two", "no");
    let outcome = same.compare(&outcomes).unwrap();
    assert_eq!(outcome.status, Status::Failed);
    assert_eq!(outcome.reason, "two: skipped in a, failed in b");
    outcomes.pop();
    assert!(
        same.compare(&outcomes)
            .unwrap()
            .reason
            .contains("absent in b")
    );
    assert!(same.compare(&outcomes[..2]).is_none());
}

#[test]
fn jobs_run_until_the_first_error() {
    let done = Mutex::new(0);
    // One at a time: another could take all jobs before the error is told.
    let result = run_all((0..100).collect(), 1, |n| {
        *done.lock().unwrap() += 1;
        if n == 3 { bail!("no") } else { Ok(()) }
    });
    assert!(result.is_err());
    assert_eq!(*done.lock().unwrap(), 4);
    run_all(vec![1, 2, 3], 8, |_| Ok(())).unwrap();
}

#[test]
fn a_job_runs_once_its_kernels_are_there() {
    for at_a_time in [1, 2, 8] {
        let (built, ran) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let build = |kernel: &str| {
            // Time for a job to run too early.
            std::thread::sleep(std::time::Duration::from_millis(10));
            built.lock().unwrap().push(kernel.to_owned());
            Ok(true)
        };
        let jobs = vec![vec!["plain"], vec!["debug", "base"], vec!["base"], vec![]];
        let kernels = ["base", "debug", "plain"];
        let run = |needs: Vec<&str>| {
            let built = built.lock().unwrap();
            let has = |name: &&str| built.iter().any(|there| there == name);
            assert!(needs.iter().all(has), "{needs:?}");
            ran.lock().unwrap().push(needs.len());
            Ok(())
        };
        run_as_built(jobs, Vec::clone, &kernels, at_a_time, build, run).unwrap();
        assert_eq!(*built.lock().unwrap(), kernels);
        assert_eq!(ran.lock().unwrap().len(), 4);
    }
}

#[test]
fn what_a_job_adds_to_the_command_line() {
    let topologies = Topologies::read(&root()).unwrap();
    let switch = topologies.get("switch").unwrap();
    let mut machine = topologies.machine.clone();
    machine.counting.append_for_tests = vec!["all".to_owned()];
    let append = |own: &[&str], kunit: Option<&str>| {
        let spec = Spec {
            append: own.iter().map(|&word| word.to_owned()).collect(),
            kunit: kunit.map(str::to_owned),
            ..Spec::default()
        };
        Job::alone("a/switch".to_owned(), "plain", switch, spec).append(&machine)
    };
    // Of a word that is there twice, the kernel takes the last.
    assert_eq!(append(&["own"], None), ["all", "own"]);
    assert_eq!(append(&[], Some("*")), ["all", "kunit.enable=1"]);
    let filtered = ["all", "kunit.enable=1", "kunit.filter_glob=rust_*"];
    assert_eq!(append(&[], Some("rust_*")), filtered);
    let parallel = Spec {
        machine: Kind::Parallel,
        ..Spec::default()
    };
    let job = Job::alone("a/switch".to_owned(), "plain", switch, parallel);
    assert!(job.is_parallel() && job.append(&machine).is_empty());
}

#[test]
fn what_a_kind_of_machine_cannot_have() {
    let check = |more: &str| {
        let text = format!("name='x'\ntopologies=['*']\nlimit=1\n{more}");
        toml::from_str::<Spec>(&text).unwrap().check().is_ok()
    };
    assert!(check("icount='shift=0'") && check("machine='parallel'\nconnectx=['--x']"));
    assert!(!check("machine='parallel'\nicount='shift=0'"));
    assert!(!check("connectx=['--x']"));
    let bounds = "bounds={'*'={write_us=1,memory_mib=1}}";
    for only in ["at_peer=true", bounds] {
        assert!(check(&format!("machine='parallel'\n{only}")));
        assert!(!check(only));
        assert!(!check(&format!("machine='parallel'\nedu=true\n{only}")));
    }
    assert!(!check(&format!(
        "machine='parallel'\n{}",
        bounds.replace('*', "x")
    )));
    let own = "[[scenario]]\nname='thp'\npages=1\nkind='bus_addr'\npeer=1\nhome=0";
    assert!(check(&format!("scenarios='p2pdma/p2p_demo'\n{own}")));
    assert!(!check(own));
}

#[test]
fn the_nic_of_a_parallel_machine_is_a_witness() {
    let names = |witness| {
        let ran = Ran {
            dir: PathBuf::new(),
            end: End::Done(0),
            console: String::new(),
            time: Duration::ZERO,
            witness,
        };
        let paths = Paths {
            root: PathBuf::new(),
            work: PathBuf::new(),
            output: PathBuf::new(),
            cache: PathBuf::new(),
            kdir: None,
        };
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
fn of_what_can_run_the_first_does() {
    let ran = Mutex::new(Vec::new());
    let jobs = vec![vec!["plain"], vec!["base"], vec![]];
    let run = |needs: Vec<&'static str>| {
        ran.lock().unwrap().push(needs);
        Ok(())
    };
    let kernels = ["base", "plain"];
    let left = run_as_built(jobs.clone(), Vec::clone, &kernels, 1, |_| Ok(true), run);
    assert!(left.unwrap().is_empty());
    assert_eq!(ran.into_inner().unwrap(), jobs);
}

#[test]
fn nobody_waits_for_a_build_that_panics() {
    let jobs = vec![vec!["plain"]];
    let all = || {
        run_as_built(
            jobs,
            Vec::clone,
            &["plain"],
            2,
            |_| panic!("no"),
            |_| Ok(()),
        )
    };
    assert!(std::panic::catch_unwind(all).is_err());
}

#[test]
fn a_kernel_that_cannot_be_used_costs_only_its_own_jobs() {
    let ran = Mutex::new(Vec::new());
    let run = |job| {
        ran.lock().unwrap().push(job);
        Ok(())
    };
    let jobs = vec![vec!["debug"], vec!["plain"], vec!["plain", "debug"]];
    let build = |kernel: &str| Ok(kernel != "debug");
    let left = run_as_built(jobs, Vec::clone, &["debug", "plain"], 2, build, run).unwrap();
    assert_eq!(*ran.lock().unwrap(), [["plain"]]);
    assert_eq!(left, [vec!["debug"], vec!["plain", "debug"]]);
}

#[test]
fn nothing_runs_after_an_error() {
    let build = |kernel: &str| {
        if kernel == "debug" {
            bail!("no")
        } else {
            Ok(true)
        }
    };
    let ran = Mutex::new(0);
    let run = |_| {
        *ran.lock().unwrap() += 1;
        Ok(())
    };
    let jobs = vec![vec!["debug"], vec!["plain"]];
    let result = run_as_built(jobs, Vec::clone, &["debug", "plain"], 2, build, run);
    assert_eq!(result.unwrap_err().to_string(), "no");
    assert_eq!(*ran.lock().unwrap(), 0);
}

#[test]
fn one_test_of_a_program() {
    let cases = [
        ("p2pdma/a", "x", "p2pdma/a -t x"),
        ("p2pdma/a", "f.x", "p2pdma/a -r f.x"),
        // What picks tests gives way, what excludes some stays and comes first.
        ("mm/a -f f -f g", "f.v.x", "mm/a -r f.v.x"),
        ("p/a -V runtime -t y -T z", "x", "p/a -V runtime -T z -t x"),
    ];
    for (program, test, wanted) in cases {
        assert_eq!(with_test(program, test), wanted);
    }
    let topologies = Topologies::read(&root()).unwrap();
    let mut job = job(topologies.get("switch").unwrap());
    assert!(!job.has_programs());
    let own = ["p/a -T z", "p/b", "p/a -T z"];
    job.spec.programs = own.map(str::to_owned).to_vec();
    job.spec.at_least = Some(7);
    job.spec.commands = vec!["c".to_owned()];
    assert_eq!(job.runs(), ["a -T z", "b", "a -T z", "c"]);
    job.pick_test("x");
    assert!(job.has_programs() && job.spec.at_least.is_none());
    assert_eq!(job.runs(), ["a -T z -t x", "b -t x", "a -T z -t x"]);
}

#[test]
fn a_program_may_lack_the_test_that_is_picked() {
    let topologies = Topologies::read(&root()).unwrap();
    let mut job = job(topologies.get("switch").unwrap());
    let empty = "TAP version 13\n1..0\n# PASSED: 0 / 0 tests passed.\n";
    let (_dir, run) = ran("", &[("t.log", empty), ("t.status", "0\n")]);
    // Without TEST= it is a program that tests nothing.
    assert_eq!(job.program("p2pdma/t", &run)[0].status, Status::Failed);
    job.test = Some("x".to_owned());
    assert!(job.program("p2pdma/t", &run).is_empty());
}
