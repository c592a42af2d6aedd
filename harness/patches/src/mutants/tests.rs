use std::fs;
use std::path::PathBuf;

use super::file::{TestRun, Tests};
use super::plant::end;
use super::record::MutantOutcome;
use super::settings::KUNIT;
use super::*;
use kernel::tree::Tree;
use results::report::Outcome;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_mutants_of_this_repository() {
    let settings = MutantsConfig::read(&root()).unwrap();
    let topologies = Topologies::read(&root()).unwrap();
    topologies.get(&settings.topology).unwrap();
    let mutants = file::read_all(&root().join("qemu/mutants")).unwrap();
    assert!(mutants.len() >= 40, "{}", mutants.len());
    for mutant in &mutants {
        if let Some(topology) = &mutant.topology {
            topologies.get(topology).unwrap();
        }
        for program in &mutant.programs {
            let path = program.split(' ').next().unwrap();
            let folder = path.rsplit_once('/').unwrap().0;
            let built = |entry: &String| entry == path || entry == folder;
            assert!(settings.kernel.selftests.iter().any(built), "{program}");
        }
    }
    for spec in settings.machines(&file::all_tests(&mutants.iter().collect::<Vec<_>>())) {
        spec.check().unwrap();
        for script in &spec.prepare {
            let script = root().join(format!("harness/guest/{script}.sh"));
            assert!(script.is_file(), "{}", script.display());
        }
    }
    let mut diffs: Vec<_> = mutants
        .iter()
        .map(|m| m.text.split_once("\n\n").unwrap().1)
        .collect();
    diffs.sort_unstable();
    diffs.dedup();
    assert_eq!(diffs.len(), mutants.len(), "two are the same defect");
}

/// Each key must be the prefix of a program. Otherwise, after a rename, mutants would run
/// on other devices unnoticed.
#[test]
fn each_key_of_a_table_is_of_a_program() {
    let settings = MutantsConfig::read(&root()).unwrap();
    let mutants = file::read_all(&root().join("qemu/mutants")).unwrap();
    let all = file::all_tests(&mutants.iter().collect::<Vec<_>>());
    let mut names = Vec::from_iter(all.programs.iter().map(|run| run.program.clone()));
    let kunit = mutants.iter().filter_map(|mutant| mutant.kunit.as_ref());
    names.extend(kunit.map(|filter| format!("{KUNIT}{filter}")));
    let keys = settings.load.keys().chain(settings.machine.keys());
    let keys = keys
        .chain(settings.prepare.keys())
        .chain(settings.env.keys());
    for key in keys
        .chain(settings.pascal.keys())
        .chain(settings.edu.keys())
    {
        assert!(names.iter().any(|name| name.starts_with(key)), "{key}");
    }
}

#[test]
fn programs_that_need_the_same_modules_share_a_machine() {
    let settings = MutantsConfig::read(&root()).unwrap();
    let programs = [
        "p2pdma/hmm_p2p_test -t thp",
        "p2pdma/hmm_p2p_odp_test",
        "p2pdma/hmm_p2p_mm_test",
        "mm/hmm-tests",
    ];
    let machines = settings.machines(&tests(&programs, &[]));
    let mut together: Vec<_> = machines.into_iter().map(|spec| spec.programs).collect();
    together.sort();
    let nic = vec![programs[0].to_owned(), programs[2].to_owned()];
    assert_eq!(
        together,
        [
            vec![programs[3].to_owned()],
            vec![programs[1].to_owned()],
            nic
        ]
    );
}

fn tests(programs: &[&str], connectx: &[&str]) -> Tests {
    let connectx: Vec<_> = connectx.iter().map(|&word| word.to_owned()).collect();
    let run = |&program: &&str| TestRun {
        program: program.to_owned(),
        connectx: connectx.clone(),
        ..TestRun::default()
    };
    Tests {
        programs: programs.iter().map(run).collect(),
        kunit: None,
    }
}

