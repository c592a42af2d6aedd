//! The git tree to build from and to edit in: the base on branch `base`, and a commit per
//! patch on branch `series`.
//!
//! The tree is made from patches/, and patches/ from the tree (`patches::export`). The
//! tool remembers the last state in which both matched, so that neither side is lost. It
//! does not overwrite commits that were not exported, and it only reads a user's own tree
//! (`KDIR`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};

use crate::commits::{Branch, same_patches};
use crate::series::{self, How, Series, Topic, git_dir, summary};
use host::git::{ask, commit, git, head_of_repository};
use host::paths::Paths;
use host::proc::{capture, tail};
use host::ui::Ui;

/// The tree, and which patches it already had.
pub struct Tree {
    /// Its directory.
    pub dir: PathBuf,
    /// The commit below the series.
    pub base: String,
    /// The last commit of the series in the tree.
    pub tip: String,
    /// A description of the base, for people.
    pub source: String,
    /// The patches that were already there.
    pub found: Found,
}

/// Which patches a kernel tree already has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The commit that was examined. `None` before the first time.
    head: Option<String>,
    /// Patches that the base has. They are skipped.
    pub patches: Vec<String>,
    /// The series in the tree differs from the patches.
    pub differs: bool,
}

/// The state of tree and patches/ when the tree was last made or exported.
#[derive(Serialize, Deserialize)]
struct State {
    base: String,
    tip: String,
    digest: String,
    #[serde(default)]
    found: Found,
}

/// Disk space for a tree with its objects.
const TREE_BYTES: u64 = 5 << 30;

/// Makes the tree, or updates it to patches/.
pub fn ensure(paths: &Paths, ui: &Ui) -> Result<Tree> {
    setup::packages::ensure(paths)?;
    let series = Series::read(&paths.root)?;
    let dir = paths.tree();
    if !dir.exists() {
        create(paths, ui)?;
    }
    let mut tree = open(paths)?;
    let users = match &paths.kdir {
        Some(kdir) => users_head(kdir, ui)?,
        None => None,
    };
    let mut head = tree.found.head.clone().unwrap_or(tree.base.clone());
    let moved = users.as_ref().is_some_and(|users| *users != head);

    let state = read_state(&dir);
    let in_step = state.as_ref().is_some_and(|state| state.is_of(&tree));
    let patches_are_old = state
        .as_ref()
        .is_some_and(|state| state.digest == series.digest);
    if in_step && patches_are_old && !moved {
        return Ok(tree);
    }
    if !in_step && tree.tip != tree.base {
        // The tree has new commits, or is older than its state file.
        if same_patches(tree.branch(), &series)? {
            tree.remember(&series)?;
            if !moved {
                return Ok(tree);
            }
        } else if patches_are_old && !moved {
            ui.say(format!(
                "note: {} has commits that patches/ does not have; `make export` writes them",
                paths.short(&dir)
            ));
            return Ok(tree);
        } else {
            bail!(
                "{0} has commits that patches/ does not have, and patches/ or the base has changed.\n\
                 To keep the commits: `make export`, and then see `git diff patches`.\n\
                 To drop them: git -C {0} checkout -B series base",
                paths.short(&dir)
            );
        }
    }
    refuse_changes(&tree, paths)?;
    if let (true, Some(kdir), Some(users)) = (moved, &paths.kdir, users) {
        ask(&dir, &["fetch", "-q", &kdir.to_string_lossy(), "HEAD"])?;
        head = users;
    }
    rebuild(&mut tree, &head, &series, ui)?;
    Ok(tree)
}

/// Opens the existing tree.
pub fn open(paths: &Paths) -> Result<Tree> {
    let dir = paths.tree();
    let short = paths.short(&dir);
    let at = |branch: &str| {
        commit(&dir, &format!("refs/heads/{branch}")).with_context(|| {
            format!("{short} has no branch `{branch}`: remove it, then `make tree` makes it anew")
        })
    };
    if !dir.exists() {
        bail!("there is no {short} yet: `make tree` makes it");
    }
    let base = at("base")?;
    let tip = commit(&dir, "refs/heads/series").unwrap_or_else(|| base.clone());
    let state = read_state(&dir).filter(|state| state.base == base);
    Ok(Tree {
        source: subject(&dir, &base)?,
        found: state.map(|state| state.found).unwrap_or_default(),
        dir,
        base,
        tip,
    })
}

