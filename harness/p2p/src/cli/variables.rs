//! The values of the user's variables, such as `FORCE=1` and `QEMU_ARGS=`.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use host::status::Usage;

/// The value of a variable that is 1 or unset.
pub fn flag(name: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => bail!(Usage(format!("{name}={other}: it is {name}=1 or left out"))),
    }
}

/// Fails unless QEMU can open that device.
pub fn has_kvm(device: &Path) -> Result<bool> {
    match File::options().read(true).write(true).open(device) {
        Ok(_) => Ok(true),
        Err(error) => bail!(Usage(format!("KVM=1: {}: {error}", device.display()))),
    }
}

/// Splits a variable into words, with a shell's quotes.
pub fn words(name: &str, value: Option<&str>) -> Result<Vec<String>> {
    let text = value.unwrap_or_default();
    let words = shlex::split(text);
    words.ok_or_else(|| Usage(format!("{name}={text}: a quote is not closed")).into())
}

/// Finds a program by its path, or by its name as a shell does.
pub fn program(name: &Path) -> Result<PathBuf> {
    let found = if name.components().count() > 1 {
        std::path::absolute(name).ok()
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .map(|dir| dir.join(name))
            .find(|file| file.is_file())
    };
    found
        .filter(|file| file.is_file())
        .ok_or_else(|| Usage(format!("{}: no such program", name.display())).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_by_path_and_by_name() {
        assert!(program(Path::new("sh")).unwrap().is_absolute());
        assert_eq!(program(Path::new("/bin/sh")).unwrap(), Path::new("/bin/sh"));
        for name in ["p2p-no-such-program", "./p2p-no-such-program"] {
            let error = program(Path::new(name)).unwrap_err();
            assert!(error.downcast_ref::<Usage>().is_some());
        }
    }

    #[test]
    fn words_are_those_of_a_shell() {
        let of = |text| words("QEMU_ARGS", text);
        assert!(of(None).unwrap().is_empty());
        let all = of(Some("-s -device 'e1000,id=a b'")).unwrap();
        assert_eq!(all, ["-s", "-device", "e1000,id=a b"]);
        let error = of(Some("-device 'x")).unwrap_err();
        assert!(error.downcast_ref::<Usage>().is_some());
    }

    #[test]
    fn kvm_without_its_device_is_bad_usage() {
        let error = has_kvm(Path::new("/nowhere/kvm")).unwrap_err();
        assert!(error.downcast_ref::<Usage>().is_some());
        assert!(error.to_string().starts_with("KVM=1: /nowhere/kvm: "));
        assert!(has_kvm(Path::new("/dev/null")).unwrap());
    }
}
