//! Rotary positions that a user sets instead of those of the model's files.

use super::rope::yarn_attention;
use super::{DecoderSpec, RopeScaling, RopeSpec};
use crate::config::ConfigError;

/// The kinds of scaling that a user can select.
///
/// ```
/// use tercet_networks::config::RopeScalingKind;
/// assert_ne!(RopeScalingKind::Linear, RopeScalingKind::Yarn);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeScalingKind {
    /// No scaling.
    None,
    /// Division of all frequencies.
    Linear,
    /// YaRN.
    Yarn,
}

/// Changes of a model's rotary positions; [`Default`] changes nothing. Models with several rotary
/// embeddings change only the first, which layers with full attention use.
///
/// ```
/// use tercet_networks::{DecoderDims, DecoderSpec};
/// use tercet_networks::config::{RopeOverrides, RopeScaling};
/// # let dims = DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// let longer = RopeOverrides { factor: Some(2.0), ..RopeOverrides::default() };
/// let spec = longer.apply(&DecoderSpec::llama(dims))?;
/// assert_eq!(spec.ropes[0].scaling, RopeScaling::Linear { factor: 2.0 });
/// # Ok::<(), tercet_networks::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RopeOverrides {
    /// The base of the frequencies.
    pub theta: Option<f64>,
    /// The kind of scaling. If this is `None` but a parameter is set, the kind is the model's own,
    /// or linear if it has none.
    pub scaling: Option<RopeScalingKind>,
    /// The factor by which the context grows.
    pub factor: Option<f32>,
    /// YaRN: the context length of the original training, in positions; by default the model's context.
    pub original: Option<usize>,
    /// YaRN: multiplies the factor of cosines and sines.
    pub attention: Option<f32>,
    /// YaRN: rotations from which on a frequency is unchanged, 32 by default.
    pub beta_fast: Option<f32>,
    /// YaRN: rotations below which a frequency is divided by the factor, 1 by default.
    pub beta_slow: Option<f32>,
}

impl RopeOverrides {
    /// The specification with these changes.
    ///
    /// # Errors
    /// [`ConfigError::Inconsistent`]: the model has no rotary positions, or its scaling cannot be
    /// combined with the changes, or a value is out of range.
    pub fn apply(&self, spec: &DecoderSpec) -> Result<DecoderSpec, ConfigError> {
        let mut spec = spec.clone();
        if *self == RopeOverrides::default() {
            return Ok(spec);
        }
        let context = spec.context;
        let Some(rope) = spec.ropes.first_mut() else {
            return Err(inconsistent("the model has no rotary positions to change"));
        };
        rope.theta = self.theta.unwrap_or(rope.theta);
        if let Some(scaling) = self.scaled(rope, context)? {
            rope.scaling = scaling;
        }
        spec.check()?;
        Ok(spec)
    }

    /// The new scaling, if it changes.
    fn scaled(&self, rope: &RopeSpec, context: usize) -> Result<Option<RopeScaling>, ConfigError> {
        let numbers = [self.attention, self.beta_fast, self.beta_slow];
        let of_yarn = self.original.is_some() || numbers.iter().any(Option::is_some);
        let kind = match (self.scaling, &rope.scaling) {
            (Some(kind), _) => kind,
            (None, RopeScaling::Yarn { .. }) if self.factor.is_some() || of_yarn => {
                RopeScalingKind::Yarn
            }
            (None, _) if of_yarn => {
                return Err(inconsistent(
                    "the parameters of YaRN need the scaling `yarn`",
                ));
            }
            (None, RopeScaling::Llama3 { .. } | RopeScaling::LongRope { .. })
                if self.factor.is_some() =>
            {
                return Err(inconsistent(
                    "the model scales its rotary positions in another way; name the scaling that replaces it: none, linear or yarn",
                ));
            }
            (None, _) if self.factor.is_some() => RopeScalingKind::Linear,
            (None, _) => return Ok(None),
        };
        let new = match (kind, &rope.scaling) {
            (RopeScalingKind::None, RopeScaling::Divisors(_)) => return Ok(None),
            (RopeScalingKind::None, _) => RopeScaling::None,
            // The file's frequency divisors stay and apply in addition to linear scaling, as in
            // llama.cpp.
            (RopeScalingKind::Linear, RopeScaling::Divisors(by)) => {
                let factor = self.factor.unwrap_or(1.0);
                RopeScaling::Divisors(by.iter().map(|x| x * factor).collect())
            }
            (RopeScalingKind::Linear, RopeScaling::Linear { factor }) => RopeScaling::Linear {
                factor: self.factor.unwrap_or(*factor),
            },
            (RopeScalingKind::Linear, _) => RopeScaling::Linear {
                factor: self.factor.unwrap_or(1.0),
            },
            (RopeScalingKind::Yarn, RopeScaling::Divisors(_)) => {
                return Err(inconsistent(
                    "the file has divisors of its rotary frequencies, which exclude the scaling `yarn`",
                ));
            }
            (RopeScalingKind::Yarn, own) => self.yarn(own, context),
        };
        Ok(Some(new))
    }

