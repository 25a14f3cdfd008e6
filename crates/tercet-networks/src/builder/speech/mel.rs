//! Window function and mel filters of the speech features.

use std::f64::consts::PI;

use tercet::{Tensor, TensorError};

use super::super::{ModelError, weights::bytes_error};
use crate::config::speech::{FRAME, RATE};

/// Frequency bins of a frame's spectrum.
const BINS: usize = FRAME / 2 + 1;
/// Upper frequency of the mel filters, in Hz.
const HIGHEST: f64 = 8000.0;

/// Periodic Hann window, F32 `[400]`.
pub(super) fn hann() -> Tensor {
    let at = |i: usize| 0.5 - 0.5 * (2.0 * PI * i as f64 / FRAME as f64).cos();
    let window: Vec<f32> = (0..FRAME).map(|i| at(i) as f32).collect();
    Tensor::from_slice(&[FRAME], &window).expect("invariant: a small vector fits memory")
}

/// Mel filter bank `[bins, mels]`: triangular filters of equal area, evenly spaced on Slaney's mel
/// scale (Slaney, "Auditory Toolbox", 1998).
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

/// Hz and mel value at which Slaney's mel scale changes from linear to logarithmic.
const TURN: (f64, f64) = (1000.0, 15.0);

/// Logarithm of the frequency ratio of one mel in the logarithmic range.
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
