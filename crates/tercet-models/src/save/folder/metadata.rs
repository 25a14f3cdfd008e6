//! Conversion of a specification to GGUF metadata keys.

use super::{SaveError, has_windows, unsupported};
use tercet_files::gguf::GgufValue;
use tercet_files::writing::GgufHeader;
use tercet_networks::config::decoder::{NormKind, ResidualOrder};
use tercet_networks::config::{DecoderSpec, RopeScaling, RopeSpec};
use tercet_networks::hf::HfFolder;

/// Converts a frequency scaling that GGUF files store as a table of divisors.
pub(super) fn as_divisors(rope: &mut RopeSpec, dims: usize) {
    if let RopeScaling::Llama3 { .. } = rope.scaling {
        let (plain, _) = RopeSpec::new(rope.theta).frequencies(dims, 1);
        let (scaled, _) = rope.frequencies(dims, 1);
        let divisors = plain
            .iter()
            .zip(&scaled)
            .map(|(plain, scaled)| plain / scaled);
        rope.scaling = RopeScaling::Divisors(divisors.collect());
    }
}

/// The metadata of a model, without its vocabulary.
pub(super) fn header(folder: &HfFolder, spec: &DecoderSpec) -> Result<GgufHeader, SaveError> {
    let mut keys = GgufKeyWriter {
        header: GgufHeader::new(),
        architecture: spec.family.gguf_architecture(),
    };
    keys.header
        .push("general.architecture", GgufValue::String(keys.architecture));
    if let Some(name) = folder.dir().file_name().and_then(|name| name.to_str()) {
        keys.header.push("general.name", GgufValue::String(name));
    }
    keys.size("context_length", spec.context)?;
    keys.size("embedding_length", spec.hidden)?;
    keys.size("block_count", spec.layers.len())?;
    keys.size("feed_forward_length", spec.ffn)?;
    keys.size("attention.head_count", spec.heads)?;
    keys.size("attention.head_count_kv", spec.kv_heads)?;
    keys.size("attention.key_length", spec.head_dim)?;
    keys.size("attention.value_length", spec.head_dim)?;
    keys.size("vocab_size", spec.vocab)?;
    let eps = match spec.norm.kind {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    keys.float(eps, spec.norm.eps);
    ropes(&mut keys, spec)?;
    experts(&mut keys, spec)?;
    write_family_keys(&mut keys, spec)?;
    Ok(keys.header)
}

struct GgufKeyWriter {
    header: GgufHeader,
    architecture: &'static str,
}

impl GgufKeyWriter {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn size(&mut self, name: &str, value: usize) -> Result<(), SaveError> {
        let key = self.key(name);
        let value = u32::try_from(value);
        let value = value.map_err(|_| unsupported(format!("`{key}` is beyond 32 bits")))?;
        self.header.push(&key, GgufValue::U32(value));
        Ok(())
    }

    fn float(&mut self, name: &str, value: f32) {
        let key = self.key(name);
        self.header.push(&key, GgufValue::F32(value));
    }

    fn text(&mut self, name: &str, value: &str) {
        let key = self.key(name);
        self.header.push(&key, GgufValue::String(value));
    }
}

/// Writes the keys of rotary embeddings; tables of divisors are tensors.
fn ropes(keys: &mut GgufKeyWriter, spec: &DecoderSpec) -> Result<(), SaveError> {
    let [first, others @ ..] = spec.ropes.as_slice() else {
        return Ok(());
    };
    keys.size("rope.dimension_count", spec.rope_dims)?;
    keys.float("rope.freq_base", first.theta as f32);
    if let [local, ..] = others {
        keys.float("rope.freq_base_swa", local.theta as f32);
    }
    match &first.scaling {
        RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Divisors(_) => Ok(()),
        RopeScaling::Linear { factor } => {
            keys.text("rope.scaling.type", "linear");
            keys.float("rope.scaling.factor", *factor);
            Ok(())
        }
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original,
            ..
        } => {
            keys.text("rope.scaling.type", "yarn");
            keys.float("rope.scaling.factor", *factor);
            keys.float("rope.scaling.yarn_beta_fast", *beta_fast);
            keys.float("rope.scaling.yarn_beta_slow", *beta_slow);
            keys.size("rope.scaling.original_context_length", *original)
        }
        RopeScaling::LongRope {
            original,
            attention,
            ..
        } => {
            keys.float("rope.scaling.attn_factor", *attention);
            keys.size("rope.scaling.original_context_length", *original)
        }
    }
}

fn experts(keys: &mut GgufKeyWriter, spec: &DecoderSpec) -> Result<(), SaveError> {
    let Some(experts) = spec.experts else {
        return Ok(());
    };
    keys.size("expert_count", experts.count)?;
    keys.size("expert_used_count", experts.used)?;
    if experts.ffn != spec.ffn || keys.architecture != "llama" {
        keys.size("expert_feed_forward_length", experts.ffn)?;
    }
    match experts.shared {
        Some(shared) => keys.size("expert_shared_feed_forward_length", shared.ffn),
        None => Ok(()),
    }
}

/// Writes windows, soft caps and factors, if files of the family have them.
fn write_family_keys(keys: &mut GgufKeyWriter, spec: &DecoderSpec) -> Result<(), SaveError> {
    let window = spec.layers.iter().find_map(|layer| layer.window);
    if let Some(window) = window.filter(|_| has_windows(keys.architecture)) {
        keys.size("attention.sliding_window", window)?;
    }
    let caps = [
        ("attn_logit_softcapping", spec.attention.softcap),
        ("final_logit_softcapping", spec.scales.logit_softcap),
    ];
    for (name, cap) in caps {
        // The keys are mandatory for Gemma 2; 0 means none.
        let silent = (keys.architecture == "gemma2").then_some(0.0);
        if let Some(cap) = cap.or(silent) {
            keys.float(name, cap as f32);
        }
    }
    match keys.architecture {
        "granite" => {
            keys.float("embedding_scale", spec.scales.embedding);
            keys.float("residual_scale", spec.scales.residual);
            keys.float(
                "attention.scale",
                spec.attention.scale.unwrap_or(0.0) as f32,
            );
            keys.float("logit_scale", 1.0 / spec.scales.logits);
        }
        "command-r" | "cohere2" => keys.float("logit_scale", spec.scales.logits),
        "stablelm" | "gptneox" => {
            let is_parallel = spec.residual != ResidualOrder::Serial;
            let key = keys.key("use_parallel_residual");
            keys.header.push(&key, GgufValue::Bool(is_parallel));
        }
        _ => {}
    }
    Ok(())
}
