//! Chooses the compiler for a kernel.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::config;
use host::proc::capture;
use host::status::Usage;

/// Runs a compiler through ccache.
const WITH_CCACHE: &str = "harness/with-ccache";

/// Our `LLVM=`.
const LLVM: &str = "-19";

/// The user's choice of compiler. The default is GCC, which needs two thirds of LLVM's
/// time, or LLVM 19 for kernels that need LLVM.
#[derive(Clone, Debug, Default)]
pub struct Compiler {
    /// `LLVM=`
    pub llvm: Option<String>,
    /// `CC=`
    pub cc: Option<String>,
    /// `CONFIG=`: a file of options for every kernel. They override the kernel's own.
    pub config: Option<PathBuf>,
}

impl Compiler {
    /// Arguments for the kernel's make. `needs_llvm`: only LLVM can build the kernel.
    /// `root`: the repository.
    pub fn arguments(&self, needs_llvm: bool, root: &Path) -> Vec<String> {
        let (llvm, cc) = self.chosen(needs_llvm);
        let mut arguments = Vec::new();
        arguments.extend(llvm.map(|llvm| format!("LLVM={llvm}")));
        if llvm.is_none() && self.cc.is_none() {
            // A kernel is linked thrice, and GNU's linker takes long.
            arguments.push("LD=ld.lld".to_owned());
        }
        arguments.push(if cc.starts_with("ccache ") {
            format!("CC={cc}")
        } else {
            format!("CC={} {cc}", root.join(WITH_CCACHE).display())
        });
        arguments
    }

    /// The clang of the user's LLVM, or of ours.
    pub fn clang(&self) -> String {
        llvm_program(self.llvm.as_deref().unwrap_or(LLVM), "clang")
    }

    /// The value of `LLVM=`, and the C compiler.
    fn chosen(&self, needs_llvm: bool) -> (Option<&str>, String) {
        let (llvm, cc) = match (&self.llvm, &self.cc) {
            (None, None) if needs_llvm => (Some(LLVM), None),
            (None, None) => (None, Some("gcc")),
            (llvm, cc) => (llvm.as_deref(), cc.as_deref()),
        };
        let cc = match (cc, llvm) {
            (Some(cc), _) => cc.to_owned(),
            (None, llvm) => llvm_program(llvm.unwrap_or_default(), "clang"),
        };
        (llvm, cc)
    }

    /// The versions of the compilers and the linker that `path` finds. When a version
    /// changes, the kernel is rebuilt.
    pub fn versions(&self, needs_llvm: bool, path: &OsStr) -> String {
        let (llvm, cc) = self.chosen(needs_llvm);
        let linker = match (llvm, &self.cc) {
            (Some(llvm), _) => llvm_program(llvm, "ld.lld"),
            (None, None) => "ld.lld".to_owned(),
            (None, Some(_)) => "ld".to_owned(),
        };
        let mut versions = String::new();
        for program in [&*cc, &linker, "/usr/bin/rustc"] {
            // `ccache gcc` is two words.
            let mut command = Command::new("/usr/bin/env");
            command.args(program.split_whitespace()).arg("--version");
            let said = capture(command.env("PATH", path));
            // A failure shows up again, with its reason, when the program builds.
            versions.push_str(&said.unwrap_or_else(|error| error.to_string()));
        }
        versions
    }

    /// Fails if a chosen program is in none of `dirs`, or if the options cannot be read.
    /// This happens before hours of building.
    pub fn check(&self, dirs: &[PathBuf]) -> Result<()> {
        if let Some(file) = &self.config {
            config::read(file).map_err(|error| Usage(format!("CONFIG={error:#}")))?;
        }
        if let Some(llvm) = &self.llvm {
            // One program of each package. `CC=` replaces clang.
            let mut parts = vec![("ld.lld", "lld"), ("llvm-ar", "llvm")];
            if self.cc.is_none() {
                parts.insert(0, ("clang", "clang"));
            }
            let packages = parts.iter().map(|(_, package)| llvm_program(llvm, package));
            let packages = Vec::from_iter(packages).join(" ");
            for (program, _) in parts {
                let choice = format!("LLVM={llvm}");
                check(&choice, &llvm_program(llvm, program), &packages, dirs)?;
            }
        }
        if let Some(cc) = &self.cc {
            let mut words = cc.split_whitespace();
            let program = words.find(|word| *word != "ccache").unwrap_or_default();
            check(&format!("CC={cc}"), program, program, dirs)?;
        }
        Ok(())
    }
}

