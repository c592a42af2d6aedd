//! The series as data: patches/series.toml and the patches beside it, and how
//! they become commits.
//!
//! Patches are applied to an index, not to a work tree, so that a file's time
//! changes only when its content does and a second build is short.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::git::{ask, git};
use crate::paths::digest;
use crate::proc::{capture, output, quote};

/// patches/series.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// What a subject begins with, e.g. `RFC PATCH v2`.
    pub subject_prefix: String,
    /// Where copies of files go that the series adds.
    #[serde(default, rename = "mirror")]
    pub mirrors: Vec<Mirror>,
}

/// A folder of the kernel tree whose new files are copied to a folder here.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mirror {
    /// In the kernel tree, with a `/` at the end.
    pub from: String,
    /// In this repository, likewise.
    pub to: String,
    /// Files in `to` that are this repository's own.
    #[serde(default)]
    pub keep: Vec<String>,
}

/// The series as it lies in patches/.
pub struct Series {
    /// patches/
    pub dir: PathBuf,
    /// series.toml
    pub settings: Settings,
    /// The patches in order, without a cover letter.
    pub patches: Vec<PathBuf>,
    /// Changes when a patch does.
    pub digest: String,
}

/// The cover letter's text: subject, empty line, body. [`crate::export`] makes
/// the mail from it.
pub const COVER_TEXT: &str = "cover-letter.md";

impl Series {
    /// Reads patches/.
    pub fn read(root: &Path) -> Result<Self> {
        let dir = root.join("patches");
        let file = dir.join("series.toml");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let settings = toml::from_str(&text).with_context(|| file.display().to_string())?;
        let mut patches = Vec::new();
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ext| ext == "patch") {
                patches.push(path);
            }
        }
        patches.sort();
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

    /// Puts the patches on `base` and gives the last commit. Neither a work
    /// tree nor a branch is touched.
    pub fn apply(&self, tree: &Path, base: &str, on: impl Fn(&Path)) -> Result<String> {
        let scratch = tempfile::Builder::new()
            .prefix("p2p-apply-")
            .tempdir_in(git_dir(tree)?)?;
        let index = scratch.path().join("index");
        if !self.patches.is_empty() {
            capture(git(tree, &["read-tree", base]).env("GIT_INDEX_FILE", &index))?;
        }
        let mut last = base.to_owned();
        for patch in &self.patches {
            on(patch);
            last = Applying {
                tree,
                index: &index,
                scratch: scratch.path(),
                patch,
            }
            .commit(&last)?;
        }
        Ok(last)
    }
}

/// The directory where `tree` keeps what belongs to it alone.
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
        let mut mailinfo = git(self.tree, &["mailinfo"]);
        mailinfo.arg(&message).arg(&diff);
        let info = crate::proc::capture_from(&mut mailinfo, self.patch)
            .with_context(|| format!("{} is no patch", self.patch.display()))?;
        let mail = Mail::parse(&info)
            .with_context(|| format!("{} has no author or subject", self.patch.display()))?;
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
        // Exactly first; a user's own tree may need the common ancestor.
        for how in [&["--cached"][..], &["--cached", "--3way"]] {
            let mut command = git(self.tree, &["apply", "--whitespace=nowarn"]);
            command
                .args(how)
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

    /// Says which patch and hunk, and how to go on.
    fn refusal(&self, complaint: &str, diff: &str, parent: &str) -> String {
        let name = self.patch.file_name().unwrap_or_default().to_string_lossy();
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

/// Condenses what `git apply` complains of to one line per file, with the hunk.
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
    let header = format!(" b/{file}");
    let hunks: Vec<_> = diff
        .lines()
        .skip_while(|line| !(line.starts_with("diff --git ") && line.ends_with(&header)))
        .skip(1)
        .take_while(|line| !line.starts_with("diff --git "))
        .filter(|line| line.starts_with("@@ -"))
        .collect();
    let begins = format!("@@ -{first}");
    let found = hunks.iter().position(|line| {
        line.strip_prefix(&begins)
            .is_some_and(|rest| rest.starts_with([',', ' ']))
    });
    match found {
        Some(at) => format!("hunk {} of {}, {}", at + 1, hunks.len(), hunks[at]),
        None => format!("at line {first}"),
    }
}

impl Mail {
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