    /// YaRN with these parameters, the others from the model's own YaRN or by default.
    fn yarn(&self, own: &RopeScaling, context: usize) -> RopeScaling {
        let (factor, fast, slow, original, truncate) = match own {
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original,
                truncate,
                ..
            } => (*factor, *beta_fast, *beta_slow, *original, *truncate),
            _ => (1.0, 32.0, 1.0, context, true),
        };
        let attention = match (own, self.attention, self.factor) {
            (RopeScaling::Yarn { attention, .. }, None, None) => *attention,
            (_, own, _) => {
                let factor = self.factor.unwrap_or(factor);
                own.unwrap_or(1.0) * yarn_attention(factor, 1.0)
            }
        };
        RopeScaling::Yarn {
            factor: self.factor.unwrap_or(factor),
            beta_fast: self.beta_fast.unwrap_or(fast),
            beta_slow: self.beta_slow.unwrap_or(slow),
            original: self.original.unwrap_or(original),
            attention,
            truncate,
        }
    }
}

fn inconsistent(reason: &str) -> ConfigError {
    ConfigError::Inconsistent {
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DecoderDims;

    fn model(scaling: RopeScaling) -> DecoderSpec {
        let mut spec = DecoderSpec::llama(DecoderDims {
            hidden: 64,
            layers: 1,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            ffn: 96,
            vocab: 300,
            context: 128,
        });
        spec.ropes[0].scaling = scaling;
        spec
    }

    #[test]
    fn changes_apply_to_the_frequencies() {
        let plain = model(RopeScaling::None);
        let of = |spec: &DecoderSpec| spec.ropes[0].frequencies(16, 128);
        let none = RopeOverrides::default();
        assert_eq!(none.apply(&plain).unwrap(), plain);
        let base = RopeOverrides {
            theta: Some(1e6),
            ..none.clone()
        };
        let (frequencies, _) = of(&base.apply(&plain).unwrap());
        assert!((f64::from(frequencies[4]) - 1e6_f64.powf(-0.5)).abs() < 1e-9);
        let half = RopeOverrides {
            factor: Some(2.0),
            ..none.clone()
        };
        let halved: Vec<f32> = of(&plain).0.iter().map(|f| f / 2.0).collect();
        assert_eq!(of(&half.apply(&plain).unwrap()).0, halved);
        let divided = model(RopeScaling::Divisors(vec![1.0; 8]));
        assert_eq!(of(&half.apply(&divided).unwrap()).0, halved);
        let yarn = RopeOverrides {
            scaling: Some(RopeScalingKind::Yarn),
            factor: Some(4.0),
            ..none.clone()
        };
        let (frequencies, attention) = of(&yarn.apply(&plain).unwrap());
        assert_eq!(frequencies[0], 1.0);
        assert_eq!(frequencies[7], of(&plain).0[7] / 4.0);
        assert!((attention - (0.1 * 4.0_f32.ln() + 1.0)).abs() < 1e-6);
        let off = RopeOverrides {
            scaling: Some(RopeScalingKind::None),
            ..none
        };
        let scaled = yarn.apply(&plain).unwrap();
        assert_eq!(of(&off.apply(&scaled).unwrap()), of(&plain));
    }

    #[test]
    fn changes_that_have_no_meaning_are_refused() {
        let none = RopeOverrides::default();
        let half = RopeOverrides {
            factor: Some(2.0),
            ..none.clone()
        };
        let llama3 = model(RopeScaling::Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original: 64,
        });
        let refused = |changes: &RopeOverrides, spec: &DecoderSpec, part: &str| {
            let e = changes.apply(spec).unwrap_err().to_string();
            assert!(e.contains(part), "{e}");
        };
        refused(&half, &llama3, "name the scaling");
        let plain = model(RopeScaling::None);
        let beta = RopeOverrides {
            beta_fast: Some(8.0),
            ..none.clone()
        };
        refused(&beta, &plain, "`yarn`");
        let negative = RopeOverrides {
            factor: Some(-1.0),
            ..none.clone()
        };
        refused(&negative, &plain, "positive");
        let mut learned = plain;
        learned.ropes.clear();
        refused(&half, &learned, "no rotary positions");
    }
}
