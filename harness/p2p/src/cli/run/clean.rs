//! `make clean`: removes what runs leave behind.

use std::fs;

use anyhow::{Context, Result};

use super::Run;
use kernel::Built;
use patches::{bisect, check, coverage, mutants};
use plan::kernels::Kernels;

impl Run<'_> {
    /// Removes built kernels, machines and results, but not the trees.
    pub fn clean(&self) -> Result<()> {
        let mut dirs = vec![self.paths.results(), self.paths.runs(), self.paths.logs()];
        for name in Kernels::read(&self.paths.root)?.names() {
            let dir = Built::at(self.paths, name).dir;
            for entry in fs::read_dir(&dir).into_iter().flatten() {
                dirs.push(entry?.path());
            }
        }
        dirs.extend(bisect::outputs(self.paths)?);
        let others = ["check-docs", mutants::KERNEL, coverage::KERNEL];
        let others = others.iter().chain(&check::OUTPUTS).chain(&mutants::SLOTS);
        dirs.extend(others.map(|name| self.paths.output.join(name)));
        for dir in dirs {
            if dir.is_dir() && !dir.is_symlink() {
                fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
            } else if dir.exists() || dir.is_symlink() {
                fs::remove_file(&dir).with_context(|| dir.display().to_string())?;
            }
        }
        Ok(())
    }
}
