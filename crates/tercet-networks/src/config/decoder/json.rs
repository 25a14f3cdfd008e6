//! `config.json` of a decoder. Every field is applied, known to be harmless, or an error.

use serde_json::{Map, Value};

use super::super::bounds::checked_layers;
use super::super::fields::HARMLESS;
use super::super::known_keys::note;
use super::super::{ConfigError, ConfigFields, activation, ensure, near};
use super::families::{self, DecoderFamily};
use super::rope::{longrope_attention, yarn_attention};
use super::{
    AttentionDirection, AttentionTemperature, DecoderDims, DecoderSpec, FeedForward, QkvRows,
    RopeScaling, RopeSpec, derived_head_dim,
};
use tercet_files::clip;
use tercet_files::folder_weights::check_quantization;

/// Reads the fields common to all families, then those of the model's family.
pub(super) fn read(fields: ConfigFields<'_>) -> Result<DecoderSpec, ConfigError> {
    let model_type = fields.required("model_type", fields.opt_str("model_type")?)?;
    let family = families::for_model_type(model_type);
    fields.only(
        "model_type",
        &near(model_type, families::model_types()),
        |_| family.is_some(),
    )?;
    // An unsupported `model_type` is already an error above.
    let family = family.unwrap_or(DecoderFamily::LLAMA);
    let fields = fields.of_class(family.get().config_class.unwrap_or(model_type));
    let fields = &fields.with_class_defaults();
    let mut spec = common(fields, family)?;
    direction(fields, &mut spec)?;
    (family.get().json)(fields, &mut spec)?;
    // The readers of some families set the layers with scans.
    direction(fields, &mut spec)?;
    fields.finish(&[HARMLESS])?;
    Ok(spec)
}

