use super::*;

use std::path::PathBuf;

use kernel::commits::same_patches;

use kernel::series::{How, Series};
use kernel::tree::Found;

const SETTINGS: &str = "subject_prefix = 'RFC PATCH'\nbase_commit = 'abcd'\n\
    [[topic]]\nfolder = '1-mm'\nfirst = 'mm: change'\n\
    [[topic]]\nfolder = '2-test'\nfirst = 'test: add'\nneeds = ['1-mm']\n\
    [[mirror]]\nfrom = 'rust/kernel/'\nto = 'rust/kernel/'\n\
    [[mirror]]\nfrom = 'drivers/test/'\nto = 'rust/drivers/'\nkeep = ['README.md']\n";

/// A repository with an exported series of two topics, with two commits and one.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let tree = scene.tree_dir();
        fs::create_dir_all(&tree).unwrap();
        ask(&tree, &["init", "-q", "-b", "base"]).unwrap();
        scene.commit("base", &[("mm/hmm.c", "old\n")]);
        ask(&tree, &["checkout", "-q", "-b", "series"]).unwrap();
        scene.commit(
            "mm: change",
            &[("mm/hmm.c", "new\n"), ("rust/kernel/mm/hmm.rs", "//\n")],
        );
        scene.commit("mm: again", &[("mm/hmm.c", "newer\n")]);
        scene.commit(
            "test: add",
            &[("drivers/test/gpu.rs", "// gpu\n"), ("other/x", "x\n")],
        );
        scene.put("patches/series.toml", SETTINGS);
        scene.put(
            "patches/1-mm/cover-letter.md",
            "mm: all of it\n\nWhy it is good.\n",
        );
        scene.put("patches/2-test/cover-letter.md", "test: it\n\nTests.\n");
        scene.put("rust/drivers/README.md", "ours\n");
        let changes = write(&scene.root(), &scene.tree(), &scene.series()).unwrap();
        assert_eq!(changes.len(), 7, "{changes:?}");
        scene
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn tree_dir(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn put(&self, path: &str, text: &str) {
        put(&self.root(), path, text);
    }

    fn get(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap()
    }

    fn series(&self) -> Series {
        Series::read(&self.root()).unwrap()
    }

    fn tree(&self) -> Tree {
        let dir = self.tree_dir();
        Tree {
            base: ask(&dir, &["rev-parse", "base"]).unwrap(),
            tip: ask(&dir, &["rev-parse", "series"]).unwrap(),
            source: "test".into(),
            found: Found::default(),
            dir,
        }
    }

    fn commit(&self, subject: &str, files: &[(&str, &str)]) {
        let dir = self.tree_dir();
        for (path, text) in files {
            put(&dir, path, text);
        }
        ask(&dir, &["add", "-A"]).unwrap();
        let mut commit = git(&dir, &["commit", "-q", "-m", subject]);
        commit
            .env("GIT_AUTHOR_NAME", "A")
            .env("GIT_AUTHOR_EMAIL", "a@example.org");
        capture(&mut commit).unwrap();
    }

    fn drift(&self) -> Vec<String> {
        drift(&self.root(), &self.tree(), &self.series()).unwrap()
    }
}

fn run_git(dir: &Path, args: &[&str]) {
    capture(&mut git(dir, args)).unwrap();
}

fn put(root: &Path, path: &str, text: &str) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

#[test]
fn an_export_leaves_no_drift() {
    let scene = Scene::new();
    assert_eq!(scene.drift(), Vec::<String>::new());
    assert!(same_patches(scene.tree().branch(), &scene.series()).unwrap());
    assert_eq!(scene.get("rust/drivers/gpu.rs"), "// gpu\n");
    assert_eq!(scene.get("rust/kernel/mm/hmm.rs"), "//\n");
    assert_eq!(scene.get("rust/drivers/README.md"), "ours\n");
    assert!(!scene.root().join("other").exists());
}

