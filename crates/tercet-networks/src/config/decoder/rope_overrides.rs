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
