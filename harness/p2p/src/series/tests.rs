use super::*;

use std::process::Command;

/// A repository with one commit, and three patches on top of it, a topic each.
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
        run(&tree, &["checkout", "-q", "-b", "series"]);
        let changes = [("line 5", "five"), ("line 30", "changed"), ("five", "5")];
        for (number, (line, by)) in changes.iter().enumerate() {
            let text = fs::read_to_string(tree.join("file")).unwrap();
            fs::write(tree.join("file"), text.replace(line, by)).unwrap();
            run(
                &tree,
                &["commit", "-q", "-a", "-m", &format!("mm: {number}\n\nWhy.")],
            );
        }
        for number in 1..=3 {
            let out = scene.root().join(format!("patches/{number}-mm"));
            let out = out.to_string_lossy();
            let commit = format!("HEAD~{}", 3 - number);
            let args = [
                "format-patch",
                "-q",
                "--zero-commit",
                "-o",
                &out,
                "-1",
                &commit,
            ];
            run(&tree, &args);
        }
        let scene = Self { base, ..scene };
        scene.settings("'1-mm'");
        scene
    }

    /// What the third topic needs.
    fn settings(&self, needs: &str) {
        let settings = format!(
            "subject_prefix = 'PATCH'\n[[topic]]\nfolder = '1-mm'\nfirst = 'mm: 0'\n\
             [[topic]]\nfolder = '2-mm'\nfirst = 'mm: 1'\n\
             [[topic]]\nfolder = '3-mm'\nfirst = 'mm: 2'\nneeds = [{needs}]\n"
        );
        fs::write(self.root().join("patches/series.toml"), settings).unwrap();
    }

    /// The branch `other`: the base, and another line in place of this one.
    fn other(&self, line: &str) {
        let tree = self.tree();
        run(&tree, &["checkout", "-q", "-b", "other", &self.base]);
        let text = fs::read_to_string(tree.join("file")).unwrap();
        fs::write(tree.join("file"), text.replace(line, "another")).unwrap();
        run(&tree, &["commit", "-q", "-a", "-m", "in the way"]);
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
    let last = series
        .apply(&scene.tree(), &scene.base, How::ThreeWay, |_| ())
        .unwrap();
    assert_eq!(last, commit_id(&scene.tree()));
}

#[test]
fn the_same_as_git_am() {
    let scene = Scene::new();
    let tree = scene.tree();
    let series = Series::read(&scene.root()).unwrap();
    let last = series
        .apply(&tree, &scene.base, How::ThreeWay, |_| ())
        .unwrap();
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
    scene.other("line 31");
    let series = Series::read(&scene.root()).unwrap();
    let error = series
        .apply(&tree, "other", How::ThreeWay, |_| ())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("2-mm/0001-mm-1.patch does not apply"),
        "{error}"
    );
    assert!(
        error.contains("file: hunk 1 of 1, @@ -27,7 +27,7 @@"),
        "{error}"
    );
    assert!(error.contains("make export"), "{error}");
}

/// Context of the second patch has changed: who has the blobs can merge.
#[test]
fn a_topic_must_apply_without_the_blobs_of_others() {
    let scene = Scene::new();
    let tree = scene.tree();
    scene.other("line 28");
    let series = Series::read(&scene.root()).unwrap();
    series.apply(&tree, "other", How::ThreeWay, |_| ()).unwrap();
    let error = series
        .apply(&tree, "other", How::Exactly, |_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("does not apply"), "{error}");
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
fn a_topic_alone_is_on_those_that_it_needs() {
    let scene = Scene::new();
    let alone = || {
        let series = Series::read(&scene.root()).unwrap();
        series.apply_alone(&scene.tree(), &scene.base).unwrap()
    };
    assert!(alone().iter().all(|(_, trouble)| trouble.is_none()));

    // What the third patch changes is by the first, and it does not say so.
    scene.settings("'2-mm'");
    let found = alone();
    assert!(found[0].1.is_none() && found[1].1.is_none());
    let trouble = found[2].1.as_ref().unwrap();
    assert!(trouble.contains("patch failed: file:2"), "{trouble}");
}

#[test]
fn what_a_topic_needs_is_before_it() {
    let parse = |topics: &[(&str, &str)]| {
        let topic = |(folder, needs): &(&str, &str)| {
            format!("[[topic]]\nfolder = '{folder}'\nfirst = 'x'\nneeds = [{needs}]\n")
        };
        let topics = topics.iter().map(topic).collect::<String>();
        Settings::parse(&format!("subject_prefix = 'PATCH'\n{topics}"))
    };
    let all = [
        ("1", ""),
        ("2", ""),
        ("3", "'1'"),
        ("4", "'3'"),
        ("5", "'2'"),
    ];
    let settings = parse(&all).unwrap();
    let needed = |at: usize| {
        let needed = settings.prerequisites(&settings.topics[at]).into_iter();
        Vec::from_iter(needed.map(|topic| &*topic.folder))
    };
    assert_eq!(needed(0), Vec::<&str>::new());
    assert_eq!(needed(3), ["1", "3"]);
    assert_eq!(needed(4), ["2"]);
    assert!(parse(&[("1", "'2'"), ("2", "")]).is_err());
    assert!(parse(&[("2", ""), ("1", "")]).is_err());
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
