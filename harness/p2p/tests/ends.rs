//! Tests what `make test` and its like leave after each way to end. Nobody must take the last run's
//! results for results of a run that was aborted, interrupted or never began.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A repository with the results of an earlier run.
struct Scene {
    dir: tempfile::TempDir,
}

const OLD: &str = r#"{"outcomes": [{"suite": "old", "name": "x", "status": "passed",
    "reason": "", "log": []}]}"#;

impl Scene {
    /// `need`: the body of the script that installs packages. Each run starts with it.
    fn new(need: &str) -> Self {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let dir = tempfile::tempdir().unwrap();
        let scene = Self { dir };
        for name in ["qemu", "patches"] {
            symlink(repository.join(name), scene.path(name)).unwrap();
        }
        let script = scene.path("harness/packages/need");
        fs::create_dir_all(script.parent().unwrap()).unwrap();
        let called = scene.path("called");
        let text = format!("#!/bin/sh\n: >'{}'\n{need}\n", called.display());
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir_all(scene.results()).unwrap();
        fs::write(scene.results().join("report.json"), OLD).unwrap();
        for name in ["report.xml", "report.html", "closing-line", "status"] {
            fs::write(scene.results().join(name), "1 passed").unwrap();
        }
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn results(&self) -> PathBuf {
        self.path("build/results")
    }

    /// The result file with that name, if there is one.
    fn result(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.results().join(name)).ok()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_p2p"));
        command
            .arg("--root")
            .arg(self.dir.path())
            .args(arguments)
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("P2P_TARGET", "test")
            .stderr(Stdio::null());
        command
    }

    /// Runs p2p. Returns its exit status and output.
    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.command(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), text)
    }

    /// Runs p2p and sends it Ctrl-C while packages are installed. Returns its exit status.
    fn interrupted(&self, arguments: &[&str]) -> Option<i32> {
        self.signalled("INT", arguments)
    }

    fn signalled(&self, signal: &str, arguments: &[&str]) -> Option<i32> {
        let mut command = self.command(arguments);
        command.process_group(0).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let start = Instant::now();
        while !self.path("called").exists() {
            assert!(start.elapsed() < Duration::from_secs(30));
            sleep(Duration::from_millis(10));
        }
        let kill = format!("kill -s {signal} -- -{}", child.id());
        let mut shell = Command::new("sh");
        assert!(shell.args(["-c", &kill]).status().unwrap().success());
        child.wait().unwrap().code()
    }

    /// Makes results of an earlier `make check` or `make soak`.
    fn has_old_results_of(&self, command: &str) {
        let dir = self.results().join(command);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("report.json"), OLD).unwrap();
    }

    /// Checks that the status is this run's, and that no other file looks like its result.
    fn has_status_alone(&self, status: &str) {
        assert_eq!(self.result("status").as_deref(), Some(status));
        for name in ["report.json", "report.xml", "report.html", "closing-line"] {
            assert_eq!(self.result(name), None, "{name}");
        }
        assert_eq!(self.result("previous.json").as_deref(), Some(OLD));
    }
}

#[test]
fn bad_usage_leaves_no_results_and_installs_nothing() {
    let scene = Scene::new("exit 1");
    assert_eq!(scene.run(&["test", "--only", "nonsense"]).0, 64);
    scene.has_status_alone("64");
    assert!(!scene.path("called").exists());
}

#[test]
fn each_command_refuses_what_there_is_not_before_it_installs() {
    let scene = Scene::new("exit 1");
    for command in [
        "build", "demo", "test", "mutants", "bench", "soak", "check", "bisect", "shell",
    ] {
        let (status, out) = scene.run(&[command, "--only", "nonsense"]);
        assert_eq!(status, 64, "{command}: {out}");
        assert!(!scene.path("called").exists(), "{command}");
    }
    // The series has so many patches, and the topic has not.
    assert_eq!(scene.run(&["bisect", "--only", "07-rdma,150"]).0, 64);
    assert!(!scene.path("called").exists());
    // With valid names, it tries to install packages.
    assert_eq!(scene.run(&["mutants", "--only", "hmm-*"]).0, 2);
    assert!(scene.path("called").exists());
}

