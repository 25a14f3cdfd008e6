//! Command R: parallel layers with one bias-free layer norm, interleaved rotary pairs, and scaled
//! logits. Command R7B: three of every four layers have a window; the fourth has no rotary
//! embedding.

use super::DecoderFamilyRow;
use super::llama::LLAMA;
use crate::config::decoder::json::{llama_biases, windows};
use crate::config::decoder::{
    ConfigError, ConfigFields, DecoderSpec, NormKind, ResidualOrder, RopeLayout,
};

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&COHERE, &COHERE2];

/// Every fourth layer of Command R7B has full attention.
const STEP: usize = 4;

pub(super) const COHERE: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "cohere",
    architecture: "command-r",
    normalizes_experts: None,
    rope_in_folders: RopeLayout::Pairs,
    eps: "layer_norm_eps",
    defaults,
    json: own,
    keys: |keys, spec| {
        spec.scales.logits = keys.factor("logit_scale")?.unwrap_or(1.0);
        Ok(())
    },
    ..LLAMA
};

pub(super) const COHERE2: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "cohere2",
    architecture: "cohere2",
    json: |fields, spec| {
        own(fields, spec)?;
        let own = fields.opt_size("sliding_window_pattern")?;
        // transformers writes this field next to `layer_types`.
        let step = own
            .or(fields.opt_size("_sliding_window_pattern")?)
            .unwrap_or(STEP);
        windows(fields, spec, |i| !(i + 1).is_multiple_of(step))?;
        rotate_windowed_layers(spec);
        Ok(())
    },
    keys: |keys, spec| {
        spec.scales.logits = keys.factor("logit_scale")?.unwrap_or(1.0);
        let window = keys.size("attention.sliding_window")?;
        spec.set_windows(window, |i| !(i + 1).is_multiple_of(STEP));
        rotate_windowed_layers(spec);
        Ok(())
    },
    ..COHERE
};

fn defaults(spec: &mut DecoderSpec) {
    spec.norm.kind = NormKind::Layer;
    spec.residual = ResidualOrder::Parallel;
    spec.tied_embeddings = true;
}

fn own(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    fields.only("use_qk_norm", "false", |v| v.as_bool() == Some(false))?;
    llama_biases(fields, spec)?;
    spec.scales.logits = fields.opt_positive("logit_scale")?.unwrap_or(0.0625) as f32;
    Ok(())
}

fn rotate_windowed_layers(spec: &mut DecoderSpec) {
    for layer in &mut spec.layers {
        layer.rope = layer.window.map(|_| 0);
    }
}
