//! The series as data: patches/series.toml, a folder of patches for each topic beside it,
//! and how the patches become commits.
//!
//! Patches are applied to an index instead of a work tree. So the time of a file changes
//! only with its content, and a second build is short.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use host::git::{ask, git};
use host::paths::digest;
use host::proc::{capture, output, quote};
use host::settings;

mod fit;

pub use fit::{Fit, summary, with_files_of};

/// patches/series.toml
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesConfig {
    /// The beginning of each subject, e.g. `RFC PATCH v2`.
    pub subject_prefix: String,
    /// The commit of the public tree that the patches are based on. The base in the tree
    /// here has the same files and another hash.
    #[serde(default)]
    pub base_commit: Option<String>,
    /// The topics, in the order in which they can be sent.
    #[serde(default, rename = "topic")]
    pub topics: Vec<Topic>,
    /// Folders here that receive copies of the files that the series adds.
    #[serde(default, rename = "mirror")]
    pub mirrors: Vec<Mirror>,
}

/// Patches that are sent together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topic {
    /// Its folder in patches/. The folders sort in the order of topics, so that `git am
    /// patches/*/*.patch` applies all of them.
    pub folder: String,
    /// The subject of its first patch. An export starts a new folder there.
    pub first: String,
    /// The folders of the topics that it is based on.
    #[serde(default)]
    pub needs: Vec<String>,
}

impl SeriesConfig {
    fn read(file: &Path) -> Result<Self> {
        let settings: Self = settings::read(file)?;
        settings
            .check()
            .with_context(|| file.display().to_string())?;
        Ok(settings)
    }

    /// Checks the order of topics.
    fn check(&self) -> Result<()> {
        let mut before: Vec<&str> = Vec::new();
        for Topic { folder, needs, .. } in &self.topics {
            if before.last().is_some_and(|last| *last >= folder.as_str()) {
                bail!("{folder} is not in the order of names");
            }
            if let Some(need) = needs.iter().find(|need| !before.contains(&need.as_str())) {
                bail!("{folder} needs {need}, which is no topic before it");
            }
            before.push(folder);
        }
        Ok(())
    }

    /// The topics' folders.
    pub fn folders(&self) -> Vec<&str> {
        self.topics.iter().map(|topic| &*topic.folder).collect()
    }

    /// The topics in these folders.
    pub fn picked(&self, folders: &[String]) -> Vec<&Topic> {
        let is_picked = |topic: &&Topic| folders.contains(&topic.folder);
        self.topics.iter().filter(is_picked).collect()
    }

    /// The topics that `topic` is based on, directly and indirectly.
    pub fn prerequisites(&self, topic: &Topic) -> Vec<&Topic> {
        let mut needed: BTreeSet<&str> = topic.needs.iter().map(String::as_str).collect();
        for other in self.topics.iter().rev() {
            if needed.contains(other.folder.as_str()) {
                needed.extend(other.needs.iter().map(String::as_str));
            }
        }
        let is_needed = |other: &&Topic| needed.contains(other.folder.as_str());
        self.topics.iter().filter(is_needed).collect()
    }
}

/// A folder of the kernel tree whose new files are copied to a folder here.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mirror {
    /// Its path in the kernel tree, with a `/` at the end.
    pub from: String,
    /// The path in this repository, with a `/` at the end.
    pub to: String,
    /// Files in `to` that belong to this repository.
    #[serde(default)]
    pub keep: Vec<String>,
}

/// The series, as stored in patches/.
pub struct Series {
    /// The directory patches/.
    pub dir: PathBuf,
    /// series.toml
    pub settings: SeriesConfig,
    /// The patches in order, without cover letters.
    pub patches: Vec<PathBuf>,
    /// A digest of the patches.
    pub digest: String,
}

/// The text of a topic's cover letter: subject, empty line, body. [`patches::export`]
/// makes the mail from it.
pub const COVER_TEXT: &str = "cover-letter.md";

impl Series {
    /// Reads patches/.
    pub fn read(root: &Path) -> Result<Self> {
        let dir = root.join("patches");
        let settings = SeriesConfig::read(&dir.join("series.toml"))?;
        let mut patches = Vec::new();
        for topic in &settings.topics {
            patches.extend(patches_of(&dir.join(&topic.folder))?);
        }
        let mut all = String::new();
        for patch in &patches {
            all.push_str(&digest(&fs::read(patch)?));
        }
        Ok(Self {
            dir,
            settings,
            patches,
            digest: digest(all.as_bytes()),
        })
    }

