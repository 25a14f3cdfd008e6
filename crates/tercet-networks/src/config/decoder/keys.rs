//! GGUF metadata of a decoder. A key of its architecture that no reader reads is an error if
//! llama.cpp publishes it and its value is not neutral; otherwise it is ignored with a note.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::super::bounds::{TensorBounds, checked_layers};
use super::super::known_keys::{self, gguf_knows, note, refused_value};
use super::super::{ConfigError, ensure, near};
use super::families::{self, DecoderFamily, DecoderFamilyRow};
use super::{
    DecoderDims, DecoderPart, DecoderSpec, ExpertTensors, Experts, FeedForward, NormKind,
    RopeScaling, RopeSpec, SharedExpert, derived_head_dim, rope,
};
use tercet_files::clip;
use tercet_files::gguf::{Gguf, GgufError, GgufMetadata, GgufValue};
use tercet_files::weight::{ModelWeight, gguf_weight};

/// Access to the keys `<architecture>.*` of a file. The type records which keys were read.
pub(in crate::config) struct GgufKeys<'a> {
    pub(in crate::config) gguf: &'a Gguf,
    architecture: &'a str,
    used_keys: RefCell<BTreeSet<String>>,
}

impl<'a> GgufKeys<'a> {
    pub(in crate::config) fn new(gguf: &'a Gguf, architecture: &'a str) -> GgufKeys<'a> {
        GgufKeys {
            gguf,
            architecture,
            used_keys: RefCell::default(),
        }
    }

    /// The full key, which is marked as known.
    pub(in crate::config) fn key(&self, name: &str) -> String {
        let key = format!("{}.{name}", self.architecture);
        self.used_keys.borrow_mut().insert(key.clone());
        key
    }

    fn meta(&self) -> &'a GgufMetadata {
        self.gguf.metadata()
    }

    /// An optional size; 0, which llama.cpp writes for parts that a model lacks, counts as absent.
    pub(in crate::config) fn opt_size(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        let key = self.key(name);
        let Some(found @ 1..) = self.meta().opt_u32(&key)? else {
            return Ok(None);
        };
        if found > 1 << 31 {
            return Err(ConfigError::WrongType {
                field: key,
                expected: "an integer from 1 to 2^31",
                found: found.to_string(),
            });
        }
        Ok(Some(found as usize))
    }

    pub(in crate::config) fn size(&self, name: &str) -> Result<usize, ConfigError> {
        self.opt_size(name)?.ok_or_else(|| self.missing(name))
    }

    /// The error for a missing required key.
    pub(in crate::config) fn missing(&self, name: &str) -> ConfigError {
        ConfigError::from(GgufError::MissingKey {
            key: self.key(name),
        })
    }

    pub(in crate::config) fn opt_f32(&self, name: &str) -> Result<Option<f32>, ConfigError> {
        Ok(self.meta().opt_f32(&self.key(name))?)
    }

    pub(in crate::config) fn opt_bool(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        Ok(self.meta().opt_bool(&self.key(name))?)
    }

    /// Reads a number per layer. The file may have one for each layer or a single number for all.
    pub(super) fn by_layer(
        &self,
        name: &str,
        layers: usize,
    ) -> Result<Option<Vec<usize>>, ConfigError> {
        let key = self.key(name);
        let Some(GgufValue::Array(all)) = self.meta().get(&key) else {
            let one = self.meta().opt_u32(&key)?;
            return Ok(one.map(|one| vec![one as usize; layers]));
        };
        let found: Option<Vec<usize>> = all
            .iter()
            .map(|one| usize::try_from(one.as_integer()?).ok())
            .collect();
        match found.filter(|found| found.len() == layers) {
            Some(found) => Ok(Some(found)),
            None => Err(ConfigError::WrongType {
                field: key,
                expected: "a size, or one for each layer",
                found: format!("{} values", all.len()),
            }),
        }
    }

    /// The number of multi-token prediction blocks, which follow the model's own blocks in the
    /// file.
    pub(super) fn mtp_layers(&self, family: &DecoderFamilyRow) -> Result<usize, ConfigError> {
        if family.beside.is_empty() {
            return Ok(0);
        }
        let found = self.meta().opt_u32(&self.key("nextn_predict_layers"))?;
        Ok(found.unwrap_or(0) as usize)
    }

    /// An optional positive factor; 0, which some converters write, counts as absent.
    pub(super) fn opt_factor(&self, name: &str) -> Result<Option<f32>, ConfigError> {
        Ok(self.opt_f32(name)?.filter(|factor| *factor != 0.0))
    }

    /// The elements of a small F32 tensor.
    pub(super) fn floats(&self, name: &str) -> Result<Option<Vec<f32>>, ConfigError> {
        if !self.gguf.has_tensor(name) {
            return Ok(None);
        }
        match gguf_weight(self.gguf, self.gguf.tensor(name)?) {
            Ok(ModelWeight::Dense(t)) => Ok(Some(t.to_f64s().iter().map(|x| *x as f32).collect())),
            Ok(ModelWeight::Packed { .. }) | Err(_) => Err(ConfigError::Inconsistent {
                reason: format!("`{name}` is not a list of floats"),
            }),
        }
    }

    /// A required factor; 0, which some converters write, counts as absent.
    pub(super) fn factor(&self, name: &str) -> Result<Option<f32>, ConfigError> {
        let found = self.opt_f32(name)?.ok_or_else(|| GgufError::MissingKey {
            key: self.key(name),
        })?;
        Ok(Some(found).filter(|factor| *factor != 0.0))
    }

    pub(in crate::config) fn unsupported(
        &self,
        name: &str,
        found: &str,
        supported: &str,
    ) -> ConfigError {
        ConfigError::Unsupported {
            field: self.key(name),
            found: clip(found),
            supported: supported.to_string(),
        }
    }

    /// Applies the rule for keys of the architecture that were not read.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`] for a key that llama.cpp knows and whose value is not neutral.
    pub(in crate::config) fn finish(&self) -> Result<(), ConfigError> {
        let seen = self.used_keys.borrow();
        let prefix = format!("{}.", self.architecture);
        for (key, value) in self.meta().iter() {
            let Some(name) = key.strip_prefix(&prefix) else {
                continue;
            };
            if seen.contains(key) || HARMLESS.contains(&name) {
                continue;
            }
            if gguf_knows(name) && !known_keys::is_neutral(name, value) {
                return Err(refused_value(key, &value.to_string()));
            }
            note(clip(key));
        }
        Ok(())
    }

    /// Marks the keys of rotary embeddings as known, for models without one.
    fn ignore_ropes(&self) {
        let prefix = format!("{}.rope.", self.architecture);
        let mut used = self.used_keys.borrow_mut();
        let keys = self.meta().iter().map(|(key, _)| key);
        used.extend(
            keys.filter(|key| key.starts_with(&prefix))
                .map(str::to_string),
        );
    }
}

