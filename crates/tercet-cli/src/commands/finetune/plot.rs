//! Plots losses over steps as an SVG.

use std::fs::File;
use std::io::{Error, Result, Write};

use plotters::prelude::*;

use super::train::LossHistory;

const SIZE: (u32, u32) = (800, 480);

/// Plots the training losses and the held-out losses.
pub(super) fn draw(mut file: File, losses: &LossHistory) -> Result<()> {
    let mut text = String::new();
    drawn(&mut text, losses).map_err(|e| Error::other(e.to_string()))?;
    file.write_all(text.as_bytes())
}

fn drawn(
    text: &mut String,
    losses: &LossHistory,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let train: Vec<(f64, f64)> = losses
        .train
        .iter()
        .map(|(s, l)| (*s as f64, f64::from(*l)))
        .collect();
    let held: Vec<(f64, f64)> = losses
        .held_out
        .iter()
        .map(|(s, l)| (*s as f64, *l))
        .collect();
    let all = || train.iter().chain(&held).filter(|(_, l)| l.is_finite());
    let span = |of: fn(&(f64, f64)) -> f64| {
        let lo = all().map(of).fold(f64::INFINITY, f64::min);
        let hi = all().map(of).fold(f64::NEG_INFINITY, f64::max);
        match lo < hi {
            true => lo..hi,
            false if lo.is_finite() => lo..lo + 1.0,
            false => 0.0..1.0,
        }
    };
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(span(|p| p.0), span(|p| p.1))?;
    chart
        .configure_mesh()
        .x_desc("step")
        .y_desc("loss")
        .draw()?;
    let line = |x: i32, y: i32, color: &RGBColor| PathElement::new([(x, y), (x + 16, y)], *color);
    chart
        .draw_series(LineSeries::new(train.iter().copied(), BLUE))?
        .label("training")
        .legend(move |(x, y)| line(x, y, &BLUE));
    if !held.is_empty() {
        chart
            .draw_series(LineSeries::new(held.iter().copied(), RED.stroke_width(2)))?
            .label("held out")
            .legend(move |(x, y)| line(x, y, &RED));
    }
    chart
        .configure_series_labels()
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}