    /// A series with only the patches of these topics.
    pub fn part(&self, topics: &[&Topic]) -> Self {
        let is_of =
            |patch: &&PathBuf, topic: &&Topic| patch.starts_with(self.dir.join(&topic.folder));
        let is_in = |patch: &&PathBuf| topics.iter().any(|topic| is_of(patch, topic));
        Self {
            dir: self.dir.clone(),
            settings: SeriesConfig {
                topics: topics.iter().copied().cloned().collect(),
                ..self.settings.clone()
            },
            patches: self.patches.iter().filter(is_in).cloned().collect(),
            digest: self.digest.clone(),
        }
    }

    /// A series without the patches with these names.
    pub fn without(&self, names: &[String]) -> Self {
        let is_left = |patch: &&PathBuf| !names.contains(&name(patch));
        Self {
            dir: self.dir.clone(),
            settings: self.settings.clone(),
            patches: self.patches.iter().filter(is_left).cloned().collect(),
            digest: self.digest.clone(),
        }
    }

    /// Applies the patches to `base` and returns the last commit. Does not change a work
    /// tree or a branch.
    pub fn apply(&self, tree: &Path, base: &str, how: How, on: impl Fn(&Path)) -> Result<String> {
        apply(tree, base, &self.patches, how, on)
    }
}

/// Like [`Series::apply`], for any patches.
pub fn apply(
    tree: &Path,
    base: &str,
    patches: &[PathBuf],
    how: How,
    on: impl Fn(&Path),
) -> Result<String> {
    let scratch = scratch(tree)?;
    let index = scratch.path().join("index");
    if !patches.is_empty() {
        capture(git(tree, &["read-tree", base]).env("GIT_INDEX_FILE", &index))?;
    }
    let mut last = base.to_owned();
    for patch in patches {
        on(patch);
        last = Applying {
            tree,
            index: &index,
            scratch: scratch.path(),
            patch,
            how,
        }
        .commit(&last)?;
    }
    Ok(last)
}

/// A patch's name: its folder and file.
pub fn name(patch: &Path) -> String {
    let mut parts: Vec<_> = patch.iter().rev().take(2).collect();
    parts.reverse();
    PathBuf::from_iter(parts).display().to_string()
}

/// The patches in a folder, in order. Empty if there is no folder.
pub fn patches_of(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut patches = Vec::new();
    if dir.is_dir() {
        for entry in fs::read_dir(dir)? {
            patches.push(entry?.path());
        }
    }
    patches.retain(|path| path.extension().is_some_and(|ext| ext == "patch"));
    patches.sort();
    Ok(patches)
}

fn scratch(tree: &Path) -> Result<tempfile::TempDir> {
    Ok(tempfile::Builder::new()
        .prefix("p2p-apply-")
        .tempdir_in(git_dir(tree)?)?)
}

/// The git directory of the work tree `tree`.
pub fn git_dir(tree: &Path) -> Result<PathBuf> {
    Ok(PathBuf::from(ask(
        tree,
        &["rev-parse", "--absolute-git-dir"],
    )?))
}

struct Applying<'a> {
    tree: &'a Path,
    index: &'a Path,
    scratch: &'a Path,
    patch: &'a Path,
    how: How,
}

/// How patches are applied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Only as it is. The recipient of a topic does not have other blobs.
    Exactly,
    /// Exactly first, then with a three-way merge. A user's tree may need it.
    ThreeWay,
}

/// What `git mailinfo` finds in a patch.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mail {
    author: String,
    email: String,
    subject: String,
    date: String,
}

