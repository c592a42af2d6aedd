//! What is known of mutants: kept as JSON, told as a table.

use std::path::Path;
use std::{fmt, fs};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::file::Mutant;

/// How a mutant ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "end")]
pub enum MutantOutcome {
    /// Tests failed.
    Caught {
        /// Their names, those first that were expected to.
        by: Vec<String>,
        /// Whether one of them was expected to.
        as_expected: bool,
    },
    /// No test failed: one is missing.
    Survived,
    /// The compiler notices: that says nothing about the tests.
    DoesNotBuild {
        /// What it says.
        why: String,
    },
    /// The series has changed.
    DoesNotApply {
        /// What git says.
        why: String,
    },
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
            Self::DoesNotBuild { .. } => write!(f, "DOES NOT BUILD"),
            Self::DoesNotApply { .. } => write!(f, "DOES NOT APPLY"),
        }
    }
}

/// What is known of a mutant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MutantResult {
    /// Its name.
    pub name: String,
    /// Changes when the series or the mutant does.
    pub key: String,
    /// How it ended.
    #[serde(flatten)]
    pub end: MutantOutcome,
    /// How long its kernel took to build.
    pub build_seconds: u64,
    /// How long its tests took.
    pub test_seconds: u64,
}

impl MutantResult {
    /// What is known so far.
    pub fn new(name: &str, end: MutantOutcome) -> Self {
        Self {
            name: name.to_owned(),
            key: String::new(),
            end,
            build_seconds: 0,
            test_seconds: 0,
        }
    }
}

/// All that is known.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Record {
    known: Vec<MutantResult>,
}

/// The file that has it.
pub const JSON: &str = "mutants.json";
const TABLE: &str = "mutants.md";

/// What the table says of itself.
const HEAD: &str = "\
# Defects that a test must notice

    make mutants

plants them into the series one at a time (`qemu/mutants`), builds each, and runs
the tests that should notice it.
";

impl Record {
    /// Reads what is known already.
    pub fn read(file: &Path) -> Result<Self> {
        if !file.exists() {
            return Ok(Self::default());
        }
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        serde_json::from_str(&text)
            .with_context(|| format!("{}: remove it to begin anew", file.display()))
    }

    /// Forgets mutants that are no more, and what was so in another series.
    pub fn keep(&mut self, key: impl Fn(&str) -> Option<String>) {
        self.known.retain(|known| {
            known.name == super::NONE || key(&known.name).as_ref() == Some(&known.key)
        });
    }

    /// Whether that mutant, as it is now, was tested.
    pub fn knows(&self, name: &str, key: &str) -> bool {
        self.get(name).is_some_and(|known| known.key == key)
    }

    fn get(&self, name: &str) -> Option<&MutantResult> {
        self.known.iter().find(|known| known.name == name)
    }

    /// Takes the place of what was known of that mutant.
    pub fn add(&mut self, known: MutantResult) {
        self.known.retain(|before| before.name != known.name);
        self.known.push(known);
    }

    /// Writes all of it, for programs and for people.
    /// `recorded`: the series that it is of.
    pub fn write(&self, dir: &Path, mutants: &[Mutant], recorded: &str) -> Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(dir.join(JSON), serde_json::to_string_pretty(self)?)?;
        let (table, line) = (self.table(mutants), self.closing_line(mutants));
        let text = format!("{HEAD}\n{recorded}\n\n{table}\n{line}\n");
        fs::write(dir.join(TABLE), text)?;
        Ok(())
    }

    /// A table in Markdown.
    pub fn table(&self, mutants: &[Mutant]) -> String {
        let mut text =
            "| mutant | file | what it breaks | result |\n|---|---|---|---|\n".to_owned();
        for mutant in mutants {
            let end = match self.get(&mutant.name) {
                Some(known) => known.end.to_string(),
                None => "not run".to_owned(),
            };
            text.push_str(&format!(
                "| {} | {} | {} | {end} |\n",
                mutant.name, mutant.changes, mutant.breaks
            ));
        }
        text
    }

    /// How many ended how.
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

    /// Whether each of these was caught.
    pub fn all_caught<'m>(&self, mut mutants: impl Iterator<Item = &'m Mutant>) -> bool {
        mutants.all(|mutant| {
            matches!(
                self.get(&mutant.name).map(|known| &known.end),
                Some(MutantOutcome::Caught { .. })
            )
        })
    }
}
