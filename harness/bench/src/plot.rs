//! Plots the cost of a range by its size, and the cost of a mapping by its fragmentation.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::figures::{Figures, RANGE};

const SIZE: (u32, u32) = (900, 1080);

/// In the name of a case, this comes before the number of pages in a row.
const BY: &str = "_by_";

/// A name, and points sorted by x.
type Line = (String, Vec<(f64, f64)>);

/// Draws two charts. Draws nothing if no run counted ranges.
pub fn draw(file: &Path, runs: &BTreeMap<String, Figures>) -> Result<()> {
    let ranges = ranges(runs);
    if ranges.is_empty() {
        return Ok(());
    }
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    // The library's errors borrow from the drawing area.
    let failed = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", file.display());
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    let (upper, lower) = root.split_vertically(SIZE.1 / 2);
    chart(
        &upper,
        "hmm_range_fault() by size of the range",
        ["pages of 4 KiB", "instructions"],
        &ranges,
    )
    .map_err(|error| failed(&error))?;
    let fragments = fragments(runs);
    if !fragments.is_empty() {
        chart(
            &lower,
            "hmm_dma_map_range() and hmm_dma_unmap_range() by length of contiguous runs",
            ["pages of 4 KiB in a run", "instructions per page"],
            &fragments,
        )
        .map_err(|error| failed(&error))?;
    }
    root.present().map_err(|error| failed(&error))
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

/// The range of an axis, with some space around the values.
fn bounds(lines: &[Line], of: fn(&(f64, f64)) -> f64) -> Range<f64> {
    let values = || lines.iter().flat_map(|(_, points)| points).map(of);
    let least = values().fold(f64::INFINITY, f64::min);
    let most = values().fold(0.0, f64::max);
    least * 0.8..most * 1.25
}

/// A line for each of `lines`, both axes logarithmic.
fn chart<'a>(
    area: &DrawingArea<SVGBackend<'a>, Shift>,
    caption: &str,
    [x, y]: [&str; 2],
    lines: &[Line],
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(80)
        .build_cartesian_2d(
            bounds(lines, |point| point.0).log_scale(),
            bounds(lines, |point| point.1).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&|pages| format!("{pages:.0}"))
        .y_label_formatter(&|count| {
            if *count < 1e4 {
                format!("{count:.0}")
            } else {
                format!("{count:.0e}")
            }
        })
        .draw()?;
    for (number, (name, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3),
            )?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .border_style(BLACK)
        .background_style(WHITE.mix(0.8))
        .draw()
}