impl Applying<'_> {
    fn commit(&self, parent: &str) -> Result<String> {
        let message = self.scratch.join("message");
        let diff = self.scratch.join("diff");
        let mail = Mail::read(self.tree, self.patch, &message, &diff)?;
        if fs::metadata(&diff)?.len() == 0 {
            bail!("{} changes nothing", self.patch.display());
        }
        self.apply(&diff, parent)?;

        let tree = self.ask(&["write-tree"])?;
        let body = fs::read_to_string(&message)?;
        let text = format!("{}\n\n{}", mail.subject, body.trim_end());
        fs::write(&message, format!("{}\n", text.trim_end()))?;
        let message = message.to_string_lossy();
        let mut commit = git(
            self.tree,
            &["commit-tree", &tree, "-p", parent, "-F", &message],
        );
        commit
            .env("GIT_AUTHOR_NAME", &mail.author)
            .env("GIT_AUTHOR_EMAIL", &mail.email)
            .env("GIT_AUTHOR_DATE", &mail.date)
            .env("GIT_COMMITTER_DATE", &mail.date);
        Ok(capture(&mut commit)?.trim().to_owned())
    }

    fn apply(&self, diff: &Path, parent: &str) -> Result<()> {
        let mut complaint = String::new();
        let ways = [&["--cached"][..], &["--cached", "--3way"]];
        let ways = match self.how {
            How::Exactly => &ways[..1],
            How::ThreeWay => &ways[..],
        };
        for how in ways {
            let mut command = git(self.tree, &["apply", "--whitespace=nowarn"]);
            command
                .args(*how)
                .arg(diff)
                .env("GIT_INDEX_FILE", self.index);
            let (status, _, err) = output(&mut command)?;
            if status.success() {
                return Ok(());
            }
            if complaint.is_empty() {
                complaint = err;
            }
        }
        bail!(self.refusal(&complaint, &fs::read_to_string(diff)?, parent))
    }

    fn ask(&self, args: &[&str]) -> Result<String> {
        let mut command = git(self.tree, args);
        Ok(capture(command.env("GIT_INDEX_FILE", self.index))?
            .trim()
            .to_owned())
    }

    /// The error: which patch and hunk, and how to continue.
    fn refusal(&self, complaint: &str, diff: &str, parent: &str) -> String {
        let name = name(self.patch);
        let tree = quote(&self.tree.to_string_lossy());
        let patch = quote(&self.patch.to_string_lossy());
        format!(
            "{name} does not apply:\n{}\n\
             To go on by hand, from the last patch that applied:\n\
             \x20   git -C {tree} checkout -B series {parent}\n\
             \x20   git -C {tree} am --reject {patch}\n\
             \x20   (mend, git add, git am --continue; likewise for the patches after it)\n\
             \x20   make export",
            places(complaint, diff)
        )
    }
}

/// Shortens the errors of `git apply` to one line per file, with the hunk.
fn places(complaint: &str, diff: &str) -> String {
    let mut lines = Vec::new();
    for line in complaint.lines() {
        let Some(error) = line.strip_prefix("error: ") else {
            continue;
        };
        if let Some(place) = error.strip_prefix("patch failed: ") {
            let (file, first) = place.rsplit_once(':').unwrap_or((place, "0"));
            lines.push(format!("    {file}: {}", hunk(diff, file, first)));
        } else if !error.ends_with("patch does not apply") {
            lines.push(format!("    {error}"));
        }
    }
    if lines.is_empty() {
        lines.push(format!("    {}", complaint.trim()));
    }
    lines.join("\n")
}

/// Names the hunk of `file` whose old lines begin at `first`.
fn hunk(diff: &str, file: &str, first: &str) -> String {
    match hunk_number(diff, file, first) {
        Some((number, count, header)) => format!("hunk {number} of {count}, {header}"),
        None => format!("at line {first}"),
    }
}

/// The number of the hunk, the number of hunks in that file, and the hunk's first line.
fn hunk_number<'a>(diff: &'a str, file: &str, first: &str) -> Option<(usize, usize, &'a str)> {
    let header = format!(" b/{file}");
    let hunks: Vec<_> = diff
        .lines()
        .skip_while(|line| !(line.starts_with("diff --git ") && line.ends_with(&header)))
        .skip(1)
        .take_while(|line| !line.starts_with("diff --git "))
        .filter(|line| line.starts_with("@@ -"))
        .collect();
    let begins = format!("@@ -{first}");
    let at = hunks.iter().position(|line| {
        line.strip_prefix(&begins)
            .is_some_and(|rest| rest.starts_with([',', ' ']))
    })?;
    Some((at + 1, hunks.len(), hunks[at]))
}

impl Mail {
    /// Splits a patch into a mail, which is returned, and two files: the message and the diff.
    fn read(tree: &Path, patch: &Path, message: &Path, diff: &Path) -> Result<Self> {
        let mut mailinfo = git(tree, &["mailinfo"]);
        mailinfo.arg(message).arg(diff);
        let info = host::proc::capture_from(&mut mailinfo, patch)
            .with_context(|| format!("{} is no patch", patch.display()))?;
        Self::parse(&info).with_context(|| format!("{} has no author or subject", patch.display()))
    }

    fn parse(info: &str) -> Option<Self> {
        let mut mail = Self::default();
        for line in info.lines() {
            let Some((key, value)) = line.split_once(": ") else {
                continue;
            };
            let field = match key {
                "Author" => &mut mail.author,
                "Email" => &mut mail.email,
                "Subject" => &mut mail.subject,
                "Date" => &mut mail.date,
                _ => continue,
            };
            value.clone_into(field);
        }
        (!mail.author.is_empty() && !mail.subject.is_empty() && !mail.date.is_empty())
            .then_some(mail)
    }
}

#[cfg(test)]
mod tests;
