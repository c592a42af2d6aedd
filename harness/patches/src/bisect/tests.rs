use std::fs;
use std::path::Path;

use super::recipe::Configuration;
use super::*;
use kernel::tree::{Found, Tree};

pub fn row(configuration: &str, number: usize, trouble: Option<&str>) -> StepResult {
    StepResult {
        configuration: configuration.into(),
        number,
        subject: format!("patch {number}"),
        key: "k".into(),
        booted: None,
        tests: None,
        as_before: false,
        trouble: trouble.map(str::to_owned),
        seconds: 1,
        recorded: None,
    }
}

/// Paths for a repository in that directory.
pub fn paths(root: &Path) -> Paths {
    Paths {
        cache: root.join("cache"),
        ..Paths::within(&root.join("repo"))
    }
}

/// A kernel of four files. Like a real one, it can have warnings, errors and options, and warns
/// only when it compiles.
struct Toy {
    dir: tempfile::TempDir,
    paths: Paths,
    tree: Tree,
    scope: &'static str,
    force: bool,
}

const MAKEFILE: &str = "\
allnoconfig:
	for o in $$(sed -n 's/^config //p' Kconfig); do grep ^CONFIG_$$o= $$KCONFIG_ALLCONFIG; done >$(O)/.config
olddefconfig:
vmlinux modules:
	cmp -s warnings $(O)/a.o || { cat warnings; cp warnings $(O)/a.o; }
	echo '../linux/gpu/../mm/read.c' >$(O)/.read.o.cmd
	test ! -e full || { cat full; false; }
	test ! -e broken || { echo 'a.c:1:1: error: broken'; false; }
";

/// The warning of the base.
const KNOWN: &str = "a.c:3:1: warning: known\n";

impl Toy {
    /// Three patches: the first is fine and adds an option, the second has a new warning,
    /// the third breaks the build.
    fn new() -> Self {
        Self::of(&[
            &[
                ("Kconfig", "config OLD\n\tbool\nconfig NEW\n"),
                ("warnings", "a.c:9:1: warning: known\n"),
            ],
            &[(
                "warnings",
                "a.c:9:1: warning: known\na.c:8:1: warning: another\n",
            )],
            &[("broken", ""), ("warnings", KNOWN)],
        ])
    }

    /// The base and these patches.
    fn of(patches: &[&[(&str, &str)]]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("repo");
        let tree = root.join("build/linux");
        fs::create_dir_all(root.join("qemu/kernel")).unwrap();
        fs::create_dir_all(&tree).unwrap();
        fs::write(
            root.join("qemu/bisect.toml"),
            "[toy]\nfragments = [\"toy\"]\n",
        )
        .unwrap();
        let options = "CONFIG_OLD=y\nCONFIG_NEW=y\n";
        fs::write(root.join("qemu/kernel/toy.config"), options).unwrap();
        for names in ["qemu/kernels.toml", "qemu/topologies"] {
            std::os::unix::fs::symlink(repository().join(names), root.join(names)).unwrap();
        }
        ask(&tree, &["init", "-q"]).unwrap();
        let commit = |files: &[(&str, &str)]| {
            for (name, text) in files {
                let path = tree.join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            ask(&tree, &["add", "-A"]).unwrap();
            let subject = files[0].0;
            let who = ["-c", "user.name=p2p", "-c", "user.email=p2p@localhost"];
            let args = [&who[..], &["commit", "-q", "-m", subject]].concat();
            ask(&tree, &args).unwrap();
            ask(&tree, &["rev-parse", "HEAD"]).unwrap()
        };
        let base = commit(&[
            ("Kconfig", "config OLD\n"),
            ("Makefile", MAKEFILE),
            ("warnings", KNOWN),
            ("mm/read.c", "1"),
            ("mm/other.c", "1"),
        ]);
        let tips: Vec<_> = patches.iter().map(|patch| commit(patch)).collect();
        let tip = tips.last().unwrap().clone();
        Self {
            paths: paths(dir.path()),
            tree: Tree {
                dir: tree,
                base,
                tip,
                source: "toy".into(),
                found: Found::default(),
            },
            scope: "",
            force: false,
            dir,
        }
    }

    /// A toy with everything that booting its commits needs.
    fn that_boots() -> Self {
        let toy = Self::new();
        let root = &toy.paths.root;
        let repository = repository();
        fs::create_dir_all(root.join("harness/guest")).unwrap();
        fs::write(root.join("harness/guest/lib.sh"), "one").unwrap();
        for part in ["jobs", "judge", "ktap", "machine", "plan"] {
            let part = format!("harness/{part}");
            std::os::unix::fs::symlink(repository.join(&part), root.join(&part)).unwrap();
        }
        toy
    }

    fn run(&self, only: Option<&str>) -> Vec<StepResult> {
        self.with(|bisect| bisect.run(&Only::new(only).unwrap()).unwrap())
    }

    fn with<T>(&self, run: impl FnOnce(&Bisect<'_>) -> T) -> T {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&repository).unwrap();
        let ui = host::ui::Ui::new(false);
        let tools = setup::Tools {
            bindgen: self.dir.path().join("bindgen"),
            vng_dir: self.paths.cache.join("virtme-ng/bin"),
        };
        run(&Bisect {
            paths: &self.paths,
            builder: &Builder {
                paths: &self.paths,
                ui: &ui,
                tools: &tools,
                tree: &self.tree,
                compiler: &kernel::compiler::Compiler::default(),
                jobs: 1,
                until: None,
            },
            booter: &Booter {
                paths: &self.paths,
                ui: &ui,
                tools: &tools,
                qemu: None,
                qemu_args: &[],
                machine: &topologies.machine,
            },
            topologies: &topologies,
            scope: self.scope,
            force: self.force,
        })
    }

    fn config(&self) -> String {
        fs::read_to_string(self.paths.output.join("bisect/toy/.config")).unwrap()
    }
}

#[test]
fn each_patch_is_built_and_what_it_breaks_is_told() {
    let toy = Toy::new();
    let rows = toy.run(Some("toy/1"));
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].trouble, None, "a warning of the base has moved");
    // The option is set once a patch adds it.
    assert!(toy.config().contains("CONFIG_NEW=y"));

