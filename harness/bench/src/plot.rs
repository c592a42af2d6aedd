//! Plots the cost of a range by its size, and the cost of a mapping by its fragmentation.

use std::collections::BTreeMap;
use std::path::Path;

use ::plot::{Chart, Line};
use anyhow::Result;

use super::figures::{Figures, RANGE};

/// In the name of a case, this comes before the number of pages in a row.
const BY: &str = "_by_";

/// Draws two charts. Draws nothing if no run counted ranges.
pub fn draw(file: &Path, runs: &BTreeMap<String, Figures>) -> Result<()> {
    let ranges = Chart {
        caption: "hmm_range_fault() by size of the range",
        axes: ["pages of 4 KiB", "instructions"],
        lines: ranges(runs),
    };
    if ranges.lines.is_empty() {
        return Ok(());
    }
    let fragments = Chart {
        caption: "hmm_dma_map_range() and hmm_dma_unmap_range() by length of contiguous runs",
        axes: ["pages of 4 KiB in a run", "instructions per page"],
        lines: fragments(runs),
    };
    let mut charts = vec![ranges];
    charts.extend((!fragments.lines.is_empty()).then_some(fragments));
    ::plot::draw(file, &charts)
}

/// The cost of each size, by run.
fn ranges(runs: &BTreeMap<String, Figures>) -> Vec<Line> {
    let of_run = |(run, figures): (&String, &Figures)| {
        let sizes = figures.sizes(RANGE)?.iter();
        let points = sizes.map(|(&pages, &count)| (pages as f64, count as f64));
        Some((run.clone(), points.collect()))
    };
    runs.iter().filter_map(of_run).collect()
}

/// The cost of a page by the length of its contiguous run, by run and case.
fn fragments(runs: &BTreeMap<String, Figures>) -> Vec<Line> {
    let mut lines: BTreeMap<String, BTreeMap<u32, f64>> = BTreeMap::new();
    for (run, figures) in runs {
        for case in figures.cases() {
            let Some((what, pages)) = case.split_once(BY) else {
                continue;
            };
            if let (Ok(pages), Some(cost)) = (pages.parse(), figures.per_page(case)) {
                let line = lines.entry(format!("{run}: {what}")).or_default();
                line.insert(pages, cost);
            }
        }
    }
    let as_points = |points: BTreeMap<u32, f64>| {
        let points = points.into_iter();
        points
            .map(|(pages, cost)| (f64::from(pages), cost))
            .collect()
    };
    lines
        .into_iter()
        .map(|(name, points)| (name, as_points(points)))
        .collect()
}
