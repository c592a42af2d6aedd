//! Which compiler builds a kernel.

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
    /// Arguments of the kernel's make. `needs_llvm`: another compiler cannot.
    pub fn arguments(&self, needs_llvm: bool) -> Vec<String> {
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
            format!("CC=ccache {cc}")
        });
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilers() {
        let chosen = |llvm: Option<&str>, cc: Option<&str>, needs_llvm| {
            let compiler = Compiler {
                llvm: llvm.map(str::to_owned),
                cc: cc.map(str::to_owned),
            };
            compiler.arguments(needs_llvm).join(" ")
        };
        assert_eq!(chosen(None, None, false), "LD=ld.lld CC=ccache gcc");
        assert_eq!(chosen(None, None, true), "LLVM=-19 CC=ccache clang-19");
        for needs_llvm in [false, true] {
            let chosen = |llvm, cc| chosen(llvm, cc, needs_llvm);
            assert_eq!(chosen(Some("1"), None), "LLVM=1 CC=ccache clang");
            assert_eq!(chosen(Some("-20"), None), "LLVM=-20 CC=ccache clang-20");
            assert_eq!(chosen(None, Some("ccache gcc-13")), "CC=ccache gcc-13");
            let both = chosen(Some("/opt/"), Some("gcc"));
            assert_eq!(both, "LLVM=/opt/ CC=ccache gcc");
        }
    }
}
