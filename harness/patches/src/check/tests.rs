use super::*;

use std::fs;

const MAIL: &str = "\
From 0 Mon Sep 17 00:00:00 2001
From: A <a@b>
Subject: [PATCH 02/24] mm/hmm: do it
 properly

Because.

Fixes: 0123456789ab (\"a subject that is so long that it would be too long for a line of text\")
Assisted-by: LLM
---
 a.c | 1 +
";

#[test]
fn a_mail_and_its_faults() {
    let faults = |text: &str| mail::faults(text, "PATCH", 2, 24);
    assert_eq!(faults(MAIL), Vec::<String>::new());
    let wrong = [
        MAIL.replace("02/24", "3/24"),
        MAIL.replace("Because.\n", ""),
        MAIL.replace("Because.", &"x".repeat(76)),
        MAIL.replace("Assisted-by: LLM\n", ""),
        MAIL.replace("---\n", "Signed-off-by: A <a@b>\n---\n"),
        MAIL.replace("---\n", "\nwith '#' will be ignored\n---\n"),
    ];
    for text in wrong {
        assert_eq!(faults(&text).len(), 1, "{text}\n{:?}", faults(&text));
    }
}

#[test]
fn codespell_sees_the_message_and_new_lines() {
    let patch = "message\n---\ndiff --git a/x b/x\n--- a/x\n+++ b/x\n context\n-old\n+new\n";
    assert_eq!(mail::ours(patch), "message\n---\n\n\n\n\n\nnew\n");
}

#[test]
fn what_make_calls_things() {
    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(
        "mm/Makefile",
        "obj-y := a.o\nobj-$(CONFIG_X) += hmm.o \\\n\thmm_p2p.o\n",
    );
    write(
        "drivers/misc/Kbuild",
        "obj-m := gpu.o nic.o\nnic-y := nic/main.o\n",
    );
    write("kfd/Makefile", "files := $(DIR)/move.o\n");
    let files = [
        "mm/hmm_p2p.c",
        "mm/other.c",
        "rust/helpers/hmm.c",
        "drivers/misc/gpu.rs",
        "drivers/misc/gpu/page.rs",
        "drivers/other.rs",
        "drivers/misc/nic/main.c",
        "kfd/move.c",
    ];
    let named = ["gpu/../kfd/move.o".to_owned()];
    let (targets, left_out) = building::targets(dir.path(), &files, &named);
    let wanted = [
        "drivers/misc/gpu.o",
        "drivers/misc/nic/main.o",
        "gpu/../kfd/move.o",
        "mm/hmm_p2p.o",
    ];
    assert_eq!(Vec::from_iter(targets), wanted);
    assert_eq!(left_out, ["mm/other.c", "drivers/other.rs"]);
}

#[test]
fn the_settings_of_this_repository() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for fragment in CheckConfig::read(&root).unwrap().fragments {
        kernel::config::fragment(&root, &fragment).unwrap();
    }
}
