//! The files and programs of a host, below a root. The root is `/` except in tests.

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

    /// The path of a file of the host.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text, without surrounding white space.
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

    /// A program, found as a shell does.
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

    /// A program's output, if the program exists and succeeds.
    pub fn ask(&self, name: &str, args: &[&str]) -> Option<String> {
        let (status, out, _) = output(Command::new(self.program(name)?).args(args)).ok()?;
        status.success().then_some(out)
    }

    /// A program's output, whether or not it succeeds.
    pub fn output_of(&self, name: &str, args: &[&str]) -> Option<String> {
        let (_, out, err) = output(Command::new(self.program(name)?).args(args)).ok()?;
        Some(out + &err)
    }
}
