//! Finds the commits of each topic in the tree, and formats them as patches.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use host::git::{ask, git};
use host::proc::capture;

use crate::series::{Series, SeriesConfig, Topic, git_dir, name};

/// Files by their path in the repository.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// The series in a git tree.
#[derive(Clone, Copy)]
pub struct Branch<'a> {
    /// The tree's directory.
    pub dir: &'a Path,
    /// The commit below the series.
    pub base: &'a str,
    /// The last commit of the series.
    pub tip: &'a str,
}

/// git's name for a cover letter.
pub const COVER: &str = "0000-cover-letter.patch";

/// The temporary branch of a cover letter. git takes the letter's text from the
/// description of a branch that ends with the last patch.
const COVER_BRANCH: &str = "p2p-cover";

/// A topic's commits.
pub struct Part<'a> {
    /// The topic.
    pub topic: &'a Topic,
    /// The commit below them.
    pub base: String,
    /// The last of them.
    pub tip: String,
}

/// Finds the commits of each topic by the subject of its first commit.
pub fn parts<'a>(tree: Branch<'_>, settings: &'a SeriesConfig) -> Result<Vec<Part<'a>>> {
    let range = format!("{}..{}", tree.base, tree.tip);
    let log = ask(tree.dir, &["log", "--reverse", "--format=%H %s", &range])?;
    let mut parts: Vec<Part<'_>> = Vec::new();
    let mut topics = settings.topics.iter().peekable();
    for line in log.lines() {
        let (commit, subject) = line.split_once(' ').unwrap_or((line, ""));
        if let Some(topic) = topics.next_if(|topic| topic.first == subject) {
            let base = parts.last().map_or(tree.base, |part| &part.tip).to_owned();
            let tip = String::new();
            parts.push(Part { topic, base, tip });
        }
        let part = parts.last_mut().with_context(|| {
            format!("series.toml has no topic whose first patch is {subject:?}")
        })?;
        commit.clone_into(&mut part.tip);
    }
    match topics.next() {
        Some(topic) if !parts.is_empty() => bail!(
            "{} begins with {:?} in series.toml, and no commit after those of the topics \
             before it is called so",
            topic.folder,
            topic.first
        ),
        _ => Ok(parts),
    }
}

impl Part<'_> {
    /// The path of a file of the topic.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        Path::new("patches").join(&self.topic.folder).join(name)
    }

    /// The commits as a git range.
    pub fn range(&self) -> String {
        format!("{}..{}", self.base, self.tip)
    }

    /// Formats the commits as patches. A `text` (a subject, an empty line, the body) adds
    /// the [`COVER`] that git makes from it.
    pub fn patches(
        &self,
        tree: Branch<'_>,
        settings: &SeriesConfig,
        text: Option<&str>,
        files: &mut Files,
    ) -> Result<()> {
        let dir = tempfile::tempdir_in(git_dir(tree.dir)?)?;
        let mut format = git(tree.dir, &[]);
        let mut range = self.range();
        let branch = format!("refs/heads/{COVER_BRANCH}");
        if let Some(text) = text {
            format.args(["-c", &format!("branch.{COVER_BRANCH}.description={text}")]);
            // The letter's author is the author of the last patch.
            let author = ["log", "-1", "--format=%an%n%ae%n%aD", &self.tip];
            let author = ask(tree.dir, &author)?;
            for (name, value) in ["NAME", "EMAIL", "DATE"].iter().zip(author.lines()) {
                format.env(format!("GIT_COMMITTER_{name}"), value);
            }
            range = format!("{}..{branch}", self.base);
            ask(tree.dir, &["update-ref", &branch, &self.tip])?;
        }
        format
            .args(["format-patch", "--quiet", "--numbered", "--zero-commit"])
            .args([
                "--no-signature",
                "--subject-prefix",
                &settings.subject_prefix,
            ])
            .arg("-o")
            .arg(dir.path());
        if text.is_some() {
            format.args(["--cover-letter", "--cover-from-description=subject"]);
        }
        let formatted = capture(format.arg(range));
        if text.is_some() {
            ask(tree.dir, &["update-ref", "-d", &branch])?;
        }
        formatted?;
        for entry in fs::read_dir(dir.path())? {
            let path = entry?.path();
            let name = path.file_name().expect("a patch has a name");
            files.insert(self.file(name), fs::read(&path)?);
        }
        Ok(())
    }
}

/// Whether the tree's commits match the patches in patches/. Other files there do not matter.
pub fn same_patches(tree: Branch<'_>, series: &Series) -> Result<bool> {
    // If the first commit of a topic was renamed, the tree differs.
    let Ok(parts) = parts(tree, &series.settings) else {
        return Ok(false);
    };
    let mut wanted = Files::new();
    for part in &parts {
        part.patches(tree, &series.settings, None, &mut wanted)?;
    }
    let mut present = Files::new();
    for patch in &series.patches {
        let name = name(patch);
        present.insert(Path::new("patches").join(name), fs::read(patch)?);
    }
    Ok(wanted == present)
}
