use super::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_settings_of_this_repository() {
    let settings = CoverageConfig::read(&root()).unwrap();
    let topologies = Topologies::read(&root()).unwrap();
    for job in &settings.jobs {
        assert!(job.coverage, "{}", job.name);
        for name in &job.topologies {
            topologies.get(name).unwrap();
        }
        for script in &job.prepare {
            let script = root().join(format!("harness/guest/{script}.sh"));
            assert!(script.is_file(), "{}", script.display());
        }
        for program in &job.programs {
            let path = program.split(' ').next().unwrap();
            let folder = path.rsplit_once('/').unwrap().0;
            let built = |entry: &String| entry == path || entry == folder;
            assert!(settings.kernel.selftests.iter().any(built), "{program}");
        }
    }
    for unreached in &settings.unreached {
        assert!(!unreached.reason.is_empty(), "{unreached:?}");
        // One reason must not cover everything.
        assert!(!unreached.file.is_empty() || !unreached.lines.is_empty());
    }
}

#[test]
fn objects_count_by_their_name_in_each_folder_above() {
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir_all(tree.path().join("misc/rdma")).unwrap();
    let line = |makefile: &str, text: &str| (tree.path().join(makefile), format!("{text}\n"));
    fs::write(tree.path().join("misc/Makefile"), "").unwrap();
    let outer = line("misc/Makefile", "GCOV_PROFILE_rdma/main.o := y");
    let lines = counting(tree.path(), "misc/rdma/main.c");
    assert_eq!(lines.as_slice(), std::slice::from_ref(&outer));
    assert!(counting(tree.path(), "misc/rdma/rdma.h").is_empty());
    // Kbuild reads this file in place of the Makefile, or the parent's file includes it.
    fs::write(tree.path().join("misc/rdma/Makefile"), "").unwrap();
    fs::write(tree.path().join("misc/rdma/Kbuild"), "").unwrap();
    let inner = line("misc/rdma/Kbuild", "GCOV_PROFILE_main.o := y");
    let lines = counting(tree.path(), "misc/rdma/main.c");
    assert_eq!(lines, [inner, outer]);
}

#[test]
fn notes_are_found_for_counters_of_another_clone() {
    let objects = tempfile::tempdir().unwrap();
    fs::create_dir(objects.path().join("mm")).unwrap();
    fs::write(objects.path().join("mm/hmm.gcno"), "").unwrap();
    let found = notes(objects.path(), "#elsewhere#kernel#mm#hmm.gcda").unwrap();
    assert_eq!(found, objects.path().join("mm/hmm.gcno"));
    assert!(notes(objects.path(), "#elsewhere#mm#other.gcda").is_none());
}

const SAID: &str = "        -:    0:Source:/tree/mm/a.c
        -:    0:Graph:object.gcno
        -:    1:/* text */
        2:    2:int f(void)
    #####:    3:\treturn g(1, 2);
    #####:    4:}
        1*:    5:\tif (a: b)
        -:    0:Source:/tree/mm/a.h
        7:    1:inline
";

fn summary(reasons: &[Unreached]) -> Summary {
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir(tree.path().join("mm")).unwrap();
    fs::write(
        tree.path().join("mm/a.c"),
        "1\n2\n\treturn g(1, 2);\n}\n5\n",
    )
    .unwrap();
    let mut lines = Lines::default();
    let said = SAID.replace("/tree", &tree.path().to_string_lossy());
    lines.add(&said, tree.path()).unwrap();
    lines.add(&said, tree.path()).unwrap();
    let diff = "+++ b/mm/a.c\n@@ -0,0 +2,3 @@\n+++ b/mm/b.c\n@@ -0,0 +1 @@\n";
    let added = Diff::parse(diff);
    Summary::new(&lines, &added, &["mm/a.c", "mm/b.c"], tree.path(), reasons).unwrap()
}

#[test]
fn the_tracefile_has_the_added_lines() {
    let mut lines = Lines::default();
    for _machine in 0..2 {
        lines.add(SAID, Path::new("/tree")).unwrap();
    }
    // b.c has no counted code, and the series does not change a.h.
    let added = Diff::parse("+++ b/mm/a.c\n@@ -0,0 +2,2 @@\n+++ b/mm/b.c\n@@ -0,0 +1 @@\n");
    let text = lines.tracefile(&added, &["mm/a.c", "mm/a.h", "mm/b.c"]);
    let file = "TN:series\nSF:mm/a.c\nDA:2,4\nDA:3,0\nLF:2\nLH:1\nend_of_record\n";
    assert_eq!(text, file);
}

fn because(file: &str, text: &str) -> Unreached {
    Unreached {
        file: file.to_owned(),
        lines: (!text.is_empty())
            .then(|| text.to_owned())
            .into_iter()
            .collect(),
        reason: "because".to_owned(),
    }
}

#[test]
fn only_added_lines_are_told() {
    let tables = summary(&[]).tables();
    let rows = tables.replace(' ', "");
    assert!(rows.contains("|mm/a.c|3|1|33%|"), "{tables}");
    assert!(rows.contains("|all|3|1|33%|"), "{tables}");
    assert!(tables.contains("mm/a.c:3: return g(1, 2);"), "{tables}");
    assert!(tables.contains("    mm/b.c\n"), "{tables}");
}

#[test]
fn each_line_wants_a_reason() {
    let line = || because("mm/a.c", "return g");
    let file = || because("mm/b.c", "");
    assert!(!summary(&[]).is_explained());
    assert!(!summary(&[line()]).is_explained());
    assert!(!summary(&[line(), because("mm/b.c", "text")]).is_explained());
    assert!(!summary(&[because("mm/a.c", "h("), file()]).is_explained());
    // The reason also covers the lines right after that line.
    assert!(summary(&[line(), file()]).is_explained());
    assert!(!summary(&[because("mm/a.c", "}"), file()]).is_explained());
    assert!(summary(&[because("", "return g"), file()]).is_explained());
    assert!(summary(&[because("mm/", "")]).is_explained());
}

#[test]
fn reasons_that_nothing_needs_are_told() {
    let file = || because("mm/b.c", "");
    let needed = summary(&[because("mm/a.c", "return g"), file()]).tables();
    assert!(!needed.contains("nothing needed"), "{needed}");
    let needless = summary(&[because("mm/a.c", "h("), file()]).tables();
    assert!(
        needless.contains("    mm/a.c: \"h(\": because\n"),
        "{needless}"
    );
}
