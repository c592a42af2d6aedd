use super::*;
use crate::commits::{Files, parts};

use std::path::PathBuf;

/// A repository with one patch, and a user's kernel tree that the patch applies to.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let kdir = scene.kdir();
        for (file, text) in [
            ("Kbuild", ""),
            ("MAINTAINERS", ""),
            ("Makefile", "mrproper:\n\trm -f built\n"),
            ("mm/hmm.c", "one\ntwo\nthree\n"),
        ] {
            put(&kdir.join(file), text);
        }
        ask(&kdir, &["init", "-q", "-b", "main"]).unwrap();
        save(&kdir, "the user's work");

        // The author makes the series in another tree.
        let author = scene.dir.path().join("author");
        let (from, to) = (kdir.to_string_lossy(), author.to_string_lossy());
        ask(&kdir, &["clone", "-q", &from, &to]).unwrap();
        put(&author.join("mm/hmm.c"), "one\n2\nthree\n");
        save(&author, "mm: two is 2");
        let patches = scene.root().join("patches");
        let settings = "subject_prefix = 'PATCH'\n\
            [[topic]]\nfolder = '1-mm'\nfirst = 'mm: two is 2'\n";
        put(&patches.join("series.toml"), settings);
        put(&scene.root().join("qemu/kernels.toml"), "");
        scene.format(&author);
        scene
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn kdir(&self) -> PathBuf {
        self.dir.path().join("linux")
    }

    fn paths(&self) -> Paths {
        let root = fs::canonicalize(self.root()).unwrap();
        let kdir = fs::canonicalize(self.kdir()).unwrap();
        let work = root.join("build/kdir/linux");
        fs::create_dir_all(&work).unwrap();
        Paths {
            output: work.clone(),
            work,
            cache: root.join("cache"),
            kdir: Some(kdir),
            root,
        }
    }

    fn ensure(&self) -> Result<Tree> {
        ensure(&self.paths(), &Ui::new(false))
    }

    /// Makes patches/ from the last commit of a tree.
    fn format(&self, tree: &Path) {
        for patch in Series::read(&self.root()).unwrap().patches {
            fs::remove_file(patch).unwrap();
        }
        self.format_to(tree, "1-mm");
    }

    fn format_to(&self, tree: &Path, topic: &str) {
        let out = self.root().join("patches").join(topic);
        let out = out.to_string_lossy();
        let args = [
            "format-patch",
            "-q",
            "--numbered",
            "--no-signature",
            "--zero-commit",
        ];
        let mut all = args.to_vec();
        all.extend(["-1", "-o", &out]);
        ask(tree, &all).unwrap();
    }

    /// Adds a second topic: a patch that adds lib/test.c.
    fn second_topic(&self) {
        let author = self.dir.path().join("author");
        put(&author.join("lib/test.c"), "test\n");
        save(&author, "lib: add test");
        let patches = self.root().join("patches");
        let settings = fs::read_to_string(patches.join("series.toml")).unwrap();
        let topic = "[[topic]]\nfolder = '2-lib'\nfirst = 'lib: add test'\nneeds = ['1-mm']\n";
        put(&patches.join("series.toml"), &(settings + topic));
        self.format_to(&author, "2-lib");
    }

    /// A file's content on a branch.
    fn on(&self, branch: &str, file: &str) -> String {
        let object = format!("{branch}:{file}");
        ask(&self.paths().tree(), &["cat-file", "blob", &object]).unwrap()
    }

    fn file(&self) -> String {
        fs::read_to_string(self.paths().tree().join("mm/hmm.c")).unwrap()
    }
}

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn save(dir: &Path, subject: &str) {
    ask(dir, &["add", "-A"]).unwrap();
    let mut commit = git(dir, &["commit", "-q", "-m", subject]);
    commit
        .env("GIT_AUTHOR_NAME", "A")
        .env("GIT_AUTHOR_EMAIL", "a@example.org");
    capture(&mut commit).unwrap();
}

