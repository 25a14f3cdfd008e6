//! Rotary embeddings (Su and others, "RoFormer", 2021) and their scaling for longer contexts.

use std::f32::consts::TAU;

use super::super::{ConfigError, ensure};

/// A rotary embedding: its base and its frequency scaling.
///
/// ```
/// use tercet_networks::config::RopeSpec;
/// let (frequencies, factor) = RopeSpec::new(10_000.0).frequencies(4, 128);
/// assert_eq!((frequencies.len(), frequencies[0], factor), (2, 1.0, 1.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// The base of the frequencies `theta^(-2 i / dims)`.
    pub theta: f64,
    /// The scaling of the frequencies.
    pub scaling: RopeScaling,
}

/// Scaling of rotary frequencies for contexts longer than the original training's.
///
/// ```
/// use tercet_networks::config::{RopeScaling, RopeSpec};
/// let rope = RopeSpec { theta: 10_000.0, scaling: RopeScaling::Linear { factor: 2.0 } };
/// assert_eq!(rope.frequencies(4, 128).0[0], 0.5);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies are divided by the factor (Chen and others, "Extending Context Window ...
    /// via Positional Interpolation", 2023).
    Linear {
        /// The divisor of all frequencies.
        factor: f32,
    },
    /// The scaling of Llama 3.1: long wavelengths are divided by the factor, short ones are
    /// unchanged, and those between are interpolated.
    Llama3 {
        /// The divisor of the frequencies with long wavelengths.
        factor: f32,
        /// Wavelengths above `original / low` positions are scaled by the full factor.
        low: f32,
        /// Wavelengths below `original / high` positions are unchanged.
        high: f32,
        /// Context length of the original training, in positions.
        original: usize,
    },
    /// YaRN (Peng and others, 2023).
    Yarn {
        /// The divisor of low frequencies.
        factor: f32,
        /// Frequencies with at least this number of rotations within `original` positions are
        /// unchanged.
        beta_fast: f32,
        /// Frequencies with fewer rotations than this within `original` positions are divided by
        /// the factor.
        beta_slow: f32,
        /// Context length of the original training, in positions.
        original: usize,
        /// The factor of cosines and sines.
        attention: f32,
        /// Whether the bounds of the interpolated range of frequencies are rounded to integers.
        truncate: bool,
    },
    /// LongRoPE (Ding and others, 2024): one divisor per frequency. The length of the text selects
    /// the list of divisors if it is known when the model is built, else the context length does.
    /// All keys in a cache are rotated alike.
    LongRope {
        /// The divisors for contexts of at most `original` positions.
        short: Vec<f32>,
        /// The divisors for longer contexts.
        long: Vec<f32>,
        /// Context length of the original training, in positions.
        original: usize,
        /// The factor of cosines and sines.
        attention: f32,
    },
    /// One divisor per frequency (GGUF's `rope_freqs.weight`).
    Divisors(Vec<f32>),
}

impl RopeSpec {
    /// An unscaled rotary embedding with base `theta`.
    pub fn new(theta: f64) -> RopeSpec {
        RopeSpec {
            theta,
            scaling: RopeScaling::None,
        }
    }

