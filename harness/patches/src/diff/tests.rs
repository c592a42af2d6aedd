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
    let added = Diff::parse(DIFF);
    assert_eq!(added.0.len(), 2);
    let lines: Vec<_> = added.0["mm/hmm.c"].iter().copied().collect();
    assert_eq!(lines, [11, 12, 32]);
    assert!(added.has("/x/linux/mm/hmm.c", 11));
    assert!(!added.has("other_mm/hmm.c", 11));
    assert!(!added.has("mm/hmm.c", 41));
}
