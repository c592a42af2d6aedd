//! Whether a defect changes the code at all: a kernel's objects, by digest.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use host::paths::digest;

/// Objects that hold the time of the build, or names of sources.
const OTHERS: [&str; 4] = ["vmlinux", "version", "piggy", "."];

/// The objects of a kernel that was built.
#[derive(Debug, PartialEq, Eq)]
pub struct Objects(BTreeMap<PathBuf, String>);

impl Objects {
    /// Reads the objects below a folder.
    pub fn read(dir: &Path) -> Result<Self> {
        let mut objects = BTreeMap::new();
        read(dir, &mut objects)?;
        Ok(Self(objects))
    }
}

fn read(dir: &Path, objects: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        // Links lead to the sources.
        if entry.file_type()?.is_dir() {
            read(&path, objects)?;
        } else if name.ends_with(".o")
            && !name.ends_with(".mod.o")
            && !OTHERS.iter().any(|other| name.starts_with(other))
        {
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            objects.insert(path, digest(&bytes));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_compared_without_those_that_have_the_time() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::create_dir(dir.join("mm")).unwrap();
        let write = |name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
        write("mm/hmm.o", "1");
        let read = || Objects::read(dir).unwrap();
        let before = read();
        for name in [
            "vmlinux.o",
            "version-timestamp.o",
            "a.mod.o",
            ".b.o",
            "mm/hmm.c",
        ] {
            write(name, "2");
        }
        assert_eq!(read(), before);
        write("mm/hmm.o", "2");
        assert_ne!(read(), before);
        write("mm/hmm.o", "1");
        assert_eq!(read(), before);
    }
}
