use super::*;

use std::fs;
use std::process::Command;

use host::proc::capture;

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
fn only_known_messages_of_known_files_are_left_out() {
    let text = "file = 'a/chan.c'\nmessages = ['address space']\nwhy = 'old'";
    let known: Known = toml::from_str(text).unwrap();
    assert!(known.has("/x/linux/a/chan.c:9:1: warning: cast removes address space"));
    assert!(!known.has("/x/linux/a/chan.c:9:1: warning: unused variable"));
    assert!(!known.has("/x/linux/a/other.c:9:1: warning: cast removes address space"));
}

#[test]
fn a_large_patch_must_be_a_test() {
    let code = |lines: usize| format!("{lines}\t0\tmm/hmm.c\n");
    assert_eq!(mail::size(&code(500)), None);
    let why = mail::size(&code(501)).unwrap();
    assert!(why.contains("changes 501 lines, 501 of them not"), "{why}");
    // Removed lines count, and all files together. A binary file has no lines.
    let files = "-\t-\tlogo.png\n300\t150\tmm/hmm.c\n1\t50\tmm/a b.c\n";
    let why = mail::size(files).unwrap();
    assert!(why.contains("changes 501 lines, 501 of them not"), "{why}");
    assert!(mail::size("").is_some());
    // Code with its test is no test.
    let both = "200\t0\tmm/hmm.c\n301\t0\tmm/tests/hmm_kunit.c\n";
    let why = mail::size(both).unwrap();
    assert!(why.contains("changes 501 lines, 200 of them not"), "{why}");
}

#[test]
fn what_is_a_test_file() {
    let tests = [
        "tools/testing/selftests/p2pdma/p2p_demo.c",
        "drivers/pci/p2pdma_kunit.c",
        "drivers/base/property_test.rs",
        "lib/tests/list.c",
        "lib/test_hmm_uapi.h",
        "rust/kernel/gpu/window/tests.rs",
    ];
    for file in tests {
        assert_eq!(mail::size(&format!("900\t0\t{file}\n")), None, "{file}");
    }
    let others = [
        "Documentation/mm/hmm.rst",
        "drivers/misc/p2ptest/rdma/mr.c",
        "include/uapi/linux/p2ptest.h",
        "tools/lib/bpf/libbpf.c",
        "drivers/latest.c",
        "drivers/tests.d/contest.c",
    ];
    for file in others {
        assert!(mail::size(&format!("900\t0\t{file}\n")).is_some(), "{file}");
    }
    // A test is built, and belongs to somebody.
    let built = |lines| format!("900\t0\tmm/tests/a.c\n{lines}\t0\tmm/Kconfig\n");
    assert_eq!(mail::size(&built(30)), None);
    assert!(mail::size(&built(31)).is_some());
}

#[test]
fn only_the_diff_of_a_mail_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let patch = dir.path().join("0001-a.patch");
    let diff = "\
diff --git a/mm/hmm.c b/mm/hmm.c
index 0000001..0000002 100644
--- a/mm/hmm.c
+++ b/mm/hmm.c
@@ -1,3 +1,4 @@
 one
--- two
+two
++++ three
 four
diff --git a/old.c b/new.c
similarity index 90%
rename from old.c
rename to new.c
index 0000001..0000002 100644
--- a/old.c
+++ b/new.c
@@ -9 +9 @@
-a
+b
-- 
2.39.5
";
    fs::write(&patch, format!("{MAIL}+no diff\n\n{diff}")).unwrap();
    // The folder may be in another repository.
    capture(Command::new("git").args(["init", "-q"]).arg(dir.path())).unwrap();
    assert_eq!(
        mail::numstat(dir.path(), &patch).unwrap().trim_end(),
        "2\t1\tmm/hmm.c\n1\t1\tnew.c"
    );
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
