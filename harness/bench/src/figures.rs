//! The counts of a run, and the figures computed from them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// The case that covers sizes from a page to 16 GiB.
pub const RANGE: &str = "range";

/// A line of the guest program's output.
#[derive(Deserialize)]
struct Line {
    case: String,
    pages: u64,
    count: u64,
}

/// Instructions by case and number of pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures(BTreeMap<String, BTreeMap<u64, u64>>);

impl Figures {
    /// Reads the program's output.
    pub fn parse(log: &str) -> Result<Self> {
        let mut figures = Self::default();
        for line in log.lines().filter(|line| !line.is_empty()) {
            let line: Line = serde_json::from_str(line).with_context(|| format!("{line:?}"))?;
            let sizes = figures.0.entry(line.case).or_default();
            sizes.insert(line.pages, line.count);
        }
        if figures.0.is_empty() {
            bail!("nothing was counted");
        }
        Ok(figures)
    }

    /// All cases.
    pub fn cases(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Instructions by number of pages.
    pub fn sizes(&self, case: &str) -> Option<&BTreeMap<u64, u64>> {
        self.0.get(case)
    }

    /// Instructions per page: the difference quotient of the two largest sizes. It leaves
    /// out the fixed cost of a call.
    pub fn per_page(&self, case: &str) -> Option<f64> {
        let mut sizes = self.0.get(case)?.iter().rev();
        let (&pages, &count) = sizes.next()?;
        let (less_pages, less) = sizes
            .next()
            .map_or((0, 0), |(&pages, &count)| (pages, count));
        Some((count as f64 - less as f64) / (pages - less_pages) as f64)
    }

    /// Instructions per call: the part of the largest size's cost that its pages do not
    /// explain. If the call maps a row of pages, that is the cost of the row itself.
    /// `None` for a single size.
    pub fn per_call(&self, case: &str) -> Option<f64> {
        let sizes = self.0.get(case)?;
        let (&pages, &count) = sizes.last_key_value()?;
        let per_page = self.per_page(case)?;
        (sizes.len() > 1).then_some(count as f64 - per_page * pages as f64)
    }

    /// How far the costs of these sizes are from a line through the smallest and the
    /// largest size: the largest relative difference.
    pub fn bend(&self, case: &str) -> Option<f64> {
        let sizes = self.0.get(case)?;
        let (&first, &least) = sizes.first_key_value()?;
        let (&last, &most) = sizes.last_key_value()?;
        if first == last {
            return None;
        }
        let slope = (most as f64 - least as f64) / (last - first) as f64;
        let miss = |(&pages, &count): (&u64, &u64)| {
            let line = least as f64 + slope * (pages - first) as f64;
            (count as f64 - line).abs() / line
        };
        sizes.iter().map(miss).reduce(f64::max)
    }
}

/// The value of `run.case + run.case:call - ...`. `None` if a run was left out.
///
/// A figure is the cost per page, or with `:call` the fixed cost of a call.
pub fn value(text: &str, runs: &BTreeMap<String, Figures>) -> Result<Option<f64>> {
    let mut sum = 0.0;
    let mut sign = 1.0;
    for word in text.split_whitespace() {
        match word {
            "+" => sign = 1.0,
            "-" => sign = -1.0,
            figure => {
                let (run, case) = figure
                    .split_once('.')
                    .with_context(|| format!("{figure:?} is no run.case"))?;
                let Some(figures) = runs.get(run) else {
                    return Ok(None);
                };
                let counted = match case.strip_suffix(":call") {
                    Some(case) => figures.per_call(case),
                    None => figures.per_page(case),
                };
                sum += sign * counted.with_context(|| format!("{figure} was not counted"))?;
            }
        }
    }
    Ok(Some(sum))
}
