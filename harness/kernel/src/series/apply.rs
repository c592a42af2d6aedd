//! How the patches become commits.
//!
//! Patches are applied to an index instead of a work tree. So the time of a file changes
//! only with its content, and a second build is short.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use host::git::{ask, git};
use host::proc::{capture, output, quote};

/// How patches are applied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Only as it is. The recipient of a topic does not have other blobs.
    Exactly,
    /// Exactly first, then with a three-way merge. A user's tree may need it.
    ThreeWay,
}

/// Applies patches to `base` and returns the last commit. Does not change a work tree or
/// a branch.
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

/// A temporary folder in the git directory.
pub fn scratch(tree: &Path) -> Result<tempfile::TempDir> {
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

/// What `git mailinfo` finds in a patch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Mail {
    author: String,
    email: String,
    /// The first line of the message, without `[PATCH]`.
    pub subject: String,
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
pub fn hunk_number<'a>(diff: &'a str, file: &str, first: &str) -> Option<(usize, usize, &'a str)> {
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
    pub fn read(tree: &Path, patch: &Path, message: &Path, diff: &Path) -> Result<Self> {
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
mod tests {
    use super::*;

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
}
