//! The QEMU for parallel machines. It must have the device `vfio-user-pci`, which QEMU has
//! since 10.1 and Debian 12 lacks. If the user's QEMU lacks it, this module unpacks the
//! QEMU of Debian 13's backports into the cache with all libraries that it needs. These
//! include the C library and its loader, because this machine's may be too old.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use super::apt::Apt;
use super::{failed, fresh, put_in_place};
use host::paths::Paths;
use host::proc::{capture, output};
use host::ui::{Step, Ui};

/// The program's name. The script that starts the cached QEMU has the same name.
pub const PROGRAM: &str = "qemu-system-x86_64";

const PACKAGE: &str = "qemu-system-x86";
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const FROM: &str = "trixie-backports";
const DEVICE: &str = "vfio-user-pci";
const HINT: &str = "Machines whose NIC is a ConnectX need it. It comes from Debian's \
                    trixie-backports, once: is the network there? A QEMU of your own, 10.1 \
                    or newer, will do as well: QEMU=/path/to/qemu-system-x86_64";

static INSTALL: Mutex<()> = Mutex::new(());

/// Returns a QEMU that has the device: the user's (`QEMU=` or from `PATH`) or Debian's.
pub fn with_vfio_user(paths: &Paths, ui: &Ui, chosen: Option<&Path>) -> Result<PathBuf> {
    if let Some(program) = users(chosen) {
        return Ok(program);
    }
    // Jobs run in parallel.
    let _one_at_a_time = INSTALL.lock().unwrap_or_else(PoisonError::into_inner);
    let tools = paths.cache.join("tools");
    if let Some(program) = cached(&tools) {
        return Ok(program);
    }
    let step = ui.step(format!("setup: QEMU with {DEVICE}"));
    let version = install(&tools, &step)
        .map_err(|error| failed(&format!("a QEMU with {DEVICE}"), &error, HINT))?;
    step.done(format!("{version} unpacked"));
    cached(&tools).context("QEMU is not where it was unpacked")
}

/// Like [`with_vfio_user`], but installs nothing.
pub fn there(paths: &Paths, chosen: Option<&Path>) -> Option<PathBuf> {
    users(chosen).or_else(|| cached(&paths.cache.join("tools")))
}

fn users(chosen: Option<&Path>) -> Option<PathBuf> {
    let program = found(chosen)?;
    has_device(&program).then_some(program)
}

/// The path of the user's QEMU. virtme-ng needs it to be absolute.
pub fn found(chosen: Option<&Path>) -> Option<PathBuf> {
    let program = chosen.unwrap_or(Path::new(PROGRAM));
    if program.components().count() > 1 {
        return Some(program.to_owned());
    }
    let dirs = super::search_dirs().into_iter();
    dirs.map(|dir| dir.join(program))
        .find(|path| path.is_file())
}

/// The exit status is no help: QEMU 10.0 exits with 0 without the device.
fn has_device(program: &Path) -> bool {
    let asked = output(Command::new(program).args(["-device", &format!("{DEVICE},help")]));
    asked.is_ok_and(|(_, out, _)| out.contains(&format!("{DEVICE} options")))
}

/// The newest QEMU in the cache. A folder with a version in its name is complete.
fn cached(tools: &Path) -> Option<PathBuf> {
    let mut homes: Vec<_> = fs::read_dir(tools)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.strip_prefix("qemu-")
                .is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
        })
        .map(|home| home.join(PROGRAM))
        .filter(|program| program.is_file())
        .collect();
    homes.sort();
    homes.pop()
}

