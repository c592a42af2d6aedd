//! The directories of a run. Files are written only below `build/` and the cache, unless
//! the user sets `O=`.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::status::Usage;

/// The directories of a run.
pub struct Paths {
    /// The repository.
    pub root: PathBuf,
    /// Where trees and kernels are built: `build`, or a directory below it for one `KDIR`.
    pub work: PathBuf,
    /// Where kernels are built: `work`, or the directory that `O=` names.
    pub output: PathBuf,
    /// The cache that clones share: packages, tools, ccache.
    pub cache: PathBuf,
    /// The user's kernel tree (`KDIR=`), if any.
    pub kdir: Option<PathBuf>,
}

/// Host directories that the guest cannot see.
const HIDDEN: [&str; 9] = [
    "/dev",
    "/proc",
    "/run",
    "/sys",
    "/var/cache",
    "/var/lib/apt",
    "/var/lib/private",
    "/var/log",
    "/var/tmp",
];

impl Paths {
    /// The directories of a repository that has its cache inside. For tests.
    pub fn within(root: &Path) -> Self {
        let build = root.join("build");
        Self {
            root: root.to_owned(),
            work: build.clone(),
            output: build,
            cache: root.join("cache"),
            kdir: None,
        }
    }

    /// Where machines write their logs and files, in one directory each.
    pub fn runs(&self) -> PathBuf {
        self.build().join("run")
    }

    /// Finds the directories, and checks the ones that the user set.
    pub fn new(root: &Path, kdir: Option<&Path>, output: Option<&Path>) -> Result<Self> {
        let root = fs::canonicalize(root).with_context(|| root.display().to_string())?;
        if !root.join("qemu/kernels.toml").is_file() {
            bail!(Usage(format!(
                "{} is not this project's repository",
                root.display()
            )));
        }
        let build = root.join("build");
        let (work, kdir) = match kdir {
            None => (build, None),
            Some(kdir) => {
                let kdir = kernel_tree(kdir)?;
                (build.join("kdir").join(short_name(&kdir)), Some(kdir))
            }
        };
        let output = match output {
            None => work.clone(),
            Some(output) => real(&std::path::absolute(output)?),
        };
        let cache = cache_dir()?;
        for dir in [&work, &output, &cache] {
            // virtme-ng mounts empty file systems there.
            if let Some(hidden) = HIDDEN.iter().find(|hidden| dir.starts_with(hidden)) {
                bail!(Usage(format!(
                    "{}: the virtual machines have a {hidden} of their own and do not see it; \
                     use another place",
                    dir.display()
                )));
            }
            // The kernel's make cannot work in such a directory.
            if dir.to_string_lossy().contains([' ', ':', '\'', '"']) {
                bail!(Usage(format!(
                    "{}: a kernel cannot be built in a path with spaces, colons or quotes",
                    dir.display()
                )));
            }
            fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        Ok(Self {
            root,
            work,
            output,
            cache,
            kdir,
        })
    }

    /// `build/`.
    pub fn build(&self) -> PathBuf {
        self.root.join("build")
    }

    /// The git tree with the base and the series.
    pub fn tree(&self) -> PathBuf {
        self.work.join("linux")
    }

    /// The logs of builds and checks.
    pub fn logs(&self) -> PathBuf {
        self.build().join("logs")
    }

    /// Results of the last demo or test.
    pub fn results(&self) -> PathBuf {
        self.build().join("results")
    }

    /// Recorded results of another run. Output marks them as recorded.
    pub fn recorded(&self) -> PathBuf {
        self.root.join("results")
    }

    /// A path as seen from the repository, for messages.
    pub fn short(&self, path: &Path) -> String {
        path.strip_prefix(&self.root)
            .unwrap_or(path)
            .display()
            .to_string()
    }
}

/// A path without the links in the part of it that exists.
fn real(path: &Path) -> PathBuf {
    let mut above = path.ancestors();
    let found = above.find_map(|dir| Some((dir, fs::canonicalize(dir).ok()?)));
    let Some((dir, real)) = found else {
        return path.to_owned();
    };
    // Components, because an empty rest would leave a slash at the end.
    let rest = path.strip_prefix(dir).unwrap_or(path);
    real.join(rest).components().collect()
}

fn cache_dir() -> Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => {
            let home = env::var_os("HOME").context("neither HOME nor XDG_CACHE_HOME is set")?;
            PathBuf::from(home).join(".cache")
        }
    };
    Ok(real(&base.join("hmm-p2p")))
}

fn kernel_tree(kdir: &Path) -> Result<PathBuf> {
    let tree = fs::canonicalize(kdir)
        .map_err(|error| Usage(format!("KDIR={}: {error}", kdir.display())))?;
    for file in ["Kbuild", "MAINTAINERS", "mm/hmm.c"] {
        if !tree.join(file).is_file() {
            bail!(Usage(format!(
                "KDIR={} is not a kernel tree: it has no {file}",
                kdir.display()
            )));
        }
    }
    Ok(tree)
}

/// A unique short name for a tree.
fn short_name(tree: &Path) -> String {
    let name = tree.file_name().unwrap_or_default().to_string_lossy();
    let name: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c))
        .collect();
    format!(
        "{name}-{}",
        &digest(tree.as_os_str().as_encoded_bytes())[..8]
    )
}

/// SHA-256 of some bytes, in hex.
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Bytes as hex, two digits each.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_is_none_is_bad_usage() {
        let dir = tempfile::tempdir().unwrap();
        let error = kernel_tree(dir.path()).unwrap_err();
        assert!(error.downcast_ref::<Usage>().is_some());
        let error = kernel_tree(&dir.path().join("nowhere")).unwrap_err();
        assert!(error.downcast_ref::<Usage>().is_some());
    }

    #[test]
    fn places_that_the_guest_does_not_see_are_bad_usage() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/var/tmp", &link).unwrap();
        for (place, hidden) in [
            (Path::new("/var/tmp"), "/var/tmp"),
            (Path::new("/dev/shm"), "/dev"),
            (&link, "/var/tmp"),
        ] {
            let output = place.join("p2p-output");
            let error = Paths::new(&root, None, Some(&output)).err().unwrap();
            assert!(error.downcast_ref::<Usage>().is_some());
            assert!(
                error.to_string().contains(&format!("a {hidden} of")),
                "{error}"
            );
            assert!(!output.exists());
        }
    }

    #[test]
    fn a_path_that_does_not_exist_has_no_links_either() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let link = root.join("link");
        std::os::unix::fs::symlink(&root, &link).unwrap();
        assert_eq!(real(&link.join("a/b")), root.join("a/b"));
        // As a string, too, because programs get it.
        assert_eq!(real(&link).as_os_str(), root.as_os_str());
    }

    #[test]
    fn names_of_trees_differ() {
        let a = short_name(Path::new("/a/linux"));
        let b = short_name(Path::new("/b/linux"));
        assert!(a.starts_with("linux-") && b.starts_with("linux-"));
        assert_ne!(a, b);
    }
}