    /// The `dims / 2` frequencies in radians per position, and the factor of cosines and sines, for
    /// a model built for `context` positions. All values are computed in F32, as in the reference
    /// implementations.
    pub fn frequencies(&self, dims: usize, context: usize) -> (Vec<f32>, f32) {
        let plain = (0..dims / 2).map(|i| {
            let exponent = (2 * i) as f32 / dims as f32;
            1.0 / (self.theta as f32).powf(exponent)
        });
        let divided = |by: &[f32]| plain.clone().zip(by).map(|(f, by)| f / by).collect();
        match &self.scaling {
            RopeScaling::None => (plain.collect(), 1.0),
            RopeScaling::Linear { factor } => (plain.map(|f| f / factor).collect(), 1.0),
            &RopeScaling::Llama3 {
                factor,
                low,
                high,
                original,
            } => {
                let of = |f: f32| {
                    let turns = original as f32 * f / TAU;
                    match turns {
                        _ if turns < low => f / factor,
                        _ if turns > high => f,
                        _ => {
                            let smooth = (turns - low) / (high - low);
                            (1.0 - smooth) * f / factor + smooth * f
                        }
                    }
                };
                (plain.map(of).collect(), 1.0)
            }
            &RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original,
                attention,
                truncate,
            } => {
                let [low, high] = [(beta_fast, false), (beta_slow, true)]
                    .map(|(turns, up)| self.index_of(turns, dims, original, truncate, up));
                let (low, high) = (low.max(0.0), high.min((dims - 1) as f32));
                let high = if low == high { high + 0.001 } else { high };
                let of = |(i, f): (usize, f32)| {
                    let kept = 1.0 - ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * (1.0 - kept) + f * kept
                };
                (plain.enumerate().map(of).collect(), attention)
            }
            RopeScaling::LongRope {
                short,
                long,
                original,
                attention,
            } => {
                let by = if context > *original { long } else { short };
                (divided(by), *attention)
            }
            RopeScaling::Divisors(by) => (divided(by), 1.0),
        }
    }

    /// The index of the frequency with `turns` rotations within the `original` positions.
    fn index_of(&self, turns: f32, dims: usize, original: usize, truncate: bool, up: bool) -> f32 {
        let waves = original as f64 / (f64::from(turns) * std::f64::consts::TAU);
        let index = (dims as f64 * waves.ln() / (2.0 * self.theta.ln())) as f32;
        match (truncate, up) {
            (true, false) => index.floor(),
            (true, true) => index.ceil(),
            (false, _) => index,
        }
    }

    pub(in crate::config) fn check(&self, dims: usize) -> Result<(), ConfigError> {
        let theta = self.theta;
        ensure(theta.is_finite() && theta > 0.0, || {
            format!("the rotary base is {theta}; expected a positive number")
        })?;
        let divisors = |name: &str, by: &[f32]| {
            let sound = by.len() == dims / 2 && by.iter().all(|f| f.is_finite() && *f > 0.0);
            ensure(sound, || {
                format!(
                    "{name} has {} divisors of rotary frequencies; expected {} positive numbers",
                    by.len(),
                    dims / 2
                )
            })
        };
        let numbers = |numbers: &[f32]| {
            let sound = numbers.iter().all(|x| x.is_finite() && *x > 0.0);
            ensure(sound, || {
                format!("the rotary scaling parameters {numbers:?} must be positive")
            })
        };
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => numbers(&[*factor]),
            RopeScaling::Llama3 {
                factor, low, high, ..
            } => {
                numbers(&[*factor, *low, *high])?;
                ensure(low < high, || {
                    format!("low_freq_factor is {low}; expected less than high_freq_factor, {high}")
                })
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                attention,
                ..
            } => {
                numbers(&[*factor, *beta_fast, *beta_slow, *attention])?;
                ensure(theta > 1.0, || {
                    format!("the rotary base is {theta}; yarn requires a base above 1")
                })
            }
            RopeScaling::LongRope {
                short,
                long,
                attention,
                ..
            } => {
                numbers(&[*attention])?;
                divisors("short_factor", short)?;
                divisors("long_factor", long)
            }
            RopeScaling::Divisors(by) => divisors("rope_freqs.weight", by),
        }
    }
}

/// YaRN's factor of cosines and sines, derived from the frequency factor.
pub(super) fn yarn_attention(factor: f32, mscale: f32) -> f32 {
    match factor > 1.0 {
        true => 0.1 * mscale * factor.ln() + 1.0,
        false => 1.0,
    }
}

/// LongRoPE's factor of cosines and sines, derived from the ratio of context lengths.
pub(super) fn longrope_attention(factor: f64, original: usize) -> f32 {
    match factor > 1.0 {
        true => (1.0 + factor.ln() / (original as f64).ln()).sqrt() as f32,
        false => 1.0,
    }
}
