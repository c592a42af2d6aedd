//! Reads the kernel's test results, as kselftests print them and as KUnit logs them, into
//! a flat list of cases: [`parse`] is where to start.
//!
//! Format: Documentation/dev-tools/ktap.rst in the kernel tree. Input may be a kernel log:
//! the parser removes time stamps, and keeps lines that are not KTAP as the log of the
//! case that follows them.
//!
//! A crash can cut off a report. A planned test without a result counts as a failure.

#![warn(unused_crate_dependencies)]

use serde::{Deserialize, Serialize};

/// How a case ended; written as `passed`, `failed`, `skipped`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// `ok`
    Passed,
    /// `not ok`
    Failed,
    /// `ok … # SKIP`
    Skipped,
}

/// A test that has no tests below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The names from the outermost group to the test, joined by `.`
    pub name: String,
    /// How it ended.
    pub status: Status,
    /// Why it was skipped or timed out, as the test reports it. May be empty.
    pub reason: String,
    /// The lines that came before the result.
    pub log: Vec<String>,
}

/// Nesting level of a report: tests that share an indentation.
#[derive(Default)]
struct Level {
    indent: usize,
    name: Option<String>,
    planned: Option<usize>,
    /// The reason if the plan is empty.
    skipped: Option<String>,
    seen: usize,
    cases: Vec<Case>,
}

/// The maximum number of log lines that a case keeps. The last lines are the most useful.
const LOG_LINES: usize = 200;

/// Reads a report. If the text has none, returns one failed case that says so.
pub fn parse(text: &str) -> Vec<Case> {
    let mut reader = Reader::default();
    for line in text.lines() {
        reader.line(strip_time(line.trim_end_matches('\r')));
    }
    reader.finish()
}

#[derive(Default)]
struct Reader {
    /// Outermost first. Empty until a version line.
    levels: Vec<Level>,
    log: Vec<String>,
    bail: Option<String>,
}

impl Reader {
    fn line(&mut self, line: &str) {
        let text = line.trim_start_matches(' ');
        let indent = line.len() - text.len();

        if text.starts_with("KTAP version ") || text.starts_with("TAP version ") {
            self.open(indent);
            return;
        }
        if self.levels.is_empty() {
            return;
        }
        if let Some(name) = text.strip_prefix("# Subtest: ") {
            self.open(indent);
            self.top().name = Some(name.trim().to_owned());
        } else if let Some(count) = text.strip_prefix("1..").and_then(number) {
            self.open(indent);
            let (_, reason, skipped) = describe(text);
            // Each KUnit module prints a report and a plan of its own.
            let before = self.top().planned.unwrap_or_default();
            self.top().planned = Some(before + count);
            self.top().skipped = (count == 0 && skipped).then_some(reason);
        } else if let Some(why) = text.strip_prefix("Bail out!") {
            self.bail = Some(why.trim().to_owned());
        } else if let Some((passed, rest)) = result(text) {
            self.result(indent, passed, rest);
        } else {
            self.keep(text);
        }
    }

    fn top(&mut self) -> &mut Level {
        self.levels.last_mut().expect("a level is open")
    }

    /// Makes `indent` the current level.
    fn open(&mut self, indent: usize) {
        while self.levels.len() > 1 && self.top().indent > indent {
            self.close();
        }
        if self.levels.last().is_none_or(|level| level.indent < indent) {
            self.levels.push(Level {
                indent,
                ..Level::default()
            });
        }
    }

    /// Ends the innermost level. Its group has no result line.
    fn close(&mut self) {
        let level = self.levels.pop().expect("a level is open");
        let group = level.name.clone().unwrap_or_default();
        let cases = level.finish();
        self.top()
            .cases
            .extend(cases.into_iter().map(|case| case.below(&group)));
    }

    fn result(&mut self, indent: usize, passed: bool, rest: &str) {
        let (name, reason, skipped) = describe(rest);
        let mut children = Vec::new();
        while self.levels.len() > 1 && self.top().indent > indent {
            let level = self.levels.pop().expect("a level is open");
            children.splice(0..0, level.finish());
        }
        let log = std::mem::take(&mut self.log);
        let level = self.top();
        level.seen += 1;
        let name = if name.is_empty() {
            format!("test {}", level.seen)
        } else {
            name
        };
        let failed_child = children.iter().any(|case| case.status == Status::Failed);
        let leaf = children.is_empty();
        level
            .cases
            .extend(children.into_iter().map(|case| case.below(&name)));
        if leaf || (!passed && !failed_child) {
            level.cases.push(Case {
                name,
                status: match (passed, skipped) {
                    (_, true) => Status::Skipped,
                    (true, _) => Status::Passed,
                    (false, _) => Status::Failed,
                },
                reason,
                log,
            });
        }
    }

