use super::*;

use std::process::Command;

use host::git::{ask, git};
use host::proc::capture;

/// A repository with one commit, and three patches on top of it, one per topic.
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

    /// Sets the topics that the third topic needs.
    fn settings(&self, needs: &str) {
        let settings = format!(
            "subject_prefix = 'PATCH'\n[[topic]]\nfolder = '1-mm'\nfirst = 'mm: 0'\n\
             [[topic]]\nfolder = '2-mm'\nfirst = 'mm: 1'\n\
             [[topic]]\nfolder = '3-mm'\nfirst = 'mm: 2'\nneeds = [{needs}]\n"
        );
        fs::write(self.root().join("patches/series.toml"), settings).unwrap();
    }

    /// Makes the branch `other`: the base with a changed line.
    fn other(&self, line: &str) {
        self.change(&self.base, line, "another");
    }

    /// Makes the branch `other`: a commit with a replaced line.
    fn change(&self, commit: &str, line: &str, by: &str) {
        let tree = self.tree();
        run(&tree, &["checkout", "-q", "-B", "other", commit]);
        let text = fs::read_to_string(tree.join("file")).unwrap();
        let text = text.replace(&format!("{line}\n"), &format!("{by}\n"));
        fs::write(tree.join("file"), text).unwrap();
        run(&tree, &["commit", "-q", "-a", "-m", "in the way"]);
    }

    fn at(&self, name: &str) -> String {
        ask(&self.tree(), &["rev-parse", name]).unwrap()
    }

    fn fits(&self, base: &str, there: &[String]) -> Vec<(String, Fit)> {
        let series = Series::read(&self.root()).unwrap();
        let fits = series.fits(&self.tree(), base, there, How::Exactly);
        fits.unwrap()
    }

    fn found(&self, head: &str) -> Vec<String> {
        let series = Series::read(&self.root()).unwrap();
        series.found_in(&self.tree(), head).unwrap()
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

/// The context of the second patch has changed. A tree with the blobs can merge it.
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
    let fits = || scene.fits(&scene.base, &[]);
    assert!(fits().iter().all(|(_, fit)| *fit == Fit::Applies));

    // The third patch changes a line of the first, but does not declare that it needs it.
    scene.settings("'2-mm'");
    let found = fits();
    assert!(found[0].1.is_good() && found[1].1.is_good());
    assert_eq!(found[2].1.to_string(), "0001-mm-2.patch, hunk 1 of file");
    assert_eq!(found[2].1.short(), "0001: hunk 1 of file");
}

#[test]
fn which_topics_apply_in_a_line() {
    let scene = Scene::new();
    scene.other("line 5");
    assert_eq!(
        summary(&scene.fits("other", &[])),
        "applies: 2-mm; does not apply: 1-mm (0001-mm-0.patch, hunk 1 of file), \
         3-mm (needs 1-mm)"
    );
    let there = ["1-mm/0001-mm-0.patch".to_owned()];
    let fits = scene.fits(&scene.at("series~2"), &there);
    assert_eq!(summary(&fits), "applies: 2-mm, 3-mm; there already: 1-mm");
}

/// The context of the second patch has changed. A tree with the blobs can merge it.
#[test]
fn a_topic_that_can_be_merged_fits_if_that_is_asked() {
    let scene = Scene::new();
    scene.other("line 28");
    let series = Series::read(&scene.root()).unwrap();
    let is_good = |how| {
        let fits = series.fits(&scene.tree(), "other", &[], how).unwrap();
        fits[1].1.is_good()
    };
    assert!(is_good(How::ThreeWay) && !is_good(How::Exactly));
}

#[test]
fn what_a_kernel_has_already_is_found() {
    let scene = Scene::new();
    assert_eq!(scene.found(&scene.base), Vec::<String>::new());
    assert_eq!(scene.found("series~2"), ["1-mm/0001-mm-0.patch"]);
    // The third patch changes lines of the first. A tree with all patches may have more
    // changes.
    scene.change("series", "line 20", "of others");
    assert_eq!(scene.found("other").len(), 3);
    // Only the second patch, in a commit with another name.
    scene.change(&scene.base, "line 30", "changed");
    assert_eq!(scene.found("other"), ["2-mm/0001-mm-1.patch"]);
    // This change conflicts with the second patch.
    scene.change("series", "line 31", "of others");
    let found = scene.found("other");
    assert_eq!(found, ["1-mm/0001-mm-0.patch", "3-mm/0001-mm-2.patch"]);
}