/// Keys that describe the file or its training.
const HARMLESS: &[&str] = &["rope.scaling.finetuned", "tensor_data_layout"];

/// Reads the keys common to all families, then those of the model's family.
pub(super) fn read(gguf: &Gguf) -> Result<DecoderSpec, ConfigError> {
    let meta = gguf.metadata();
    let architecture = meta.get_str("general.architecture")?;
    let family = DecoderFamily::from_gguf_architecture(architecture).ok_or_else(|| {
        ConfigError::Unsupported {
            field: "general.architecture".to_string(),
            found: clip(architecture),
            supported: near(architecture, families::gguf_names()),
        }
    })?;
    let keys = GgufKeys::new(gguf, architecture);
    let mut spec = common(&keys, family)?;
    experts(&keys, &mut spec)?;
    (family.get().keys)(&keys, &mut spec)?;
    if spec.ropes.is_empty() {
        keys.ignore_ropes();
    }
    keys.finish()?;
    Ok(spec)
}

/// Reads the mixture-of-experts keys. A count of 0 means a dense model.
fn experts(keys: &GgufKeys<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let number = |name: &str| {
        let found = keys.meta().opt_u32(&keys.key(name))?;
        Ok::<_, ConfigError>(
            found
                .filter(|found| *found != 0)
                .map(|found| found as usize),
        )
    };
    let count = number("expert_count")?;
    let ffn = number("expert_feed_forward_length")?;
    let shared = number("expert_shared_feed_forward_length")?;
    let Some(count) = count else {
        return Ok(());
    };
    let Some(normalized) = spec.family.get().normalizes_experts else {
        return Err(keys.unsupported("expert_count", &count.to_string(), "a dense model"));
    };
    let used = keys.size("expert_used_count")?;
    // The first layers may be dense.
    let has = |part: DecoderPart, layer: usize, suffix: &str| {
        let name = part.gguf(spec, layer);
        keys.gguf.has_tensor(&format!("{name}.{suffix}"))
    };
    let layers = 0..spec.layers.len();
    let some =
        |part: DecoderPart, suffix: &str| layers.clone().any(|layer| has(part, layer, suffix));
    let scored = some(DecoderPart::SharedScore, "weight");
    // llama.cpp's tools write the width of a shared expert for models without one, too.
    let shared = shared.filter(|_| some(DecoderPart::SharedDown, "weight"));
    let experts = Experts {
        shared: shared.map(|ffn| SharedExpert {
            scored,
            ..SharedExpert::new(ffn)
        }),
        stored: match some(DecoderPart::ExpertGateUp, "weight") {
            true => ExpertTensors::GateThenUp,
            false => ExpertTensors::Separate,
        },
        bias: some(DecoderPart::Router, "bias"),
        ..Experts::new([count, used, ffn.unwrap_or(spec.ffn)], normalized)
    };
    let sparse: Vec<bool> = layers
        .map(|layer| has(DecoderPart::Router, layer, "weight"))
        .collect();
    spec.set_experts(experts, |layer| sparse[layer]);
    Ok(())
}

