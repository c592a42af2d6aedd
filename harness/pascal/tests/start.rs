//! Error messages when the model cannot be served as requested.

use std::path::Path;
use std::process::{Command, Output};

/// Runs the program, which should exit at once. Returns its exit status and standard error.
fn start(socket: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = Command::new("timeout")
        .arg("20")
        .arg(env!("CARGO_BIN_EXE_pascal"))
        .arg("--socket")
        .arg(socket)
        .args(arguments)
        .output()
        .unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn is_refused(arguments: &[&str], why: &str) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let (code, told) = start(&socket, arguments);
    assert_eq!(code, Some(2), "{arguments:?}: {told}");
    assert!(told.contains(why), "{arguments:?}: {told}");
    assert!(!socket.exists());
}

#[test]
fn memory_that_no_gpu_has_is_refused() {
    is_refused(&["--vram=128M"], "--vram is smaller than --bar1");
    is_refused(&["--vram=0"], "--vram is smaller than --bar1");
    is_refused(&["--vram=256M"], "--vram is to be 512M or more");
    is_refused(
        &["--vram=65M", "--bar1=16M"],
        "--vram is to be 512M or more",
    );
    is_refused(&["--vram=1025M"], "--vram is to be less than 64M times");
    is_refused(
        &["--bar1=3M"],
        "--bar1 is to be a power of two from 4M to 256M",
    );
    is_refused(&["--bar1=512M"], "--bar1 is to be a power of two");
    is_refused(&["--vram=much"], "a number, with M or G after it");
}

#[test]
fn a_vbios_that_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rom");
    let argument = format!("--vbios={}", file.display());
    is_refused(&[&argument], "--vbios: ");
    is_refused(&[&argument], "rom: No such file");
    std::fs::write(&file, vec![0; (1 << 20) + 1]).unwrap();
    is_refused(&[&argument], "rom has more than the 1024 KiB");
}

#[test]
fn a_vbios_flaw_that_is_none_is_refused() {
    is_refused(
        &["--vbios-flaw=rust"],
        "[possible values: signature, tables]",
    );
}

#[test]
fn a_transfer_that_is_none_cannot_be_slow() {
    for wrong in ["60", "0:20", "60:", "a:b", "-1:5"] {
        is_refused(&[&format!("--slow={wrong}")], "milliseconds, as 60:20000");
    }
}

#[test]
fn a_socket_that_is_taken_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    std::fs::write(&socket, "").unwrap();
    let (code, told) = start(&socket, &[]);
    assert_eq!(code, Some(2), "{told}");
    let what = format!("{} exists", socket.display());
    assert!(told.contains(&what) && told.contains("remove it"), "{told}");
}
