//! The warnings in the output of a build.

use std::collections::BTreeSet;

/// The warnings of compilers, linker and modpost, without line numbers. Every patch
/// changes line numbers.
pub fn warnings(log: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        let warns = line.contains("warning: ") || line.contains("WARNING: ");
        if !warns || line.starts_with("make") || line.contains("warning emitted") {
            continue;
        }
        let mut text = without_numbers(line);
        // rustc prints the location on the next line.
        if let Some(place) = lines
            .peek()
            .and_then(|next| next.trim().strip_prefix("--> "))
        {
            text = format!("{}: {text}", without_numbers(place));
        }
        found.insert(text);
    }
    found
}

/// `a.c:12:3: warning: x` → `a.c: warning: x`
fn without_numbers(line: &str) -> String {
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts = line.trim().split(':');
    parts
        .filter(|part| !is_number(part))
        .collect::<Vec<_>>()
        .join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_that_moves_is_not_new() {
        let before = warnings("mm/a.c:12:3: warning: unused variable 'x' [-Wunused-variable]\n");
        let after = warnings(
            "  CC mm/a.o\nmm/a.c:99:7: warning: unused variable 'x' [-Wunused-variable]\n",
        );
        assert_eq!(before, after);
        let other = warnings("mm/a.c:99:7: warning: unused variable 'y' [-Wunused-variable]\n");
        assert_eq!(other.difference(&before).count(), 1);
    }

    #[test]
    fn warnings_of_rustc_and_modpost() {
        let found = warnings(
            "warning: unused import: `x`\n  --> rust/kernel/mm.rs:3:5\n\
             warning: 1 warning emitted\n\
             make[2]: warning: jobserver unavailable\n\
             WARNING: modpost: missing MODULE_DESCRIPTION() in lib/a.o\n",
        );
        let found: Vec<_> = found.into_iter().collect();
        assert_eq!(
            found,
            [
                "WARNING: modpost: missing MODULE_DESCRIPTION() in lib/a.o",
                "rust/kernel/mm.rs: warning: unused import: `x`",
            ]
        );
    }
}
