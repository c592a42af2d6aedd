//! Finds the Rust lines that a machine has run. Rust has no counters in the kernel, but
//! QEMU can log the code that it translates right before it runs. The line table maps that
//! code to lines.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

use addr2line::{Loader, Location};
use anyhow::{Context, Result, anyhow, bail};

use super::lines::Lines;
use host::proc::capture;
use machine::vm::trace::KERNEL;

/// The sorted addresses of the instructions that a machine has run.
pub struct Executed(Vec<u64>);

impl Executed {
    /// Reads QEMU's log: a line for each instruction, `0xffffffff81000000:  55  pushq %rbp`.
    pub fn read(log: &Path) -> Result<Self> {
        let file = File::open(log).with_context(|| log.display().to_string())?;
        let mut all = Vec::new();
        for line in BufReader::new(file).split(b'\n') {
            let line = line.with_context(|| log.display().to_string())?;
            all.extend(address(&line));
        }
        if all.is_empty() {
            bail!("{}: no instruction is in it", log.display());
        }
        all.sort_unstable();
        all.dedup();
        Ok(Self(all))
    }

    /// Whether an instruction in this range has run.
    fn any(&self, start: u64, len: u64) -> bool {
        let at = self.0.partition_point(|address| *address < start);
        self.0
            .get(at)
            .is_some_and(|address| *address < start.saturating_add(len))
    }

    /// Adds the lines of `files` in a tree for which an image has code. The image is the
    /// kernel, or a module that [`place`] has linked to its address.
    pub fn count(
        &self,
        image: &Path,
        tree: &Path,
        files: &[&str],
        lines: &mut Lines,
    ) -> Result<()> {
        let files = Files::read(tree, files)?;
        let wrong = |err| anyhow!("{}: {err}", image.display());
        let loader = Loader::new(image).map_err(wrong)?;
        let all = loader
            .find_location_range(KERNEL, u64::MAX)
            .map_err(wrong)?;
        for (start, len, _) in all {
            let reached = self.any(start, len);
            // The line, and the lines that it is inlined into.
            let mut frames = loader.find_frames(start).map_err(wrong)?;
            while let Some(frame) = frames.next().map_err(|err| wrong(err.into()))? {
                if let Some((file, line)) = frame.location.and_then(|at| files.find(&at)) {
                    lines.see(file, line, reached.into());
                }
            }
        }
        Ok(())
    }
}

/// The files to count, and for each line whether it has a statement.
struct Files<'a>(Vec<(&'a str, Vec<bool>)>);

impl<'a> Files<'a> {
    fn read(tree: &Path, files: &[&'a str]) -> Result<Self> {
        let read = |file: &&'a str| {
            let text = fs::read_to_string(tree.join(file)).with_context(|| (*file).to_owned())?;
            Ok((*file, text.lines().map(has_statement).collect()))
        };
        Ok(Self(files.iter().map(read).collect::<Result<_>>()?))
    }

    fn find(&self, location: &Location<'_>) -> Option<(&'a str, usize)> {
        let path = Path::new(location.file?);
        let line = usize::try_from(location.line?).ok()?;
        let (file, lines) = self.0.iter().find(|(file, _)| path.ends_with(file))?;
        // The compiler uses line 0 for its own code.
        let counts = *lines.get(line.checked_sub(1)?)?;
        counts.then_some((*file, line))
    }
}

/// Whether a line is more than a function's head or the end of a block. Those have code
/// even if the rest is inlined elsewhere.
fn has_statement(line: &str) -> bool {
    let line = line.trim();
    let is_end = line.starts_with('}') && !line.contains(char::is_alphanumeric);
    let mut words = line.split_whitespace();
    let is_head = words.any(|word| word == "fn") && !line.ends_with('}');
    !is_end && !is_head
}

fn address(line: &[u8]) -> Option<u64> {
    let (digits, rest) = line.strip_prefix(b"0x")?.split_at_checked(16)?;
    rest.starts_with(b":").then_some(())?;
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

/// Links a module to the address where a machine has loaded it. Only its `.text` counts.
/// The other sections and the kernel's exports do not matter.
pub fn place(module: &Path, text: &str, placed: &Path) -> Result<()> {
    let address = text.trim_start_matches("0x");
    capture(
        Command::new("/usr/lib/llvm-19/bin/ld.lld")
            .args([
                "--noinhibit-exec",
                "--no-warnings",
                "--unresolved-symbols=ignore-all",
            ])
            .arg(format!("--section-start=.text=0x{address}"))
            .arg("-o")
            .args([placed, module]),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_ends_have_no_statement() {
        for line in [
            "fn f() {",
            "    pub(crate) fn f<T>(",
            "}",
            "    });",
            "} // f",
        ] {
            assert_eq!(has_statement(line), line.ends_with('f'), "{line}");
        }
        for line in [
            "f();",
            "} else {",
            "pub fn size(&self) -> u64 { self.size }",
        ] {
            assert!(has_statement(line), "{line}");
        }
    }

    #[test]
    fn only_lines_with_statements_of_the_files_count() {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("a.rs"), "fn f() {\n    g();\n}\n").unwrap();
        let files = Files::read(tree.path(), &["a.rs"]).unwrap();
        let found = |file, line| {
            let column = None;
            files.find(&Location { file, line, column })
        };
        assert_eq!(found(Some("/linux/a.rs"), Some(2)), Some(("a.rs", 2)));
        for line in [None, Some(0), Some(1), Some(3), Some(4)] {
            assert_eq!(found(Some("/linux/a.rs"), line), None);
        }
        assert_eq!(found(Some("/linux/ba.rs"), Some(2)), None);
        assert_eq!(found(None, Some(2)), None);
    }

    #[test]
    fn instructions_of_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let text = "----------------\nIN: f\n0xffffffff81000002:  c3   retq\n\
                    0xffffffff81000000:  66 90   nop\n0xffffffff81000000:  66 90   nop\n";
        fs::write(&log, text).unwrap();
        let executed = Executed::read(&log).unwrap();
        assert_eq!(executed.0, [KERNEL + 0x100_0000, KERNEL + 0x100_0002]);
        assert!(executed.any(KERNEL + 0x100_0001, 2));
        assert!(!executed.any(KERNEL + 0x100_0001, 1));
        assert!(!executed.any(KERNEL + 0x100_0003, 9));
        fs::write(&log, "IN: f\n").unwrap();
        assert!(Executed::read(&log).is_err());
        assert!(Executed::read(&dir.path().join("none")).is_err());
    }
}