fn subject(dir: &Path, commit: &str) -> Result<String> {
    ask(dir, &["log", "-1", "--format=%s", commit])
}

impl State {
    fn is_of(&self, tree: &Tree) -> bool {
        self.tip == tree.tip && self.base == tree.base
    }
}

impl Tree {
    /// The series in the tree.
    pub fn branch(&self) -> Branch<'_> {
        Branch {
            dir: &self.dir,
            base: &self.base,
            tip: &self.tip,
        }
    }

    /// Records that tree and patches/ match.
    pub fn remember(&self, series: &Series) -> Result<()> {
        let state = State {
            base: self.base.clone(),
            tip: self.tip.clone(),
            digest: series.digest.clone(),
            found: self.found.clone(),
        };
        fs::write(state_file(&self.dir)?, serde_json::to_string(&state)?)?;
        Ok(())
    }

    /// Whether the tree's commits are the ones made from these patches.
    pub fn is_as_made(&self, series: &Series) -> bool {
        read_state(&self.dir)
            .is_some_and(|state| state.is_of(self) && state.digest == series.digest)
    }

    /// Makes a work tree with only the base. Its position relative to the base's kernels
    /// is the same as the main tree's to the others, so that ccache finds common objects.
    pub fn base_worktree(&self, paths: &Paths, ui: &Ui) -> Result<PathBuf> {
        let step = "tree: the base by itself";
        self.worktree(paths, ui, "base/linux", &self.base, step)
    }

    /// Makes a work tree of the base with a patch of qemu/kernel.
    pub fn patched_base(&self, paths: &Paths, ui: &Ui, patch: &str) -> Result<PathBuf> {
        let file = paths.root.join(format!("qemu/kernel/{patch}.patch"));
        let commit = series::apply(&self.dir, &self.base, &[file], How::Exactly, |_| ())?;
        let step = format!("tree: the base with {patch}");
        self.worktree(paths, ui, &format!("{patch}/linux"), &commit, &step)
    }

    /// Makes a work tree with that name and checks out `commit`.
    pub fn worktree(
        &self,
        paths: &Paths,
        ui: &Ui,
        name: &str,
        commit: &str,
        what: &str,
    ) -> Result<PathBuf> {
        let dir = paths.work.join(name);
        if !dir.exists() {
            need_space(&paths.work, TREE_BYTES / 2)?;
            let step = ui.step(what);
            ask(&self.dir, &["worktree", "prune"])?;
            let shown = dir.to_string_lossy();
            let add = ["worktree", "add", "--quiet", "--detach", &shown, commit];
            if let Err(error) = ask(&self.dir, &add) {
                // Remove the partial work tree, so that the next run starts fresh.
                let _ = fs::remove_dir_all(&dir);
                return Err(error);
            }
            step.done("checked out");
        } else if ask(&dir, &["rev-parse", "HEAD"])? != commit {
            ask(&dir, &["checkout", "--quiet", "--detach", commit])?;
        }
        Ok(dir)
    }

    /// A topic alone. Its base has the topics that it needs. The work tree still has all
    /// topics.
    pub fn topic(&self, series: &Series, topic: &Topic, ui: &Ui) -> Result<Self> {
        let step = ui.step(format!("tree: {} alone", topic.folder));
        let on = |patch: &Path| step.at(series::name(patch));
        let series = series.without(&self.found.patches);
        let needed = series.part(&series.settings.prerequisites(topic));
        let base = needed.apply(&self.dir, &self.base, How::Exactly, on)?;
        let tip = series
            .part(&[topic])
            .apply(&self.dir, &base, How::Exactly, on)?;
        step.done("applied");
        Ok(Self {
            dir: self.dir.clone(),
            base,
            tip,
            source: self.source.clone(),
            found: self.found.clone(),
        })
    }

    /// The series in a separate work tree for changes. Drops what an interrupted run left.
    pub fn aside(&self, paths: &Paths, ui: &Ui, name: &str, what: &str) -> Result<Self> {
        let left = paths.work.join(name);
        if left.exists() {
            ask(&left, &["checkout", "--quiet", "--", "."])?;
        }
        Ok(Self {
            dir: self.worktree(paths, ui, name, &self.tip, what)?,
            base: self.base.clone(),
            tip: self.tip.clone(),
            source: self.source.clone(),
            found: self.found.clone(),
        })
    }
}