#[test]
fn a_verbs_device_is_tested_in_parallel_machines_with_the_nic_that_the_mutant_wants() {
    let settings = MutantsConfig::read(&root()).unwrap();
    let verbs = "p2pdma/verbs/hmm_p2p_verbs_test";
    let odp = "p2pdma/hmm_p2p_odp_test";
    let mut both = tests(&[verbs, odp], &["--scheme=memory"]);
    both.programs.extend(tests(&[verbs, odp], &[]).programs);
    let mut machines = settings.machines(&both);
    machines.sort_by(|a, b| (a.machine, &a.connectx).cmp(&(b.machine, &b.connectx)));
    let told: Vec<_> = machines
        .iter()
        .map(|spec| (spec.machine, &spec.connectx[..], &spec.programs[..]))
        .collect();
    let memory = ["--scheme=memory".to_owned()];
    assert_eq!(
        told,
        [
            // This program has another NIC, and runs once.
            (Kind::Counting, &[][..], &[odp.to_owned()][..]),
            (Kind::Parallel, &[], &[verbs.to_owned()]),
            (Kind::Parallel, &memory, &[verbs.to_owned()]),
        ]
    );
    assert_eq!(machines[1].load, ["mlx5_core", "mlx5_ib", "p2ptest_gpu"]);
}

#[test]
fn a_program_has_its_environment() {
    let settings = MutantsConfig::read(&root()).unwrap();
    let program = "p2pdma/nouveau/hmm_p2p_nouveau_test -t";
    let programs = ["copy_engine_fails", "exits"].map(|test| format!("{program} {test}"));
    let machines = settings.machines(&tests(&[&programs[0], &programs[1]], &[]));
    let mut told: Vec<_> = machines
        .into_iter()
        .map(|spec| (spec.programs, Vec::from_iter(spec.env)))
        .collect();
    told.sort();
    let dies = ("P2PTEST_GPU_DIES".to_owned(), "0".to_owned());
    let [fails, exits] = programs;
    assert_eq!(told, [(vec![fails], vec![dies]), (vec![exits], vec![])]);
}

