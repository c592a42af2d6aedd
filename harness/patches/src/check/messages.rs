//! The messages of compilers, sparse, clippy, kernel-doc, rustdoc and Sphinx, and which of
//! them are about new lines.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::diff::Diff;
use host::proc::shown;
use results::report::Outcome;

/// The messages about a line of the series. Their form is `file:line: text`, or, for
/// rustc, text with ` --> file:line` below.
pub fn about(said: &str, added: &Diff) -> Vec<String> {
    let lines: Vec<_> = said.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let rustc = line.trim_start().strip_prefix("--> ");
        let text = rustc.unwrap_or(line);
        let Some((file, number)) = place(text) else {
            continue;
        };
        if !added.has(&folded(file), number) {
            continue;
        }
        match rustc {
            Some(_) if at > 0 => found.push(format!("{}\n{line}", lines[at - 1])),
            Some(_) => found.push((*line).to_owned()),
            None if complains(line) => found.push((*line).to_owned()),
            None => {}
        }
    }
    let mut seen = BTreeSet::new();
    found.retain(|text| seen.insert(text.clone()));
    found
}

/// `a/b/../c` as `a/c`. Kbuild uses such names for objects that are built from another folder.
pub fn folded(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match parts.last() {
            Some(last) if part == ".." && !["", ".."].contains(last) => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

fn complains(line: &str) -> bool {
    let line = line.to_lowercase();
    ["warning", "error", "severe"]
        .iter()
        .any(|word| line.contains(word))
}

/// `mm/hmm.c:12:3: text` and `Warning: mm/hmm.c:12 text`
fn place(text: &str) -> Option<(&str, usize)> {
    let word = text
        .split_whitespace()
        .find(|word| word.contains(':') && word.contains('.'))?;
    let mut parts = word.split(':');
    Some((parts.next()?, parts.next()?.parse().ok()?))
}

/// Passes if a tool printed nothing. Otherwise contains its output, and the command.
pub fn outcome(suite: &str, name: &str, said: Vec<String>, command: &Command) -> Outcome {
    let trouble = (!said.is_empty()).then(|| {
        let dir = command.get_current_dir().unwrap_or(Path::new("."));
        let (all, shown) = (said.join("\n"), shown(command));
        let shown = if shown.len() < 2000 { &shown } else { suite };
        format!("{all}\nby: cd {} && {shown}", dir.display())
    });
    Outcome::unless(suite, name, trouble)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIFF: &str = "\
+++ b/mm/hmm.c
@@ -10,0 +11,2 @@ f
@@ -30 +32 @@ g
+++ b/rust/kernel/mm/hmm.rs
@@ -0,0 +1,3 @@
";

    #[test]
    fn messages_about_what_is_new() {
        let added = Diff::parse(DIFF);
        let said = "\
mm/hmm.c:11:5: warning: context imbalance
mm/x/../hmm.c:12:5: warning: unused
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
        let found = about(said, &added);
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(found[0].contains("imbalance"));
        assert!(found[4].starts_with("warning: unresolved link"));
    }
}