fn refuse_changes(tree: &Tree, paths: &Paths) -> Result<()> {
    let changed = ask(&tree.dir, &["status", "--porcelain", "-uno"])?;
    if !changed.is_empty() {
        bail!(
            "{0} has changes that are not committed:\n{1}\n\
             Commit them and `make export`, or drop them: git -C {0} reset --hard",
            paths.short(&tree.dir),
            tail(&changed, 10)
        );
    }
    Ok(())
}

fn rebuild(tree: &mut Tree, head: &str, series: &Series, ui: &Ui) -> Result<()> {
    let source = subject(&tree.dir, head)?;
    let step = ui.step(format!(
        "tree: {} patches on {source}",
        series.patches.len()
    ));
    let done = place(tree, head, series, |patch| step.at(series::name(patch)))?;
    tree.source = subject(&tree.dir, &tree.base)?;
    // Move the branches only after all patches have applied.
    ask(&tree.dir, &["branch", "--quiet", "-f", "base", &tree.base])?;
    ask(
        &tree.dir,
        &["checkout", "--quiet", "-B", "series", &tree.tip],
    )?;
    tree.remember(series)?;
    step.done(done);
    Ok(())
}

/// Applies the patches to `head`, or finds them in it, and says which. If the tree has all
/// patches, it is used as it is, whoever committed them.
fn place(tree: &mut Tree, head: &str, series: &Series, on: impl Fn(&Path)) -> Result<String> {
    let dir = &tree.dir;
    let there = series.found_in(dir, head)?;
    let all = series.patches.len();
    tree.found = Found {
        head: Some(head.to_owned()),
        ..Found::default()
    };
    if all > 0 && there.len() == all {
        tree.base = series.take_out(dir, head)?;
        let made = series.apply(dir, &tree.base, How::Exactly, on)?;
        tree.tip = series::with_files_of(dir, &made, head, "what else the tree has")?;
        tree.found.differs = tree.tip != made;
        return Ok("it has the series already, and is tested as it is".to_owned());
    }
    if all > 0
        && let Some(below) = series.below_commits(dir, head)?
    {
        (tree.base, tree.tip) = (below, head.to_owned());
        tree.found.differs = true;
        let base = subject(dir, &tree.base)?;
        return Ok(format!(
            "it has commits of the series already, which are not just as the patches are, \
             and is tested as it is; the base is {base}"
        ));
    }
    let missing = series.without(&there);
    tree.tip = missing
        .apply(dir, head, How::ThreeWay, on)
        .map_err(
            |error| match series.fits(dir, head, &there, How::ThreeWay) {
                Ok(fits) => anyhow!("{error:#}\n{}", summary(&fits)),
                Err(_) => error,
            },
        )?;
    head.clone_into(&mut tree.base);
    let done = match there.len() {
        0 => "applied".to_owned(),
        count => format!(
            "{} applied, {count} there already and skipped: {}",
            all - count,
            series.shortened(&there)
        ),
    };
    tree.found.patches = there;
    Ok(done)
}