/// Everything that a program could have changed in a user's tree.
fn state_of(dir: &Path) -> String {
    let refs = ask(dir, &["for-each-ref"]).unwrap();
    let status = ask(dir, &["--no-optional-locks", "status", "--porcelain"]).unwrap();
    let mut files: Vec<_> = fs::read_dir(dir.join(".git"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    files.sort();
    format!("{refs}\n{status}\n{files:?}")
}

#[test]
fn the_series_is_put_on_the_users_tree_which_is_only_read() {
    let scene = Scene::new();
    let before = state_of(&scene.kdir());
    let tree = scene.ensure().unwrap();
    assert_eq!(scene.file(), "one\n2\nthree\n");
    assert_ne!(tree.base, tree.tip);
    assert_eq!(state_of(&scene.kdir()), before);
    // The second run has nothing to do.
    assert_eq!(scene.ensure().unwrap().tip, tree.tip);
}

#[test]
fn commits_that_were_not_exported_are_kept() {
    let scene = Scene::new();
    let tree = scene.ensure().unwrap();
    put(&tree.dir.join("mm/hmm.c"), "one\n2\n3\n");
    save(&tree.dir, "mm: three is 3");
    // patches/ has not changed, so the new commits can be built.
    let edited = scene.ensure().unwrap();
    assert_ne!(edited.tip, tree.tip);

    // patches/ changes as well, so one side would be lost.
    let patch = Series::read(&scene.root()).unwrap().patches[0].clone();
    let text = fs::read_to_string(&patch).unwrap();
    put(&patch, &text.replace("two is 2", "two is two"));
    let error = scene.ensure().err().unwrap().to_string();
    assert!(error.contains("make export"), "{error}");
    assert_eq!(scene.file(), "one\n2\n3\n");

    // The export that the message names resolves it.
    let series = Series::read(&scene.root()).unwrap();
    let tree = open(&scene.paths()).unwrap();
    for part in parts(tree.branch(), &series.settings).unwrap() {
        let mut files = Files::new();
        part.patches(tree.branch(), &series.settings, None, &mut files)
            .unwrap();
        for (file, patch) in files {
            put(&scene.root().join(file), &String::from_utf8(patch).unwrap());
        }
    }
    tree.remember(&Series::read(&scene.root()).unwrap())
        .unwrap();
    assert_eq!(scene.ensure().unwrap().tip, tree.tip);
    assert_eq!(Series::read(&scene.root()).unwrap().patches.len(), 2);
}

#[test]
fn a_tree_is_as_made_until_it_or_the_patches_change() {
    let scene = Scene::new();
    let is_as_made = || {
        let tree = open(&scene.paths()).unwrap();
        tree.is_as_made(&Series::read(&scene.root()).unwrap())
    };
    let tree = scene.ensure().unwrap();
    assert!(is_as_made());
    scene.second_topic();
    assert!(!is_as_made());
    scene.ensure().unwrap();
    assert!(is_as_made());
    put(&tree.dir.join("mm/hmm.c"), "one\n2\n3\n");
    save(&tree.dir, "mm: three is 3");
    assert!(!is_as_made());
}

#[test]
fn changes_that_were_not_committed_are_kept() {
    let scene = Scene::new();
    let tree = scene.ensure().unwrap();
    put(&tree.dir.join("mm/hmm.c"), "one\n2\nunfinished\n");
    scene.ensure().unwrap();
    let patch = Series::read(&scene.root()).unwrap().patches[0].clone();
    let text = fs::read_to_string(&patch).unwrap();
    put(&patch, &text.replace("two is 2", "two is two"));
    let error = scene.ensure().err().unwrap().to_string();
    assert!(
        error.contains("not committed") && error.contains("mm/hmm.c"),
        "{error}"
    );
    assert_eq!(scene.file(), "one\n2\nunfinished\n");
}

#[test]
fn a_tree_without_a_state_is_taken_as_it_is_if_it_is_the_same() {
    let scene = Scene::new();
    let tree = scene.ensure().unwrap();
    fs::remove_file(state_file(&tree.dir).unwrap()).unwrap();
    assert_eq!(scene.ensure().unwrap().tip, tree.tip);
    fs::remove_file(state_file(&tree.dir).unwrap()).unwrap();
    put(&tree.dir.join("mm/hmm.c"), "one\n2\n3\n");
    save(&tree.dir, "mm: three is 3");
    assert!(scene.ensure().is_err());
}

#[test]
fn the_base_follows_the_users_head() {
    let scene = Scene::new();
    let first = scene.ensure().unwrap();
    put(&scene.kdir().join("mm/hmm.c"), "zero\none\ntwo\nthree\n");
    save(&scene.kdir(), "more of the user's work");
    let second = scene.ensure().unwrap();
    assert_ne!(first.base, second.base);
    assert_eq!(scene.file(), "zero\none\n2\nthree\n");
}

#[test]
fn a_base_that_the_series_does_not_fit_is_said() {
    let scene = Scene::new();
    put(&scene.kdir().join("mm/hmm.c"), "one\nII\nthree\n");
    save(&scene.kdir(), "in the way");
    let error = format!("{:#}", scene.ensure().err().unwrap());
    assert!(
        error.contains("0001-mm-two-is-2.patch does not apply"),
        "{error}"
    );
    assert!(error.contains("mm/hmm.c: hunk 1 of 1"), "{error}");
}

#[test]
fn which_topics_a_base_can_have_is_said() {
    let scene = Scene::new();
    scene.second_topic();
    put(&scene.kdir().join("lib/test.c"), "of others\n");
    save(&scene.kdir(), "in the way");
    let error = format!("{:#}", scene.ensure().err().unwrap());
    let (why, topics) = error.rsplit_once('\n').unwrap();
    assert!(why.contains("2-lib/0001-lib-add-test.patch does not apply"));
    assert_eq!(
        topics,
        "applies: 1-mm; does not apply: 2-lib (0001-lib-add-test.patch, \
         lib/test.c: already exists in index)"
    );
}

/// The tree has the series as one commit, together with other work.
#[test]
fn a_tree_that_has_the_series_is_taken_as_it_is() {
    let scene = Scene::new();
    scene.second_topic();
    let kdir = scene.kdir();
    put(&kdir.join("mm/hmm.c"), "one\n2\nthree\n");
    put(&kdir.join("lib/test.c"), "test\n");
    put(&kdir.join("lib/other.c"), "other\n");
    save(&kdir, "for the next release");
    let before = state_of(&kdir);
    let tree = scene.ensure().unwrap();
    assert_eq!(state_of(&kdir), before);
    let files =
        |dir: &Path, commit: &str| ask(dir, &["rev-parse", &format!("{commit}^{{tree}}")]).unwrap();
    assert_eq!(files(&tree.dir, &tree.tip), files(&kdir, "HEAD"));
    assert_eq!(scene.on("base", "mm/hmm.c"), "one\ntwo\nthree");
    assert_eq!(scene.on("base", "lib/other.c"), "other");
    assert_eq!(tree.source, "for the next release, without the series");
    assert!(!tree.found.differs && tree.found.patches.is_empty());
    // The tool makes a commit for each patch.
    let series = Series::read(&scene.root()).unwrap();
    assert!(same_patches(tree.branch(), &series).unwrap());

    let again = scene.ensure().unwrap();
    assert_eq!((&again.base, &again.tip), (&tree.base, &tree.tip));
    put(&kdir.join("lib/other.c"), "more\n");
    save(&kdir, "more work");
    scene.ensure().unwrap();
    assert_eq!(scene.on("series", "lib/other.c"), "more");
    assert_eq!(scene.on("base", "mm/hmm.c"), "one\ntwo\nthree");
}

#[test]
fn a_tree_that_has_the_series_need_be_no_repository() {
    let scene = Scene::new();
    fs::remove_dir_all(scene.kdir().join(".git")).unwrap();
    put(&scene.kdir().join("mm/hmm.c"), "one\n2\nthree\n");
    let tree = scene.ensure().unwrap();
    assert_eq!(scene.file(), "one\n2\nthree\n");
    assert_eq!(scene.on("base", "mm/hmm.c"), "one\ntwo\nthree");
    assert_eq!(scene.ensure().unwrap().tip, tree.tip);
    // The copied tree is searched for the new series.
    scene.second_topic();
    scene.ensure().unwrap();
    assert_eq!(scene.on("base", "mm/hmm.c"), "one\n2\nthree");
    assert_eq!(scene.on("series", "lib/test.c"), "test");
}

/// A later commit changes the lines again, so the series cannot be taken out.
#[test]
fn commits_of_the_series_that_were_changed_are_taken_as_they_are() {
    let scene = Scene::new();
    let kdir = scene.kdir();
    let base = ask(&kdir, &["rev-parse", "HEAD"]).unwrap();
    for (text, subject) in [("2", "mm: two is 2"), ("II", "mend it")] {
        put(&kdir.join("mm/hmm.c"), &format!("one\n{text}\nthree\n"));
        save(&kdir, subject);
    }
    let tree = scene.ensure().unwrap();
    assert_eq!(tree.tip, ask(&kdir, &["rev-parse", "HEAD"]).unwrap());
    assert_eq!(tree.base, base);
    assert!(tree.found.differs);
    let again = scene.ensure().unwrap();
    assert_eq!((again.base, again.tip), (base, tree.tip));
    assert!(again.found.differs);
}

#[test]
fn patches_that_a_tree_has_already_are_skipped() {
    let scene = Scene::new();
    scene.second_topic();
    put(&scene.kdir().join("mm/hmm.c"), "one\n2\nthree\n");
    save(&scene.kdir(), "mm: a fix that was taken");
    let tree = scene.ensure().unwrap();
    assert_eq!(tree.source, "mm: a fix that was taken");
    let log = [
        "log",
        "--format=%s",
        &format!("{}..{}", tree.base, tree.tip),
    ];
    assert_eq!(ask(&tree.dir, &log).unwrap(), "lib: add test");
    let first = "1-mm/0001-mm-two-is-2.patch";
    assert_eq!(tree.found.patches, [first]);
    // The next run remembers them.
    let again = scene.ensure().unwrap();
    assert_eq!(again.tip, tree.tip);
    assert_eq!(again.found, tree.found);
    // A single topic leaves them out as well.
    let series = Series::read(&scene.root()).unwrap();
    let ui = Ui::new(false);
    let alone = tree.topic(&series, &series.settings.topics[1], &ui);
    assert_eq!(alone.unwrap().base, tree.base);
}

#[test]
fn a_new_base_that_does_not_fit_leaves_the_tree_as_it_was() {
    let scene = Scene::new();
    let before = scene.ensure().unwrap();
    put(&scene.kdir().join("mm/hmm.c"), "one\nII\nthree\n");
    save(&scene.kdir(), "in the way");
    for _ in 0..2 {
        assert!(scene.ensure().is_err());
        let after = open(&scene.paths()).unwrap();
        assert_eq!((&after.base, &after.tip), (&before.base, &before.tip));
        assert_eq!(scene.file(), "one\n2\nthree\n");
    }
}

#[test]
fn a_tree_that_is_no_repository_is_copied() {
    let scene = Scene::new();
    fs::remove_dir_all(scene.kdir().join(".git")).unwrap();
    put(&scene.kdir().join("built"), "");
    // A repository around the tree does not count.
    ask(scene.dir.path(), &["init", "-q"]).unwrap();
    save(scene.dir.path(), "something else");
    scene.ensure().unwrap();
    assert_eq!(scene.file(), "one\n2\nthree\n");
    assert!(!scene.paths().tree().join("built").exists());
    assert!(scene.kdir().join("built").exists());
}

#[test]
fn debian_s_ignore_rules_go() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(".gitignore");
    let rules = "*.o\n\n#\n# Debian packaging: ignore everything at the top level\n#\n/*\n";
    fs::write(&file, rules).unwrap();
    strip_packaging(&file).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "*.o\n");
}

#[test]
fn a_full_disk_is_said_before_it_is_full() {
    let dir = tempfile::tempdir().unwrap();
    assert!(need_space(dir.path(), 1).is_ok());
    let error = need_space(dir.path(), u64::MAX).unwrap_err().to_string();
    assert!(error.contains("no disk space"), "{error}");
}