/// The program's name, by the rules of the kernel's Makefile for LLVM=.
fn llvm_program(llvm: &str, program: &str) -> String {
    if llvm.ends_with('/') {
        format!("{llvm}{program}")
    } else if llvm.starts_with('-') {
        format!("{program}{llvm}")
    } else {
        program.to_owned()
    }
}

/// Fails if a program does not exist. The error names its Debian packages.
fn check(choice: &str, program: &str, packages: &str, dirs: &[PathBuf]) -> Result<()> {
    // make runs in another directory, so a path must be absolute.
    let is_path = program.contains('/');
    let may_be = Path::new(program).is_absolute() || !is_path;
    if may_be && dirs.iter().any(|dir| dir.join(program).is_file()) {
        return Ok(());
    }
    let next_step = if is_path {
        "a path must be absolute, and the program be there".to_owned()
    } else {
        format!("on Debian, `apt-get install {packages}`")
    };
    bail!(Usage(format!(
        "{choice}: there is no program {program:?}; {next_step}"
    )))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn compilers() {
        let chosen = |llvm: Option<&str>, cc: Option<&str>, needs_llvm| {
            let compiler = Compiler {
                llvm: llvm.map(str::to_owned),
                cc: cc.map(str::to_owned),
                ..Compiler::default()
            };
            compiler.arguments(needs_llvm, Path::new("/r")).join(" ")
        };
        assert_eq!(
            chosen(None, None, false),
            "LD=ld.lld CC=/r/harness/with-ccache gcc"
        );
        assert_eq!(
            chosen(None, None, true),
            "LLVM=-19 CC=/r/harness/with-ccache clang-19"
        );
        for needs_llvm in [false, true] {
            let chosen = |llvm, cc| chosen(llvm, cc, needs_llvm);
            assert_eq!(
                chosen(Some("1"), None),
                "LLVM=1 CC=/r/harness/with-ccache clang"
            );
            assert_eq!(
                chosen(Some("-20"), None),
                "LLVM=-20 CC=/r/harness/with-ccache clang-20"
            );
            assert_eq!(chosen(None, Some("ccache gcc-13")), "CC=ccache gcc-13");
            let both = chosen(Some("/opt/"), Some("gcc"));
            assert_eq!(both, "LLVM=/opt/ CC=/r/harness/with-ccache gcc");
        }
    }

    #[test]
    fn options_that_cannot_be_read_are_bad_usage() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("my.config");
        let check = || {
            let compiler = Compiler {
                config: Some(file.clone()),
                ..Compiler::default()
            };
            compiler
                .check(&[])
                .map_err(|error| error.downcast::<Usage>().unwrap().0)
        };
        let start = format!("CONFIG={}: ", file.display());
        assert!(check().unwrap_err().starts_with(&start));
        fs::write(&file, "KASAN=y\n").unwrap();
        assert!(check().unwrap_err().ends_with("not an option: KASAN=y"));
        fs::write(&file, "CONFIG_KASAN=y\n").unwrap();
        check().unwrap();
    }

    #[test]
    fn a_compiler_that_is_not_there_is_bad_usage() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["gcc-13", "clang-20", "ld.lld-20", "clang-21", "ld.lld-21"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        fs::write(dir.path().join("llvm-ar-20"), "").unwrap();
        let dirs = [PathBuf::from("/nonexistent"), dir.path().to_owned()];
        let said = |llvm: Option<&str>, cc: Option<&str>| {
            let compiler = Compiler {
                llvm: llvm.map(str::to_owned),
                cc: cc.map(str::to_owned),
                ..Compiler::default()
            };
            let error = compiler.check(&dirs).err()?;
            Some(error.downcast::<Usage>().unwrap().to_string())
        };
        let there = dir.path().join("gcc-13");
        for cc in ["gcc-13", "ccache gcc-13", there.to_str().unwrap()] {
            assert_eq!(said(None, Some(cc)), None, "{cc}");
        }
        assert_eq!(said(None, None), None);
        assert_eq!(said(Some("-20"), None), None);
        assert_eq!(
            said(None, Some("ccache gcc-14")).unwrap(),
            "CC=ccache gcc-14: there is no program \"gcc-14\"; on Debian, \
             `apt-get install gcc-14`"
        );
        assert_eq!(
            said(Some("-21"), None).unwrap(),
            "LLVM=-21: there is no program \"llvm-ar-21\"; on Debian, \
             `apt-get install clang-21 lld-21 llvm-21`"
        );
        // The user's compiler replaces clang, but not the linker.
        let other = said(Some("-22"), Some("gcc-13")).unwrap();
        assert!(other.ends_with("`apt-get install lld-22 llvm-22`"));
        assert!(said(Some("-20"), Some("gcc-14")).is_some());
        for (llvm, cc) in [(Some("/opt/"), None), (None, Some("./gcc-13"))] {
            let told = said(llvm, cc).unwrap();
            assert!(told.ends_with("a path must be absolute, and the program be there"));
        }
    }

    #[test]
    fn a_compiler_that_is_updated_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str, says: &str| {
            let path = dir.path().join(name);
            fs::write(&path, format!("#!/bin/sh\necho {name} {says}\n")).unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        };
        let others = std::env::var("PATH").unwrap();
        let path = format!("{}:{others}", dir.path().display());
        let versions = |cc: Option<&str>, needs_llvm| {
            let cc = cc.map(str::to_owned);
            let compiler = Compiler {
                cc,
                ..Compiler::default()
            };
            compiler.versions(needs_llvm, OsStr::new(&path))
        };
        for name in ["gcc", "ld.lld", "clang-19", "ld.lld-19", "ld", "gcc-13"] {
            program(name, "1");
        }
        let (gcc, clang) = (versions(None, false), versions(None, true));
        assert!(gcc.starts_with("gcc 1\nld.lld 1\n"), "{gcc}");
        assert!(clang.starts_with("clang-19 1\nld.lld-19 1\n"), "{clang}");
        assert!(versions(Some("gcc-13"), false).starts_with("gcc-13 1\nld 1\n"));
        program("ld.lld", "2");
        assert_ne!(versions(None, false), gcc);
        assert_eq!(versions(None, true), clang);
        assert!(versions(Some("none-13"), false).contains("none-13"));
    }

    #[test]
    fn what_ccache_would_not_see_is_left_to_the_compiler() {
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str, says: &str| {
            let path = dir.path().join(name);
            fs::write(&path, format!("#!/bin/sh\necho {says}\n")).unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        };
        program("ccache", "depend=$CCACHE_DEPEND $1");
        program("gcc", "gcc");
        program("clang", "clang");
        let source = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        source("plain.c", "int a;\n");
        source("image.c", "asm(\".incbin \\\"image\\\"\");\n");
        source("image.S", ".incbin \"image\"\n");
        let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join("../with-ccache");
        let others = std::env::var("PATH").unwrap();
        let path = format!("{}:{others}", dir.path().display());
        let run = |compiler: &str, source: &str| {
            let mut command = Command::new(&wrapper);
            command
                .args([compiler, "-c", source])
                .current_dir(dir.path());
            capture(command.env("PATH", &path))
                .unwrap()
                .trim()
                .to_owned()
        };
        for compiler in ["clang", "gcc"] {
            assert_eq!(run(compiler, "plain.c"), format!("depend=1 {compiler}"));
            assert_eq!(run(compiler, "-"), format!("depend=1 {compiler}"));
            assert_eq!(run(compiler, "image.c"), compiler);
            assert_eq!(run(compiler, "image.S"), compiler);
        }
    }
}
