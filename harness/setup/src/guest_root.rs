//! The root file system of guests of a foreign architecture, and the headers and libraries to
//! compile programs for them. A guest of the host's architecture has the host's files instead.
//! Debian's packages are unpacked into the cache. None of their scripts runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::apt::Apt;
use super::{NETWORK, failed, fresh, put_in_place};
use crate::once::once;
use host::paths::{Paths, digest};
use host::ui::Ui;
use plan::arch::Arch;

const SUITE: &str = "trixie";

/// For virtme-ng's init, the guest's scripts, and the compiler.
const PACKAGES: [&str; 19] = [
    "base-files",
    "bash",
    "busybox",
    "coreutils",
    "dash",
    "findutils",
    "grep",
    "hostname",
    "ibverbs-providers",
    "iproute2",
    "kmod",
    "libc6-dev",
    "libgcc-14-dev",
    "libibverbs-dev",
    "mawk",
    "mount",
    "procps",
    "sed",
    "util-linux",
];

/// What the packages' scripts would make: accounts, of which `/dev/pts` needs the group, and rules
/// for `su`, which starts an interactive shell.
const FILES: [(&str, &str); 4] = [
    ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
    ("etc/group", "root:x:0:\ntty:x:5:\n"),
    (
        "etc/pam.d/su",
        "auth sufficient pam_rootok.so\n\
         account required pam_permit.so\n\
         session required pam_permit.so\n",
    ),
    (
        "etc/pam.d/other",
        "auth required pam_deny.so\naccount required pam_deny.so\n",
    ),
];

/// The folder of the root file system. It is unpacked first if it is missing.
pub fn get(paths: &Paths, ui: &Ui, arch: Arch) -> Result<PathBuf> {
    let home = place(paths, arch);
    let there = || Ok(home.is_dir().then(|| home.clone()));
    once(paths, ui, there, || {
        let name = format!("a root file system for {}", arch.debian());
        let step = ui.step(format!("setup: {name}"));
        unpack(&paths.cache.join("tools"), arch, &home)
            .map_err(|error| failed(&name, &error, NETWORK))?;
        step.done("unpacked");
        Ok(())
    })
}

/// Its path, whether it is there or not. Other contents make another folder.
pub fn place(paths: &Paths, arch: Arch) -> PathBuf {
    let contents = digest(format!("{SUITE} {PACKAGES:?} {FILES:?}").as_bytes());
    let name = format!("root-{}-{}", arch.debian(), &contents[..12]);
    paths.cache.join("tools").join(name)
}

fn unpack(tools: &Path, arch: Arch, home: &Path) -> Result<()> {
    fs::create_dir_all(tools)?;
    let apt = Apt::new(&tools.join("root-apt"), &[SUITE], arch)?;
    let partial = fresh(&tools.join("root-partial"))?;
    apt.unpack(&PACKAGES, &partial)?;
    for (file, text) in FILES {
        fs::write(partial.join(file), text)?;
    }
    // virtme-ng's init ends the machine by it. Debian has it with a whole init.
    symlink("busybox", partial.join("usr/bin/poweroff"))?;
    put_in_place(&partial, home)?;
    apt.remove()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unpacked_is_not_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let paths = Paths::within(&root);
        let home = place(&paths, Arch::Arm64);
        fs::create_dir_all(&home).unwrap();
        let found = get(&paths, &Ui::new(false), Arch::Arm64).unwrap();
        assert_eq!(found, home);
        assert_ne!(place(&paths, Arch::X86_64), home);
    }
}