/// The patch removes a part that the file has twice.
#[test]
fn what_can_be_applied_is_not_there() {
    let scene = Scene::new();
    let tree = scene.tree();
    run(&tree, &["checkout", "-q", "-b", "twice", &scene.base]);
    let part = "a\nb\nc\nd\ne\nf\n";
    let both = format!("{part}{}", part.replace("c\n", "c\nmore\n"));
    fs::write(tree.join("file"), &both).unwrap();
    run(&tree, &["commit", "-q", "-a", "-m", "twice"]);
    fs::write(tree.join("file"), part.repeat(2)).unwrap();
    run(&tree, &["commit", "-q", "-a", "-m", "mm: once"]);
    let out = scene.root().join("patches/4-mm");
    let out = out.to_string_lossy();
    run(&tree, &["format-patch", "-q", "-1", "-o", &out]);
    let settings = "subject_prefix = 'PATCH'\n[[topic]]\nfolder = '4-mm'\nfirst = 'mm: once'\n";
    fs::write(scene.root().join("patches/series.toml"), settings).unwrap();
    assert_eq!(scene.found("twice~1"), Vec::<String>::new());
    assert_eq!(scene.found("twice"), ["4-mm/0001-mm-once.patch"]);
}

#[test]
fn the_series_can_be_taken_out() {
    let scene = Scene::new();
    let tree = scene.tree();
    let series = Series::read(&scene.root()).unwrap();
    let without = series.take_out(&tree, "series").unwrap();
    let base = format!("{}^{{tree}}", scene.base);
    assert_eq!(scene.at(&format!("{without}^{{tree}}")), scene.at(&base));
    assert_eq!(scene.at(&format!("{without}^")), scene.at("series"));
    let subject = ask(&tree, &["log", "-1", "--format=%s", &without]).unwrap();
    assert_eq!(subject, "mm: 2, without the series");
    assert!(series.take_out(&tree, &scene.base).is_err());
}

#[test]
fn commits_of_the_series_are_known_by_their_subjects() {
    let scene = Scene::new();
    let series = Series::read(&scene.root()).unwrap();
    let below = |head: &str| series.below_commits(&scene.tree(), head).unwrap();
    assert_eq!(below(&scene.base), None);
    assert_eq!(below("series~1"), None);
    assert_eq!(below("series"), Some(scene.base.clone()));
    scene.change("series", "5", "V");
    assert_eq!(below("other"), Some(scene.base.clone()));
    // A merge is among the commits, so no commit is below the series.
    scene.other("line 38");
    let tree = scene.tree();
    run(&tree, &["checkout", "-q", "--detach", "series"]);
    run(&tree, &["merge", "-q", "--no-ff", "-m", "merge", "other"]);
    assert_eq!(below("HEAD"), None);
}

#[test]
fn a_commit_makes_up_for_what_differs() {
    let scene = Scene::new();
    let tree = scene.tree();
    let made = |tip: &str| with_files_of(&tree, tip, "series", "the rest").unwrap();
    assert_eq!(made(&scene.at("series")), scene.at("series"));
    let rest = made(&scene.base);
    assert_eq!(scene.at(&format!("{rest}^")), scene.base);
    let files = |commit: &str| scene.at(&format!("{commit}^{{tree}}"));
    assert_eq!(files(&rest), files("series"));
}

#[test]
fn patches_of_a_whole_topic_are_called_by_its_name() {
    let scene = Scene::new();
    fs::copy(
        scene.root().join("patches/3-mm/0001-mm-2.patch"),
        scene.root().join("patches/2-mm/0002-mm-2.patch"),
    )
    .unwrap();
    let series = Series::read(&scene.root()).unwrap();
    let names = ["1-mm/0001-mm-0.patch", "2-mm/0002-mm-2.patch"].map(str::to_owned);
    assert_eq!(series.shortened(&names), "1-mm, 2-mm/0002-mm-2.patch");
}

#[test]
fn files_that_patches_touch() {
    let scene = Scene::new();
    let series = Series::read(&scene.root()).unwrap();
    assert_eq!(Vec::from_iter(series.files().unwrap()), ["file"]);
}

#[test]
fn what_a_topic_needs_is_before_it() {
    let parse = |topics: &[(&str, &str)]| {
        let topic = |(folder, needs): &(&str, &str)| {
            format!("[[topic]]\nfolder = '{folder}'\nfirst = 'x'\nneeds = [{needs}]\n")
        };
        let topics = topics.iter().map(topic).collect::<String>();
        let text = format!("subject_prefix = 'PATCH'\n{topics}");
        let settings = settings::parse::<SeriesConfig>(Path::new("series.toml"), &text)?;
        settings.check().map(|()| settings)
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
