//! Names of activation functions in the configurations of all families: each opens with its
//! function or is refused by name.

use std::path::Path;

use serde_json::{Map, Value};
use tercet_networks::{
    ConfigError, DecoderSpec, EncoderSpec, FeedForward, FfnActivation, MoonshineSpec, Seq2SeqSpec,
    SpeechSpec, VisionSpec,
};

/// The names of `ACT2FN` in transformers 5.24, with the function that computes the same.
const NAMES: &[(&str, Option<FfnActivation>)] = &[
    ("gelu", Some(FfnActivation::Gelu)),
    ("gelu_10", None),
    ("gelu_accurate", Some(FfnActivation::GeluTanh)),
    ("gelu_fast", Some(FfnActivation::GeluTanh)),
    ("gelu_new", Some(FfnActivation::GeluTanh)),
    ("gelu_python", Some(FfnActivation::Gelu)),
    ("gelu_python_tanh", Some(FfnActivation::GeluTanh)),
    ("gelu_pytorch_tanh", Some(FfnActivation::GeluTanh)),
    ("hardswish", None),
    ("laplace", None),
    ("leaky_relu", None),
    ("linear", Some(FfnActivation::Identity)),
    ("mish", None),
    ("prelu", None),
    ("quick_gelu", Some(FfnActivation::GeluQuick)),
    ("relu", Some(FfnActivation::Relu)),
    ("relu2", Some(FfnActivation::ReluSquared)),
    ("relu6", Some(FfnActivation::Relu6)),
    ("sigmoid", Some(FfnActivation::Sigmoid)),
    ("silu", Some(FfnActivation::Silu)),
    ("sqrtsoftplus", None),
    ("swish", Some(FfnActivation::Silu)),
    ("tanh", Some(FfnActivation::Tanh)),
    ("xielu", None),
    ("no_such_function", None),
];

/// The fields that the reference implementations read.
const FIELDS: &[&str] = &[
    "activation",
    "activation_function",
    "decoder_hidden_act",
    "encoder_hidden_act",
    "feed_forward_proj",
    "hidden_act",
    "hidden_activation",
    "mamba_hidden_act",
    "mlp_hidden_act",
];

/// Families whose state-space layers read the same activation and support only SiLU.
const ONLY_SILU: &[&str] = &[
    "falcon_h1",
    "falcon_mamba",
    "granitemoehybrid",
    "mamba",
    "mamba2",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
];

/// A family with one function.
fn only(model_type: &str, field: &str) -> Option<FfnActivation> {
    match field {
        "mlp_hidden_act" => Some(FfnActivation::ReluSquared),
        "mamba_hidden_act" => Some(FfnActivation::Silu),
        _ => ONLY_SILU
            .contains(&model_type)
            .then_some(FfnActivation::Silu),
    }
}

fn function(feed_forward: FeedForward) -> FfnActivation {
    match feed_forward {
        FeedForward::Gated(f) | FeedForward::Plain(f) => f,
    }
}

/// The function of the field in the opened configuration; `None` if its specification is private.
fn opened(
    group: &str,
    config: &Map<String, Value>,
    field: &str,
) -> Result<Option<FfnActivation>, ConfigError> {
    let model_type = config["model_type"].as_str().unwrap();
    Ok(match (group, model_type) {
        ("decoders", _) => Some(function(DecoderSpec::from_json(config)?.feed_forward)),
        ("encoders", "gemma3_text" | "qwen3") => {
            Some(function(DecoderSpec::from_json(config)?.feed_forward))
        }
        ("encoders", _) => Some(function(EncoderSpec::from_json(config)?.feed_forward)),
        ("vision", _) => VisionSpec::from_json(config).map(|_| None)?,
        ("text-to-text", _) => Some(function(
            Seq2SeqSpec::from_json(config)?.encoder.feed_forward,
        )),
        (_, "moonshine") => {
            let spec = MoonshineSpec::from_json(config)?;
            Some(match field {
                "encoder_hidden_act" => spec.encoder_activation,
                _ => spec.decoder_activation,
            })
        }
        _ => Some(SpeechSpec::from_json(config)?.activation),
    })
}

#[test]
fn every_name_opens_with_its_function_or_is_refused() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let (mut families, mut checked) = (Vec::new(), 0);
    for group in ["decoders", "encoders", "vision", "text-to-text", "speech"] {
        for entry in std::fs::read_dir(data.join(group)).unwrap() {
            let Ok(text) = std::fs::read_to_string(entry.unwrap().path().join("config.json"))
            else {
                continue;
            };
            // Python writes this word, which is not JSON unless it is quoted.
            let text = text.replace("Infinity", "null");
            let text = text.replace("\"null\"", "\"Infinity\"");
            let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
            // Parts of models for two kinds of input have separate configurations.
            let model_type = config["model_type"].as_str().unwrap().to_string();
            if config.contains_key("text_config") {
                continue;
            }
            config.remove("dense_act_fn");
            config.remove("is_gated_act");
            for field in FIELDS {
                if !config.get(*field).is_some_and(Value::is_string) {
                    continue;
                }
                // Nomic BERT's first folders have one gate; gpt-oss does not read the field.
                let is_unread = config[*field] == "swiglu" || model_type == "gpt_oss";
                let second = model_type.starts_with("gemma") && {
                    let first = if model_type == "gemma" {
                        "hidden_act"
                    } else {
                        "hidden_activation"
                    };
                    *field != first
                };
                if is_unread || second {
                    continue;
                }
                families.push(model_type.clone());
                for (name, expected) in NAMES {
                    let mut changed = config.clone();
                    changed.insert(field.to_string(), (*name).into());
                    let expected = match only(&model_type, field) {
                        Some(own) => expected.filter(|of| *of == own),
                        None => *expected,
                    };
                    let expected = match (model_type.as_str(), *name) {
                        ("gemma", "gelu") => Some(FfnActivation::GeluTanh),
                        _ => expected,
                    };
                    let what = format!("{model_type}: {field} = {name}");
                    match (opened(group, &changed, field), expected) {
                        (Ok(found), Some(expected)) => {
                            let is_own = found.is_none_or(|found| found == expected)
                                || *field == "mamba_hidden_act";
                            assert!(is_own, "{what}: {found:?}, expected {expected:?}");
                        }
                        (Err(e), None) => {
                            let e = e.to_string();
                            assert!(e.contains(field) && e.contains(name), "{what}: {e}");
                            assert!(e.contains("supported"), "{what}: {e}");
                        }
                        (found, expected) => panic!("{what}: {found:?}, expected {expected:?}"),
                    }
                    checked += 1;
                }
            }
        }
    }
    families.sort();
    families.dedup();
    assert!(families.len() >= 40, "{families:?}");
    assert!(checked >= 1000, "{checked}");
}