#[test]
fn a_mutant_has_a_say_in_topology_and_gpu() {
    let settings = MutantsConfig::read(&root()).unwrap();
    let mutant = Mutant {
        programs: vec!["p2pdma/nouveau/hmm_p2p_nouveau_test".to_owned()],
        topology: Some("host-bridge".to_owned()),
        pascal: vec!["--transfers=60".to_owned()],
        ..Mutant::default()
    };
    let others = Mutant {
        programs: mutant.programs.clone(),
        ..Mutant::default()
    };
    let mut told: Vec<_> = settings
        .machines(&file::all_tests(&[&mutant, &others]))
        .into_iter()
        .map(|spec| (spec.topologies, spec.pascal.unwrap(), spec.edu))
        .collect();
    told.sort();
    let words = |words: &[&str]| {
        words
            .iter()
            .map(|&word| word.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        told,
        [
            (
                words(&["host-bridge"]),
                words(&["--bar1=16M", "--tlb", "--transfers=60"]),
                true
            ),
            (words(&["switch"]), words(&["--bar1=16M", "--tlb"]), true),
        ]
    );
}

#[test]
fn kunit_tests_that_are_modules_are_loaded() {
    let settings = MutantsConfig::read(&root()).unwrap();
    let machine = |filter: &str| {
        let kunit = Some(filter.to_owned());
        let machines = settings.machines(&Tests {
            kunit,
            ..tests(&[], &[])
        });
        assert_eq!(machines.len(), 1);
        assert_eq!(machines[0].kunit.as_deref(), Some(filter));
        [machines[0].load.clone(), machines[0].prepare.clone()].concat()
    };
    assert_eq!(machine("mlx5_odp_p2p"), ["mlx5_odp_p2p_kunit"]);
    assert_eq!(machine("nouveau_window"), ["nouveau-kunit"]);
    assert!(machine("rust_gpu_window").is_empty());
    // Without a defect, all of these must pass.
    assert_eq!(machine("*"), ["mlx5_odp_p2p_kunit", "nouveau-kunit"]);
}

#[test]
fn without_a_defect_all_is_run_once_with_each_nic() {
    let with = |connectx: &[&str], kunit: Option<&str>| Mutant {
        programs: vec!["a/b".to_owned()],
        connectx: connectx.iter().map(|&word| word.to_owned()).collect(),
        kunit: kunit.map(str::to_owned),
        ..Mutant::default()
    };
    let mutants = [with(&[], None), with(&["x"], Some("k")), with(&[], None)];
    let all = file::all_tests(&mutants.iter().collect::<Vec<_>>());
    assert_eq!(all.programs.len(), 2);
    assert_eq!(all.kunit.as_deref(), Some("*"));
    assert_eq!(file::all_tests(&[&mutants[0]]).kunit, None);
}

#[test]
fn failures_catch_a_mutant_and_the_expected_one_is_named_first() {
    let outcomes = [
        Outcome::passed("mutant/x", "a: one"),
        Outcome::failed("mutant/x", "a: two", ""),
        Outcome::failed("mutant/x", "a: three", ""),
        Outcome::skipped("mutant/x", "a: four", ""),
    ];
    let end_with = |expect: &str| end(&outcomes, &[expect.to_owned()]);
    let MutantOutcome::Caught { by, as_expected } = end_with("three") else {
        panic!();
    };
    assert_eq!(by, ["a: three", "a: two"]);
    assert!(as_expected);
    let other = end_with("four");
    assert_eq!(
        other.to_string(),
        "caught by a: two and 1 more (another was expected)"
    );
    assert_eq!(end(&outcomes[..1], &[]), MutantOutcome::Survived);
    // Nobody expects a test to notice a generated one.
    let generated = end(&outcomes, &[]).to_string();
    assert_eq!(generated, "caught by a: two and 1 more");
}

fn mutant(name: &str) -> Mutant {
    Mutant {
        name: name.to_owned(),
        ..Mutant::default()
    }
}

#[test]
fn only_what_was_caught_passes() {
    let mutants = [mutant("a"), mutant("b")];
    let caught = MutantOutcome::Caught {
        by: vec!["t".to_owned()],
        as_expected: true,
    };
    let mut record = Record::default();
    record.add(MutantResult::new("a", caught.clone()));
    assert!(record.all_caught(mutants[..1].iter(), false));
    assert!(!record.all_caught(mutants.iter(), false), "b was not run");
    assert!(record.all_caught(mutants.iter(), true), "no time for b");
    assert!(
        !record.all_caught(mutants[1..].iter(), true),
        "none was run"
    );
    for end in [
        MutantOutcome::Survived,
        MutantOutcome::DoesNotBuild { why: String::new() },
        MutantOutcome::DoesNotApply { why: String::new() },
    ] {
        record.add(MutantResult::new("b", end));
        assert!(!record.all_caught(mutants.iter(), false));
        assert!(!record.all_caught(mutants.iter(), true));
    }
    assert_eq!(
        record.closing_line(&mutants),
        "2 mutants: 1 caught, 0 survived, 1 void, 0 not run"
    );
    record.add(MutantResult::new("b", caught));
    assert!(record.all_caught(mutants.iter(), false));
}

#[test]
fn what_is_known_outlives_a_run_until_something_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (here, recorded) = (dir.path().join("here"), dir.path().join("recorded"));
    let mut record = Record::read(&here, &recorded, HAND_PICKED).unwrap();
    let mut known = MutantResult::new(
        "a",
        MutantOutcome::DoesNotBuild {
            why: "why".to_owned(),
        },
    );
    known.key = "1".to_owned();
    record.add(known);
    let said = "Recorded on 1 May 2026";
    record.write(&here, &[mutant("a")], said).unwrap();
    let page = fs::read_to_string(here.join("mutants.md")).unwrap();
    assert!(
        page.contains(&format!("\n\n{said}\n\n| mutant |")),
        "{page}"
    );
    // A clone shows it as the result of another run.
    let other = Record::read(&recorded, &here, HAND_PICKED).unwrap();
    let table = other.table(&[mutant("a")]);
    let words = "DOES NOT BUILD (recorded)";
    assert!(table.contains(words) && table.ends_with(said), "{table}");
    let mut record = Record::read(&here, &recorded, HAND_PICKED).unwrap();
    assert!(!record.table(&[mutant("a")]).contains("recorded"));
    assert!(record.knows("a", "1"));
    assert!(!record.knows("a", "2"));
    assert!(!record.knows("b", "1"));
    record.keep(|known| known.name == "a" && known.key == "1");
    assert!(record.knows("a", "1"));
    // A result of another series is dropped.
    record.keep(|known| known.key == "2");
    assert_eq!(
        record.closing_line(&[mutant("a")]).split(", ").last(),
        Some("1 not run")
    );
}

/// A repository with the input files of mutants' results. `of_running` reads this
/// repository's files.
struct Fake {
    dir: tempfile::TempDir,
    topologies: Topologies,
    cc: Option<String>,
    config: Option<PathBuf>,
}

const FILES: [&str; 5] = [
    "qemu-system-x86_64",
    "build/harness/debug/connectx",
    "build/harness/debug/pascal",
    "build/linux/include/linux/mlx5/driver.h",
    "harness/guest/lib.sh",
];