#[test]
fn a_check_or_soak_that_is_aborted_says_so_in_its_results() {
    for (command, only) in [("check", "harness"), ("soak", "stress/switch")] {
        let scene = Scene::new("exit 1");
        scene.has_old_results_of(command);
        let (status, out) = scene.run(&[command, "--only", only]);
        assert_eq!(status, 2, "{command}: {out}");
        let line = "aborted: 0 passed, 0 failed, 0 skipped\n";
        assert!(out.ends_with(line), "{command}: {out}");
        for name in ["report.json", "report.xml", "report.html"] {
            let text = scene.result(&format!("{command}/{name}")).unwrap();
            assert!(text.contains("packages are missing"), "{command}: {text}");
            assert!(!text.contains("old"), "{command}: {text}");
        }
    }
}

#[test]
fn ctrl_c_does_not_lose_what_check_and_soak_found() {
    for (command, only) in [("check", "am"), ("soak", "stress/switch")] {
        let scene = Scene::new("exec sleep 60");
        scene.has_old_results_of(command);
        assert_eq!(scene.interrupted(&[command, "--only", only]), Some(130));
        let json = scene.result(&format!("{command}/report.json")).unwrap();
        assert!(json.contains("\"aborted\": \"interrupted\""), "{json}");
        assert!(!json.contains("old"), "{json}");
    }
}

/// Ctrl-\, a closed terminal, and `kill`: nothing that was started goes on.
#[test]
fn other_signals_are_like_ctrl_c() {
    for signal in ["QUIT", "HUP", "TERM"] {
        let scene = Scene::new("sleep 60");
        let status = scene.signalled(signal, &["test", "--only", "style"]);
        assert_eq!(status, Some(130), "{signal}");
    }
}

#[test]
fn what_counts_and_is_aborted_leaves_no_results() {
    let scene = Scene::new("exit 1");
    for (command, files) in [
        ("bench", ["bench.json", "bench.md"]),
        ("coverage", ["coverage.json", "coverage.md"]),
    ] {
        let files = files.map(|name| scene.results().join(name));
        for file in &files {
            fs::write(file, OLD).unwrap();
        }
        assert_eq!(scene.run(&[command]).0, 2, "{command}");
        for file in &files {
            assert!(!file.exists(), "{}", file.display());
        }
    }
}

#[test]
fn an_error_is_in_all_results() {
    let scene = Scene::new("exit 1");
    let (status, out) = scene.run(&["test", "--only", "style"]);
    assert_eq!(status, 2, "{out}");
    assert!(scene.path("called").exists());
    assert_eq!(scene.result("status").unwrap(), "2");
    let line = "aborted: 0 passed, 0 failed, 0 skipped\n";
    assert!(out.ends_with(line), "{out}");
    assert_eq!(scene.result("closing-line").unwrap(), line);
    let why = "packages are missing";
    assert!(scene.result("report.json").unwrap().contains(why));
    assert!(scene.result("report.html").unwrap().contains(why));
    let xml = scene.result("report.xml").unwrap();
    assert!(xml.contains("<error") && xml.contains(why), "{xml}");
}

#[test]
fn ctrl_c_is_in_all_results_and_failed_continues() {
    let scene = Scene::new("exec sleep 60");
    let status = scene.interrupted(&["test", "--only", "style,am"]);
    assert_eq!(status, Some(130));
    assert_eq!(scene.result("status").as_deref(), Some("130"));
    let line = "aborted: 0 passed, 0 failed, 0 skipped\n";
    assert_eq!(scene.result("closing-line").as_deref(), Some(line));
    for name in ["report.json", "report.xml", "report.html"] {
        let text = scene.result(name).unwrap();
        assert!(text.contains("interrupted"), "{name}: {text}");
        assert!(!text.contains("old"), "{name}: {text}");
    }
    let (_, out) = scene.run(&["test", "--list", "--failed"]);
    let names = out
        .lines()
        .skip(2)
        .filter_map(|line| line.split(' ').nth(1));
    assert_eq!(Vec::from_iter(names), ["style", "am"], "{out}");
}

#[test]
fn a_demo_that_is_aborted_says_so_and_leaves_no_table() {
    for need in ["exit 1", "exec sleep 60"] {
        let scene = Scene::new(need);
        let table = scene.results().join("demo.json");
        fs::write(&table, OLD).unwrap();
        let why = if need == "exit 1" {
            let (status, out) = scene.run(&["demo"]);
            let line = "\naborted, not everything was run: packages are missing: see above\n";
            assert!(status == 2 && out.ends_with(line), "{out}");
            "packages are missing"
        } else {
            assert_eq!(scene.interrupted(&["demo"]), Some(130));
            "interrupted"
        };
        assert!(!table.exists());
        assert!(scene.result("demo.html").unwrap().contains(why));
    }
}

