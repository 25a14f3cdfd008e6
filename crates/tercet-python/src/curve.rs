//! Loss curves for notebooks.

use std::fmt::Write as _;

/// Maximum number of stored points. When it is reached, every other point is dropped and the
/// interval doubles.
const MAX_POINTS: usize = 1024;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
/// Margin for the labels of the axes.
const MARGIN: f64 = 48.0;

/// Losses by step, thinned out evenly.
pub(crate) struct LossCurve {
    points: Vec<(u64, f32)>,
    every: u64,
    last: Option<(u64, f32)>,
}

impl LossCurve {
    pub(crate) fn new() -> LossCurve {
        LossCurve {
            points: Vec::new(),
            every: 1,
            last: None,
        }
    }

    pub(crate) fn push(&mut self, step: u64, loss: f32) {
        self.last = Some((step, loss));
        if !step.is_multiple_of(self.every) {
            return;
        }
        self.points.push((step, loss));
        if self.points.len() > MAX_POINTS {
            self.every *= 2;
            let every = self.every;
            self.points.retain(|(step, _)| step.is_multiple_of(every));
        }
    }

    /// Draws the curve as an SVG figure with labelled axes. Non-finite losses are omitted.
    pub(crate) fn html(&self, total: u64) -> String {
        let all = self.points.iter().chain(&self.last);
        let points: Vec<(u64, f32)> = all.filter(|(_, loss)| loss.is_finite()).copied().collect();
        let Some((step, loss)) = points.last() else {
            return format!("<p>0 of {total} steps finished</p>");
        };
        let losses = points.iter().map(|(_, loss)| f64::from(*loss));
        let (low, high) = losses.fold((f64::MAX, f64::MIN), |(low, high), loss| {
            (low.min(loss), high.max(loss))
        });
        let span = (high - low).max(f64::MIN_POSITIVE);
        let most = total.max(*step).max(1) as f64;
        let mut line = String::new();
        for (step, loss) in &points {
            let x = MARGIN + (WIDTH - MARGIN) * *step as f64 / most;
            let y = (HEIGHT - MARGIN) * (high - f64::from(*loss)) / span + 8.0;
            // Writing to a string does not fail.
            let _ = write!(line, "{x:.1},{y:.1} ");
        }
        let bottom = HEIGHT - MARGIN + 8.0;
        format!(
            "<figure><svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" font-size=\"12\" font-family=\"sans-serif\" fill=\"currentColor\">\
             <path d=\"M {MARGIN} 8 V {bottom} H {WIDTH}\" fill=\"none\" stroke=\"currentColor\"/>\
             <polyline points=\"{}\" fill=\"none\" stroke=\"#2a6fdb\" stroke-width=\"1.5\"/>\
             <text x=\"4\" y=\"18\">{high:.3}</text><text x=\"4\" y=\"{bottom}\">{low:.3}</text>\
             <text x=\"{MARGIN}\" y=\"{}\">0</text><text x=\"{WIDTH}\" y=\"{}\" text-anchor=\"end\">{most}</text></svg>\
             <figcaption>loss {loss:.4} after step {step} of {total}</figcaption></figure>",
            line.trim_end(),
            bottom + 16.0,
            bottom + 16.0,
        )
    }
}
