//! Checks which topics apply to which kernels: the base, and other kernels in Debian. Of
//! those, only the files that the series touches are unpacked.

use std::fs;

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use serde::Deserialize;

use super::{Checker, TREES};
use host::ui::{Step, Ui};
use kernel::series::{Fit, How, SeriesConfig};
use kernel::tree::commit_base;
use results::report::Outcome;
use setup::source::{Archive, Source};

/// An entry of qemu/check.toml.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// `base`, `newest`, or a version, which means its newest kernel.
    pub name: String,
    /// Topics that must apply or already be there. `*` means all.
    pub required: Vec<String>,
}

/// A kernel's name, and how each topic fits it.
struct Column<'a> {
    kernel: &'a Kernel,
    name: String,
    fits: Vec<(String, Fit)>,
}

pub fn run(checker: &Checker<'_>, ui: &Ui) -> Result<Vec<Outcome>> {
    let (topics, settings) = (&checker.series.settings, &checker.settings);
    for kernel in &settings.trees {
        kernel.check(topics)?;
    }
    let step = ui.step(format!("run: {TREES}"));
    step.at("reading the package lists");
    let archive = Archive::new(checker.paths, &settings.suites)?;
    let mut columns: Vec<Column<'_>> = Vec::new();
    let mut outcomes = Vec::new();
    for kernel in &settings.trees {
        let (name, fits) = match &*kernel.name {
            "base" => of_base(checker)?,
            _ => match archive.newest(kernel.version(), |what| step.at(what)) {
                // The newest kernel of all may already have a column.
                Ok(source) if columns.iter().any(|other| other.name == source.name()) => continue,
                Ok(source) => (source.name(), of_source(checker, &source, &step)?),
                Err(error) => {
                    // A missing kernel is no failure of the series.
                    let why = format!("{error:#}");
                    outcomes.push(Outcome::skipped(TREES, &kernel.name, why));
                    continue;
                }
            },
        };
        columns.push(Column { kernel, name, fits });
    }
    archive.close()?;
    outcomes.extend(columns.iter().flat_map(Column::outcomes));
    let table = table(&columns);
    let file = checker.paths.results().join("trees.md");
    fs::create_dir_all(checker.paths.results())?;
    fs::write(&file, format!("{table}\n")).with_context(|| file.display().to_string())?;
    step.done(format!("{} kernels", columns.len()));
    host::outln!("\n{table}\ntable: {}", checker.paths.short(&file));
    Ok(outcomes)
}

fn of_base(checker: &Checker<'_>) -> Result<(String, Vec<(String, Fit)>)> {
    let (tree, series) = (checker.tree, &checker.series);
    let there = &tree.found.patches;
    let fits = series.fits(&tree.dir, &tree.base, there, How::Exactly)?;
    Ok((tree.source.clone(), fits))
}

fn of_source(
    checker: &Checker<'_>,
    source: &Source,
    step: &Step<'_>,
) -> Result<Vec<(String, Fit)>> {
    let series = &checker.series;
    step.at(format!("unpacking {}", source.name()));
    let scratch = tempfile::tempdir_in(checker.paths.build())?;
    let dir = scratch.path();
    source.unpack(dir, Some(&series.files()?))?;
    commit_base(dir, &source.name())?;
    let there = series.found_in(dir, "base")?;
    series.fits(dir, "base", &there, How::Exactly)
}

impl Kernel {
    fn check(&self, topics: &SeriesConfig) -> Result<()> {
        let names = topics.folders();
        match self
            .required
            .iter()
            .find(|name| *name != "*" && !names.contains(&&***name))
        {
            Some(name) => bail!("qemu/check.toml: {}: there is no topic {name}", self.name),
            None => Ok(()),
        }
    }

    /// The version to look for. `None` for the newest of all.
    fn version(&self) -> Option<&str> {
        (self.name != "newest").then_some(&*self.name)
    }

    fn requires(&self, topic: &str) -> bool {
        self.required
            .iter()
            .any(|name| name == "*" || name == topic)
    }
}

