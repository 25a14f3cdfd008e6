//! OLMo 2 (2024): post-norm layers, and norms over all query heads and all key heads together.
//! OLMo 3 (2025) adds a window in three of four layers; only the others scale rotary frequencies.

use super::DecoderFamilyRow;
use super::llama::LLAMA;
use crate::config::decoder::json::{llama_biases, turn_windowed_layers, windows};
use crate::config::decoder::keys::GgufKeys;
use crate::config::decoder::{
    ConfigError, DecoderSpec, NormPlacement, QkNorm, RopeLayout, RopeSpec,
};
use tercet_files::gguf::GgufValue;

/// The families of this file.
pub(super) const ROWS: &[&DecoderFamilyRow] = &[&OLMO2, &OLMO3];

/// Every fourth layer of OLMo 3 has full attention.
const STEP: usize = 4;

pub(super) const OLMO2: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "olmo2",
    architecture: "olmo2",
    normalizes_experts: None,
    rope_in_gguf: RopeLayout::Halves,
    defaults: |spec| {
        spec.placement = NormPlacement::After;
        spec.attention.qk_norm = Some(QkNorm::AllHeads);
    },
    json: llama_biases,
    // GGUF files of OLMo 3 have the same architecture.
    keys: read_windows,
    ..LLAMA
};

pub(super) const OLMO3: DecoderFamilyRow = DecoderFamilyRow {
    model_type: "olmo3",
    defaults: |spec| {
        (OLMO2.defaults)(spec);
        spec.ropes[0].theta = 500_000.0;
    },
    json: |fields, spec| {
        let attention = fields.opt_bool("attention_bias")?.unwrap_or(false);
        (spec.biases.qkv, spec.biases.output) = (attention, attention);
        if let [whole] = &spec.ropes[..] {
            let local = RopeSpec::new(whole.theta);
            spec.ropes.push(local);
        }
        windows(fields, spec, |i| !(i + 1).is_multiple_of(STEP))
    },
    ..OLMO2
};

/// Reads the window width, and the layers that have it: a flag for each layer, or every layer but
/// each `STEP`th.
fn read_windows(keys: &GgufKeys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let name = "attention.sliding_window_pattern";
    let flags = match keys.gguf.metadata().get(&keys.key(name)) {
        Some(GgufValue::Array(all)) => Some(
            all.iter()
                .map(|v| matches!(v, GgufValue::Bool(true)))
                .collect(),
        ),
        Some(_) | None => None,
    };
    let local = keys.opt_f32("rope.freq_base_swa")?;
    let Some(window) = keys.opt_size("attention.sliding_window")? else {
        return Ok(());
    };
    let layers = spec.layers.len();
    let flags: Vec<bool> =
        flags.unwrap_or_else(|| (0..layers).map(|i| !(i + 1).is_multiple_of(STEP)).collect());
    if flags.len() != layers {
        let found = format!("{} flags", flags.len());
        return Err(keys.unsupported(
            name,
            &found,
            &format!("one flag for each of {layers} layers"),
        ));
    }
    spec.set_windows(window, |i| flags[i]);
    let local = local.map_or(spec.ropes[0].theta, f64::from);
    spec.ropes.push(RopeSpec::new(local));
    turn_windowed_layers(spec);
    Ok(())
}