    let rows = toy.run(None);
    assert_eq!(rows.len(), 3);
    assert!(rows[0].passed());
    let warned = rows[1].trouble.as_ref().unwrap();
    assert_eq!(warned, "new warnings:\na.c: warning: another");
    let broken = rows[2].trouble.as_ref().unwrap();
    assert!(broken.contains("a.c:1:1: error: broken"), "{broken}");

    // The page names its series.
    let page = fs::read_to_string(toy.paths.results().join("bisect.md")).unwrap();
    assert!(page.contains("\n\nRecorded on "), "{page}");

    let told = toy.with(|bisect| bisect.failures(&rows));
    let logs = told
        .lines()
        .filter_map(|line| line.strip_prefix("    log: "));
    let logs = Vec::from_iter(logs.map(|log| toy.paths.root.join(log)));
    assert!(
        logs.len() == 2 && logs.iter().all(|log| log.is_file()),
        "{told}"
    );
}

/// Such a patch has no result, so the next run builds it again.
#[test]
fn a_full_disk_is_no_mistake_of_a_patch() {
    let text = "a.c:1:1: fatal error: error writing to a.s: No space left on device\n";
    let toy = Toy::of(&[&[("full", text)]]);
    let only = Only::new(Some("1")).unwrap();
    let error = toy.with(|bisect| bisect.run(&only)).unwrap_err();
    assert!(format!("{error:#}").contains("No space left on device"));
    let recorded = fs::read_to_string(toy.paths.results().join("bisect.json"));
    assert!(recorded.is_err() || !recorded.unwrap().contains("No space left"));
}

#[test]
fn what_has_passed_is_not_done_again() {
    let toy = Toy::new();
    toy.run(Some("1"));
    let log = toy.paths.build().join("logs/build-bisect-toy.log.1");
    fs::remove_file(&log).unwrap();
    toy.run(Some("1"));
    assert!(!log.exists());
    toy.run(Some("2"));
    toy.run(Some("2"));
    // Another configuration makes the results invalid.
    let fragment = toy.paths.root.join("qemu/kernel/toy.config");
    fs::write(fragment, "CONFIG_OLD=y\n").unwrap();
    let rows = toy.run(Some("1"));
    assert!(log.exists());
    assert_eq!(rows.len(), 1, "results of another configuration are gone");
}

#[test]
fn a_patch_to_what_is_not_read_leaves_all_as_it_was() {
    let toy = Toy::of(&[
        &[("mm/read.c", "2")],
        &[("mm/other.c", "2"), ("Documentation/a.rst", "new")],
        &[("mm/other.c", "3"), ("mm/read.c", "3")],
        &[("mm/new.c", "1")],
        &[("mm/Makefile", "new")],
        &[("tools/testing/Makefile", "new")],
        &[("Documentation/Kconfig", "new")],
    ]);
    let rows = toy.run(None);
    assert!(rows.iter().all(StepResult::passed));
    let as_before: Vec<_> = rows.iter().map(|row| row.as_before).collect();
    assert_eq!(as_before, [false, true, false, false, false, true, false]);
    assert_eq!(rows[1].word(), "as before");
    let log = |number: usize| {
        toy.paths
            .build()
            .join(format!("logs/build-bisect-toy.log.{number}"))
    };
    assert!(log(1).exists() && !log(2).exists());
    // The output directory has the build of another patch.
    fs::remove_file(toy.paths.results().join("bisect.json")).unwrap();
    let rows = toy.run(Some("2"));
    assert!(!rows[0].as_before);
}

