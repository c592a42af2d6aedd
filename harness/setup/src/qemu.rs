//! The QEMU for parallel machines, and for all machines of a foreign architecture. It must
//! have the device `vfio-user-pci`, which QEMU has since 10.1 and Debian 12 lacks. If the
//! user's QEMU lacks it, this module unpacks the QEMU of Debian 13's backports into the cache
//! with all libraries that it needs. These include the C library and its loader, because this
//! machine's may be too old.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::apt::Apt;
use super::{failed, fresh, put_in_place};
use crate::once::once;
use host::paths::Paths;
use host::proc::output;
use host::ui::{Step, Ui};
use plan::arch::Arch;

const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const FROM: &str = "trixie-backports";
const DEVICE: &str = "vfio-user-pci";
const HINT: &str = "Machines whose NIC is a ConnectX need it. It comes from Debian's \
                    trixie-backports, once: is the network there? A QEMU of your own, 10.1 \
                    or newer, will do as well: QEMU=/path/to/it";

/// Returns a QEMU of this architecture that has the device: the user's (`QEMU=` or from `PATH`)
/// or Debian's.
pub fn with_vfio_user(
    paths: &Paths,
    ui: &Ui,
    arch: Arch,
    chosen: Option<&Path>,
) -> Result<PathBuf> {
    if let Some(program) = users(arch, chosen) {
        return Ok(program);
    }
    let tools = paths.cache.join("tools");
    let there = || Ok(cached(&tools, arch));
    once(paths, ui, there, || {
        let step = ui.step(format!("setup: {} with {DEVICE}", arch.qemu()));
        let version = install(&tools, arch, &step)
            .map_err(|error| failed(&format!("a {} with {DEVICE}", arch.qemu()), &error, HINT))?;
        step.done(format!("{version} unpacked"));
        Ok(())
    })
}

/// Like [`with_vfio_user`], but installs nothing.
pub fn there(paths: &Paths, arch: Arch, chosen: Option<&Path>) -> Option<PathBuf> {
    users(arch, chosen).or_else(|| cached(&paths.cache.join("tools"), arch))
}

fn users(arch: Arch, chosen: Option<&Path>) -> Option<PathBuf> {
    let program = found(arch, chosen)?;
    has_device(&program).then_some(program)
}

/// The path of the user's QEMU. virtme-ng needs it to be absolute. `QEMU=` is for the host's
/// architecture, unless its name is that of another one's QEMU.
pub fn found(arch: Arch, chosen: Option<&Path>) -> Option<PathBuf> {
    let is_for = |program: &&Path| {
        let name = program.file_name().unwrap_or_default();
        let by_name = Arch::ALL.into_iter().find(|arch| name == arch.qemu());
        by_name.unwrap_or_default() == arch
    };
    let program = chosen.filter(is_for).unwrap_or(Path::new(arch.qemu()));
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

/// How the names of folders with a QEMU begin. A version follows.
fn prefix(arch: Arch) -> String {
    let foreign = arch.foreign().map(|arch| format!("{arch}-"));
    format!("qemu-{}", foreign.unwrap_or_default())
}

/// The newest QEMU in the cache. A folder with a version in its name is complete.
fn cached(tools: &Path, arch: Arch) -> Option<PathBuf> {
    let mut homes: Vec<_> = fs::read_dir(tools)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.strip_prefix(&prefix(arch))
                .is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
        })
        .map(|home| home.join(arch.qemu()))
        .filter(|program| program.is_file())
        .collect();
    homes.sort();
    homes.pop()
}

/// Downloads, unpacks and tries QEMU. Returns its version.
fn install(tools: &Path, arch: Arch, step: &Step<'_>) -> Result<String> {
    step.at("reading the package lists");
    fs::create_dir_all(tools)?;
    let apt = Apt::new(&tools.join("qemu-apt"), &SUITES, Arch::default())?;
    step.at("downloading 40 MB");
    let package = arch.qemu_package();
    let partial = fresh(&tools.join("qemu-partial"))?;
    let debs = apt.unpack(&["-t", FROM, package], &partial)?;
    let version = debs
        .iter()
        .find_map(|deb| version(package, &deb.file_name()?.to_string_lossy()))
        .with_context(|| format!("apt-get downloaded no {package}"))?;
    let program = partial.join(arch.qemu());
    fs::write(&program, wrapper(arch, &version))?;
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755))?;
    if !has_device(&program) {
        bail!("Debian's QEMU {version} does not start here, or has no {DEVICE}");
    }
    let home = format!("{}{version}", prefix(arch));
    put_in_place(&partial, &tools.join(home))?;
    apt.remove()?;
    Ok(version)
}

