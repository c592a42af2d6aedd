//! The files and programs of a host, below a root that is `/` unless a test
//! says otherwise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use host::proc::output;

/// A host.
pub struct Host {
    root: PathBuf,
}

impl Host {
    /// The host whose files are below `root`.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Where a file of the host is.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text without space around it.
    pub fn read(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The names in a folder, sorted.
    pub fn list(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(dir)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// A program, as a shell would find it.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let path = if self.root == Path::new("/") {
            std::env::var("PATH").unwrap_or_default()
        } else {
            String::new()
        };
        path.split(':')
            .chain(["/usr/local/bin", "/usr/bin", "/usr/sbin", "/bin", "/sbin"])
            .filter(|dir| dir.starts_with('/'))
            .map(|dir| self.path(dir).join(name))
            .find(|file| file.is_file())
    }

    /// What a program prints, if it is there and succeeds.
    pub fn ask(&self, name: &str, args: &[&str]) -> Option<String> {
        let (status, out, _) = output(Command::new(self.program(name)?).args(args)).ok()?;
        status.success().then_some(out)
    }

    /// What a program says, whether it succeeds or not.
    pub fn said(&self, name: &str, args: &[&str]) -> Option<String> {
        let (_, out, err) = output(Command::new(self.program(name)?).args(args)).ok()?;
        Some(out + &err)
    }
}