/// Makes the tree with only the base.
fn create(paths: &Paths, ui: &Ui) -> Result<()> {
    need_space(&paths.work, TREE_BYTES)?;
    let partial = paths.work.join("linux.partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    let dir = paths.tree();
    match &paths.kdir {
        None => {
            let base = setup::source::base(paths, ui)?;
            let step = ui.step(format!("tree: {}", base.name()));
            step.at("unpacking");
            base.unpack(&partial, None)?;
            step.at("committing the base");
            commit_base(&partial, &base.name())?;
            fs::rename(&partial, &dir)?;
            step.done("unpacked");
        }
        Some(kdir) if head_of_repository(kdir).is_some() => {
            let step = ui.step(format!("tree: clone of {}", kdir.display()));
            let (from, to) = (kdir.to_string_lossy(), partial.to_string_lossy());
            // The clone shares the objects. Nothing is written to the user's tree.
            ask(
                &paths.work,
                &["clone", "-q", "--shared", "--no-checkout", &from, &to],
            )?;
            let head = ask(kdir, &["rev-parse", "HEAD"])?;
            ask(&partial, &["checkout", "-q", "-B", "base", &head])?;
            ask(&partial, &["checkout", "-q", "-B", "series", &head])?;
            fs::rename(&partial, &dir)?;
            step.done("cloned");
        }
        Some(kdir) => {
            let step = ui.step(format!("tree: copy of {}", kdir.display()));
            let mut from = kdir.clone().into_os_string();
            from.push("/");
            fs::create_dir_all(&partial)?;
            capture(
                Command::new("rsync")
                    .args(["-a", "--exclude=/.git"])
                    .arg(from)
                    .arg(&partial),
            )?;
            // An out-of-tree build needs a clean source tree.
            capture(
                Command::new("make")
                    .arg("-C")
                    .arg(&partial)
                    .args(["-s", "mrproper"]),
            )?;
            commit_base(&partial, &kdir.to_string_lossy())?;
            fs::rename(&partial, &dir)?;
            step.done("copied");
        }
    }
    Ok(())
}

/// Commits a tree. The commit depends only on the tree's content and the name.
pub fn commit_base(dir: &Path, name: &str) -> Result<()> {
    strip_packaging(&dir.join(".gitignore"))?;
    ask(dir, &["init", "-q", "-b", "base"])?;
    for (key, value) in [
        // 1.9 GiB of objects without, 0.5 GiB with 8 s more.
        ("core.looseCompression", "1"),
        ("gc.auto", "0"),
        ("core.untrackedCache", "true"),
        ("index.version", "4"),
    ] {
        ask(dir, &["config", key, value])?;
    }
    ask(dir, &["add", "-A", "-f"])?;
    let date = "2026-01-01T00:00:00+0000";
    let mut commit = git(dir, &["commit", "-q", "-m", name]);
    commit
        .env("GIT_AUTHOR_NAME", "base")
        .env("GIT_AUTHOR_EMAIL", "base@localhost")
        .env("GIT_AUTHOR_DATE", date)
        .env("GIT_COMMITTER_DATE", date);
    capture(&mut commit)?;
    ask(dir, &["checkout", "-q", "-B", "series"])?;
    Ok(())
}

/// Removes Debian's rules from .gitignore. They ignore every file at the top level,
/// including new files of ours.
fn strip_packaging(gitignore: &Path) -> Result<()> {
    let Ok(text) = fs::read_to_string(gitignore) else {
        return Ok(());
    };
    if let Some(at) = text.find("#\n# Debian packaging: ignore everything") {
        fs::write(gitignore, format!("{}\n", text[..at].trim_end()))?;
    }
    Ok(())
}

/// The HEAD of the user's tree, if it is a repository.
fn users_head(kdir: &Path, ui: &Ui) -> Result<Option<String>> {
    let Some(head) = head_of_repository(kdir) else {
        return Ok(None);
    };
    let status = ["--no-optional-locks", "status", "--porcelain", "-uno"];
    if !ask(kdir, &status)?.is_empty() {
        ui.say(format!(
            "note: {} has changes that are not committed; its HEAD is used",
            kdir.display()
        ));
    }
    Ok(Some(head))
}

fn state_file(dir: &Path) -> Result<PathBuf> {
    Ok(git_dir(dir)?.join("p2p-state.json"))
}

fn read_state(dir: &Path) -> Option<State> {
    let text = fs::read_to_string(state_file(dir).ok()?).ok()?;
    serde_json::from_str(&text).ok()
}

/// Fails early if there is not enough disk space.
pub fn need_space(dir: &Path, bytes: u64) -> Result<()> {
    let disk = statvfs(dir).with_context(|| dir.display().to_string())?;
    let free = disk.blocks_available() as u64 * disk.fragment_size() as u64;
    if free < bytes {
        bail!(
            "no disk space: {} has {} MiB free, and {} MiB are needed",
            dir.display(),
            free >> 20,
            bytes >> 20
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
