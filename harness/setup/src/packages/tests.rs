use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::install;
use host::proc::output;

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// Parses lines of the form `name: word word`. Returns them by name.
fn table(file: &str) -> Vec<(String, Vec<String>)> {
    read(&format!("harness/packages/{file}"))
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, words) = line.split_once(": ").expect(line);
            (
                name.to_owned(),
                words.split_whitespace().map(str::to_owned).collect(),
            )
        })
        .collect()
}

/// Files named after a distribution and its version.
fn distributions() -> Vec<String> {
    let files = fs::read_dir(root().join("harness/packages")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let names = Vec::from_iter(names.filter(|name| name.contains('-')));
    assert!(names.iter().any(|name| name == "debian-12"), "{names:?}");
    names
}

#[test]
fn each_target_says_what_it_needs_and_each_role_has_packages() {
    let targets = table("targets");
    let has_line = |name: &str| targets.iter().any(|(target, _)| target == name);
    let makefile = read("Makefile");
    let mut target = "";
    for line in makefile.lines() {
        if let Some((name, _)) = line.split_once(": ## ") {
            target = name;
        } else if line.starts_with("\t$(p2p) ") {
            assert!(has_line(target), "{target} has no line in targets");
        }
    }
    assert!(has_line("test") && !has_line("clean"));
    let programs = read("harness/packages/programs");
    for role in targets.iter().flat_map(|(_, roles)| roles) {
        for file in &distributions() {
            if (role.as_str(), file.as_str()) == ("browser", "ubuntu-24.04") {
                continue;
            }
            assert!(table(file).iter().any(|(name, _)| name == role), "{file}");
        }
        assert!(programs.contains(&format!("\n{role}|")), "{role}");
    }
}

/// A fake machine for `need`.
struct Machine {
    dir: TempDir,
}

impl Machine {
    /// Sets its distribution, the user of the script, and the installed packages.
    fn new(distribution: &str, user: u32, installed: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let machine = Self { dir };
        let (id, version) = distribution.split_once('-').unwrap();
        let text = format!("ID={id}\nVERSION_ID={version}\nVERSION_CODENAME=x\n");
        fs::write(machine.path("os-release"), text).unwrap();
        machine.program("id", &format!("echo {user}"));
        let log = machine.path("log");
        let log = log.display();
        machine.program("apt-get", &format!("echo \"apt-get $*\" >>'{log}'"));
        machine.program("dnf", &format!("echo \"dnf $*\" >>'{log}'"));
        let lines = installed.iter().map(|name| format!("{name} installed\n"));
        fs::write(machine.path("installed"), lines.collect::<String>()).unwrap();
        machine.program(
            "dpkg-query",
            &format!("cat '{}'", machine.path("installed").display()),
        );
        // rpm -q --quiet --whatprovides NAME
        machine.program(
            "rpm",
            &format!("grep -q \"^$4 \" '{}'", machine.path("installed").display()),
        );
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Runs `need` and returns its exit status and output.
    fn need(&self, path: &str, arguments: &[&str]) -> (i32, String) {
        let path = format!("{}:{path}", self.dir.path().display());
        let (status, _, err) = output(
            Command::new("/bin/sh")
                .arg(root().join("harness/packages/need"))
                .args(arguments)
                .env("PATH", path)
                .env("P2P_OS_RELEASE", self.path("os-release")),
        )
        .unwrap();
        (status.code().unwrap(), err)
    }

    /// The packages that `need` installed. Empty if it did not try.
    fn installed(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let mut installs = log.lines().filter(|line| line.contains(" install "));
        let Some((_, words)) = installs
            .next_back()
            .and_then(|line| line.split_once(" install "))
        else {
            return Vec::new();
        };
        words.split_whitespace().map(str::to_owned).collect()
    }
}

const SYSTEM: &str = "/usr/bin:/bin";

fn packages(file: &str, roles: &[&str]) -> Vec<String> {
    table(file)
        .into_iter()
        .filter(|(role, _)| roles.contains(&role.as_str()))
        .flat_map(|(_, words)| words)
        .collect()
}

#[test]
fn root_gets_what_is_missing_and_no_more() {
    let machine = Machine::new("debian-12", 0, &["git", "perl", "gcc"]);
    assert_eq!(machine.need(SYSTEM, &["tree"]).0, 0);
    let mut wanted = packages("debian-12", &["tool", "source"]);
    wanted.retain(|name| !["git", "perl", "gcc"].contains(&name.as_str()));
    assert_eq!(machine.installed(), wanted);
}

#[test]
fn fedora_has_its_own_names() {
    let machine = Machine::new("fedora-42", 0, &["git-core", "gcc"]);
    assert_eq!(machine.need(SYSTEM, &["tree"]).0, 0);
    let mut wanted = packages("fedora-42", &["tool", "source"]);
    wanted.retain(|name| !["git-core", "gcc"].contains(&name.as_str()));
    assert_eq!(machine.installed(), wanted);
    let log = fs::read_to_string(machine.path("log")).unwrap();
    assert!(log.starts_with("dnf "), "{log}");
}

#[test]
fn first_only_what_compiles_the_tool() {
    let machine = Machine::new("debian-12", 0, &["git"]);
    assert_eq!(machine.need(SYSTEM, &["--tool", "test"]).0, 0);
    assert_eq!(machine.installed(), packages("debian-12", &["tool"]));
}

#[test]
fn others_than_root_are_told_all_at_once() {
    let machine = Machine::new("debian-12", 1000, &["git"]);
    let (status, told) = machine.need(SYSTEM, &["--tool", "test"]);
    assert_eq!(status, 2);
    assert_eq!(machine.installed(), [""; 0]);
    let (_, line) = told.split_once("apt-get install ").expect(&told);
    let mut all = table("targets");
    all.retain(|(target, _)| target == "test");
    let roles = Vec::from_iter(all[0].1.iter().map(String::as_str));
    for name in packages("debian-12", &roles) {
        let is_listed = line.split_whitespace().any(|word| word == name);
        assert_eq!(is_listed, name != "git", "{name}");
    }
}

#[test]
fn nobody_needs_to_be_root_if_everything_is_there() {
    let roles = ["tool", "source", "kernel", "machines", "verbs"];
    let packages = packages("debian-12", &roles);
    let names = Vec::from_iter(packages.iter().map(String::as_str));
    let machine = Machine::new("debian-12", 1000, &names);
    assert_eq!(machine.need(SYSTEM, &["demo"]), (0, String::new()));
    // `system` covers only its own packages, and `test` needs more.
    assert_eq!(machine.need(SYSTEM, &["test"]).0, 2);
}

#[test]
fn some_targets_need_nothing() {
    for distribution in ["debian-12", "other-1"] {
        let machine = Machine::new(distribution, 1000, &[]);
        for target in ["help", "clean", "doctor", "hw-test", "tool"] {
            assert_eq!(machine.need(SYSTEM, &[target]).0, 0, "{target}");
        }
    }
}

#[test]
fn elsewhere_all_that_is_missing_is_listed_by_its_purpose() {
    let machine = Machine::new("other-1", 0, &[]);
    for name in ["sed", "tr", "dirname", "git"] {
        symlink(format!("/usr/bin/{name}"), machine.path(name)).unwrap();
    }
    let (status, told) = machine.need("/nowhere", &["--tool", "demo"]);
    assert_eq!(status, 2, "{told}");
    assert_eq!(machine.installed(), [""; 0]);
    assert!(told.contains("other-1"), "{told}");
    let line = |purpose: &str| {
        let found = told.lines().find(|line| line.trim().starts_with(purpose));
        found.unwrap_or_else(|| panic!("{purpose}: {told}"))
    };
    assert!(line("compile the tool:").contains("cargo"));
    assert!(line("get the kernel's source:").contains("perl"));
    assert!(!line("get the kernel's source:").contains("git"));
    assert!(line("libraries of the kernel's build:").contains("<libelf.h>"));
    assert!(line("virtual machines:").contains("qemu-system-x86_64"));
    assert!(!told.contains("codespell"), "the demo needs no such thing");
}

#[test]
fn an_error_when_packages_are_missing() {
    install(&PathBuf::from("/bin/true"), "test").unwrap();
    let error = install(&PathBuf::from("/bin/false"), "test").unwrap_err();
    assert!(error.to_string().contains("packages are missing"));
    install(&PathBuf::from("/nowhere"), "test").unwrap_err();
}
