//! What people are told if the model cannot be served, or cannot reach memory.

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

/// Its exit status and what it has said.
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

/// Says one thing as QEMU does: `vfio_user_header`, then what the command has.
fn say(stream: &mut UnixStream, command: u16, parts: &[&[u8]]) {
    let body = parts.concat();
    let mut message = vec![0; 2];
    message.extend(command.to_ne_bytes());
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    stream.write_all(&message).unwrap();
    let mut header = [0; 16];
    stream.read_exact(&mut header).unwrap();
    let size = u32::from_ne_bytes(header[4..8].try_into().unwrap()) as usize;
    let mut rest = vec![0; size - 16];
    stream.read_exact(&mut rest).unwrap();
    // No error.
    assert_eq!(header[8] & 1 << 5, 0);
}

fn write(stream: &mut UnixStream, region: u32, at: u64, data: &[u8]) {
    const REGION_WRITE: u16 = 10;
    let len = data.len() as u32;
    let place = [
        &at.to_ne_bytes()[..],
        &region.to_ne_bytes(),
        &len.to_ne_bytes(),
        data,
    ];
    say(stream, REGION_WRITE, &place);
}

#[test]
fn memory_that_is_not_shared_is_told_once() {
    const DMA_MAP: u16 = 2;
    const BAR: u32 = 0;
    const CONFIG: u32 = 7;
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
    // Sizes of the arguments, flags, and an offset, address and size; no file.
    let numbers = [0u64, 0, 1 << 20].map(u64::to_ne_bytes).concat();
    let words = [32u32, 3].map(u32::to_ne_bytes).concat();
    say(&mut stream, DMA_MAP, &[&words, &numbers]);
    // Bus master; a ring of commands at 4096; two doorbells.
    write(&mut stream, CONFIG, 4, &[6, 0]);
    write(&mut stream, BAR, 0x10, &[0, 0, 0, 0, 0, 0, 0x10, 0]);
    for _ in 0..2 {
        write(&mut stream, BAR, 0x18, &[0, 0, 0, 1]);
    }
    drop(stream);
    let (code, told) = ended(child);
    assert_eq!(code, Some(1), "{told}");
    let what = "connectx: RAM is not shared memory: QEMU needs memory-backend-memfd,share=on\n";
    assert_eq!(told.matches(what).count(), 1, "{told}");
}
