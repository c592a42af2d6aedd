//! How a kernel comes to be: the git tree with the series, the configuration, the build.

#![warn(unused_crate_dependencies)]

use std::path::PathBuf;

use host::paths::Paths;

pub mod build;
pub mod commits;
pub mod compiler;
pub mod config;
pub mod series;
pub mod tree;

/// A kernel that was built.
#[derive(Clone)]
pub struct Built {
    /// Its output directory.
    pub dir: PathBuf,
}

impl Built {
    /// Where a kernel of that name is built.
    pub fn at(paths: &Paths, name: &str) -> Self {
        Self {
            dir: paths.output.join(name),
        }
    }

    /// What boots.
    pub fn image(&self) -> PathBuf {
        self.dir.join("arch/x86/boot/bzImage")
    }

    /// All modules, side by side.
    pub fn modules(&self) -> PathBuf {
        self.dir.join("ko")
    }

    /// Where the selftests of a folder are.
    pub fn selftests(&self, folder: &str) -> PathBuf {
        self.dir.join("selftests").join(folder)
    }
}
