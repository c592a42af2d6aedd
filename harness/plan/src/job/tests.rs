use super::*;

use std::fs;
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
            job.is_demo()
                || job.spec.kunit.is_some()
                || !job.spec.programs.is_empty()
                || !job.spec.pyverbs.is_empty()
                || !job.spec.commands.is_empty()
                // A parallel job checks its NIC model as a witness.
                || job.is_parallel(),
            "{} has nothing to do",
            job.name
        );
        // Without a list, a test may skip for any reason.
        let has_tests = !job.spec.programs.is_empty()
            || !job.spec.pyverbs.is_empty()
            || !job.spec.commands.is_empty();
        assert_eq!(job.spec.skips.is_some(), has_tests, "{}", job.name);
        // The number of tests is not known from our sources.
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
    // Each topology that is for all has a demo job, and no other one has a job here.
    for topology in topologies.all() {
        let has_demo = jobs
            .iter()
            .any(|job| job.name == format!("demo/{}", topology.name));
        assert!(has_demo || !topology.is_for_all(), "{}", topology.name);
    }
    let foreign = |job: &Job<'_>| job.topology.arch.is_foreign();
    assert!(!jobs.iter().any(foreign));
}

#[test]
fn a_kernel_boots_on_its_architecture() {
    let kernels = Kernels::read(&root()).unwrap();
    let topologies = Topologies::read(&root()).unwrap();
    for file in ["qemu/tests.toml", "qemu/soak.toml"] {
        let plan = Plan::read_file(&root(), file).unwrap();
        for job in plan.jobs(&topologies).unwrap() {
            for kernel in job.needs() {
                let arch = kernels.get(kernel).unwrap().arch;
                assert_eq!(arch, job.topology.arch, "{}: {kernel}", job.name);
            }
        }
    }
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
            "name='demo'\ntopologies=['switch']\nscenarios=['a/b']\nlimit=1\n\
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
    assert!(check(&format!("scenarios=['p2pdma/p2p_demo']\n{own}")));
    assert!(!check(own));
}

#[test]
fn one_test_of_a_program() {
    let cases = [
        ("p2pdma/a", "x", "p2pdma/a -t x"),
        ("p2pdma/a", "f.x", "p2pdma/a -r f.x"),
        // Options that pick tests are dropped. Options that exclude tests stay and come first.
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
fn a_job_can_boot_the_base_with_programs_of_the_series() {
    let topologies = Topologies::read(&root()).unwrap();
    let kernels = Kernels::read(&root()).unwrap();
    let jobs = Plan::read(&root()).unwrap();
    let jobs = jobs.jobs(&topologies).unwrap();
    let of = |name| {
        let job = jobs.iter().find(|job| job.name == name).unwrap();
        let boots = job.boots_series(&kernels).unwrap();
        (boots, job.needs_series(&kernels).unwrap())
    };
    assert_eq!(of("verbs-base/switch"), (false, true));
    assert_eq!(of("verbs-series/switch"), (true, true));
    assert_eq!(of("hmm-base/switch"), (false, false));
}

#[test]
fn names_that_there_are_not_are_refused_with_their_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root.join("qemu"), dir.path().join("qemu")).unwrap();
    let read = |text: &str| {
        fs::write(dir.path().join("jobs.toml"), text).unwrap();
        let plan = Plan::read_file(dir.path(), "jobs.toml")?;
        let topologies = Topologies::read(dir.path())?;
        anyhow::Ok(plan.jobs(&topologies)?.len())
    };
    let job = |more: &str| format!("[[job]]\nname = \"a\"\nlimit = 60\n{more}\n");
    let switch = job("topologies = [\"switch\"]");
    assert_eq!(read(&switch).unwrap(), 1);
    for (text, why) in [
        (job("topologies = [\"swich\"]"), "no topology \"swich\""),
        (
            job("topologies = [\"*\"]\nkernel = \"plian\""),
            "no kernel \"plian\"",
        ),
    ] {
        let error = format!("{:#}", read(&text).unwrap_err());
        assert!(
            error.contains("jobs.toml: job a: ") && error.contains(why),
            "{error}"
        );
    }
    let error = format!("{:#}", read(&(switch.clone() + &switch)).unwrap_err());
    assert!(error.contains("two jobs a/switch"), "{error}");
}