#[test]
fn the_cover_letter_is_a_mail() {
    let scene = Scene::new();
    let mail = scene.get("patches/1-mm/0000-cover-letter.txt");
    let head = "From: A <a@example.org>\nDate: ";
    assert!(mail.contains(head), "{mail}");
    assert!(
        mail.contains("\nSubject: [RFC PATCH 0/2] mm: all of it\nMIME-Version: 1.0\n"),
        "{mail}"
    );
    assert!(
        mail.contains("\n\nWhy it is good.\n\nA (2):\n  mm: change\n  mm: again\n"),
        "{mail}"
    );
    assert!(mail.contains(" 2 files changed"), "{mail}");
    let patch = scene.get("patches/1-mm/0001-mm-change.patch");
    assert!(
        patch.contains("Subject: [RFC PATCH 1/2] mm: change"),
        "{patch}"
    );
}

#[test]
fn the_cover_letter_may_have_any_text_and_leaves_no_branch() {
    let scene = Scene::new();
    let text = "# test: it\n\nTests – größer.\n\n*** BLURB ***\n";
    scene.put("patches/2-test/cover-letter.md", text);
    write(&scene.root(), &scene.tree(), &scene.series()).unwrap();
    let mail = scene.get("patches/2-test/0000-cover-letter.txt");
    assert!(
        mail.contains("\nSubject: [RFC PATCH 0/1] test: it\n"),
        "{mail}"
    );
    let body = "\n\nTests – größer.\n\n*** BLURB ***\n\nA (1):\n  test: add\n\n";
    assert!(mail.contains(body), "{mail}");
    assert_eq!(mail.matches("charset=UTF-8").count(), 1, "{mail}");
    let branches = ask(&scene.tree_dir(), &["branch", "--format=%(refname:short)"]).unwrap();
    assert_eq!(branches, "base\nseries");
    // git declares UTF-8 if a commit needs it.
    let amend = ["commit", "-q", "--amend", "-m", "test: grün"];
    run_git(&scene.tree_dir(), &amend);
    let settings = SETTINGS.replace("test: add", "test: grün");
    scene.put("patches/series.toml", &settings);
    write(&scene.root(), &scene.tree(), &scene.series()).unwrap();
    let mail = scene.get("patches/2-test/0000-cover-letter.txt");
    assert!(mail.contains("  test: grün\n"), "{mail}");
    assert_eq!(mail.matches("charset=UTF-8").count(), 1, "{mail}");
}

#[test]
fn every_side_that_changes_is_drift() {
    let scene = Scene::new();
    scene.put("rust/drivers/gpu.rs", "// edited here\n");
    assert_eq!(scene.drift(), ["differs:  rust/drivers/gpu.rs"]);

    let scene = Scene::new();
    scene.put("rust/kernel/stale.rs", "");
    assert_eq!(scene.drift(), ["too much: rust/kernel/stale.rs"]);

    let scene = Scene::new();
    fs::remove_file(scene.root().join("patches/2-test/0001-test-add.patch")).unwrap();
    assert_eq!(
        scene.drift(),
        ["missing:  patches/2-test/0001-test-add.patch"]
    );

    let scene = Scene::new();
    scene.put("patches/1-mm/cover-letter.md", "mm: all of it\n\nBetter.\n");
    assert_eq!(
        scene.drift(),
        ["differs:  patches/1-mm/0000-cover-letter.txt"]
    );

    let scene = Scene::new();
    scene.commit("mm: more", &[("mm/hmm.c", "newest\n")]);
    assert!(!scene.drift().is_empty());
    assert!(!same_patches(scene.tree().branch(), &scene.series()).unwrap());
}

#[test]
fn the_cover_letter_says_what_a_topic_is_based_on() {
    let scene = Scene::new();
    let mail = scene.get("patches/1-mm/0000-cover-letter.txt");
    assert!(mail.ends_with("\nbase-commit: abcd\n"), "{mail}");
    let mail = scene.get("patches/2-test/0000-cover-letter.txt");
    let mut wanted = "\nbase-commit: abcd\n".to_owned();
    for patch in ["0001-mm-change.patch", "0002-mm-again.patch"] {
        let patch = scene.root().join("patches/1-mm").join(patch);
        let mut ids = git(&scene.root(), &["patch-id", "--stable"]);
        let id = capture_from(&mut ids, &patch).unwrap();
        let id = id.split(' ').next().unwrap();
        wanted.push_str(&format!("prerequisite-patch-id: {id}\n"));
    }
    assert!(mail.ends_with(&wanted), "{mail}\n{wanted}");

    // This tree does not have the base commit, but recipients do.
    let settings = SETTINGS.replace("base_commit = 'abcd'\n", "");
    scene.put("patches/series.toml", &settings);
    write(&scene.root(), &scene.tree(), &scene.series()).unwrap();
    let mail = scene.get("patches/1-mm/0000-cover-letter.txt");
    assert!(mail.contains("\nbase-commit: (v7.3-rc7: "), "{mail}");
}

