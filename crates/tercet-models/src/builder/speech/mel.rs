//! Window and filters of the features.

use std::f64::consts::PI;

use tercet::{Tensor, TensorError};

use super::super::{ModelError, weights::bytes_error};
use crate::config::speech::{FRAME, RATE};

/// Bins of the spectrum of a frame.
const BINS: usize = FRAME / 2 + 1;
/// Where filters end, in Hz.
const HIGHEST: f64 = 8000.0;

/// The periodic Hann window, `[400]`.
pub(super) fn hann() -> Tensor {
    let at = |i: usize| 0.5 - 0.5 * (2.0 * PI * i as f64 / FRAME as f64).cos();
    let window: Vec<f32> = (0..FRAME).map(|i| at(i) as f32).collect();
    Tensor::from_slice(&[FRAME], &window).expect("invariant: a small vector fits memory")
}

/// Triangles `[bins, mels]` between points that are equally far apart on Slaney's mel scale, each of equal area (Slaney, "Auditory
/// Toolbox", 1998).
pub(super) fn filters(mels: usize) -> Result<Tensor, ModelError> {
    let failed = |e: TensorError| bytes_error("mel filters", e);
    let top = hertz_to_mel(HIGHEST);
    let points: Vec<f64> = (0..mels + 2)
        .map(|i| mel_to_hertz(top * i as f64 / (mels + 1) as f64))
        .collect();
    let ty = tercet::TensorType::new(tercet::DType::F32, &[BINS, mels]);
    let mut filters = Tensor::zeros(ty).map_err(failed)?;
    let rows = filters.as_slice_mut::<f32>().map_err(failed)?;
    for (bin, row) in rows.chunks_exact_mut(mels).enumerate() {
        let hertz = (RATE / 2) as f64 * bin as f64 / (BINS - 1) as f64;
        for (weight, of) in row.iter_mut().zip(points.windows(3)) {
            let &[below, middle, above] = of else {
                unreachable!("invariant: windows of three")
            };
            let rising = (hertz - below) / (middle - below);
            let falling = (above - hertz) / (above - middle);
            *weight = (rising.min(falling).max(0.0) * 2.0 / (above - below)) as f32;
        }
    }
    Ok(filters)
}

/// Where the scale turns from linear to logarithmic.
const TURN: (f64, f64) = (1000.0, 15.0);

/// The logarithm of what a step above the turn multiplies with.
fn step() -> f64 {
    6.4f64.ln() / 27.0
}

fn hertz_to_mel(hertz: f64) -> f64 {
    match hertz < TURN.0 {
        true => 3.0 * hertz / 200.0,
        false => TURN.1 + (hertz / TURN.0).ln() / step(),
    }
}

fn mel_to_hertz(mel: f64) -> f64 {
    match mel < TURN.1 {
        true => 200.0 * mel / 3.0,
        false => TURN.0 * (step() * (mel - TURN.1)).exp(),
    }
}
