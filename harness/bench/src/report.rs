//! Figures and goals as tables, JSON and a plot.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Result;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::figures::{RANGE, value};
use super::spans::{self, Span};
use super::table::new_table;
use super::{BenchConfig, Figures, RESULTS, plot};

/// Cases whose names end like this count rows of pages, or calls, not instructions.
const NOT_INSTRUCTIONS: [&str; 2] = ["_runs", "_calls"];

/// How far the cost of a range may be from a straight line.
const BEND: f64 = 0.10;

/// How much a second run may differ.
const SAME: f64 = 0.01;

/// A figure of each case, by run.
type ByRun = BTreeMap<String, BTreeMap<String, f64>>;

/// A measured value and its limit.
#[derive(Debug, Serialize)]
pub struct Judged {
    goal: String,
    value: f64,
    limit: String,
    met: bool,
}

/// All results of a benchmark run.
#[derive(Debug, Serialize)]
pub struct Results {
    goals: Vec<Judged>,
    per_page: ByRun,
    per_call: ByRun,
    counted: BTreeMap<String, Figures>,
    spans: Vec<Span>,
}

/// The results as bench.json has them.
#[derive(Serialize)]
struct Recorded<'a> {
    /// When and where the run was, of which series, and with what.
    recorded: &'a str,
    #[serde(flatten)]
    results: &'a Results,
}

impl Results {
    /// Judges the figures, by run.
    pub fn new(
        settings: &BenchConfig,
        counted: BTreeMap<String, Figures>,
        spans: Vec<Span>,
    ) -> Result<Self> {
        let mut goals = Vec::new();
        for goal in &settings.goals {
            let (of, to) = (value(&goal.of, &counted)?, value(&goal.to, &counted)?);
            let (Some(of), Some(to)) = (of, to) else {
                continue;
            };
            let value = of / to;
            if let Some(most) = goal.at_most {
                goals.push(Judged::at_most(&goal.name, value, most));
            }
            if let Some(least) = goal.at_least {
                goals.push(Judged {
                    goal: goal.name.clone(),
                    value,
                    limit: format!("≥ {least}"),
                    met: value >= least,
                });
            }
        }
        for (run, figures) in &counted {
            if let Some(bend) = figures.bend(RANGE) {
                let name = format!("{run}: 4 KiB to 16 GiB, distance from a straight line");
                goals.push(Judged::at_most(&name, bend, BEND));
            }
        }
        for run in &settings.runs {
            let other = run.same_as.as_deref().and_then(|name| counted.get(name));
            if let (Some(figures), Some(other)) = (counted.get(&run.name), other) {
                let (case, differs) = difference(figures, other);
                let name = format!("a second run differs, most in {case}");
                goals.push(Judged::at_most(&name, differs, SAME));
            }
        }
        Ok(Self {
            goals,
            per_page: by_run(&counted, Figures::per_page),
            per_call: by_run(&counted, Figures::per_call),
            counted,
            spans,
        })
    }

    /// Whether every goal with figures is met.
    pub fn all_met(&self) -> bool {
        self.goals.iter().all(|goal| goal.met)
    }

    /// Writes bench.json, bench.svg, and bench.md. bench.md contains the tables and names
    /// their series.
    pub fn write(&self, dir: &Path, recorded: &str) -> Result<()> {
        fs::create_dir_all(dir)?;
        let tables = self.tables();
        let spans = spans::tables(&self.spans);
        let text = format!(
            "{recorded}\n\n{tables}\n\n![cost by size of the range](bench.svg)\n\n{spans}\n"
        );
        let [table, data, plot] = RESULTS.map(|name| dir.join(name));
        fs::write(table, text)?;
        let results = self;
        let whole = Recorded { recorded, results };
        fs::write(data, serde_json::to_string_pretty(&whole)?)?;
        plot::draw(&plot, &self.counted)
    }

    /// Figures by case and run, and the goals.
    pub fn tables(&self) -> String {
        let pages = figures("instructions per page", &self.per_page);
        let calls = figures("once per call", &self.per_call);
        let mut goals = new_table();
        goals.set_header(["goal", "limit", "seen", ""]);
        for goal in &self.goals {
            let met = if goal.met { "met" } else { "MISSED" };
            let seen = format!("{:.4}", goal.value);
            goals.add_row([goal.goal.as_str(), &goal.limit, &seen, met]);
        }
        format!("{pages}\n\n{calls}\n\n{goals}")
    }
}

impl Judged {
    fn at_most(goal: &str, value: f64, most: f64) -> Self {
        Self {
            goal: goal.to_owned(),
            value,
            limit: format!("≤ {most}"),
            met: value <= most,
        }
    }
}

/// Applies `figure` to each case that counts instructions.
fn by_run(
    counted: &BTreeMap<String, Figures>,
    figure: impl Fn(&Figures, &str) -> Option<f64>,
) -> ByRun {
    let of_run = |figures: &Figures| {
        let other = |case: &str| NOT_INSTRUCTIONS.iter().any(|end| case.ends_with(end));
        let cases = figures.cases();
        cases
            .filter(|case| *case != RANGE && !other(case))
            .filter_map(|case| Some((case.to_owned(), figure(figures, case)?)))
            .collect()
    };
    let runs = counted.iter();
    runs.map(|(run, figures)| (run.clone(), of_run(figures)))
        .collect()
}

/// A row for each case and a column for each run.
fn figures(title: &str, figures: &ByRun) -> Table {
    let mut table = new_table();
    let mut head = vec![title];
    head.extend(figures.keys().map(String::as_str));
    let columns = head.len();
    table.set_header(head);
    let cases: BTreeSet<_> = figures.values().flat_map(BTreeMap::keys).collect();
    for case in cases {
        let mut row = vec![case.clone()];
        row.extend(figures.values().map(|of_run| {
            let figure = of_run.get(case);
            figure.map_or("-".to_owned(), |figure| format!("{figure:.2}"))
        }));
        table.add_row(row);
    }
    for column in 1..columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The case that differs most, and the difference.
fn difference<'a>(one: &'a Figures, other: &Figures) -> (&'a str, f64) {
    let mut worst = ("none", 0.0);
    for case in one.cases() {
        let differs = match (one.per_page(case), other.per_page(case)) {
            (Some(one), Some(other)) => (one - other).abs() / other.abs().max(f64::EPSILON),
            _ => f64::INFINITY,
        };
        if differs > worst.1 {
            worst = (case, differs);
        }
    }
    worst
}
