//! The architectures of machines, and the names that others have for them.

use serde::Deserialize;

/// An architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arch {
    /// That of the host.
    #[default]
    X86_64,
    /// LLVM compiles for it, and the guest has a root file system of its own.
    Arm64,
}

impl Arch {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Arm64];

    /// Whether it is not the host's.
    pub fn is_foreign(self) -> bool {
        self != Self::default()
    }

    /// `ARCH=` of the kernel's make and `--arch` of virtme-ng, if it is not the host's.
    pub fn foreign(self) -> Option<&'static str> {
        self.is_foreign().then_some(self.debian())
    }

    /// Debian's name, which is that of the kernel's make for a foreign architecture.
    pub fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The compiler's name for programs of Linux.
    pub fn triple(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// The target of the kernel's make that makes what boots, and the folder it goes to.
    pub fn image(self) -> (&'static str, &'static str) {
        match self {
            Self::X86_64 => ("bzImage", "arch/x86/boot"),
            Self::Arm64 => ("Image", "arch/arm64/boot"),
        }
    }

    /// QEMU's program.
    pub fn qemu(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Arm64 => "qemu-system-aarch64",
        }
    }

    /// Debian's package of that program.
    pub fn qemu_package(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86",
            Self::Arm64 => "qemu-system-arm",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Settings {
        arch: Arch,
    }

    #[test]
    fn names() {
        let read = |name: &str| {
            let settings: Settings = toml::from_str(&format!("arch = '{name}'")).unwrap();
            settings.arch
        };
        assert_eq!(["x86_64", "arm64"].map(read), Arch::ALL);
        assert_eq!(Arch::ALL.map(Arch::foreign), [None, Some("arm64")]);
    }
}
