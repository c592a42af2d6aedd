//! The cost of a range by its size, as a picture.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::figures::{Figures, RANGE};

const SIZE: (u32, u32) = (900, 560);

/// Draws a line per run; nothing if no run counted ranges.
pub fn draw(file: &Path, runs: &BTreeMap<String, Figures>) -> Result<()> {
    let lines: Vec<(&str, Vec<(f64, f64)>)> = runs
        .iter()
        .filter_map(|(run, figures)| {
            let sizes = figures.sizes(RANGE)?;
            let points = sizes
                .iter()
                .map(|(&pages, &count)| (pages as f64, count as f64));
            Some((run.as_str(), points.collect()))
        })
        .collect();
    let points = || lines.iter().flat_map(|(_, points)| points);
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        let least = points().map(of).fold(f64::INFINITY, f64::min);
        let most = points().map(of).fold(0.0, f64::max);
        least * 0.8..most * 1.25
    };
    if lines.is_empty() {
        return Ok(());
    }
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    // The library's errors borrow from what it draws on.
    let failed = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", file.display());
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    let mut chart = ChartBuilder::on(&root)
        .caption("hmm_range_fault() by size of the range", ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(80)
        .build_cartesian_2d(
            bounds(|point| point.0).log_scale(),
            bounds(|point| point.1).log_scale(),
        )
        .map_err(|error| failed(&error))?;
    chart
        .configure_mesh()
        .x_desc("pages of 4 KiB")
        .y_desc("instructions")
        .x_label_formatter(&|pages| format!("{pages:.0}"))
        .y_label_formatter(&|count| format!("{count:.0e}"))
        .draw()
        .map_err(|error| failed(&error))?;
    for (number, (run, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3),
            )
            .map_err(|error| failed(&error))?
            .label(*run)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()
        .map_err(|error| failed(&error))?;
    root.present().map_err(|error| failed(&error))
}