fn common(fields: &ConfigFields<'_>, id: DecoderFamily) -> Result<DecoderSpec, ConfigError> {
    let family = id.get();
    let own = |v: &Value| {
        let method = v.get("quant_method").and_then(Value::as_str);
        family.quantized.is_some() && method == family.quantized
    };
    let packing = fields.get("quantization_config").filter(|v| !own(v));
    if let Some(Value::Object(config)) = packing {
        check_quantization(config).map_err(|error| ConfigError::Unsupported {
            field: "quantization_config".to_string(),
            found: error.found,
            supported: error.supported.to_string(),
        })?;
    }
    fields.only("is_encoder_decoder", "false", |v| {
        v.as_bool() == Some(false)
    })?;
    fields.only("is_decoder", "true or false", Value::is_boolean)?;

    let sizes = &family.sizes;
    let [hidden, layers, heads] =
        [sizes.hidden, sizes.layers, sizes.heads].map(|names| first_size(fields, names));
    // A family without a field name for a size has a size of 1.
    let needed = |found: Result<Option<usize>, ConfigError>, names: &[&'static str]| {
        let found = found?;
        match names.first() {
            Some(name) => fields.required(name, found),
            None => Ok(found.unwrap_or(1)),
        }
    };
    let layers = layers.map(|found| found.or_else(|| listed_layers(fields)));
    let (layers, heads) = (
        or_default(fields, sizes.layers, layers),
        or_default(fields, sizes.heads, heads),
    );
    let (hidden, heads) = (needed(hidden, sizes.hidden)?, needed(heads, sizes.heads)?);
    let ffn = match (first_size(fields, sizes.ffn)?, sizes.ffn_is_derived) {
        (None, true) => Some(4 * hidden),
        (found, _) => found,
    };
    let context = match first_size(fields, sizes.context)?.or(sizes.typical_context) {
        Some(context) => Some(context),
        // As in the reference implementation, the class has a context length for files without one.
        None => match sizes.context.first() {
            Some(name) => fields.opt_size(name)?,
            None => None,
        },
    };
    let head_dim = derived_head_dim(fields.opt_size("head_dim")?, hidden, heads)?;
    let mut spec = DecoderSpec::llama(DecoderDims {
        hidden,
        layers: checked_layers(
            sizes.layers.first().copied().unwrap_or("layers"),
            needed(layers, sizes.layers)?,
        )?,
        heads,
        kv_heads: fields.opt_size("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        ffn: needed(Ok(ffn), sizes.ffn)?,
        vocab: fields.size("vocab_size")?,
        context: needed(Ok(context), sizes.context)?,
    });
    spec.family = id;
    (family.defaults)(&mut spec);
    spec.rope_layout = family.rope_in_folders;
    if family.qkv_by_group_in_folders {
        spec.storage.qkv_rows = QkvRows::ByGroup;
    }
    spec.norm.eps = fields.positive_or_default(family.eps)? as f32;
    let named = family.activations.iter().find(|f| fields.get(f).is_some());
    if let Some(named) = named {
        set_activation(fields, named, &mut spec)?;
    }
    ropes(fields, &mut spec)?;
    if let Some(tied) = fields.opt_bool("tie_word_embeddings")? {
        spec.tied_embeddings = tied;
    }
    spec.bos = fields.opt_token("bos_token_id")?;
    spec.eos = fields.tokens("eos_token_id")?;
    Ok(spec)
}

/// The number of layers by the list of layer types, for families without a field for the number.
fn listed_layers(fields: &ConfigFields<'_>) -> Option<usize> {
    let pattern = fields
        .get("hybrid_override_pattern")
        .and_then(Value::as_str);
    let list = fields.get("layers_block_type").and_then(Value::as_array);
    let count = pattern.map(|p| p.chars().count()).or(list.map(Vec::len));
    count.filter(|count| *count > 0)
}

/// The value of the first field in `names` that is present.
fn first_size(
    fields: &ConfigFields<'_>,
    names: &[&'static str],
) -> Result<Option<usize>, ConfigError> {
    for &name in names {
        if let Some(size) = fields.stated_size(name)? {
            return Ok(Some(size));
        }
    }
    Ok(None)
}

/// A size of the file, else the default of the class.
fn or_default(
    fields: &ConfigFields<'_>,
    names: &[&'static str],
    found: Result<Option<usize>, ConfigError>,
) -> Result<Option<usize>, ConfigError> {
    if let Some(size) = found? {
        return Ok(Some(size));
    }
    for &name in names {
        if let Some(size) = fields.opt_size(name)? {
            return Ok(Some(size));
        }
    }
    Ok(None)
}

/// Reads `is_causal`: without it, each token attends to all tokens, in any family.
fn direction(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    if fields.flag_set_unless_off("is_causal")? {
        return Ok(());
    }
    // Scans read a text in one direction only.
    fields.only(
        "is_causal",
        "true in a model with state-space layers",
        |_| !spec.has_states(),
    )?;
    spec.attention.direction = AttentionDirection::Bidirectional;
    Ok(())
}

fn set_activation(
    fields: &ConfigFields<'_>,
    name: &'static str,
    spec: &mut DecoderSpec,
) -> Result<(), ConfigError> {
    let found = activation::read(fields, name)?;
    if let Some(found) = found {
        spec.feed_forward = match spec.feed_forward {
            FeedForward::Gated(_) => FeedForward::Gated(found),
            FeedForward::Plain(_) => FeedForward::Plain(found),
        };
    }
    Ok(())
}

/// Reads the bias flags of llama's `config.json`.
pub(super) fn llama_biases(
    fields: &ConfigFields<'_>,
    spec: &mut DecoderSpec,
) -> Result<(), ConfigError> {
    let attention = fields.opt_bool("attention_bias")?.unwrap_or(false);
    (spec.biases.qkv, spec.biases.output) = (attention, attention);
    spec.biases.mlp = fields.opt_bool("mlp_bias")?.unwrap_or(false);
    Ok(())
}

/// Sets the layers' attention windows: from `layer_types` if present, else by `windowed(layer)`.
pub(super) fn windows(
    fields: &ConfigFields<'_>,
    spec: &mut DecoderSpec,
    windowed: impl Fn(usize) -> bool,
) -> Result<(), ConfigError> {
    // Families whose class has no `layer_types` ignore it.
    let lists_types = fields.class_default("layer_types").is_some();
    let types = match lists_types {
        true => layer_types(fields, spec.layers.len())?,
        false => None,
    };
    let types = types.unwrap_or_else(|| (0..spec.layers.len()).map(windowed).collect());
    if !types.contains(&true) {
        // As in the reference implementation, layers without a window do not read the field.
        fields.only("sliding_window", "a number", Value::is_number)?;
    } else {
        // A window of 0 on both sides is the token itself; a causal one leaves no key.
        let least = u64::from(!spec.is_bidirectional());
        match fields.opt_window("sliding_window", least)? {
            Some(window) => spec.set_windows(window, |i| types[i]),
            // A family that lists layer types gives `null` no other meaning.
            None => ensure(!lists_types, || {
                "layers have sliding attention, but there is no sliding_window: give its size, or \
                 \"full_attention\" for each layer in layer_types"
                    .to_string()
            })?,
        }
    }
    turn_windowed_layers(spec);
    Ok(())
}

/// For each layer, whether `layer_types` gives it a window.
fn layer_types(fields: &ConfigFields<'_>, layers: usize) -> Result<Option<Vec<bool>>, ConfigError> {
    let mut types: Option<Vec<bool>> = None;
    let supported =
        format!("\"full_attention\" or \"sliding_attention\" for each of {layers} layers");
    fields.only("layer_types", &supported, |v| {
        let of = |v: &Value| match v.as_str() {
            Some("full_attention") => Some(false),
            Some("sliding_attention") => Some(true),
            Some(_) | None => None,
        };
        types = v.as_array().and_then(|a| a.iter().map(of).collect());
        types.as_ref().is_some_and(|t| t.len() == layers)
    })?;
    Ok(types)
}

/// If the model has two rotary embeddings, layers with a window use the second.
pub(super) fn turn_windowed_layers(spec: &mut DecoderSpec) {
    if spec.ropes.len() == 2 {
        for layer in &mut spec.layers {
            layer.rope = Some(usize::from(layer.window.is_some()));
        }
    }
}

/// One `rope_scaling` or `rope_parameters` object.
pub(in crate::config) struct RopeScalingConfig {
    pub(in crate::config) theta: Option<f64>,
    partial: Option<f64>,
    pub(in crate::config) scaling: RopeScaling,
}

/// Reads the rotary embeddings. Older files have `rope_theta` and `rope_scaling`. Newer files have
/// `rope_parameters` with both, or two of these objects: for layers without and with windows. As in
/// the reference implementation, `rope_scaling` takes precedence.
fn ropes(fields: &ConfigFields<'_>, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    if spec.ropes.is_empty() {
        return Ok(());
    }
    let outer = fields.opt_positive("rope_theta")?;
    let usual = fields.rotary_defaults();
    let theta = usual.and_then(|usual| usual.get("rope_theta")?.as_f64());
    spec.ropes[0].theta = theta.unwrap_or(spec.ropes[0].theta);
    // The reference implementation reads this field for families that define it, and then prefers
    // it to the one inside `rope_scaling`.
    let original = match fields.class_default("original_max_position_embeddings") {
        Some(default) => {
            let stated = fields.opt_size("original_max_position_embeddings")?;
            let default = default.as_u64().and_then(|size| usize::try_from(size).ok());
            stated.or(default)
        }
        None => None,
    };
    let mut partial = fields.opt_positive("partial_rotary_factor")?;
    let mut partial_name = "partial_rotary_factor";
    let mut ropes = Vec::new();
    for [name, prefix, inner_partial] in [
        [
            "rope_parameters",
            "rope_parameters.",
            "rope_parameters.partial_rotary_factor",
        ],
        [
            "rope_scaling",
            "rope_scaling.",
            "rope_scaling.partial_rotary_factor",
        ],
    ] {
        let Some(object) = fields.opt_object(name)?.filter(|object| !object.is_empty()) else {
            continue;
        };
        let kinds = ["full_attention", "sliding_attention"];
        let objects: Vec<&Map<String, Value>> = match kinds.map(|k| object.get(k)) {
            [Some(Value::Object(full)), Some(Value::Object(sliding))] => {
                // Layers read the object of their type only.
                let others = object.keys().filter(|key| !kinds.contains(&key.as_str()));
                others.for_each(|key| note(format!("{prefix}{}", clip(key))));
                vec![full, sliding]
            }
            _ => vec![object],
        };
        ropes.clear();
        for (i, object) in objects.into_iter().enumerate() {
            let renamed = renamed_type(spec.family, object);
            let inner = ConfigFields::new(renamed.as_ref().unwrap_or(object), prefix);
            if spec.family.get().has_sections {
                inner.only("mrope_section", "a list", Value::is_array)?;
                inner.only("mrope_interleaved", "true or false", Value::is_boolean)?;
            }
            if spec.family.get().grows_queries {
                spec.attention.temperature = query_growth(&inner)?;
            }
            let found = stretched(&inner, original, spec.context)?;
            if let (Some(outer), Some(inner), 0) = (outer, found.theta, i) {
                ensure(outer == inner, || {
                    format!("rope_theta is {outer}, but {prefix}rope_theta is {inner}")
                })?;
            }
            if found.partial.is_some() {
                (partial, partial_name) = (found.partial, inner_partial);
            }
            ropes.push(RopeSpec {
                theta: found.theta.or(outer).unwrap_or(spec.ropes[0].theta),
                scaling: found.scaling,
            });
        }
    }
    match ropes.is_empty() {
        false => spec.ropes = ropes,
        true => {
            if let Some(usual) = usual.filter(|_| fields.get("rope_parameters").is_none()) {
                let inner = ConfigFields::new(usual, "rope_parameters.");
                spec.ropes[0].scaling = stretched(&inner, original, spec.context)?.scaling;
            }
            spec.ropes[0].theta = outer.unwrap_or(spec.ropes[0].theta);
        }
    }
    match partial {
        Some(partial) => rotate_part(fields, spec, partial_name, partial),
        None => Ok(()),
    }
}

/// The object with the present name of its type of scaling, if the family has older names.
fn renamed_type(family: DecoderFamily, object: &Map<String, Value>) -> Option<Map<String, Value>> {
    let named = ["rope_type", "type"].map(|key| object.get(key).and_then(Value::as_str));
    let is_old =
        family.get().yarn_is_longrope && named.into_iter().flatten().next() == Some("yarn");
    is_old.then(|| {
        let mut object = object.clone();
        object.remove("type");
        object.insert("rope_type".to_string(), "longrope".into());
        object
    })
}

/// Sets the rotated part of a head. Many families ignore the field: they rotate whole heads, and
/// cannot combine a part with scaled frequencies.
fn rotate_part(
    fields: &ConfigFields<'_>,
    spec: &mut DecoderSpec,
    name: &'static str,
    partial: f64,
) -> Result<(), ConfigError> {
    if fields.honours_rope_key("partial_rotary_factor") {
        ensure(partial <= 1.0, || {
            format!("partial_rotary_factor is {partial}; expected at most 1")
        })?;
        spec.rope_dims = (spec.head_dim as f64 * partial) as usize;
        return Ok(());
    }
    let plain = spec
        .ropes
        .iter()
        .all(|rope| rope.scaling == RopeScaling::None);
    if partial != 1.0 && !plain {
        return Err(ConfigError::Unsupported {
            field: name.to_string(),
            found: partial.to_string(),
            supported: "1 with scaled frequencies, because this family rotates whole heads"
                .to_string(),
        });
    }
    fields.note(name);
    Ok(())
}

/// Reads the position-dependent query scale; a `beta` of 0 disables it.
fn query_growth(inner: &ConfigFields<'_>) -> Result<Option<AttentionTemperature>, ConfigError> {
    // A duplicate of the model's context length, without influence.
    inner.only("max_position_embeddings", "a size", Value::is_u64)?;
    let beta = inner.opt_not_negative("llama_4_scaling_beta")?;
    let growth = AttentionTemperature {
        beta: inner.required("llama_4_scaling_beta", beta)? as f32,
        original: inner.size("original_max_position_embeddings")?,
    };
    Ok(Some(growth).filter(|growth| growth.beta > 0.0))
}

/// Reads one object of rotary parameters. `original` is the trained context length outside the
/// object, which takes precedence.
pub(in crate::config) fn stretched(
    inner: &ConfigFields<'_>,
    original: Option<usize>,
    context: usize,
) -> Result<RopeScalingConfig, ConfigError> {
    let mut kind = "default";
    for field in ["type", "rope_type"] {
        kind = inner.opt_str(field)?.unwrap_or(kind);
    }
    let own = inner.opt_size("original_max_position_embeddings")?;
    let original = original.or(own).unwrap_or(context);
    let factor = inner.opt_positive("factor")?;
    let needed = |factor: Option<f64>| inner.required("factor", factor).map(|f| f as f32);
    let scaling = match kind {
        "default" => {
            // The reference implementation ignores the other scaling fields if the type of scaling
            // is missing.
            for (name, stated) in [
                ("factor", factor.is_some_and(|factor| factor != 1.0)),
                ("original_max_position_embeddings", own.is_some()),
            ] {
                if stated {
                    inner.note(name);
                }
            }
            RopeScaling::None
        }
        "linear" => RopeScaling::Linear {
            factor: needed(factor)?,
        },
        "llama3" => RopeScaling::Llama3 {
            factor: needed(factor)?,
            low: inner.positive("low_freq_factor")? as f32,
            high: inner.positive("high_freq_factor")? as f32,
            original,
        },
        "yarn" => yarn(inner, factor, original, context)?,
        "longrope" | "su" => {
            let attention = inner.opt_positive("attention_factor")?;
            let ratio = factor.unwrap_or(context as f64 / original as f64);
            RopeScaling::LongRope {
                short: divisors(inner, "short_factor")?,
                long: divisors(inner, "long_factor")?,
                original,
                attention: attention.map_or(longrope_attention(ratio, original), |a| a as f32),
            }
        }
        _ => {
            let field = if inner.get("rope_type").is_some() {
                "rope_type"
            } else {
                "type"
            };
            inner.only(field, "default, linear, llama3, yarn or longrope", |_| {
                false
            })?;
            RopeScaling::None
        }
    };
    let stretched = RopeScalingConfig {
        theta: inner.opt_positive("rope_theta")?,
        partial: inner.opt_positive("partial_rotary_factor")?,
        scaling,
    };
    inner.finish_scaling(kind)?;
    Ok(stretched)
}

fn yarn(
    inner: &ConfigFields<'_>,
    factor: Option<f64>,
    original: usize,
    context: usize,
) -> Result<RopeScaling, ConfigError> {
    let factor = factor.unwrap_or(context as f64 / original as f64) as f32;
    let number = |name, default| {
        let found = inner.opt_positive(name)?;
        Ok::<_, ConfigError>(found.map_or(default, |x| x as f32))
    };
    // A value of 0 counts as absent.
    let scale = |name| {
        let found = inner.opt_not_negative(name)?;
        Ok::<_, ConfigError>(found.filter(|scale| *scale > 0.0))
    };
    let scales = (scale("mscale")?, scale("mscale_all_dim")?);
    let derived = match scales {
        (Some(own), Some(all)) => {
            yarn_attention(factor, own as f32) / yarn_attention(factor, all as f32)
        }
        (Some(_) | None, None) | (None, Some(_)) => yarn_attention(factor, 1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: number("beta_fast", 32.0)?,
        beta_slow: number("beta_slow", 1.0)?,
        original,
        attention: number("attention_factor", derived)?,
        truncate: inner.flag_set_unless_off("truncate")?,
    })
}

fn divisors(inner: &ConfigFields<'_>, name: &'static str) -> Result<Vec<f32>, ConfigError> {
    let mut found = None;
    inner.only(name, "a list of numbers", |v| {
        let all = v.as_array();
        found = all.and_then(|a| a.iter().map(|x| Some(x.as_f64()? as f32)).collect());
        found.is_some()
    })?;
    inner.required(name, found)
}
