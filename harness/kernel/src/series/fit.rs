//! Which patches of the series a kernel already has, which topics apply to it, and how to
//! remove the series from a kernel that has all of it.
//!
//! A kernel has a patch if the patch can be undone after the later patches are undone.
//! Only contents count, so it does not matter who committed the changes, or in how many
//! commits. A patch that could be applied as well does not count: the text that it removes
//! was found missing in another place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;
use std::{fmt, fs};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::Series;
use super::apply::{How, Mail, hunk_number, name, scratch};
use host::git::{ask, git};
use host::proc::{capture, capture_from, output, tail};

/// How a topic fits a kernel, together with only the topics that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Its missing patches apply.
    Applies,
    /// The kernel has all of its patches.
    There,
    /// It needs this topic, which does not apply.
    Needs(String),
    /// This patch does not apply, at this place.
    Refused {
        /// The patch.
        patch: String,
        /// File and hunk.
        place: String,
    },
}

impl Fit {
    /// Whether the kernel can have the topic.
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Applies | Self::There)
    }

    /// In short: the patch's number stands for its name.
    pub fn short(&self) -> String {
        match self {
            Self::Refused { patch, place } => {
                let number = patch.split('-').next().unwrap_or_default();
                format!("{number}: {place}")
            }
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Applies => f.write_str("applies"),
            Self::There => f.write_str("there already"),
            Self::Needs(topic) => write!(f, "needs {topic}"),
            Self::Refused { patch, place } => write!(f, "{patch}, {place}"),
        }
    }
}

/// One line: which topics apply, which do not, and which the kernel has.
pub fn summary(fits: &[(String, Fit)]) -> String {
    let those = |is_it: fn(&Fit) -> bool| fits.iter().filter(move |(_, fit)| is_it(fit));
    let names = |is_it| Vec::from_iter(those(is_it).map(|(topic, _)| topic.as_str())).join(", ");
    let bad = those(|fit| !fit.is_good()).map(|(topic, fit)| format!("{topic} ({fit})"));
    let parts = [
        ("applies", names(|fit| *fit == Fit::Applies)),
        ("there already", names(|fit| *fit == Fit::There)),
        ("does not apply", Vec::from_iter(bad).join(", ")),
    ];
    let parts = parts.iter().filter(|(_, topics)| !topics.is_empty());
    Vec::from_iter(parts.map(|(what, topics)| format!("{what}: {topics}"))).join("; ")
}

impl Series {
    /// All files that the patches touch, new or not.
    pub fn files(&self) -> Result<BTreeSet<String>> {
        let mut files = BTreeSet::new();
        for patch in &self.patches {
            let text = fs::read_to_string(patch).with_context(|| patch.display().to_string())?;
            let named = text
                .lines()
                .filter_map(|line| line.strip_prefix("diff --git a/")?.split_once(" b/"));
            files.extend(named.flat_map(|(old, new)| [old.to_owned(), new.to_owned()]));
        }
        Ok(files)
    }

    /// The names of the patches that `head` already has.
    pub fn found_in(&self, tree: &Path, head: &str) -> Result<Vec<String>> {
        let index = Index::of(tree, head, &self.files()?)?;
        let mut found = Vec::new();
        for patch in self.patches.iter().rev() {
            let one = slice::from_ref(patch);
            let is_there = index.refusal(&["--check", "-R"], one)?.is_none()
                && index.refusal(&["--check"], one)?.is_some();
            if is_there {
                index.refusal(&["-R"], one)?;
                found.push(name(patch));
            }
        }
        found.reverse();
        Ok(found)
    }

    /// The names of patches. A complete topic is named by its folder.
    pub fn shortened(&self, patches: &[String]) -> String {
        let mut words: Vec<String> = Vec::new();
        for topic in &self.settings.topics {
            let all = self.part(&[topic]).patches;
            let mut those = Vec::from_iter(all.iter().map(|patch| name(patch)));
            those.retain(|name| patches.contains(name));
            if those.len() == all.len() && !all.is_empty() {
                those = vec![topic.folder.clone()];
            }
            words.append(&mut those);
        }
        words.join(", ")
    }

