//! Rotary embeddings (Su and others, "RoFormer", 2021) and how models stretch them over longer texts.

use std::f32::consts::TAU;

use super::super::{ConfigError, ensure};

/// A rotary embedding: a base and what is done to its frequencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies `theta^(-2 i / dims)`.
    pub theta: f64,
    /// What is done to them.
    pub scaling: RopeScaling,
}

/// How frequencies are changed for texts longer than those of the first training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by the factor (Chen and others, "Extending Context Window ... via Positional Interpolation", 2023).
    Linear {
        /// The factor.
        factor: f32,
    },
    /// As Llama 3.1 does: long waves are divided by the factor, short ones are kept, between them both are mixed.
    Llama3 {
        /// The factor.
        factor: f32,
        /// Waves longer than `original / low` positions are divided.
        low: f32,
        /// Waves shorter than `original / high` positions are kept.
        high: f32,
        /// Positions of the first training.
        original: usize,
    },
    /// YaRN (Peng and others, 2023).
    Yarn {
        /// The factor.
        factor: f32,
        /// Turns within `original` positions from which on frequencies are kept.
        beta_fast: f32,
        /// Turns below which they are divided.
        beta_slow: f32,
        /// Positions of the first training.
        original: usize,
        /// The factor of cosines and sines.
        attention: f32,
        /// Whether the bounds between which frequencies are mixed are whole numbers.
        truncate: bool,
    },
    /// LongRoPE (Ding and others, 2024): a divisor for each frequency. Which list counts is decided by the context that
    /// the model is built for, so that one cache holds keys of one kind.
    LongRope {
        /// The divisors up to `original` positions.
        short: Vec<f32>,
        /// The divisors beyond.
        long: Vec<f32>,
        /// Positions of the first training.
        original: usize,
        /// The factor of cosines and sines.
        attention: f32,
    },
    /// A divisor for each frequency (GGUF's `rope_freqs.weight`).
    Divisors(Vec<f32>),
}

impl Rope {
    /// The plain rotary embedding of this base.
    pub fn new(theta: f64) -> Rope {
        Rope {
            theta,
            scaling: RopeScaling::None,
        }
    }

    /// The `dims / 2` frequencies in radians a position, and the factor of cosines and sines, of a model that is built
    /// for this context. Computed in F32, as the reference implementations do.
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

    /// The index of the frequency that turns this often within the first training's positions.
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
            format!("the rotary base is {theta}, it must be positive")
        })?;
        let divisors = |name: &str, by: &[f32]| {
            let sound = by.len() == dims / 2 && by.iter().all(|f| f.is_finite() && *f > 0.0);
            ensure(sound, || {
                format!(
                    "{name} has {} divisors of rotary frequencies; {} positive numbers are expected",
                    by.len(),
                    dims / 2
                )
            })
        };
        let numbers = |numbers: &[f32]| {
            let sound = numbers.iter().all(|x| x.is_finite() && *x > 0.0);
            ensure(sound, || {
                format!("the rotary scaling's numbers {numbers:?} must be positive")
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
                    format!("low_freq_factor is {low}, which is not below high_freq_factor, {high}")
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
                    format!("the rotary base is {theta}; with yarn it must be above 1")
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

/// The factor of cosines and sines that YaRN derives from the factor of frequencies.
pub(super) fn yarn_attention(factor: f32, mscale: f32) -> f32 {
    match factor > 1.0 {
        true => 0.1 * mscale * factor.ln() + 1.0,
        false => 1.0,
    }
}

/// The factor of cosines and sines that LongRoPE derives from how much longer texts become.
pub(super) fn longrope_attention(factor: f64, original: usize) -> f32 {
    match factor > 1.0 {
        true => (1.0 + factor.ln() / (original as f64).ln()).sqrt() as f32,
        false => 1.0,
    }
}
