//! Tests that `make doctor` builds a program that can be copied to other hosts.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Whether a 64-bit ELF file asks for a dynamic linker: PT_INTERP in its program headers.
fn has_interpreter(elf: &[u8]) -> bool {
    let number = |at: usize, len: usize| {
        let bytes = elf[at..at + len].iter().rev();
        bytes.fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    assert_eq!(elf[..6], *b"\x7fELF\x02\x01");
    let (first, size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    assert!(count > 0);
    (0..count).any(|n| number(first + n * size, 4) == 3)
}

#[test]
fn p2p_doctor_is_static_unless_setup_says_otherwise() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let setup = Command::new(root.join("harness/setup.sh"))
        .arg("doctor")
        .output()
        .unwrap();
    let said = String::from_utf8(setup.stderr).unwrap();
    assert!(setup.status.success(), "{said}");
    let program = root.join("build/p2p-doctor");
    let is_dynamic = has_interpreter(&fs::read(&program).unwrap());
    assert_eq!(
        is_dynamic,
        said.contains("there is no static one"),
        "{said}"
    );
    let version = Command::new(&program).arg("--version").output().unwrap();
    assert!(version.status.success());
    // The check itself: the tool is not static.
    assert!(has_interpreter(
        &fs::read(env!("CARGO_BIN_EXE_p2p")).unwrap()
    ));
}
