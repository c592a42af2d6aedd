//! The series as data: patches/series.toml, and a folder of patches for each topic beside
//! it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use host::paths::digest;
use host::settings;

mod apply;
mod fit;

pub use apply::{How, apply, git_dir, name};
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

#[cfg(test)]
mod tests;