#[test]
fn what_fails_is_not_the_measure_of_the_next() {
    let toy = Toy::of(&[&[("broken", "")], &[("mm/other.c", "2")]]);
    let rows = toy.run(None);
    assert!(rows.iter().all(|row| !row.passed() && !row.as_before));
}

#[test]
fn what_warned_warns_again() {
    // Patch 3 leaves the objects of patch 2 as they are.
    let mut toy = Toy::of(&[
        &[("mm/other.c", "2")],
        &[("warnings", "a.c:4:1: warning: another\n")],
        &[("mm/other.c", "3")],
    ]);
    let warned = |rows: &[StepResult]| {
        let warned = rows.iter().filter(|row| !row.passed());
        let numbers = Vec::from_iter(warned.map(|row| row.number));
        assert_eq!(numbers, [2]);
    };
    warned(&toy.run(None));
    warned(&toy.run(Some("2")));
    toy.force = true;
    warned(&toy.run(None));
}

#[test]
fn with_force_what_has_passed_is_done_again() {
    let mut toy = Toy::new();
    toy.run(Some("1"));
    let log = toy.paths.build().join("logs/build-bisect-toy.log.1");
    fs::remove_file(&log).unwrap();
    toy.force = true;
    toy.run(Some("1"));
    assert!(log.exists());
}

/// The key of a result of the first patch, with `more` in its configuration.
fn key(toy: &Toy, more: &str) -> String {
    key_of(toy, 1, more)
}

fn key_of(toy: &Toy, number: usize, more: &str) -> String {
    let text = format!("fragments = ['toy']\n{more}");
    let configuration: Configuration = toml::from_str(&text).unwrap();
    toy.with(|bisect| {
        let commit = &bisect.commits().unwrap()[number];
        bisect.recipe("toy", &configuration).unwrap().key(commit)
    })
}

#[test]
fn results_are_good_for_another_checkout() {
    let [one, other] = [Toy::that_boots(), Toy::that_boots()];
    for more in ["", "boot = 'switch'"] {
        assert_eq!(key(&one, more), key(&other, more), "{more}");
    }
}

#[test]
fn what_boots_a_commit_counts_where_it_is_booted() {
    let toy = Toy::that_boots();
    let root = &toy.paths.root;
    let key = |more: &str| key(&toy, more);
    let [boots, builds] = ["boot = 'switch'", ""].map(key);
    fs::write(root.join("harness/guest/lib.sh"), "new").unwrap();
    assert_ne!(key("boot = 'switch'"), boots);
    assert_eq!(key(""), builds);
    assert_ne!(key("llvm = true"), builds);
}

fn repository() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
}

/// Gives a toy this test plan.
fn plan(toy: &Toy, limit: u32) {
    let job = format!("[[job]]\nname = 'a'\ntopologies = ['switch']\nlimit = {limit}\n");
    fs::write(toy.paths.root.join("qemu/tests.toml"), job).unwrap();
}

#[test]
fn tests_after_a_topic_count_for_its_last_patch() {
    let mut toy = Toy::that_boots();
    let keys = |toy: &Toy| [1, 3].map(|number| key_of(toy, number, "jobs = ['a/switch']"));
    let keys_of_plans = |toy: &Toy| {
        [60, 90].map(|limit| {
            plan(toy, limit);
            keys(toy)
        })
    };
    let [one, other] = keys_of_plans(&toy);
    assert_eq!(one, other, "nothing runs after all topics");
    toy.scope = "07-rdma";
    let [one, other] = keys_of_plans(&toy);
    assert_eq!(one[0], other[0]);
    assert_ne!(one[1], other[1]);
}

#[test]
fn tests_run_after_a_patch_that_is_not_built_from() {
    let mut toy = Toy::of(&[&[("mm/read.c", "2")], &[("tools/testing/Makefile", "new")]]);
    plan(&toy, 60);
    let text = "[toy]\nfragments = ['toy']\njobs = ['a/switch']\n";
    fs::write(toy.paths.root.join("qemu/bisect.toml"), text).unwrap();
    assert!(toy.run(None)[1].as_before);
    toy.scope = "07-rdma";
    assert!(!toy.run(None)[1].as_before);
}
