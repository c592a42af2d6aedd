use std::collections::BTreeMap;
use std::io;

use super::*;
use plan::arch::Arch;

/// What answers where no device can be unplugged.
fn no_slots(dir: &Path) -> Hotplug {
    Hotplug::new(dir.to_owned(), BTreeMap::new(), BTreeMap::new())
}

#[test]
fn the_judge_ends_when_nobody_comes() {
    let dir = tempfile::tempdir().unwrap();
    JudgePort::with(dir.path(), 1, no_slots(dir.path()))
        .unwrap()
        .close(dir.path());
}

#[test]
fn the_judge_answers_over_a_long_path() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("x".repeat(120));
    fs::create_dir(&deep).unwrap();
    fs::write(deep.join("vram0"), vec![0; 8192]).unwrap();
    let judge = JudgePort::with(&deep, 1, no_slots(&deep)).unwrap();
    let mut stream = at(&deep, SOCKET, |path| UnixStream::connect(path)).unwrap();
    stream
        .write_all(b"{\"op\":\"snapshot\",\"gpu\":0}\n")
        .unwrap();
    let mut answer = [0; 3];
    std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
    assert_eq!(&answer, b"ok\n");
    drop(stream);
    judge.close(&deep);
    let record = fs::read_to_string(deep.join("judge.log")).unwrap();
    assert!(record.ends_with("\nok\n"), "{record}");
}

#[test]
fn trouble_is_told_with_the_console() {
    let ran = RunResult {
        end: End::TimedOut(Duration::from_secs(9)),
        console: "first\nlast words\n".into(),
        ..RunResult::quiet(Path::new("/nonexistent"))
    };
    let trouble = ran.trouble().unwrap();
    assert!(trouble.contains("9 s") && trouble.contains("last words"));
    let ran = RunResult {
        end: End::Done(0),
        ..ran
    };
    assert_eq!(ran.trouble(), None);
}

