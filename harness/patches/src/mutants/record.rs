//! The known results of mutants, as JSON and as a table.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fmt, fs};

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};

use super::file::Mutant;
use crate::recorded;

/// The result of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "end")]
pub enum MutantOutcome {
    /// Tests failed.
    Caught {
        /// The names of the tests, expected ones first.
        by: Vec<String>,
        /// Whether a test that was expected to fail did so.
        as_expected: bool,
    },
    /// No test failed, so a test is missing.
    Survived,
    /// The compiler rejects the defect. That proves nothing about the tests.
    DoesNotBuild {
        /// The compiler's message.
        why: String,
    },
    /// The kernel has the same code with the defect, so there is nothing to notice.
    SameCode,
    /// The series has changed, and the diff no longer applies.
    DoesNotApply {
        /// git's message.
        why: String,
    },
}

impl MutantOutcome {
    /// Whether tests have judged the mutant.
    pub fn is_judged(&self) -> bool {
        matches!(self, Self::Caught { .. } | Self::Survived)
    }
}

impl fmt::Display for MutantOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caught { by, as_expected } => {
                let first = by.first().map_or("", String::as_str);
                write!(f, "caught by {first}")?;
                if by.len() > 1 {
                    write!(f, " and {} more", by.len() - 1)?;
                }
                if *as_expected {
                    Ok(())
                } else {
                    write!(f, " (another was expected)")
                }
            }
            Self::Survived => write!(f, "SURVIVED"),
            Self::SameCode => write!(f, "same code"),
            Self::DoesNotBuild { .. } => write!(f, "DOES NOT BUILD"),
            Self::DoesNotApply { .. } => write!(f, "DOES NOT APPLY"),
        }
    }
}

/// The known result of a mutant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MutantResult {
    /// Its name.
    pub name: String,
    /// Changes when the series or the mutant does.
    pub key: String,
    /// The result.
    #[serde(flatten)]
    pub end: MutantOutcome,
    /// How long its kernel took to build.
    pub build_seconds: u64,
    /// How long its tests took.
    pub test_seconds: u64,
    /// The run with this result, if it was another run somewhere else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
}

impl MutantResult {
    /// A new result.
    pub fn new(name: &str, end: MutantOutcome) -> Self {
        Self {
            name: name.to_owned(),
            key: String::new(),
            end,
            build_seconds: 0,
            test_seconds: 0,
            recorded: None,
        }
    }
}

/// All known results.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The last run that added some of them.
    recorded: String,
    known: Vec<MutantResult>,
}

/// The files with results of mutants of qemu/mutants, and of generated ones; without `.json`
/// and `.md`.
pub const HAND_PICKED: &str = "mutants";
pub const GENERATED: &str = "mutants-generated";

/// The introduction of the table.
const HEAD: &str = "\
# Defects that a test must notice

    make mutants

plants them into the series one at a time (`qemu/mutants`), builds each, and runs
the tests that should notice it.
";

const GENERATED_HEAD: &str = "\
# How many defects the tests notice

    make mutants GENERATED=300 SEED=1

draws them at random from all changes of one comparison, number, branch, call or the like
in a line that the series adds (`harness/patches/src/mutants/generate`), and runs the jobs
of `qemu/mutants-generated.toml` up to the first that fails.
";

/// What is written beside the results.
#[derive(Serialize)]
struct WithScore<'a, S> {
    #[serde(flatten)]
    score: &'a S,
    #[serde(flatten)]
    record: &'a Record,
}

impl Record {
    /// Reads the results of runs on this machine. Before the first run, reads the recorded
    /// ones. `files` is [`HAND_PICKED`] or [`GENERATED`].
    pub fn read(here: &Path, recorded: &Path, files: &str) -> Result<Self> {
        let json = format!("{files}.json");
        let here = here.join(&json);
        if here.exists() {
            return Self::read_file(&here);
        }
        let mut record = Self::read_file(&recorded.join(json))?;
        for known in &mut record.known {
            known.recorded.get_or_insert(record.recorded.clone());
        }
        Ok(record)
    }

    fn read_file(file: &Path) -> Result<Self> {
        if !file.exists() {
            return Ok(Self::default());
        }
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        serde_json::from_str(&text)
            .with_context(|| format!("{}: remove it to begin anew", file.display()))
    }

