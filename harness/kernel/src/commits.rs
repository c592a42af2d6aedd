//! The commits of each topic in the tree, and the patches that they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use host::git::ask;

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

/// A topic's commits.
pub struct Part<'a> {
    /// The topic.
    pub topic: &'a Topic,
    /// The commit below them.
    pub base: String,
    /// The last of them.
    pub tip: String,
}

/// Finds each topic's commits by the subject of the first.
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
    /// Where a file of the topic is.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        Path::new("patches").join(&self.topic.folder).join(name)
    }

    /// As git takes them.
    pub fn range(&self) -> String {
        format!("{}..{}", self.base, self.tip)
    }

    /// Adds the patches that they are.
    pub fn patches(
        &self,
        tree: Branch<'_>,
        settings: &SeriesConfig,
        files: &mut Files,
    ) -> Result<()> {
        let dir = tempfile::tempdir_in(git_dir(tree.dir)?)?;
        let out = dir.path().to_string_lossy();
        let prefix = format!("--subject-prefix={}", settings.subject_prefix);
        ask(
            tree.dir,
            &[
                "format-patch",
                "--quiet",
                "--zero-commit",
                "--no-signature",
                "--numbered",
                &prefix,
                "-o",
                &out,
                &self.range(),
            ],
        )?;
        for entry in fs::read_dir(dir.path())? {
            let path = entry?.path();
            let name = path.file_name().expect("a patch has a name");
            files.insert(self.file(name), fs::read(&path)?);
        }
        Ok(())
    }
}

/// Whether the tree's commits are those in patches/; the rest is not looked at.
pub fn same_patches(tree: Branch<'_>, series: &Series) -> Result<bool> {
    // A commit that begins a topic may have been renamed: that is a change.
    let Ok(parts) = parts(tree, &series.settings) else {
        return Ok(false);
    };
    let mut wanted = Files::new();
    for part in &parts {
        part.patches(tree, &series.settings, &mut wanted)?;
    }
    let mut present = Files::new();
    for patch in &series.patches {
        let name = name(patch);
        present.insert(Path::new("patches").join(name), fs::read(patch)?);
    }
    Ok(wanted == present)
}
