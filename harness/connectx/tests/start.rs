//! Error messages when the model cannot be served or cannot reach memory.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn headers() -> PathBuf {
    let tree = std::env::var_os("LINUX_TREE").map(PathBuf::from);
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../build/linux");
    tree.unwrap_or_else(beside).join("include/linux/mlx5")
}

/// Starts the program.
fn start(socket: &Path, headers: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_connectx"))
        .arg("--socket")
        .arg(socket)
        .arg("--headers")
        .arg(headers)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The exit status and the standard error of the program.
fn ended(child: Child) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn headers_that_are_not_there_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let missing = dir.path().join("missing");
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for (folder, what) in [(missing, "No such file"), (empty, "no mlx5_ifc.h in")] {
        let (code, told) = ended(start(&socket, &folder));
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains(folder.to_str().unwrap()), "{told}");
        assert!(told.contains(what), "{told}");
        assert!(told.contains("--headers"), "{told}");
        assert!(!socket.exists());
    }
}

#[test]
fn a_socket_that_is_taken_is_named() {
    if !headers().exists() {
        writeln!(std::io::stderr(), "NOT TESTED: no {}", headers().display()).unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    std::fs::write(&socket, "").unwrap();
    let (code, told) = ended(start(&socket, &headers()));
    assert_eq!(code, Some(2), "{told}");
    let what = format!("{} exists", socket.display());
    assert!(told.contains(&what) && told.contains("remove it"), "{told}");
    let (code, told) = ended(start(&dir.path().join("no/socket"), &headers()));
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("cannot listen at"), "{told}");
}

#[test]
fn a_wire_has_two_ends_and_as_many_logs() {
    let dir = tempfile::tempdir().unwrap();
    let started = |more: &[&str]| {
        // What listens does not end.
        let mut command = Command::new("timeout");
        command.args(["20", env!("CARGO_BIN_EXE_connectx")]);
        command.current_dir(dir.path()).stderr(Stdio::piped());
        command.arg("--headers").arg(headers()).args(more);
        ended(command.spawn().unwrap())
    };
    for (more, what) in [
        ("", "--socket"),
        ("--socket=a --socket=b --socket=c", "a wire has two ends"),
        ("--socket=a --socket=b --log=a.log", "as often as --socket"),
        ("--socket=a --socket=b --bus", "--bus is for one NIC"),
    ] {
        let (code, told) = started(&Vec::from_iter(more.split_whitespace()));
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains(what), "{told}");
        assert!(!dir.path().join("a").exists());
    }
}

/// Sends a message as QEMU does: `vfio_user_header`, then the command's body. Returns whether
/// there was an answer.
fn say(stream: &mut UnixStream, command: u16, body: &[u8]) -> bool {
    let mut message = vec![0; 2];
    message.extend(command.to_ne_bytes());
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    stream.write_all(&message).unwrap();
    let mut header = [0; 16];
    if stream.read_exact(&mut header).is_err() {
        return false;
    }
    // No error.
    assert_eq!(header[8] & 1 << 5, 0);
    true
}

#[test]
fn ram_that_is_not_shared_is_refused_when_qemu_starts() {
    const DMA_MAP: u16 = 2;
    const READ: u32 = 1;
    const READ_WRITE: u32 = 3;
    if !headers().exists() {
        writeln!(std::io::stderr(), "NOT TESTED: no {}", headers().display()).unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let child = start(&socket, &headers());
    let begin = Instant::now();
    let mut stream = loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(20), "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    };
    let mut map = |flags: u32, address: u64| {
        // Argument size, flags, offset, address and size; no file.
        let words = [32, flags].map(u32::to_ne_bytes).concat();
        let numbers = [0, address, 1 << 20].map(u64::to_ne_bytes).concat();
        say(&mut stream, DMA_MAP, &[words, numbers].concat())
    };
    // Neither ROM nor a BAR that has no file behind it is RAM.
    assert!(map(READ, 0) && map(READ_WRITE, 0xe000_0000));
    // The model does not answer any more and exits without waiting for QEMU to disconnect.
    assert!(!map(READ_WRITE, 0));
    let (code, told) = ended(child);
    assert_eq!(code, Some(3), "{told}");
    let what = "connectx: RAM is not shared memory: give QEMU -object memory-backend-memfd,";
    assert!(told.starts_with(what), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}
