//! Which compiler builds a kernel.

use std::path::Path;

/// Calls a compiler by way of ccache.
const CACHED: &str = "harness/cached";

/// What the user can choose. Without a choice it is GCC, by which a kernel takes
/// two thirds of the time, or LLVM 19 where nothing else will do.
#[derive(Clone, Debug, Default)]
pub struct Compiler {
    /// `LLVM=`
    pub llvm: Option<String>,
    /// `CC=`
    pub cc: Option<String>,
}

impl Compiler {
    /// Arguments of the kernel's make. `needs_llvm`: another compiler cannot. `root`:
    /// the repository.
    pub fn arguments(&self, needs_llvm: bool, root: &Path) -> Vec<String> {
        let (llvm, cc) = match (&self.llvm, &self.cc) {
            (None, None) if needs_llvm => (Some("-19"), None),
            (None, None) => (None, Some("gcc")),
            (llvm, cc) => (llvm.as_deref(), cc.as_deref()),
        };
        let mut arguments = Vec::new();
        arguments.extend(llvm.map(|llvm| format!("LLVM={llvm}")));
        if llvm.is_none() && self.cc.is_none() {
            // A kernel is linked thrice, and GNU's linker takes long.
            arguments.push("LD=ld.lld".to_owned());
        }
        let cc = match (cc, llvm) {
            (Some(cc), _) => cc.to_owned(),
            // As the kernel's Makefile understands LLVM=.
            (None, Some(llvm)) if llvm.ends_with('/') => format!("{llvm}clang"),
            (None, Some(llvm)) if llvm.starts_with('-') => format!("clang{llvm}"),
            (None, _) => "clang".to_owned(),
        };
        arguments.push(if cc.starts_with("ccache ") {
            format!("CC={cc}")
        } else {
            format!("CC={} {cc}", root.join(CACHED).display())
        });
        arguments
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;
    use crate::proc::capture;

    #[test]
    fn compilers() {
        let chosen = |llvm: Option<&str>, cc: Option<&str>, needs_llvm| {
            let compiler = Compiler {
                llvm: llvm.map(str::to_owned),
                cc: cc.map(str::to_owned),
            };
            compiler.arguments(needs_llvm, Path::new("/r")).join(" ")
        };
        assert_eq!(
            chosen(None, None, false),
            "LD=ld.lld CC=/r/harness/cached gcc"
        );
        assert_eq!(
            chosen(None, None, true),
            "LLVM=-19 CC=/r/harness/cached clang-19"
        );
        for needs_llvm in [false, true] {
            let chosen = |llvm, cc| chosen(llvm, cc, needs_llvm);
            assert_eq!(chosen(Some("1"), None), "LLVM=1 CC=/r/harness/cached clang");
            assert_eq!(
                chosen(Some("-20"), None),
                "LLVM=-20 CC=/r/harness/cached clang-20"
            );
            assert_eq!(chosen(None, Some("ccache gcc-13")), "CC=ccache gcc-13");
            let both = chosen(Some("/opt/"), Some("gcc"));
            assert_eq!(both, "LLVM=/opt/ CC=/r/harness/cached gcc");
        }
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
        let cached = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cached");
        let others = std::env::var("PATH").unwrap();
        let path = format!("{}:{others}", dir.path().display());
        let run = |compiler: &str, source: &str| {
            let mut command = Command::new(&cached);
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