    /// `head` has all patches. Makes a commit on top of it that has none of them.
    pub fn take_out(&self, tree: &Path, head: &str) -> Result<String> {
        let index = Index::whole(tree, head)?;
        for patch in self.patches.iter().rev() {
            let refusal = index.refusal(&["-R"], slice::from_ref(patch))?;
            if let Some(why) = refusal {
                bail!("{} cannot be undone: {}", name(patch), tail(&why, 5));
            }
        }
        let content = index.ask(&["write-tree"])?;
        let subject = ask(tree, &["log", "-1", "--format=%s", head])?;
        commit_tree(
            tree,
            &content,
            head,
            &format!("{subject}, without the series"),
        )
    }

    /// The commit below the series, if the last commits of `head` include a commit with
    /// the subject of each patch. The commits may change something else than the patches,
    /// and other commits may be among them. `None` if there are merges.
    pub fn below_commits(&self, tree: &Path, head: &str) -> Result<Option<String>> {
        let last = format!("-{}", 2 * self.patches.len());
        let log = ask(tree, &["log", &last, "--format=%P|%s", head])?;
        let commits = log.lines().filter_map(|line| line.split_once('|'));
        let commits = commits.take_while(|(parents, _)| !parents.contains(' '));
        let commits = Vec::from_iter(commits);
        let scratch = scratch(tree)?;
        let (message, diff) = (scratch.path().join("message"), scratch.path().join("diff"));
        let mut first = 0;
        for patch in &self.patches {
            let subject = Mail::read(tree, patch, &message, &diff)?.subject;
            match commits.iter().position(|(_, of)| *of == subject) {
                Some(at) => first = first.max(at),
                None => return Ok(None),
            }
        }
        let below = commits.get(first).map(|(below, _)| (*below).to_owned());
        Ok(below.filter(|below| !below.is_empty()))
    }

    /// How each topic fits `base`, which has the patches in `there`.
    pub fn fits(
        &self,
        tree: &Path,
        base: &str,
        there: &[String],
        how: How,
    ) -> Result<Vec<(String, Fit)>> {
        let left = self.without(there);
        let clean = Index::of(tree, base, &self.files()?)?;
        let mut fits: BTreeMap<&str, Fit> = BTreeMap::new();
        for topic in &self.settings.topics {
            let mut topics = self.settings.prerequisites(topic);
            let bad = topics.iter().find(|need| !fits[&*need.folder].is_good());
            let fit = match bad {
                Some(need) => Fit::Needs(need.folder.clone()),
                None if left.part(&[topic]).patches.is_empty() => Fit::There,
                None => {
                    topics.push(topic);
                    clean.fit(&left.part(&topics).patches, how)?
                }
            };
            fits.insert(&topic.folder, fit);
        }
        let fits = fits.into_iter();
        Ok(fits.map(|(topic, fit)| (topic.to_owned(), fit)).collect())
    }
}

/// Returns `tip` if it has the same files as `head`. Otherwise makes a commit on top of it
/// that has them.
pub fn with_files_of(tree: &Path, tip: &str, head: &str, subject: &str) -> Result<String> {
    let files = |commit: &str| ask(tree, &["rev-parse", &format!("{commit}^{{tree}}")]);
    let wanted = files(head)?;
    if files(tip)? == wanted {
        return Ok(tip.to_owned());
    }
    commit_tree(tree, &wanted, tip, subject)
}