/// Makes a program from a script.
fn script(program: &Path, lines: &str) {
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::write(program, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(program, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Boots with a script in place of vng.
fn boot_with(vng: &str, limit: u64) -> (tempfile::TempDir, RunResult) {
    boot_kind(Kind::Counting, vng, limit, "exit 2")
}

/// Boots with a script in place of vng, and another one in place of the NIC model.
fn boot_kind(kind: Kind, vng: &str, limit: u64, nic: &str) -> (tempfile::TempDir, RunResult) {
    with_machine(kind, vng, limit, nic, |booter, boot| {
        booter.boot(boot, &booter.ui.step("test")).unwrap()
    })
}

/// Sets up such a machine and calls `run` with it.
fn with_machine<T>(
    kind: Kind,
    vng: &str,
    limit: u64,
    nic: &str,
    run: impl FnOnce(&Booter<'_>, &Boot<'_>) -> T,
) -> (tempfile::TempDir, T) {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().to_owned();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let topologies = plan::topology::Topologies::read(&repository).unwrap();
    let paths = Paths::within(&root);
    let kernel = Built::at(&paths, "plain");
    fs::create_dir_all(kernel.image().parent().unwrap()).unwrap();
    fs::write(kernel.image(), "").unwrap();
    let tools = Tools {
        bindgen: root.join("bindgen"),
        vng_dir: root.join("bin"),
    };
    script(&tools.vng_dir.join("vng"), vng);
    script(&model::program(&paths, Device::ConnectX), nic);
    let qemu = root.join("qemu");
    script(&qemu, "echo \"${2%,help} options:\"");
    // The guest's kernel messages go to a file.
    let lib = fs::read_to_string(repository.join("harness/guest/lib.sh")).unwrap();
    fs::create_dir_all(root.join("harness/guest")).unwrap();
    let lib = lib.replace(">/dev/kmsg", ">>kmsg");
    fs::write(root.join("harness/guest/lib.sh"), lib).unwrap();
    let ui = Ui::new(false);
    let booter = Booter {
        paths: &paths,
        ui: &ui,
        tools: &tools,
        qemu: Some(&qemu),
        qemu_args: &["-name".to_owned(), "a b".to_owned()],
        machine: &topologies.machine,
    };
    let boot = Boot {
        name: "selftest/switch",
        kernel: &kernel,
        topology: topologies.get("switch").unwrap(),
        kind,
        models: Models::default(),
        append: &[],
        icount: None,
        cpus: None,
        coverage: false,
        job: "run x true".into(),
        limit: Duration::from_secs(limit),
    };
    let ran = run(&booter, &boot);
    (scratch, ran)
}

#[test]
fn the_prompt_of_a_shell_names_topology_and_modules() {
    let vng = "echo 'echo \"${PS1@P}\"' | bash shell.sh >out/prompt 2>/dev/null";
    let shell = |booter: &Booter<'_>, boot: &Boot<'_>| {
        let boot = Boot {
            job: "echo loaded\n".to_owned(),
            ..*boot
        };
        booter.shell(&boot, false).unwrap();
        fs::read_to_string(booter.dir(boot.name).join("out/prompt")).unwrap()
    };
    let (_dir, said) = with_machine(Kind::Counting, vng, 20, "exit 2", shell);
    let said = said.strip_prefix("loaded\nswitch:").expect(&said);
    let loaded = fs::read_to_string("/proc/modules").unwrap_or_default();
    let mut loaded = loaded.lines().filter_map(|line| line.split(' ').next());
    assert!(
        loaded.all(|name| said.contains(&format!(" {name}"))),
        "{said}"
    );
}

#[test]
fn a_machine_that_ends_well() {
    let (_dir, ran) = boot_with("echo booting; sh job.sh; cat kmsg; exit 255", 20);
    assert_eq!(ran.end, End::Done(0));
    assert_eq!(ran.trouble(), None);
    assert_eq!(ran.console, format!("booting\nharness: x\n{LAST_LINE}\n"));
    let job = fs::read_to_string(ran.dir.join("job.sh")).unwrap();
    assert!(job.contains("\nrun x true\n"), "{job}");
}

#[test]
fn what_the_machine_is_made_of() {
    let (_dir, ran) = boot_with("echo \"$*\"", 20);
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let topologies = plan::topology::Topologies::read(&repository).unwrap();
    let (machine, topology) = (&topologies.machine, topologies.get("switch").unwrap());
    let said = |option: &str, value: &str| {
        let words = format!("{option} {value}");
        assert!(ran.console.contains(&words), "{words}: {}", ran.console);
    };
    said("-icount", &machine.counting.icount);
    said("-machine", &machine.arch[&Arch::X86_64].properties);
    // `QEMU_ARGS=` of the user, quoted for virtme-ng's shell.
    said("-name", "'a b'");
    machine.globals.iter().for_each(|it| said("-global", it));
    machine
        .append(Kind::Counting, topology)
        .for_each(|it| said("--append", it));
}

#[test]
fn a_foreign_guest_has_only_the_folders_that_a_job_needs() {
    let boot = |booter: &Booter<'_>, boot: &Boot<'_>| {
        // What setup would fetch.
        let root = guest_root::place(booter.paths, Arch::Arm64);
        fs::create_dir_all(&root).unwrap();
        let qemu = booter.paths.cache.join("tools/qemu-arm64-11.1");
        script(&qemu.join(Arch::Arm64.qemu()), "");
        let mut topology = boot.topology.clone();
        topology.arch = Arch::Arm64;
        let boot = Boot {
            topology: &topology,
            job: boot.job.clone(),
            ..*boot
        };
        let ran = booter.boot(&boot, &booter.ui.step("test")).unwrap();
        let shared = |option: &str, folder: &Path| {
            let inside = folder.strip_prefix("/").unwrap();
            assert!(root.join(inside).is_dir());
            let words = format!("{option} {}={} ", inside.display(), folder.display());
            assert!(ran.console.contains(&words), "{words}: {}", ran.console);
        };
        shared("--rwdir", &ran.dir);
        shared("--rodir", &boot.kernel.dir);
        shared("--rodir", &booter.paths.root.join("harness/guest"));
        let words = format!("--arch arm64 --root {} ", root.display());
        assert!(ran.console.contains(&words), "{}", ran.console);
        assert!(ran.console.contains("/qemu-system-aarch64 "));
        assert!(!ran.console.contains("--rwdir out "));
        let job = fs::read_to_string(ran.dir.join("job.sh")).unwrap();
        assert!(job.contains("export MODPROBE_OPTIONS="), "{job}");
    };
    with_machine(Kind::Counting, "echo \"$*\"", 20, "exit 2", boot);
}

#[test]
fn a_job_may_ask_for_more_processors() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let machine = plan::topology::Topologies::read(&repository)
        .unwrap()
        .machine;
    for (cpus, expected) in [(None, machine.cpus), (Some(7), 7)] {
        let boot = |booter: &Booter<'_>, boot: &Boot<'_>| {
            let job = boot.job.clone();
            let boot = Boot { cpus, job, ..*boot };
            booter.boot(&boot, &booter.ui.step("test")).unwrap()
        };
        let (_dir, ran) = with_machine(Kind::Counting, "echo \"$*\"", 20, "exit 2", boot);
        let words = format!("--cpus {expected} ");
        assert!(ran.console.contains(&words), "{words}: {}", ran.console);
    }
}

#[test]
fn a_machine_with_slots_has_a_monitor() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let topologies = plan::topology::Topologies::read(&repository).unwrap();
    for (name, has_monitor) in [("switch", false), ("hotplug", true)] {
        let boot = |booter: &Booter<'_>, boot: &Boot<'_>| {
            let topology = topologies.get(name).unwrap();
            let job = boot.job.clone();
            let boot = Boot {
                topology,
                job,
                ..*boot
            };
            booter.boot(&boot, &booter.ui.step("test")).unwrap()
        };
        let (_dir, ran) = with_machine(Kind::Counting, "echo \"$*\"", 20, "exit 2", boot);
        let monitor = ran
            .console
            .contains("-qmp unix:qmp.sock,server=on,wait=off");
        assert_eq!(monitor, has_monitor, "{name}: {}", ran.console);
    }
}

#[test]
fn requests_for_the_monitor_come_by_the_judges_port() {
    let dir = tempfile::tempdir().unwrap();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let topologies = plan::topology::Topologies::read(&repository).unwrap();
    let hotplug = topologies.get("hotplug").unwrap();
    let devices = hotplug.pluggable(Kind::Counting, &Models::default());
    let hotplug = Hotplug::new(dir.path().to_owned(), devices, hotplug.ports());
    let judge = JudgePort::with(dir.path(), 1, hotplug).unwrap();
    let mut stream = at(dir.path(), SOCKET, |path| UnixStream::connect(path)).unwrap();
    writeln!(stream, "{{\"op\":\"plug\",\"device\":\"gpu0\"}}\nnonsense").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let answers = io::read_to_string(stream).unwrap();
    let answers = Vec::from_iter(answers.lines());
    assert!(answers[0].starts_with("fail QEMU's monitor"), "{answers:?}");
    assert!(answers[1].starts_with("fail not a question"), "{answers:?}");
    judge.close(dir.path());
}

#[test]
fn a_parallel_machine_has_its_nic_beside_it() {
    let vng = "cat connectx0.sock; echo \"$*\"; sh job.sh; cat kmsg; : >ended";
    let nic = "echo listening >connectx0.sock
        while [ ! -e ended ]; do sleep 0.05; done
        echo 'DMA after unmap' >&2
        exit 1";
    let (_dir, ran) = boot_kind(Kind::Parallel, vng, 20, nic);
    assert_eq!(ran.end, End::Done(0));
    assert!(ran.console.starts_with("listening\n"), "{}", ran.console);
    // Quoted for virtme-ng's shell.
    let device = r#"-device '{"bus":"dp1","driver":"vfio-user-pci","socket":{"#;
    assert!(ran.console.contains(device), "{}", ran.console);
    assert!(ran.witness.unwrap().unwrap().contains("DMA after unmap"));
    let (_dir, ran) = boot_with("exit 0", 20);
    assert_eq!(ran.witness, None);
}

#[test]
fn a_job_that_fails() {
    let (_dir, ran) = boot_with("echo 101 > out/status; echo no module > out/job.log", 20);
    assert_eq!(ran.end, End::Done(101));
    assert!(ran.trouble().unwrap().contains("no module"));
}

#[test]
fn a_machine_that_panics() {
    let panic = "[ 1.0] Kernel panic - not syncing: Fatal exception";
    let (_dir, ran) = boot_with(&format!("echo 0 > out/status; echo '{panic}'; exit 1"), 20);
    assert_eq!(ran.end, End::Panicked(panic.to_owned()));
    assert!(ran.trouble().unwrap().contains("Fatal exception"));
}

#[test]
fn a_machine_that_loses_its_console() {
    for console in ["", "echo booting", "cat kmsg | head -c -6"] {
        let (_dir, ran) = boot_with(&format!("sh job.sh; {console}"), 20);
        assert_eq!(ran.end, End::Unheard, "{console}");
        assert!(ran.trouble().unwrap().contains("the console was lost"));
    }
}

#[test]
fn a_machine_that_hangs_after_its_job() {
    // The program exits on SIGTERM in the first case and ignores it in the second.
    for trap in ["", "trap '' TERM; "] {
        let vng = format!("{trap}echo 0 > out/status; echo {LAST_LINE}; sleep 1000");
        let (_dir, ran) = boot_with(&vng, 1);
        assert_eq!(ran.end, End::TimedOut(Duration::from_secs(1)), "{trap}");
    }
}

#[test]
fn a_machine_that_is_killed_is_not_late() {
    let (_dir, ran) = boot_with("exit 137", 20);
    assert_eq!(ran.end, End::Lost);
}

#[test]
fn a_machine_that_hangs_is_ended_with_all_it_started() {
    let start = Instant::now();
    let (dir, ran) = boot_with("sleep 1000 & echo $! > pid; echo silence; wait", 1);
    assert_eq!(ran.end, End::TimedOut(Duration::from_secs(1)));
    assert!(start.elapsed() < Duration::from_secs(15));
    assert!(ran.trouble().unwrap().contains("silence"));
    let pid = fs::read_to_string(ran.dir.join("pid")).unwrap();
    assert!(host::proc::ends(&pid));
    drop(dir);
}

#[test]
fn a_machine_that_goes_away() {
    let (_dir, ran) = boot_with("echo 'qemu: cannot set up memory' >&2; exit 1", 20);
    assert_eq!(ran.end, End::Lost);
    assert!(ran.trouble().unwrap().contains("cannot set up memory"));
}