/// Downloads, unpacks and tries QEMU. Returns its version.
fn install(tools: &Path, step: &Step<'_>) -> Result<String> {
    step.at("reading the package lists");
    fs::create_dir_all(tools)?;
    let apt = Apt::new(&tools.join("qemu-apt"), &SUITES)?;
    step.at("downloading 40 MB");
    let debs = apt.get(&["-y", "--download-only", "-t", FROM, "install", PACKAGE])?;
    let version = debs
        .iter()
        .find_map(|deb| version(&deb.file_name()?.to_string_lossy()))
        .with_context(|| format!("apt-get downloaded no {PACKAGE}"))?;
    step.at(format!("unpacking {} packages", debs.len()));
    let partial = fresh(&tools.join("qemu-partial"))?;
    for deb in &debs {
        capture(Command::new("dpkg-deb").arg("-x").arg(deb).arg(&partial))?;
    }
    let program = partial.join(PROGRAM);
    fs::write(&program, wrapper(&version))?;
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755))?;
    if !has_device(&program) {
        bail!("Debian's QEMU {version} does not start here, or has no {DEVICE}");
    }
    put_in_place(&partial, &tools.join(format!("qemu-{version}")))?;
    apt.remove()?;
    Ok(version)
}

/// `qemu-system-x86_1%3a11.1.3+ds-1~bpo13+1_amd64.deb` → `11.1.3`
fn version(name: &str) -> Option<String> {
    let full = name.strip_prefix(PACKAGE)?.strip_prefix('_')?;
    let (full, _) = full.split_once('_')?;
    let upstream = full.split_once("%3a").map_or(full, |(_, version)| version);
    let end = upstream.find(['+', '-', '~']).unwrap_or(upstream.len());
    Some(upstream[..end].to_owned())
}

/// A script that starts the QEMU beside it. QEMU then uses none of this machine's
/// libraries, and no modules of another QEMU version.
fn wrapper(version: &str) -> String {
    format!(
        r#"#!/bin/sh
# QEMU {version} of Debian with its own libraries.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd) || exit
lib=$here/usr/lib/x86_64-linux-gnu
export QEMU_MODULE_DIR="$lib/qemu"
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib" \
	"$here/usr/bin/{PROGRAM}" -L "$here/usr/share/qemu" -L "$here/usr/share/seabios" "$@"
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[test]
    fn versions_of_the_package() {
        let name = "qemu-system-x86_1%3a11.1.3+ds-1~bpo13+1_amd64.deb";
        assert_eq!(version(name).as_deref(), Some("11.1.3"));
        assert_eq!(
            version("qemu-system-x86_11.2-1_amd64.deb").as_deref(),
            Some("11.2")
        );
        assert_eq!(version("qemu-system-common_1%3a11.1.3_amd64.deb"), None);
    }

    #[test]
    fn the_wrapper_starts_the_qemu_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        // The folder name has a space, and the current directory is another one.
        let home = dir.path().join("a b");
        let loader = home.join("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
        script(&loader, "#!/bin/sh\necho \"$QEMU_MODULE_DIR|$4|$#|$8\"\n");
        script(&home.join(PROGRAM), &wrapper("11.1.3"));
        let said = capture(Command::new(home.join(PROGRAM)).args(["x y", "z"])).unwrap();
        let lib = home.join("usr/lib/x86_64-linux-gnu/qemu");
        assert_eq!(said, format!("{}|-L|9|x y\n", lib.display()));
    }

    #[test]
    fn the_users_qemu_comes_first_and_the_cached_one_next() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let paths = Paths {
            root: root.clone(),
            work: root.join("build"),
            output: root.join("build"),
            cache: root.join("cache"),
            kdir: None,
        };
        let ui = Ui::new(false);
        let users = root.join("qemu");
        let cached = root.join("cache/tools/qemu-11.1.3").join(PROGRAM);
        script(&cached, "");
        // Leftovers of an interrupted run do not count.
        script(&root.join("cache/tools/qemu-partial").join(PROGRAM), "");
        script(&users, "#!/bin/sh\necho \"${2%,help} options:\"\n");
        assert_eq!(with_vfio_user(&paths, &ui, Some(&users)).unwrap(), users);
        assert_eq!(there(&paths, Some(&users)), Some(users.clone()));
        script(&users, "#!/bin/sh\necho not found >&2\n");
        assert_eq!(with_vfio_user(&paths, &ui, Some(&users)).unwrap(), cached);
        assert_eq!(there(&paths, Some(&users)), Some(cached.clone()));
        fs::remove_file(cached).unwrap();
        assert_eq!(there(&paths, Some(&users)), None);
    }
}