#[test]
fn a_run_that_ends_well_replaces_all_results() {
    let scene = Scene::new("exit 1");
    // Nothing has failed, so there is nothing to run.
    let (status, out) = scene.run(&["test", "--failed"]);
    assert_eq!(status, 0, "{out}");
    let line = "0 passed, 0 failed, 0 skipped\n";
    assert!(out.ends_with(line), "{out}");
    assert_eq!(scene.result("status").unwrap(), "0");
    assert_eq!(scene.result("closing-line").unwrap(), line);
    for name in ["report.json", "report.xml", "report.html"] {
        assert!(!scene.result(name).unwrap().contains("1 passed"), "{name}");
    }
    assert!(!scene.result("report.json").unwrap().contains("old"));
    let (_, out) = scene.run(&["test", "--list", "--failed"]);
    assert_eq!(out, "nothing that is picked failed in the last run\n");
    // With KTAP, the results come last.
    let (_, out) = scene.run(&["test", "--failed", "--ktap"]);
    assert!(
        out.ends_with(&format!("{line}KTAP version 1\n1..0\n")),
        "{out}"
    );
}

#[test]
fn a_list_starts_nothing() {
    let scene = Scene::new("exit 1");
    let (status, out) = scene.run(&["test", "--list", "--only", "mlx5/switch,am,modules"]);
    assert_eq!(status, 0);
    let row = |name: &str| {
        out.lines()
            .find(|line| line.starts_with(&format!("| {name} ")))
    };
    assert!(
        row("mlx5/switch")
            .unwrap()
            .contains(" hmm_p2p_verbs_test, "),
        "{out}"
    );
    assert!(row("am").unwrap().contains(" a check "), "{out}");
    assert!(row("modules").unwrap().contains(" a build "), "{out}");
    assert_eq!(out.lines().count(), 6, "{out}");
    assert!(!scene.path("called").exists());
    assert_eq!(scene.result("report.json").as_deref(), Some(OLD));
}

/// `make test | tee log`, and Ctrl-C ends tee first; or the terminal is gone.
#[test]
fn nobody_has_to_read_what_is_printed() {
    let scene = Scene::new("exit 1");
    let mut command = scene.command(&["test", "--only", "harness"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().unwrap().code(), Some(2));
    assert_eq!(scene.result("status").as_deref(), Some("2"));
    for name in ["report.json", "report.xml", "report.html", "closing-line"] {
        assert!(scene.result(name).is_some(), "{name}");
    }
}

#[test]
fn a_plan_that_cannot_be_read_is_an_error_in_all_results() {
    let scene = Scene::new("exit 1");
    let qemu = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../qemu");
    fs::remove_file(scene.path("qemu")).unwrap();
    fs::create_dir(scene.path("qemu")).unwrap();
    for entry in fs::read_dir(qemu).unwrap() {
        let entry = entry.unwrap();
        symlink(entry.path(), scene.path("qemu").join(entry.file_name())).unwrap();
    }
    let plan = scene.path("qemu/tests.toml");
    let wrong = fs::read_to_string(&plan).unwrap() + "\n[[job]]\nname = \"a\"\n";
    fs::remove_file(&plan).unwrap();
    fs::write(&plan, wrong + "limit = 60\ntopologies = [\"swich\"]\n").unwrap();
    let (status, out) = scene.run(&["test"]);
    assert_eq!(status, 2, "{out}");
    let why = "there is no topology \"swich\"";
    assert!(out.contains(why), "{out}");
    let line = "aborted: 0 passed, 0 failed, 0 skipped";
    assert!(out.trim_end().ends_with(line), "{out}");
    let xml = scene.result("report.xml").unwrap();
    assert!(xml.contains("swich"), "{xml}");
}

/// What was found is printed all the same, and the error names the file.
#[test]
fn results_that_cannot_be_written_are_printed() {
    let scene = Scene::new("exit 1");
    fs::remove_file(scene.results().join("report.json")).unwrap();
    for name in ["report.json", "status"] {
        let file = scene.results().join(name);
        let _ = fs::remove_file(&file);
        // Not even root can write to a folder.
        fs::create_dir(file).unwrap();
    }
    let mut command = scene.command(&["test", "--only", "harness"]);
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(output.status.code(), Some(2));
    assert!(
        out.contains("aborted: 0 passed, 0 failed, 0 skipped"),
        "{out}"
    );
    // What ended the run comes first.
    assert!(error.contains("packages"), "{error}");
}
