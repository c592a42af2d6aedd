use super::*;

use std::process::Command;

/// A repository with one commit, and two patches on top of it.
struct Scene {
    dir: tempfile::TempDir,
    base: String,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let scene = Self {
            dir,
            base: String::new(),
        };
        let tree = scene.tree();
        fs::create_dir_all(scene.root().join("patches")).unwrap();
        fs::create_dir_all(&tree).unwrap();
        run(&tree, &["init", "-q", "-b", "base"]);
        let text: String = (1..40).map(|n| format!("line {n}\n")).collect();
        fs::write(tree.join("file"), text).unwrap();
        run(&tree, &["add", "file"]);
        run(&tree, &["commit", "-q", "-m", "base"]);
        let base = commit_id(&tree);
        for (number, line) in ["line 5", "line 30"].iter().enumerate() {
            let text = fs::read_to_string(tree.join("file")).unwrap();
            fs::write(tree.join("file"), text.replace(line, "changed")).unwrap();
            run(
                &tree,
                &["commit", "-q", "-a", "-m", &format!("mm: {number}\n\nWhy.")],
            );
        }
        let patches = scene.root().join("patches");
        let patches = patches.to_string_lossy();
        run(
            &tree,
            &["format-patch", "-q", "--zero-commit", "-o", &patches, &base],
        );
        let settings = "subject_prefix = 'PATCH'\n";
        fs::write(scene.root().join("patches/series.toml"), settings).unwrap();
        Self { base, ..scene }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }
}

fn run(dir: &Path, args: &[&str]) {
    let mut command = git(dir, args);
    command
        .env("GIT_AUTHOR_NAME", "A")
        .env("GIT_AUTHOR_EMAIL", "a@example.org")
        .env("GIT_AUTHOR_DATE", "2026-01-02T03:04:05+0100")
        .env("GIT_COMMITTER_DATE", "2026-01-02T03:04:05+0100");
    capture(&mut command).unwrap();
}

fn commit_id(dir: &Path) -> String {
    ask(dir, &["rev-parse", "HEAD"]).unwrap()
}

#[test]
fn patches_become_the_commits_they_were() {
    let scene = Scene::new();
    let series = Series::read(&scene.root()).unwrap();
    let last = series.apply(&scene.tree(), &scene.base, |_| ()).unwrap();
    assert_eq!(last, commit_id(&scene.tree()));
}

#[test]
fn the_same_as_git_am() {
    let scene = Scene::new();
    let tree = scene.tree();
    let series = Series::read(&scene.root()).unwrap();
    let last = series.apply(&tree, &scene.base, |_| ()).unwrap();
    run(&tree, &["checkout", "-q", "-b", "by-am", &scene.base]);
    let mut am = Command::new("git");
    am.arg("-C")
        .arg(&tree)
        .args(["-c", "user.name=x", "-c", "user.email=x@y", "am", "-q"]);
    capture(am.args(&series.patches)).unwrap();
    let format = "--format=%T|%an|%ae|%ad|%B";
    assert_eq!(
        ask(&tree, &["log", format, &last]).unwrap(),
        ask(&tree, &["log", format, "by-am"]).unwrap()
    );
}

#[test]
fn a_patch_that_does_not_apply_is_named_with_its_hunk() {
    let scene = Scene::new();
    let tree = scene.tree();
    run(&tree, &["checkout", "-q", "-b", "other", &scene.base]);
    let text = fs::read_to_string(tree.join("file")).unwrap();
    fs::write(tree.join("file"), text.replace("line 31", "another")).unwrap();
    run(&tree, &["commit", "-q", "-a", "-m", "in the way"]);
    let series = Series::read(&scene.root()).unwrap();
    let error = series
        .apply(&tree, "other", |_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("0002-mm-1.patch does not apply"), "{error}");
    assert!(
        error.contains("file: hunk 1 of 1, @@ -27,7 +27,7 @@"),
        "{error}"
    );
    assert!(error.contains("make export"), "{error}");
}

#[test]
fn the_digest_follows_the_patches() {
    let scene = Scene::new();
    let before = Series::read(&scene.root()).unwrap();
    let patch = &before.patches[0];
    let text = fs::read_to_string(patch).unwrap();
    fs::write(patch, text.replace("Why.", "Because.")).unwrap();
    let after = Series::read(&scene.root()).unwrap();
    assert_ne!(before.digest, after.digest);
}

#[test]
fn hunks_are_counted_per_file() {
    let diff = "diff --git a/x b/x\n@@ -1,2 +1,2 @@\n@@ -10,2 +10,2 @@ f()\n\
                diff --git a/y b/y\n@@ -10,2 +10,2 @@\n";
    assert_eq!(hunk(diff, "x", "10"), "hunk 2 of 2, @@ -10,2 +10,2 @@ f()");
    assert_eq!(hunk(diff, "y", "10"), "hunk 1 of 1, @@ -10,2 +10,2 @@");
    assert_eq!(hunk(diff, "y", "1"), "at line 1");
}

#[test]
fn a_mail_without_an_author_is_refused() {
    assert_eq!(Mail::parse("Subject: x\nDate: now\n"), None);
}
