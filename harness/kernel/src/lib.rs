//! Makes a kernel: the git tree with the series, the configuration, the build.

#![warn(unused_crate_dependencies)]

use std::path::PathBuf;

use host::paths::Paths;
use plan::arch::Arch;

pub mod build;
pub mod commits;
pub mod compiler;
pub mod config;
pub mod series;
pub mod tree;

/// The folder of a kernel in which virtme-ng indexes its modules for modprobe.
pub const VIRTME_MODS: &str = ".virtme_mods";

/// A kernel that was built.
#[derive(Clone)]
pub struct Built {
    /// Its output directory.
    pub dir: PathBuf,
}

impl Built {
    /// The location of the kernel with that name.
    pub fn at(paths: &Paths, name: &str) -> Self {
        Self {
            dir: paths.output.join(name),
        }
    }

    /// The image that boots. A kernel is built for one architecture, so there is one at most. If
    /// there is none, this is where the host's architecture has it.
    pub fn image(&self) -> PathBuf {
        let images = Arch::ALL.map(|arch| {
            let (name, folder) = arch.image();
            self.dir.join(folder).join(name)
        });
        let there = images.iter().find(|image| image.is_file());
        there.unwrap_or(&images[0]).clone()
    }

    /// The folder with links to all modules.
    pub fn modules(&self) -> PathBuf {
        self.dir.join("ko")
    }

    /// The folder of built selftests.
    pub fn selftests(&self, folder: &str) -> PathBuf {
        self.dir.join("selftests").join(folder)
    }
}
