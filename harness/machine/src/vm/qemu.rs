//! Finds QEMU's version.

use std::path::Path;
use std::process::Command;

use host::proc::capture;
use plan::arch::Arch;

/// QEMU's major version. 0 if it cannot be read, which counts as old. The boot then
/// reports the reason.
pub fn major(qemu: Option<&Path>) -> u32 {
    let qemu = qemu.unwrap_or(Path::new(Arch::default().qemu()));
    let said = capture(Command::new(qemu).arg("--version"));
    said.ok().and_then(|said| parse(&said)).unwrap_or(0)
}

fn parse(said: &str) -> Option<u32> {
    let (_, version) = said.split_once("version ")?;
    let (major, _) = version.split_once('.')?;
    major.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_versions_look_like() {
        let debian = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2~bpo12+1)\nCopyright";
        assert_eq!(parse(debian), Some(10));
        assert_eq!(parse("QEMU emulator version 7.2.17"), Some(7));
        assert_eq!(parse("qemu: no such option"), None);
        assert_eq!(major(Some(Path::new("/nowhere/qemu"))), 0);
    }
}
