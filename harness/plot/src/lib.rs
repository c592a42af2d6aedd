//! Draws charts of measured values as one SVG file. Both axes are logarithmic.

#![warn(unused_crate_dependencies)]

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

/// The size of one chart.
const SIZE: (u32, u32) = (900, 540);

/// A name, and points sorted by x.
pub type Line = (String, Vec<(f64, f64)>);

/// Lines that have the same axes.
#[derive(Clone, Debug)]
pub struct Chart<'a> {
    /// What the chart is about.
    pub caption: &'a str,
    /// The units of x and y.
    pub axes: [&'a str; 2],
    /// What it shows: at least one point, all of them positive.
    pub lines: Vec<Line>,
}

/// Draws charts, one below the other. Writes no file if there is none.
pub fn draw(file: &Path, charts: &[Chart<'_>]) -> Result<()> {
    if charts.is_empty() {
        return Ok(());
    }
    let size = (SIZE.0, SIZE.1 * charts.len() as u32);
    let root = SVGBackend::new(file, size).into_drawing_area();
    // The library's errors borrow from the drawing area.
    let failed = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", file.display());
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    for (area, chart) in root.split_evenly((charts.len(), 1)).iter().zip(charts) {
        chart.draw(area).map_err(|error| failed(&error))?;
    }
    root.present().map_err(|error| failed(&error))
}

impl Chart<'_> {
    fn draw<'a>(
        &self,
        area: &DrawingArea<SVGBackend<'a>, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
        let mut chart = ChartBuilder::on(area)
            .caption(self.caption, ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(80)
            .build_cartesian_2d(
                self.bounds(|point| point.0).log_scale(),
                self.bounds(|point| point.1).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc(self.axes[0])
            .y_desc(self.axes[1])
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| match *y {
                ..1.0 => format!("{y:.2}"),
                ..1e4 => format!("{y:.0}"),
                _ => format!("{y:.0e}"),
            })
            .draw()?;
        for (number, (name, points)) in self.lines.iter().enumerate() {
            let color = Palette99::pick(number).to_rgba();
            let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
            chart
                .draw_series(line.point_size(3))?
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

    /// The range of an axis, with some space around the values.
    fn bounds(&self, of: fn(&(f64, f64)) -> f64) -> Range<f64> {
        let values = || self.lines.iter().flat_map(|(_, points)| points).map(of);
        let least = values().fold(f64::INFINITY, f64::min);
        let most = values().fold(0.0, f64::max);
        least * 0.8..most * 1.25
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_chart_has_its_lines() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.svg");
        draw(&file, &[]).unwrap();
        assert!(!file.exists());
        let chart = |caption, name: &str| Chart {
            caption,
            axes: ["KiB", "us"],
            lines: vec![(name.to_owned(), vec![(4.0, 0.02), (64.0, 20000.0)])],
        };
        draw(&file, &[chart("first", "one"), chart("second", "two")]).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let has = |word: &str| text.lines().any(|line| line.trim() == word);
        for word in ["first", "one", "second", "two", "0.10", "1e4"] {
            assert!(has(word), "{word}: {text}");
        }
        assert!(text.contains("height=\"1080\""), "{text}");
    }
}