#[test]
fn a_topic_begins_with_the_commit_that_is_called_so() {
    let scene = Scene::new();
    scene.put(
        "patches/series.toml",
        &SETTINGS.replace("test: add", "test: new"),
    );
    let error = drift(&scene.root(), &scene.tree(), &scene.series()).unwrap_err();
    assert!(error.to_string().contains("2-test begins with"), "{error}");
    assert!(!same_patches(scene.tree().branch(), &scene.series()).unwrap());
    scene.put(
        "patches/series.toml",
        &SETTINGS.replace("mm: change", "mm: new"),
    );
    let error = drift(&scene.root(), &scene.tree(), &scene.series()).unwrap_err();
    assert!(error.to_string().contains("\"mm: change\""), "{error}");
}

#[test]
fn patches_apply_to_what_they_came_from() {
    let scene = Scene::new();
    let tree = scene.tree();
    let last = scene
        .series()
        .apply(&tree.dir, &tree.base, How::Exactly, |_| ())
        .unwrap();
    let treeish =
        |commit: &str| ask(&tree.dir, &["rev-parse", &format!("{commit}^{{tree}}")]).unwrap();
    assert_eq!(treeish(&last), treeish(&tree.tip));
}

#[test]
fn a_cover_letter_without_a_body_is_refused() {
    let scene = Scene::new();
    scene.put("patches/1-mm/cover-letter.md", "only a subject\n");
    assert!(drift(&scene.root(), &scene.tree(), &scene.series()).is_err());
}

/// A fake get_maintainer.pl. It records each call.
const ASKED: &str = r#"
open my $log, '>>', 'asked' or die; print $log 'x';
open my $list, '<', $ARGV[1] or die;
open my $patch, '<', $ARGV[-1] or die;
my $text = join '', <$patch>;
for (<$list>) {
	my ($folder, $said) = split /: /, $_, 2;
	print $said if $ARGV[0] eq '--mpath' and $text =~ m{ b/$folder};
}
"#;

#[test]
fn the_cover_letter_goes_to_maintainers_and_lists() {
    let scene = Scene::new();
    let dir = scene.tree_dir();
    put(&dir, "scripts/get_maintainer.pl", ASKED);
    let list = "mm/: Ann <a@example.org> (maintainer:MM)\n\
                rust/: Björn <b@example.org> (maintainer:RUST)\n\
                rust/: all@example.org (open list)\n";
    put(&dir, "MAINTAINERS", list);
    run_git(&dir, &["add", "MAINTAINERS"]);
    run_git(&dir, &["commit", "-q", "--amend", "--no-edit"]);
    let cover = "patches/1-mm/0000-cover-letter.txt";
    assert_eq!(scene.drift().len(), 3);
    write(&scene.root(), &scene.tree(), &scene.series()).unwrap();
    let mail = scene.get(cover);
    let head = "mm: all of it\nTo: Ann <a@example.org>,\n    Björn <b@example.org>\n\
                Cc: all@example.org\nMIME-Version: 1.0\n";
    assert!(mail.contains(head), "{mail}");
    assert!(
        !scene
            .get("patches/2-test/0000-cover-letter.txt")
            .contains("To:")
    );

    // The script runs once for each patch, until MAINTAINERS changes.
    let asked = || fs::read_to_string(dir.join("asked")).unwrap().len();
    assert_eq!(scene.drift(), Vec::<String>::new());
    assert_eq!(asked(), 3);
    put(&dir, "MAINTAINERS", &list.replace("Ann", "Anna"));
    run_git(&dir, &["commit", "-q", "-a", "--amend", "--no-edit"]);
    assert!(scene.drift().contains(&format!("differs:  {cover}")));
}
