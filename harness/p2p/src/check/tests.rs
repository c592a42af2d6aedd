use super::*;

const DIFF: &str = "\
diff --git a/mm/hmm.c b/mm/hmm.c
--- a/mm/hmm.c
+++ b/mm/hmm.c
@@ -10,0 +11,2 @@ f
+a
+b
@@ -30 +32 @@ g
-c
+d
@@ -40,2 +41,0 @@ h
diff --git a/old.c b/old.c
--- a/old.c
+++ /dev/null
@@ -1,2 +0,0 @@
diff --git a/rust/kernel/mm/hmm.rs b/rust/kernel/mm/hmm.rs
--- /dev/null
+++ b/rust/kernel/mm/hmm.rs
@@ -0,0 +1,3 @@
";

#[test]
fn lines_that_are_added() {
    let added = Added::parse(DIFF);
    assert_eq!(added.0.len(), 2);
    let lines: Vec<_> = added.0["mm/hmm.c"].iter().copied().collect();
    assert_eq!(lines, [11, 12, 32]);
    assert!(added.has("/x/linux/mm/hmm.c", 11));
    assert!(!added.has("other_mm/hmm.c", 11));
    assert!(!added.has("mm/hmm.c", 41));
}

#[test]
fn messages_about_what_is_new() {
    let added = Added::parse(DIFF);
    let said = "\
mm/hmm.c:11:5: warning: context imbalance
mm/hmm.c:13:5: warning: old
Warning: mm/hmm.c:32 No description found for return value of 'f'
/x/linux/mm/hmm.c:12: WARNING: Unexpected indentation.
warning: unresolved link to `Nothing`
 --> rust/kernel/mm/hmm.rs:2:5
warning: old
 --> rust/kernel/mm.rs:2:5
  CC      mm/hmm.o
note: at mm/hmm.c:11:2
";
    let about = added.about(said);
    assert_eq!(about.len(), 4, "{about:?}");
    assert!(about[0].contains("imbalance"));
    assert!(about[3].starts_with("warning: unresolved link"));
}

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
    ];
    for text in wrong {
        assert_eq!(faults(&text).len(), 1, "{text}\n{:?}", faults(&text));
    }
}

#[test]
fn who_is_there_for_the_rest_is_nobody() {
    let rest = "Linus Torvalds <t@l> (maintainer:THE REST)\n";
    assert!(!mail::somebody(rest));
    assert!(!mail::somebody(""));
    assert!(mail::somebody(&format!("A <a@b> (maintainer:HMM)\n{rest}")));
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
    write("drivers/misc/Makefile", "");
    write("drivers/misc/gpu/page.rs", "");
    let object = |file| building::object(dir.path(), file);
    assert_eq!(object("mm/hmm_p2p.c").as_deref(), Some("mm/hmm_p2p.o"));
    assert_eq!(object("mm/other.c"), None);
    assert_eq!(object("rust/helpers/hmm.c"), None);
    let folder = |file| building::folder(dir.path(), file);
    assert_eq!(
        folder("drivers/misc/gpu/page.rs").as_deref(),
        Some("drivers/misc/")
    );
    assert_eq!(folder("rust/kernel/mm.rs"), None);
}

#[test]
fn the_settings_of_this_repository() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for fragment in Settings::read(&root).unwrap().fragments {
        crate::kernel::config::fragment(&root, &fragment).unwrap();
    }
}