/// `qemu-system-x86_1%3a11.1.3+ds-1~bpo13+1_amd64.deb` → `11.1.3`
fn version(package: &str, file: &str) -> Option<String> {
    let full = file.strip_prefix(package)?.strip_prefix('_')?;
    let (full, _) = full.split_once('_')?;
    let upstream = full.split_once("%3a").map_or(full, |(_, version)| version);
    let end = upstream.find(['+', '-', '~']).unwrap_or(upstream.len());
    Some(upstream[..end].to_owned())
}

/// A script that starts the QEMU beside it. QEMU then uses none of this machine's
/// libraries, and no modules of another QEMU version.
fn wrapper(arch: Arch, version: &str) -> String {
    let program = arch.qemu();
    format!(
        r#"#!/bin/sh
# QEMU {version} of Debian with its own libraries.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd) || exit
lib=$here/usr/lib/x86_64-linux-gnu
export QEMU_MODULE_DIR="$lib/qemu"
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib" \
	"$here/usr/bin/{program}" -L "$here/usr/share/qemu" -L "$here/usr/share/seabios" "$@"
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
        let of = |arch: Arch, file: &str| version(arch.qemu_package(), file);
        let x86 = |file: &str| of(Arch::X86_64, file);
        let name = "qemu-system-x86_1%3a11.1.3+ds-1~bpo13+1_amd64.deb";
        assert_eq!(x86(name).as_deref(), Some("11.1.3"));
        let name = "qemu-system-x86_11.2-1_amd64.deb";
        assert_eq!(x86(name).as_deref(), Some("11.2"));
        assert_eq!(x86("qemu-system-common_1%3a11.1.3_amd64.deb"), None);
        let name = "qemu-system-arm_1%3a11.1.3+ds-1_amd64.deb";
        assert_eq!(of(Arch::Arm64, name).as_deref(), Some("11.1.3"));
    }

    #[test]
    fn the_wrapper_starts_the_qemu_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        // The folder name has a space, and the current directory is another one.
        let home = dir.path().join("a b");
        let loader = home.join("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
        script(&loader, "#!/bin/sh\necho \"$QEMU_MODULE_DIR|$4|$#|$8\"\n");
        let arch = Arch::default();
        let program = home.join(arch.qemu());
        script(&program, &wrapper(arch, "11.1.3"));
        let said = host::proc::capture(Command::new(program).args(["x y", "z"])).unwrap();
        let lib = home.join("usr/lib/x86_64-linux-gnu/qemu");
        assert_eq!(said, format!("{}|-L|9|x y\n", lib.display()));
    }

    #[test]
    fn the_users_qemu_comes_first_and_the_cached_one_next() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let paths = Paths::within(&root);
        let ui = Ui::new(false);
        let users = root.join("qemu");
        let arch = Arch::default();
        let place = |arch: Arch, version: &str| {
            let folder = format!("cache/tools/{}{version}", prefix(arch));
            root.join(folder).join(arch.qemu())
        };
        let cached = place(arch, "11.1.3");
        script(&cached, "");
        // Leftovers of an interrupted run do not count.
        script(&place(arch, "partial"), "");
        script(&users, "#!/bin/sh\necho \"${2%,help} options:\"\n");
        let with = || with_vfio_user(&paths, &ui, arch, Some(&users)).unwrap();
        let there = |arch| there(&paths, arch, Some(&users));
        assert_eq!(with(), users);
        assert_eq!(there(arch), Some(users.clone()));
        script(&users, "#!/bin/sh\necho not found >&2\n");
        assert_eq!(with(), cached);
        assert_eq!(there(arch), Some(cached.clone()));
        fs::remove_file(cached).unwrap();
        assert_eq!(there(arch), None);
        // Each architecture has its own folder, because an installation replaces the folder.
        let foreign = place(Arch::Arm64, "11.1.3");
        assert_ne!(foreign.parent(), place(arch, "11.1.3").parent());
        script(&foreign, "");
        assert_eq!((there(arch), there(Arch::Arm64)), (None, Some(foreign)));
    }

    #[test]
    fn the_users_qemu_is_for_the_architecture_of_its_name() {
        let found = |arch, chosen: &str| found(arch, Some(Path::new(chosen)));
        let is = |chosen: &str| Some(PathBuf::from(chosen));
        let (host, arm) = ("/opt/qemu", "/opt/qemu-system-aarch64");
        assert_eq!(found(Arch::X86_64, host), is(host));
        assert_ne!(found(Arch::Arm64, host), is(host));
        assert_eq!(found(Arch::Arm64, arm), is(arm));
        assert_ne!(found(Arch::X86_64, arm), is(arm));
    }
}