impl Column<'_> {
    /// The outcomes for topics that must apply.
    fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        let required = self
            .fits
            .iter()
            .filter(|(topic, _)| self.kernel.requires(topic));
        required.map(|(topic, fit)| {
            let trouble = (!fit.is_good()).then(|| format!("does not apply: {fit}"));
            Outcome::unless(TREES, &format!("{topic} on {}", self.name), trouble)
        })
    }
}

fn table(columns: &[Column<'_>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let names = columns.iter().map(|column| column.name.as_str());
    table.set_header(["topic"].into_iter().chain(names));
    let topics = columns.first().map_or(&[][..], |column| &column.fits);
    for (at, (topic, _)) in topics.iter().enumerate() {
        let mut line = vec![topic.clone()];
        for column in columns {
            let fit = &column.fits[at].1;
            let mark = if column.kernel.requires(topic) {
                " *"
            } else {
                ""
            };
            line.push(format!("{}{mark}", fit.short()));
        }
        table.add_row(line);
    }
    format!("{table}\n\n`*`: must apply (qemu/check.toml).")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str, required: &[&str]) -> Kernel {
        Kernel {
            name: name.to_owned(),
            required: required.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    #[test]
    fn what_must_apply_and_does_not_is_a_failure() {
        let (base, old) = (kernel("base", &["*"]), kernel("7.2", &["1-mm", "2-mm"]));
        let fits = |second: Fit| {
            let third = Fit::Needs("2-mm".to_owned());
            let fits = [("1-mm", Fit::There), ("2-mm", second), ("3-mm", third)];
            fits.map(|(name, fit)| (name.to_owned(), fit)).to_vec()
        };
        let refused = Fit::Refused {
            patch: "0002-x.patch".to_owned(),
            place: "hunk 1 of mm/hmm.c".to_owned(),
        };
        let column = |kernel, name: &str, second| Column {
            kernel,
            name: name.to_owned(),
            fits: fits(second),
        };
        let columns = [
            column(&base, "one", Fit::Applies),
            column(&old, "two", refused),
        ];
        let failed = |column: &Column<'_>| {
            let told = column
                .outcomes()
                .map(|outcome| (outcome.name, outcome.reason));
            Vec::from_iter(told.filter(|(_, reason)| !reason.is_empty()))
        };
        let pair = |name: &str, reason: &str| (name.to_owned(), reason.to_owned());
        let needs = "does not apply: needs 2-mm";
        assert_eq!(failed(&columns[0]), [pair("3-mm on one", needs)]);
        let refused = "does not apply: 0002-x.patch, hunk 1 of mm/hmm.c";
        assert_eq!(failed(&columns[1]), [pair("2-mm on two", refused)]);
        assert_eq!(columns[1].outcomes().count(), 2);

        let table = table(&columns);
        let rows = Vec::from_iter(table.lines().map(|row| {
            let cells = row.split('|').map(str::trim);
            Vec::from_iter(cells).join("|")
        }));
        assert_eq!(rows[0], "|topic|one|two|");
        let wanted = [
            "|1-mm|there already *|there already *|",
            "|2-mm|applies *|0002: hunk 1 of mm/hmm.c *|",
            "|3-mm|needs 2-mm *|needs 2-mm|",
        ];
        assert_eq!(rows[2..5], wanted);
    }

    #[test]
    fn a_topic_that_is_required_is_one() {
        let text = "subject_prefix = 'PATCH'\n[[topic]]\nfolder = '1-mm'\nfirst = 'x'\n";
        let topics: SeriesConfig = toml::from_str(text).unwrap();
        assert!(kernel("7.2", &["1-mm"]).check(&topics).is_ok());
        assert!(kernel("7.2", &["*"]).check(&topics).is_ok());
        let error = kernel("7.2", &["2-mm"]).check(&topics).unwrap_err();
        assert!(error.to_string().contains("no topic 2-mm"), "{error}");
    }
}