    /// Drops results of deleted mutants, and of another series.
    pub fn keep(&mut self, is_current: impl Fn(&MutantResult) -> bool) {
        self.known
            .retain(|known| known.name == super::NONE || is_current(known));
    }

    /// Whether there is a result for the mutant in its current form.
    pub fn knows(&self, name: &str, key: &str) -> bool {
        self.get(name).is_some_and(|known| known.key == key)
    }

    /// The result of the mutant with that name.
    pub fn end(&self, name: &str) -> Option<&MutantOutcome> {
        self.get(name).map(|known| &known.end)
    }

    fn get(&self, name: &str) -> Option<&MutantResult> {
        self.known.iter().find(|known| known.name == name)
    }

    /// Adds a result, in place of an earlier one of the same mutant.
    pub fn add(&mut self, known: MutantResult) {
        self.known.retain(|before| before.name != known.name);
        self.known.push(known);
    }

    /// Writes all results as JSON and as a table. `recorded` names the series.
    pub fn write(&mut self, dir: &Path, mutants: &[Mutant], recorded: &str) -> Result<()> {
        recorded.clone_into(&mut self.recorded);
        let (table, line) = (self.table(mutants), self.closing_line(mutants));
        let text = format!("{HEAD}\n{recorded}\n\n{table}\n\n{line}\n");
        write(dir, HAND_PICKED, self, &text)
    }

    /// Writes all results of generated mutants with their score, as JSON and as a page.
    pub fn write_with(
        &mut self,
        dir: &Path,
        recorded: &str,
        score: &impl Serialize,
        page: &str,
    ) -> Result<()> {
        recorded.clone_into(&mut self.recorded);
        let record = &*self;
        let text = format!("{GENERATED_HEAD}\n{recorded}\n\n{page}");
        write(dir, GENERATED, &WithScore { score, record }, &text)
    }

    /// A table in Markdown.
    pub fn table(&self, mutants: &[Mutant]) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["mutant", "file", "what it breaks", "result"]);
        for mutant in mutants {
            let end = match self.get(&mutant.name) {
                Some(known) if known.recorded.is_some() => format!("{} (recorded)", known.end),
                Some(known) => known.end.to_string(),
                None => "not run".to_owned(),
            };
            table.add_row([&mutant.name, &mutant.changes, &mutant.breaks, &end]);
        }
        let known = mutants.iter().filter_map(|mutant| self.get(&mutant.name));
        let others: BTreeSet<_> = known.filter_map(|known| known.recorded.as_ref()).collect();
        let mut text = table.to_string();
        for other in others {
            text.push_str(&format!(
                "\n\nResults with \"(recorded)\" are not of this run. {other}"
            ));
        }
        text
    }

    /// How many mutants have each result.
    pub fn closing_line(&self, mutants: &[Mutant]) -> String {
        let count = |ends: fn(&MutantOutcome) -> bool| {
            let ends = |mutant: &&Mutant| self.get(&mutant.name).is_some_and(|k| ends(&k.end));
            mutants.iter().filter(ends).count()
        };
        format!(
            "{} mutants: {} caught, {} survived, {} void, {} not run",
            mutants.len(),
            count(|end| matches!(end, MutantOutcome::Caught { .. })),
            count(|end| matches!(end, MutantOutcome::Survived)),
            count(|end| matches!(
                end,
                MutantOutcome::DoesNotBuild { .. } | MutantOutcome::DoesNotApply { .. }
            )),
            mutants.len() - count(|_| true)
        )
    }

    /// Whether all of these mutants were caught. `late`: those that have no result do not
    /// count, unless none has one.
    pub fn all_caught<'m>(&self, mutants: impl Iterator<Item = &'m Mutant>, late: bool) -> bool {
        let ends = Vec::from_iter(mutants.map(|m| self.get(&m.name).map(|known| &known.end)));
        let caught =
            |end: &Option<&MutantOutcome>| matches!(end, Some(MutantOutcome::Caught { .. }));
        let good = |end: &Option<&MutantOutcome>| caught(end) || (late && end.is_none());
        ends.iter().all(good) && (!late || ends.iter().any(caught))
    }
}

fn write(dir: &Path, files: &str, data: &impl Serialize, text: &str) -> Result<()> {
    fs::create_dir_all(dir)?;
    let json = serde_json::to_string_pretty(data)?;
    recorded::replace(&dir.join(format!("{files}.json")), &json)?;
    Ok(fs::write(dir.join(format!("{files}.md")), text)?)
}