    fn keep(&mut self, text: &str) {
        if self.log.len() == LOG_LINES {
            self.log.remove(0);
        }
        self.log.push(text.to_owned());
    }

    fn finish(mut self) -> Vec<Case> {
        while self.levels.len() > 1 {
            self.close();
        }
        let Some(level) = self.levels.pop() else {
            return vec![failure(REPORT, "no KTAP version line", self.log)];
        };
        let mut cases = level.finish();
        if let Some(why) = self.bail {
            cases.push(failure(BAIL_OUT, &why, self.log));
        } else if let Some(case) = cases.iter_mut().find(|case| case.name.ends_with(MISSING)) {
            if let Some(name) = self.log.iter().rev().find_map(|line| running(line)) {
                case.name = case.name.replace(MISSING, name);
                case.reason = format!("it did not end; {}", case.reason);
            }
            case.log = self.log;
        }
        cases
    }
}

/// The end of the name of the case that stands for missing results.
const MISSING: &str = "planned tests";
const REPORT: &str = "report";
const BAIL_OUT: &str = "bail out";

/// The ends of names of cases that are no tests, but stand for a failure of the whole output.
pub const OF_OUTPUT: [&str; 3] = [MISSING, REPORT, BAIL_OUT];

impl Level {
    fn finish(self) -> Vec<Case> {
        let mut cases = self.cases;
        if let Some(reason) = self.skipped {
            cases.push(Case {
                name: "everything".to_owned(),
                status: Status::Skipped,
                reason,
                log: Vec::new(),
            });
            return cases;
        }
        let missing = match self.planned {
            Some(0) if self.seen == 0 => Some("no test is in the plan".to_owned()),
            Some(planned) if planned > self.seen => Some(format!(
                "{} of {planned} planned tests have no result",
                planned - self.seen
            )),
            Some(planned) if planned < self.seen => Some(format!(
                "{} tests have a result, {planned} were planned",
                self.seen
            )),
            None if self.seen == 0 => Some("no plan and no result".to_owned()),
            _ => None,
        };
        if let Some(why) = missing {
            cases.push(failure(MISSING, &why, Vec::new()));
        }
        cases
    }
}

impl Case {
    fn below(mut self, group: &str) -> Self {
        if !group.is_empty() {
            self.name = format!("{group}.{}", self.name);
        }
        self
    }
}

fn failure(name: &str, reason: &str, log: Vec<String>) -> Case {
    Case {
        name: name.to_owned(),
        status: Status::Failed,
        reason: reason.to_owned(),
        log,
    }
}

fn number(text: &str) -> Option<usize> {
    text.split_whitespace().next()?.parse().ok()
}

/// The name of the test in a line `# RUN           name ...` of `kselftest_harness.h`,
/// printed when the test starts.
fn running(line: &str) -> Option<&str> {
    let name = line.strip_prefix('#')?.trim_start().strip_prefix("RUN ")?;
    name.split_whitespace().next()
}

/// Splits `ok 3 name` into the verdict and what follows the number.
fn result(text: &str) -> Option<(bool, &str)> {
    let (passed, rest) = match text.strip_prefix("not ok ") {
        Some(rest) => (false, rest),
        None => (true, text.strip_prefix("ok ")?),
    };
    let rest = rest.trim_start();
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0).then(|| (passed, rest[digits..].trim_start()))
}

/// Splits `- name # SKIP why` into name, reason, and whether it was skipped.
fn describe(rest: &str) -> (String, String, bool) {
    let rest = rest.strip_prefix("- ").unwrap_or(rest);
    let (name, directive) = match rest.find("# ") {
        Some(at) => (&rest[..at], rest[at + 2..].trim()),
        None => (rest, ""),
    };
    let skip = directive
        .get(..4)
        .is_some_and(|word| word.eq_ignore_ascii_case("SKIP"));
    let reason = if skip {
        directive[4..].trim()
    } else {
        directive
    };
    (name.trim().to_owned(), reason.to_owned(), skip)
}

/// Removes the time stamp of a kernel log from a line.
fn strip_time(line: &str) -> &str {
    let Some(rest) = line.strip_prefix('[') else {
        return line;
    };
    match rest.split_once(']') {
        Some((stamp, text))
            if stamp
                .trim_start()
                .bytes()
                .all(|b| b.is_ascii_digit() || b == b'.') =>
        {
            text.strip_prefix(' ').unwrap_or(text)
        }
        _ => line,
    }
}

#[cfg(test)]
mod tests;