/// Makes a commit with a fixed author and its parent's date.
fn commit_tree(tree: &Path, content: &str, parent: &str, subject: &str) -> Result<String> {
    let date = ask(tree, &["log", "-1", "--format=%cI", parent])?;
    let mut commit = git(tree, &["commit-tree", content, "-p", parent, "-m", subject]);
    commit
        .env("GIT_AUTHOR_NAME", "p2p")
        .env("GIT_AUTHOR_EMAIL", "p2p@localhost")
        .env("GIT_AUTHOR_DATE", &date)
        .env("GIT_COMMITTER_DATE", &date);
    Ok(capture(&mut commit)?.trim().to_owned())
}

/// A temporary index for applying patches.
struct Index {
    tree: PathBuf,
    scratch: TempDir,
}

impl Index {
    fn empty(tree: &Path) -> Result<Self> {
        Ok(Self {
            tree: tree.to_owned(),
            scratch: scratch(tree)?,
        })
    }

    /// Has all files of a commit.
    fn whole(tree: &Path, commit: &str) -> Result<Self> {
        let index = Self::empty(tree)?;
        index.ask(&["read-tree", commit])?;
        Ok(index)
    }

    /// Has some files of a commit. A kernel has 90000 files, and git would read the whole
    /// index each time.
    fn of(tree: &Path, commit: &str, files: &BTreeSet<String>) -> Result<Self> {
        let index = Self::empty(tree)?;
        let list = index.scratch.path().join("list");
        let mut names = git(tree, &["ls-tree", "-r", "-z", "--full-tree", commit, "--"]);
        fs::write(&list, capture(names.args(files))?)?;
        let mut update = index.git(&["update-index", "-z", "--index-info"]);
        capture_from(&mut update, &list)?;
        Ok(index)
    }

    fn again(&self) -> Result<Self> {
        let index = Self::empty(&self.tree)?;
        if self.file().exists() {
            fs::copy(self.file(), index.file())?;
        }
        Ok(index)
    }

    fn file(&self) -> PathBuf {
        self.scratch.path().join("index")
    }

    fn git(&self, args: &[&str]) -> Command {
        let mut command = git(&self.tree, args);
        command.env("GIT_INDEX_FILE", self.file());
        command
    }

    fn ask(&self, args: &[&str]) -> Result<String> {
        Ok(capture(&mut self.git(args))?.trim().to_owned())
    }

    /// The errors of `git apply`, if it fails.
    fn refusal(&self, args: &[&str], patches: &[PathBuf]) -> Result<Option<String>> {
        let mut apply = self.git(&["apply", "--cached", "--whitespace=nowarn"]);
        let (status, _, err) = output(apply.args(args).args(patches))?;
        Ok((!status.success()).then_some(err))
    }

    /// Whether patches apply to this index. The index does not change.
    fn fit(&self, patches: &[PathBuf], how: How) -> Result<Fit> {
        // Usually all of them apply at once.
        if self.again()?.refusal(&[], patches)?.is_none() {
            return Ok(Fit::Applies);
        }
        let index = self.again()?;
        for patch in patches {
            let one = slice::from_ref(patch);
            if let Some(why) = index.refusal(&[], one)?
                && (how == How::Exactly || index.refusal(&["--3way"], one)?.is_some())
            {
                let file = patch.file_name().unwrap_or_default().to_string_lossy();
                return Ok(Fit::Refused {
                    patch: file.into_owned(),
                    place: place(&why, &fs::read_to_string(patch)?),
                });
            }
        }
        Ok(Fit::Applies)
    }
}

/// The first error of `git apply`, shortened.
fn place(complaint: &str, diff: &str) -> String {
    let errors = complaint
        .lines()
        .filter_map(|line| line.strip_prefix("error: "));
    let error = errors.clone().next().unwrap_or(complaint.trim());
    let Some(place) = error.strip_prefix("patch failed: ") else {
        return error.to_owned();
    };
    let (file, first) = place.rsplit_once(':').unwrap_or((place, "0"));
    match hunk_number(diff, file, first) {
        Some((number, ..)) => format!("hunk {number} of {file}"),
        None => place.to_owned(),
    }
}