impl Fake {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for file in FILES {
            write(&dir.path().join(file), "one");
        }
        let there = fs::canonicalize(root()).unwrap();
        fs::create_dir(dir.path().join("qemu")).unwrap();
        for link in [
            "qemu/kernel",
            "harness/jobs",
            "harness/judge",
            "harness/ktap",
            "harness/machine",
            "harness/plan",
        ] {
            std::os::unix::fs::symlink(there.join(link), dir.path().join(link)).unwrap();
        }
        Self {
            dir,
            topologies: Topologies::read(&root()).unwrap(),
            cc: None,
            config: None,
        }
    }

    fn inputs(&self, series: &str) -> String {
        let root = self.dir.path();
        let paths = host::paths::Paths::within(root);
        let ui = host::ui::Ui::new(false);
        let tools = setup::Tools {
            bindgen: root.join("bindgen"),
            vng_dir: paths.cache.join("virtme-ng/bin"),
        };
        let mutants = Mutants {
            builder: &Builder {
                paths: &paths,
                ui: &ui,
                tools: &tools,
                tree: &Tree {
                    dir: root.to_owned(),
                    base: String::new(),
                    tip: String::new(),
                    source: String::new(),
                    found: kernel::tree::Found::default(),
                },
                compiler: &kernel::compiler::Compiler {
                    llvm: None,
                    cc: self.cc.clone(),
                    config: self.config.clone(),
                },
                jobs: 1,
                until: None,
            },
            booter: &Booter {
                paths: &paths,
                ui: &ui,
                tools: &tools,
                qemu: Some(&root.join(FILES[0])),
                qemu_args: &[],
                machine: &self.topologies.machine,
            },
            force: false,
            until: None,
        };
        let settings = MutantsConfig::read(&self::root()).unwrap();
        mutants.inputs(&settings, series, &self.topologies).unwrap()
    }
}

/// A program that can be asked whether it is QEMU.
fn write(file: &Path, text: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(
        file,
        format!("#!/bin/sh\n# {text}\necho 'vfio-user-pci options:'\n"),
    )
    .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(file, mode).unwrap();
}

#[test]
fn results_are_good_for_another_checkout() {
    let [one, other] = [Fake::new(), Fake::new()];
    assert_eq!(one.inputs("series"), other.inputs("series"));
}

#[test]
fn results_are_of_everything_that_they_depend_on() {
    let mut fake = Fake::new();
    let first = fake.inputs("series");
    assert_eq!(fake.inputs("series"), first);
    assert_ne!(fake.inputs("another"), first);
    for file in FILES {
        let file = fake.dir.path().join(file);
        write(&file, "two");
        assert_ne!(fake.inputs("series"), first, "{}", file.display());
        write(&file, "one");
    }
    fake.topologies.machine.cpus += 1;
    assert_ne!(fake.inputs("series"), first);
    fake.topologies.machine.cpus -= 1;
    let topology = MutantsConfig::read(&root()).unwrap().topology;
    fake.topologies.get_mut(&topology).iommu ^= true;
    assert_ne!(fake.inputs("series"), first);
    fake.topologies.get_mut(&topology).iommu ^= true;
    fake.cc = Some("gcc-none".to_owned());
    assert_ne!(fake.inputs("series"), first);
    fake.cc = None;
    assert_eq!(fake.inputs("series"), first);
    // The content of the CONFIG= file counts.
    let config = fake.dir.path().join("my.config");
    fs::write(&config, "CONFIG_KASAN=y\n").unwrap();
    fake.config = Some(config.clone());
    let with = fake.inputs("series");
    assert_ne!(with, first);
    fs::write(&config, "CONFIG_KASAN=n\n").unwrap();
    assert_ne!(fake.inputs("series"), with);
    fake.config = None;
    assert_eq!(fake.inputs("series"), first);
    // This part of the tool compares memory.
    let judge = fake.dir.path().join("harness/judge");
    fs::remove_file(&judge).unwrap();
    write(&judge.join("src/lib.rs"), "another");
    assert_ne!(fake.inputs("series"), first);
}

#[test]
fn a_mutant_is_also_of_its_own_topology() {
    let mut all = Topologies::read(&root()).unwrap();
    let mutants = file::read_all(&root().join("qemu/mutants")).unwrap();
    let is_elsewhere = |mutant: &&Mutant| mutant.topology.is_some();
    let elsewhere = mutants.iter().find(is_elsewhere).unwrap();
    let here = mutants.iter().find(|mutant| !is_elsewhere(mutant)).unwrap();
    let before = [elsewhere, here].map(|mutant| key("base", mutant, &all));
    all.get_mut(elsewhere.topology.as_deref().unwrap()).iommu ^= true;
    assert_ne!(key("base", elsewhere, &all), before[0]);
    assert_eq!(key("base", here, &all), before[1]);
    assert_ne!(key("other", here, &all), before[1]);
}