fn reject_variants(keys: &GgufKeys<'_>, family: &DecoderFamilyRow) -> Result<(), ConfigError> {
    // The reader of an embedding model's pooling modules applies `pooling_type`.
    keys.key("pooling_type");
    if keys.opt_bool("attention.causal")? == Some(false) && !family.bidirectional_in_gguf {
        return Err(keys.unsupported("attention.causal", "false", "true"));
    }
    Ok(())
}

/// The number of decoder layers, without multi-token prediction blocks.
fn layers(keys: &GgufKeys<'_>, family: &DecoderFamilyRow) -> Result<usize, ConfigError> {
    let (all, beside) = (keys.size("block_count")?, keys.mtp_layers(family)?);
    TensorBounds::from_gguf(keys.gguf).parts("layers", checked_layers("block_count", all)?)?;
    ensure(all > beside, || {
        format!(
            "{beside} of {all} blocks are for multi-token prediction, so none remains for \
             the decoder"
        )
    })?;
    Ok(all - beside)
}

fn common(keys: &GgufKeys<'_>, id: DecoderFamily) -> Result<DecoderSpec, ConfigError> {
    let (gguf, meta, family) = (keys.gguf, keys.meta(), id.get());
    reject_variants(keys, family)?;
    let hidden = keys.size("embedding_length")?;
    // Files of models without attention or feed-forward networks store 0 for these sizes.
    let unless_none = |names: &[&str], key: &str| match names.is_empty() {
        true => {
            keys.key(key);
            Ok(1)
        }
        false => keys.size(key),
    };
    let heads = unless_none(family.sizes.heads, "attention.head_count")?;
    let layers = layers(keys, family)?;
    let most = |name: &str| {
        let all = keys.by_layer(name, layers)?;
        Ok::<_, ConfigError>(all.into_iter().flatten().max())
    };
    let kv_heads = match (family.sizes.heads.is_empty(), family.varies_in_gguf) {
        (true, _) => Some(unless_none(&[], "attention.head_count_kv")?),
        (false, true) => most("attention.head_count_kv")?,
        (false, false) => keys.opt_size("attention.head_count_kv")?,
    };
    let ffn = match family.varies_in_gguf {
        true => most("feed_forward_length")?.unwrap_or(1).max(1),
        false => unless_none(family.sizes.ffn, "feed_forward_length")?,
    };
    let head_dim = derived_head_dim(keys.opt_size("attention.key_length")?, hidden, heads)?;
    if let Some(found) = keys.opt_size("attention.value_length")?
        && found != head_dim
        && !family.has_value_length
    {
        let supported = format!("{head_dim} (the key length)");
        return Err(keys.unsupported("attention.value_length", &found.to_string(), &supported));
    }
    let mut spec = DecoderSpec::llama(DecoderDims {
        hidden,
        layers,
        heads,
        kv_heads: kv_heads.unwrap_or(heads),
        head_dim,
        ffn,
        vocab: vocab(keys)?,
        context: keys.size("context_length")?,
    });
    spec.family = id;
    (family.defaults)(&mut spec);
    // GGUF stores norm gains with the 1 already added.
    spec.norm.one_plus = false;
    let eps = match spec.norm.kind {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    spec.norm.eps = meta.get_f32(&keys.key(eps))?;
    // Some tools write the epsilons of both kinds of norms.
    for other in [
        "attention.layer_norm_rms_epsilon",
        "attention.layer_norm_epsilon",
    ] {
        keys.key(other);
    }
    spec.rope_layout = family.rope_in_gguf;
    if let [rope, ..] = &mut spec.ropes[..] {
        spec.rope_dims = keys.opt_size("rope.dimension_count")?.unwrap_or(head_dim);
        let theta = keys.opt_f32("rope.freq_base")?.unwrap_or(10_000.0);
        *rope = RopeSpec {
            theta: theta.into(),
            scaling: scaling(keys, spec.context)?,
        };
    }
    read_tensor_flags(gguf, &mut spec);
    spec.bos = meta.opt_token("tokenizer.ggml.bos_token_id")?;
    spec.eos = gguf_eos(meta)?;
    Ok(spec)
}

/// Sets the specification's fields that depend on which tensors exist.
fn read_tensor_flags(gguf: &Gguf, spec: &mut DecoderSpec) {
    let names = spec.clone();
    // Layers may differ, so a tensor of any layer counts.
    let has = |part: DecoderPart, suffix: &str| {
        let mut layers = 0..names.layers.len();
        layers.any(|layer| gguf.has_tensor(&format!("{}.{suffix}", part.gguf(&names, layer))))
    };
    spec.tied_embeddings = !has(DecoderPart::Output, "weight");
    spec.storage.fused_qkv = has(DecoderPart::Qkv, "weight");
    spec.storage.fused_gate_up = matches!(spec.feed_forward, FeedForward::Gated(_))
        && has(DecoderPart::Up, "weight")
        && !has(DecoderPart::Gate, "weight");
    spec.biases.qkv = has(DecoderPart::Query, "bias") || has(DecoderPart::Qkv, "bias");
    spec.biases.output = has(DecoderPart::AttentionOutput, "bias");
    spec.biases.mlp = has(DecoderPart::Down, "bias");
    spec.biases.head = has(DecoderPart::Output, "bias");
    spec.norm.bias = has(DecoderPart::FinalNorm, "bias");
}

/// Reads the scaling of rotary frequencies.
pub(in crate::config) fn scaling(
    keys: &GgufKeys<'_>,
    context: usize,
) -> Result<RopeScaling, ConfigError> {
    let kind = "rope.scaling.type";
    let named = keys.meta().opt_str(&keys.key(kind))?;
    // The older key of linear scaling.
    let older = keys.opt_factor("rope.scale_linear")?;
    let factor = keys.opt_factor("rope.scaling.factor")?.or(older);
    let original = keys.opt_size("rope.scaling.original_context_length")?;
    let original = original.unwrap_or(context);
    let attention = keys.opt_factor("rope.scaling.attn_factor")?;
    let unscaled = |scaling: RopeScaling| match attention {
        None | Some(1.0) => Ok(scaling),
        Some(found) => Err(keys.unsupported(
            "rope.scaling.attn_factor",
            &found.to_string(),
            "1 unless frequencies are scaled by yarn or longrope",
        )),
    };
    let lists = [
        keys.floats("rope_factors_short.weight")?,
        keys.floats("rope_factors_long.weight")?,
    ];
    if let Some(divisors) = keys.floats("rope_freqs.weight")? {
        // The divisors already include all scaling.
        ensure(matches!(named, None | Some("none")), || {
            format!(
                "rope_freqs.weight excludes a rotary scaling of type {}",
                named.unwrap_or_default()
            )
        })?;
        let plain = named == Some("none") || matches!(factor, None | Some(1.0));
        ensure(plain, || {
            "rope_freqs.weight excludes a rotary scaling factor".to_string()
        })?;
        return unscaled(RopeScaling::Divisors(divisors));
    }
    match (named, lists) {
        (None | Some("none" | "longrope"), [Some(short), Some(long)]) => {
            Ok(RopeScaling::LongRope {
                short,
                long,
                original,
                attention: attention.unwrap_or(1.0),
            })
        }
        (None | Some("linear"), [None, None]) => unscaled(match factor {
            None | Some(1.0) => RopeScaling::None,
            Some(factor) => RopeScaling::Linear { factor },
        }),
        (Some("none"), [None, None]) => unscaled(RopeScaling::None),
        (Some("yarn"), [None, None]) => {
            let factor = factor.unwrap_or(1.0);
            let number =
                |name, default| Ok::<_, ConfigError>(keys.opt_f32(name)?.unwrap_or(default));
            Ok(RopeScaling::Yarn {
                factor,
                beta_fast: number("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: number("rope.scaling.yarn_beta_slow", 1.0)?,
                original,
                attention: yarn_factor(keys, factor, attention.unwrap_or(1.0))?,
                truncate: true,
            })
        }
        (found, _) => Err(keys.unsupported(
            kind,
            found.unwrap_or("(none, with lists of factors)"),
            "none, linear, yarn, or longrope with both lists of factors",
        )),
    }
}

/// YaRN's factor of cosines and sines. llama.cpp derives it from the frequency factor; a file may
/// repeat the derived value or have 1, but other values have no agreed meaning.
fn yarn_factor(keys: &GgufKeys<'_>, factor: f32, attention: f32) -> Result<f32, ConfigError> {
    let derived = rope::yarn_attention(factor, 1.0);
    let name = "rope.scaling.yarn_attn_factor";
    match keys.opt_factor(name)? {
        Some(stated) if stated != 1.0 && (stated - derived).abs() > 1e-4 * derived => {
            let supported = format!("1 or {derived}, which follows from rope.scaling.factor");
            Err(keys.unsupported(name, &stated.to_string(), &supported))
        }
        Some(_) | None => Ok(attention * derived),
    }
}

pub(in crate::config) fn vocab(keys: &GgufKeys<'_>) -> Result<usize, ConfigError> {
    let embedding = keys.gguf.tensor("token_embd.weight")?;
    let shape = embedding.shape();
    let &[rows, _] = shape.as_slice() else {
        return Err(ConfigError::Inconsistent {
            reason: format!("token_embd.weight has shape {shape:?}, not [vocabulary, width]"),
        });
    };
    if let Some(stated) = keys.opt_size("vocab_size")? {
        ensure(stated == rows, || {
            format!(
                "{} is {stated}, but token_embd.weight has {rows} rows",
                keys.key("vocab_size")
            )
        })?;
    }
    Ok(rows)
}

/// The end-of-text token, and the end-of-turn token if a chat model has a separate one.
pub(crate) fn gguf_eos(meta: &GgufMetadata) -> Result<Vec<u32>, GgufError> {
    let mut eos = Vec::new();
    for key in [
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",
    ] {
        if let Some(id) = meta.opt_token(key)?
            && !eos.contains(&id)
        {
            eos.push(id);
        }
    }
    Ok(eos)
}
