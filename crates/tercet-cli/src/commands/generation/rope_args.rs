//! The flags of the rotary positions, as in llama.cpp.

use clap::ValueEnum;
use tercet_models::config::{RopeOverrides, RopeScalingKind};

use super::super::within;
use crate::error::CliError;

/// Kinds of scaling of rotary positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RopeScalingName {
    None,
    Linear,
    Yarn,
}

#[derive(clap::Args)]
pub(crate) struct RopeArgs {
    /// Scaling of the rotary positions [default: that of the model]
    #[arg(long, value_name = "TYPE", value_enum)]
    rope_scaling: Option<RopeScalingName>,
    /// Factor by which the rotary positions extend the context
    #[arg(long, value_name = "X", value_parser = within(1e-3..=1e6))]
    rope_scale: Option<f64>,
    /// Factor of the rotary frequencies: 1 / --rope-scale
    #[arg(long, value_name = "X", value_parser = within(1e-6..=1e3), conflicts_with = "rope_scale")]
    rope_freq_scale: Option<f64>,
    /// Base of the rotary frequencies; 0 for that of the model
    #[arg(long, value_name = "X", value_parser = within(0.0..=1e12))]
    rope_freq_base: Option<f64>,
    /// YaRN: context length of the original training [default: that of the model]
    #[arg(long, value_name = "N")]
    yarn_orig_ctx: Option<usize>,
    /// YaRN: factor of the attention
    #[arg(long, value_name = "X", value_parser = within(1e-3..=1e3))]
    yarn_attn_factor: Option<f64>,
    /// YaRN: rotations from which on a frequency is unchanged [default: 32]
    #[arg(long, value_name = "X", value_parser = within(1e-3..=1e6))]
    yarn_beta_fast: Option<f64>,
    /// YaRN: rotations below which a frequency is scaled fully [default: 1]
    #[arg(long, value_name = "X", value_parser = within(1e-3..=1e6))]
    yarn_beta_slow: Option<f64>,
    /// YaRN: 1 or -1 for the method, 0 for linear scaling; other mixtures are not supported
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = within(-1.0..=1.0))]
    yarn_ext_factor: Option<f64>,
}

impl RopeArgs {
    /// The changes of the rotary positions.
    pub(crate) fn overrides(&self) -> Result<RopeOverrides, CliError> {
        let mut scaling = self.rope_scaling.map(|name| match name {
            RopeScalingName::None => RopeScalingKind::None,
            RopeScalingName::Linear => RopeScalingKind::Linear,
            RopeScalingName::Yarn => RopeScalingKind::Yarn,
        });
        match self.yarn_ext_factor {
            None | Some(1.0 | -1.0) => {}
            Some(0.0) if scaling != Some(RopeScalingKind::None) => {
                scaling = Some(RopeScalingKind::Linear);
            }
            Some(other) => {
                let text = format!("--yarn-ext-factor {other}: expected -1, 0 or 1");
                return Err(CliError::Usage(text));
            }
        }
        let factor = self
            .rope_scale
            .or(self.rope_freq_scale.map(|scale| 1.0 / scale));
        let number = |x: Option<f64>| x.map(|x| x as f32);
        Ok(RopeOverrides {
            theta: self.rope_freq_base.filter(|base| *base > 0.0),
            scaling,
            factor: number(factor),
            original: self.yarn_orig_ctx.filter(|context| *context > 0),
            attention: number(self.yarn_attn_factor),
            beta_fast: number(self.yarn_beta_fast),
            beta_slow: number(self.yarn_beta_slow),
        })
    }
}
