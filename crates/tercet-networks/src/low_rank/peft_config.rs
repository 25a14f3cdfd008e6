//! PEFT's `adapter_config.json`. The reader applies or rejects every field that affects the
//! adapter's result.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Adapter;
use super::matches_module;
use crate::config::{ConfigError, ConfigFields};

/// Adapter properties that the tensors do not contain.
#[derive(Debug)]
pub(super) struct PeftConfig {
    rank: usize,
    alpha: f64,
    /// True for rank-stabilized LoRA: the scale is `alpha / sqrt(rank)` (Kalajdzievski 2023).
    by_root: bool,
    ranks: Vec<(String, usize)>,
    alphas: Vec<(String, f64)>,
    pub(super) base: Option<String>,
    /// Names of the fully trained modules.
    pub(super) whole: Vec<String>,
}

impl PeftConfig {
    pub(super) fn from_json(json: &Map<String, Value>) -> Result<PeftConfig, ConfigError> {
        let fields = ConfigFields::new(json, "");
        fields.required("peft_type", fields.opt_str("peft_type")?)?;
        fields.only("peft_type", "\"LORA\"", |v| v.as_str() == Some("LORA"))?;
        fields.only("bias", "\"none\"", |v| v.as_str() == Some("none"))?;
        for field in ["use_dora", "fan_in_fan_out", "lora_bias", "use_qalora"] {
            fields.only(field, "false", |v| v.as_bool() == Some(false))?;
        }
        for field in [
            "layer_replication",
            "trainable_token_indices",
            "target_parameters",
            "alora_invocation_tokens",
            "arrow_config",
        ] {
            fields.only(field, "null", |v| v.as_array().is_some_and(Vec::is_empty))?;
        }
        // Other initializations also change the base model's weights.
        let plain = "an initialization that keeps the model's weights";
        fields.only("init_lora_weights", plain, |v| {
            v.is_boolean() || matches!(v.as_str(), Some("gaussian" | "orthogonal" | "eva"))
        })?;
        let by_root = fields.opt_bool("use_rslora")?.unwrap_or(false);
        let alphas = pattern(&fields, "alpha_pattern", |v| {
            v.as_f64().filter(|a| a.is_finite())
        })?;
        let ranks = pattern(&fields, "rank_pattern", |v| {
            usize::try_from(v.as_u64()?).ok().filter(|r| *r > 0)
        })?;
        let whole = fields.get("modules_to_save").and_then(Value::as_array);
        let whole = whole.into_iter().flatten().filter_map(Value::as_str);
        let config = PeftConfig {
            rank: fields.size("r")?,
            alpha: fields.positive("lora_alpha")?,
            by_root,
            ranks,
            alphas,
            base: fields
                .opt_str("base_model_name_or_path")?
                .map(str::to_owned),
            whole: whole.map(str::to_owned).collect(),
        };
        fields.finish(&[HARMLESS])?;
        Ok(config)
    }

    /// Expected rank of a module.
    pub(super) fn rank_of(&self, module: &str) -> usize {
        found(&self.ranks, module).unwrap_or(self.rank)
    }

    /// Numerator of a module's scale `alpha / rank`.
    pub(super) fn alpha_of(&self, module: &str) -> f64 {
        let alpha = found(&self.alphas, module).unwrap_or(self.alpha);
        match self.by_root {
            true => alpha * (self.rank_of(module) as f64).sqrt(),
            false => alpha,
        }
    }
}

fn found<T: Copy>(patterns: &[(String, T)], module: &str) -> Option<T> {
    let pattern = patterns
        .iter()
        .find(|(name, _)| matches_module(module, name));
    pattern.map(|(_, value)| *value)
}

/// Reads an object that maps module names, or suffixes of them, to values. Regular expressions are
/// rejected.
fn pattern<T>(
    fields: &ConfigFields<'_>,
    field: &'static str,
    value: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<(String, T)>, ConfigError> {
    let Some(object) = fields.opt_object(field)? else {
        return Ok(Vec::new());
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let each = object.iter().map(|(name, v)| match value(v) {
        Some(v) if name.chars().all(plain) => Ok((name.clone(), v)),
        Some(_) | None => Err(ConfigError::Unsupported {
            field: field.to_string(),
            found: tercet_files::clip(&format!("{name}: {v}")),
            supported: "module names with positive numbers".to_string(),
        }),
    });
    each.collect()
}

/// Fields about training or environment, which do not affect the adapter's result.
const HARMLESS: &[&str] = &[
    "auto_mapping",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "modules_to_save",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];

/// Configuration of an adapter; `prefix` is prepended to the module names.
pub(super) fn to_json(adapter: &Adapter, prefix: &str) -> Value {
    let modules = adapter.modules();
    let first = modules.values().next();
    let (rank, alpha) = first.map_or((1, 1.0), |low| (low.rank(), low.alpha()));
    let mut ranks = BTreeMap::new();
    let mut alphas = BTreeMap::new();
    let mut targets = Vec::new();
    for (module, low) in modules {
        if low.rank() != rank {
            ranks.insert(format!("{prefix}{module}"), low.rank());
        }
        if low.alpha() != alpha {
            alphas.insert(format!("{prefix}{module}"), low.alpha());
        }
        // PEFT matches a bare last component against all modules. `dense` is ambiguous, so it needs
        // the full name.
        targets.push(match module.rsplit('.').next() {
            Some(last) if last != "dense" => last.to_string(),
            Some(_) | None => format!("{prefix}{module}"),
        });
    }
    targets.sort();
    targets.dedup();
    let mut whole: Vec<&str> = (adapter.saved().keys())
        .filter_map(|name| name.rsplit_once('.'))
        .map(|(module, _)| module)
        .collect();
    whole.dedup();
    let task = match (
        modules.keys().any(|m| m.starts_with("model.")),
        whole.is_empty(),
    ) {
        (true, _) => "CAUSAL_LM",
        (false, true) => "FEATURE_EXTRACTION",
        (false, false) => "SEQ_CLS",
    };
    json!({
        "alpha_pattern": alphas,
        "base_model_name_or_path": adapter.base(),
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "modules_to_save": if whole.is_empty() { Value::Null } else { json!(whole) },
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": ranks,
        "target_modules": targets,
        "task_type": task,
        "use_dora": false,
        "use_rslora": false,
    })
}
