//! The output of `make bisect`: a table of all results, and the failures.

use std::collections::{BTreeMap, BTreeSet};

use comfy_table::{Table, presets};

use super::StepResult;
use host::proc::indent;

/// The introduction of the table.
const HEAD: &str = "\
# After each patch

    make bisect

builds the kernel without a new warning, and boots it, in each configuration of
`qemu/bisect.toml`. Those of `targets` have objects alone. \"As before\": the patch
touches nothing that this configuration is built from.
";

/// The table as a page. `recorded` names its series.
pub fn page(rows: &[StepResult], recorded: &str) -> String {
    format!("{HEAD}\n{recorded}\n\n{}\n", table(rows))
}

/// A line for each other run that has results in the table.
fn others(rows: &[StepResult]) -> String {
    let others: BTreeSet<_> = rows
        .iter()
        .filter_map(|row| row.recorded.as_ref())
        .collect();
    let line = |other| format!("\n\nResults with \"(recorded)\" are not of this run. {other}");
    others.into_iter().map(line).collect()
}

/// A line per patch, a column per configuration.
pub fn table(rows: &[StepResult]) -> String {
    let columns: BTreeSet<_> = rows.iter().map(|row| &row.configuration).collect();
    let patches: BTreeMap<_, _> = rows.iter().map(|row| (row.number, &row.subject)).collect();
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let mut header = vec!["".to_owned(), "patch".to_owned()];
    header.extend(columns.iter().map(|name| (*name).clone()));
    table.set_header(header);
    for (number, subject) in patches {
        let mut line = vec![number.to_string(), subject.clone()];
        for name in &columns {
            let row = rows
                .iter()
                .find(|row| row.number == number && row.configuration == **name);
            line.push(row.map_or("-".to_owned(), StepResult::cell));
        }
        table.add_row(line);
    }
    format!("{table}{}", others(rows))
}

/// The failures, each with the command that repeats it.
pub fn failures(rows: &[StepResult], scope: &str, log: impl Fn(&StepResult) -> String) -> String {
    let comma = if scope.is_empty() { "" } else { "," };
    let failed = rows.iter().filter_map(|row| {
        let trouble = row.trouble.as_ref()?;
        Some(format!(
            "\nFAILED {0}, patch {1}: {2}\n{3}\n    \
             to repeat: make bisect ONLY={scope}{comma}{0}/{1}\n    log: {4}\n",
            row.configuration,
            row.number,
            row.subject,
            indent(trouble),
            log(row)
        ))
    });
    failed.collect()
}

impl StepResult {
    /// The result for a table cell.
    fn cell(&self) -> String {
        let other = if self.recorded.is_some() {
            " (recorded)"
        } else {
            ""
        };
        format!("{}{other}", self.word())
    }

    /// The result in one or two words.
    pub(super) fn word(&self) -> String {
        let word = match (self.passed(), self.booted) {
            (true, _) if self.as_before => "as before",
            (true, Some(_)) => match self.tests {
                Some(count) => return format!("builds, boots, {count} tests pass"),
                None => "builds, boots",
            },
            (true, None) => "builds",
            (false, Some(true)) => "TESTS FAIL",
            (false, Some(false)) => "DOES NOT BOOT",
            (false, None) => "FAILS",
        };
        word.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    #[test]
    fn the_table_and_what_failed() {
        let rows = [
            row("arm64", 1, None),
            row("i386", 1, Some("error: no")),
            row("i386", 2, None),
        ];
        let table = table(&rows);
        let lines: Vec<_> = table.lines().collect();
        assert!(
            lines[0].contains("arm64") && lines[0].contains("i386"),
            "{table}"
        );
        assert!(
            lines[2].contains("builds") && lines[2].contains("FAILS"),
            "{table}"
        );
        assert!(lines[3].contains(" - "), "{table}");
        let failures = |scope| failures(&rows, scope, |row| format!("L/{}", row.number));
        assert!(failures("1-mm").contains("make bisect ONLY=1-mm,i386/1"));
        let told = failures("");
        assert!(
            told.contains("error: no") && told.contains("make bisect ONLY=i386/1"),
            "{told}"
        );
        assert!(told.contains("    log: L/1\n"), "{told}");
    }

    #[test]
    fn the_last_patch_of_a_topic_has_tests() {
        let word = |booted, tests, trouble| {
            let row = row("default", 9, trouble);
            StepResult {
                booted,
                tests,
                ..row
            }
            .word()
        };
        assert_eq!(word(Some(true), None, None), "builds, boots");
        let well = word(Some(true), Some(7), None);
        assert_eq!(well, "builds, boots, 7 tests pass");
        assert_eq!(word(Some(true), Some(7), Some("a: y")), "TESTS FAIL");
        assert_eq!(word(Some(false), None, Some("panic")), "DOES NOT BOOT");
    }
}
