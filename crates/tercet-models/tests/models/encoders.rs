//! Tests of invalid encoder folders and over-length texts, with the messages of their errors.

use std::path::{Path, PathBuf};

use crate::common::temp_dir;
use serde_json::{Value, json};
use tercet::{DType, Device};
use tercet_models::{
    DecoderOptions, EmbeddingPrompt, EncoderOptions, EncoderOutput, Error, HfError, ModelError,
    ModelFiles,
};

fn of_tests(name: &str) -> PathBuf {
    crate::common::data("encoders").join(name)
}

/// A copy of a test data folder.
fn copied(name: &str, to: &str) -> PathBuf {
    let dir = temp_dir(to);
    copy(&of_tests(name), &dir);
    dir
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(std::fs::copy(&path, &target).unwrap()),
        }
    }
}

/// Changes fields of a JSON file; `null` removes a field.
fn change(path: &Path, fields: Value) {
    let mut json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let object = json.as_object_mut().unwrap();
    for (name, value) in fields.as_object().unwrap() {
        match value.is_null() {
            true => drop(object.remove(name)),
            false => drop(object.insert(name.clone(), value.clone())),
        }
    }
    std::fs::write(path, json.to_string()).unwrap();
}

/// The messages of an error and its causes.
fn chain(e: &dyn std::error::Error) -> String {
    tercet::one_line(e)
}

fn embedded(dir: &Path, options: &EncoderOptions, texts: &[&str]) -> Result<Vec<Vec<f32>>, Error> {
    let files = ModelFiles::open(dir)?;
    Ok(files.embedder(&Device::cpu(), options)?.embed(texts)?)
}

#[test]
fn texts_that_are_too_long_are_refused_or_cut() {
    let dir = of_tests("sentence-a");
    let long = "a cat a cat a cat a cat a cat";
    let plain = EncoderOptions::default();
    let refused = embedded(&dir, &plain, &["a cat", long]).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Model(ModelError::TextTooLong {
                text: 2,
                tokens: 12,
                most: 9
            })
        ),
        "{refused:?}"
    );
    assert!(chain(&refused).contains("--truncate"), "{refused}");
    let cut = EncoderOptions {
        truncate: true,
        ..plain.clone()
    };
    let both = embedded(&dir, &cut, &[long, "a cat a cat a cat a"]).unwrap();
    assert_eq!(both[0], both[1], "what is cut off has no part");
    let beyond = EncoderOptions {
        max_tokens: Some(33),
        ..plain
    };
    let refused = embedded(&dir, &beyond, &["a"]).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Model(ModelError::Context {
                tokens: 33,
                context: 32
            })
        ),
        "{refused:?}"
    );
}

/// A tokenizer that adds more special tokens than it states: the first template makes two parts of a
/// text, which the second takes for a pair.
#[test]
fn a_text_beyond_the_limit_after_truncation_names_the_tokenizer() {
    let dir = copied("sentence-a", "encoders-added-tokens");
    let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let end = || json!({"SpecialToken": {"id": "[SEP]", "type_id": 0}});
    let template = |single: Value, pair: Value| {
        json!({"type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {"[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}})
    };
    let first = template(json!([text("A"), end()]), json!([text("A"), text("B")]));
    let pair = json!([text("A"), end(), end(), end(), text("B")]);
    let second = template(json!([text("A")]), pair);
    let processors = json!({"type": "Sequence", "processors": [first, second]});
    change(
        &dir.join("tokenizer.json"),
        json!({"post_processor": processors}),
    );
    let cut = EncoderOptions {
        truncate: true,
        ..EncoderOptions::default()
    };
    assert!(embedded(&dir, &cut, &["a cat"]).is_ok());
    let refused = embedded(&dir, &cut, &["a cat", &"a cat ".repeat(6)]).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Model(ModelError::TooManyAddedTokens {
                text: 2,
                tokens: 12,
                most: 9
            })
        ),
        "{refused:?}"
    );
    let said = chain(&refused);
    assert!(said.contains("12 tokens after truncation to 9"), "{said}");
    assert!(said.contains("post_processor"), "{said}");
    // The text was truncated already.
    for advice in ["--truncate", "truncate=True", "enable truncation"] {
        assert!(!said.contains(advice), "{said}");
    }
}

#[test]
fn prompts_and_dimensions_are_those_that_there_are() {
    let dir = of_tests("sentence-a");
    let named = EncoderOptions {
        prompt: EmbeddingPrompt::Named("qurey".into()),
        ..EncoderOptions::default()
    };
    let refused = chain(&embedded(&dir, &named, &["a"]).unwrap_err());
    assert!(
        refused.contains("`qurey`") && refused.contains("`query`"),
        "{refused}"
    );
    for (dims, good) in [(1, true), (10, true), (11, false), (0, false)] {
        let options = EncoderOptions {
            dims: Some(dims),
            ..EncoderOptions::default()
        };
        let found = embedded(&dir, &options, &["a cat"]);
        assert_eq!(found.is_ok(), good, "{dims}");
        if let Ok(found) = found {
            assert_eq!(found[0].len(), dims);
            let norm: f32 = found[0].iter().map(|x| x * x).sum();
            assert!((norm - 1.0).abs() < 1e-5, "{norm}");
        }
    }
}

#[test]
fn modules_that_are_missing_or_unknown_are_named() {
    let dir = copied("sentence-a", "encoder-modules");
    let sentence = || ModelFiles::open(&dir).unwrap().sentence().unwrap_err();
    let refused = |named: &str| {
        let error = sentence();
        assert!(chain(&error).contains(named), "{named}: {}", chain(&error));
        error
    };
    std::fs::rename(dir.join("2_Dense/config.json"), dir.join("kept")).unwrap();
    let error = refused("Dense");
    assert!(
        matches!(error, Error::Hf(HfError::MissingModule { .. })),
        "{error:?}"
    );
    std::fs::rename(dir.join("kept"), dir.join("2_Dense/config.json")).unwrap();
    let weights = dir.join("2_Dense/model.safetensors");
    std::fs::rename(&weights, dir.join("kept")).unwrap();
    refused("model.safetensors");
    std::fs::rename(dir.join("kept"), &weights).unwrap();

    let dense = dir.join("2_Dense/config.json");
    for (field, value) in [
        (
            "activation_function",
            json!("torch.nn.modules.activation.Mish"),
        ),
        ("use_residual", json!(true)),
        ("groups", json!(2)),
    ] {
        let before = std::fs::read(&dense).unwrap();
        change(&dense, json!({ field: value }));
        refused(field);
        std::fs::write(&dense, before).unwrap();
    }
    change(&dense, json!({"out_features": 11}));
    refused("linear.weight");
    change(&dense, json!({"out_features": 10}));
    change(
        &dir.join("1_Pooling/config.json"),
        json!({"pooling_mode": "median"}),
    );
    refused("median");
    change(
        &dir.join("1_Pooling/config.json"),
        json!({"pooling_mode": "mean"}),
    );
    assert!(ModelFiles::open(&dir).unwrap().sentence().is_ok());

    let list = dir.join("modules.json");
    let module =
        |kind: &str, path: &str| json!({"idx": 0, "name": "0", "path": path, "type": kind});
    let own = |kind: &str| format!("sentence_transformers.models.{kind}");
    let first = || module(&own("Transformer"), "");
    let pooling = || module(&own("Pooling"), "1_Pooling");
    for (modules, named) in [
        (
            json!([first(), pooling(), module(&own("LSTM"), "2_LSTM")]),
            "`LSTM`",
        ),
        (
            json!([first(), pooling(), module("custom.Normalize", "2")]),
            "`custom.Normalize`",
        ),
        (json!([module(&own("CLIPModel"), "")]), "`CLIPModel`"),
        (json!([first()]), "the second Pooling"),
        (json!([first(), pooling(), pooling()]), "more than once"),
        (
            json!([first(), module(&own("Pooling"), "../1_Pooling")]),
            "leads out",
        ),
        (json!([first(), {"type": own("Pooling")}]), "no `path`"),
        (json!({}), "not valid JSON"),
    ] {
        std::fs::write(&list, modules.to_string()).unwrap();
        refused(named);
    }
}

#[test]
fn labels_must_be_those_of_the_classifier() {
    let dir = copied("bert-a", "encoder-labels");
    let config = dir.join("config.json");
    let head = || ModelFiles::open(&dir).unwrap().class_head();
    assert_eq!(head().unwrap().labels, ["texts-0", "texts-1", "texts-2"]);
    change(&config, json!({"id2label": null}));
    assert_eq!(head().unwrap().labels, ["LABEL_0", "LABEL_1", "LABEL_2"]);
    for (fields, named) in [
        (
            json!({"id2label": {"0": "a", "1": "b"}}),
            "names 2 classes, but the classifier has 3",
        ),
        (
            json!({"id2label": {"0": "a", "1": "b", "3": "c"}}),
            "no name for class 2",
        ),
        (
            json!({"id2label": {"0": "a", "1": "b", "2": 7}}),
            "no name for class 2",
        ),
        (
            json!({"id2label": null, "num_labels": 2}),
            "num_labels is 2",
        ),
        (
            json!({"num_labels": null, "problem_type": "ranking"}),
            "problem_type",
        ),
        (
            json!({"problem_type": null, "architectures": ["BertModel"]}),
            "BertModel",
        ),
        (json!({"architectures": null}), "architectures"),
    ] {
        change(&config, fields);
        let refused = chain(&head().unwrap_err());
        assert!(refused.contains(named), "{named}: {refused}");
    }
    let bare = ModelFiles::open(of_tests("bert-c")).unwrap();
    assert!(chain(&bare.class_head().unwrap_err()).contains("BertModel"));
    let options = EncoderOptions::default();
    let several = ModelFiles::open(of_tests("bert-a")).unwrap();
    let error = several.class_head().map(|head| head.per_token);
    assert!(!error.unwrap());
    let tokens = ModelFiles::open(of_tests("bert-b")).unwrap();
    let refused = tokens.reranker(&Device::cpu(), &options).err().unwrap();
    assert!(chain(&refused).contains("classes of tokens"));
}

#[test]
fn scores_are_what_the_folder_says() {
    let dir = copied("reranker-a", "encoder-scores");
    let config = dir.join("config.json");
    let options = EncoderOptions::default();
    let scored = |query: Option<&str>| -> f32 {
        let files = ModelFiles::open(&dir).unwrap();
        let text = ["the dog sees a bird"];
        match query {
            Some(query) => {
                let mut own = files.reranker(&Device::cpu(), &options).unwrap();
                own.rerank(query, &text).unwrap()[0]
            }
            None => {
                let mut own = files.classifier(&Device::cpu(), &options).unwrap();
                own.classify(&text).unwrap()[0][0]
            }
        }
    };
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let (pair, alone) = (scored(Some("bird")), scored(None));
    let identity = "torch.nn.modules.linear.Identity";
    change(
        &config,
        json!({"problem_type": "regression", "sentence_transformers": {"activation_fn": identity}}),
    );
    assert!((sigmoid(scored(Some("bird"))) - pair).abs() < 1e-6);
    assert!((sigmoid(scored(None)) - alone).abs() < 1e-6);
    let mish = "torch.nn.modules.activation.Mish";
    for fields in [
        json!({"sentence_transformers": {"activation_fn": mish}}),
        json!({"sentence_transformers": null, "sbert_ce_default_activation_function": mish}),
    ] {
        change(&config, fields);
        let refused = ModelFiles::open(&dir).unwrap().class_head().unwrap_err();
        assert!(chain(&refused).contains("Mish"), "{refused}");
    }
}

#[test]
fn what_would_not_be_read_is_refused() {
    let dir = copied("roberta-c", "encoder-unknown");
    let config = dir.join("config.json");
    let spec = || ModelFiles::open(&dir).unwrap().encoder_spec();
    assert!(spec().is_ok());
    // RoBERTa's class of transformers does not define this key.
    change(&config, json!({"relative_attention_num_buckets": 32}));
    let ignored = ModelFiles::open(&dir).unwrap().ignored_keys().unwrap();
    assert_eq!(ignored, ["relative_attention_num_buckets"]);
    change(&config, json!({"num_hidden_layers": 1}));
    let refused = chain(&spec().unwrap_err());
    assert!(refused.contains("encoder.layer.1."), "{refused}");
    // One more layer than the weights have.
    change(&config, json!({"num_hidden_layers": 3}));
    let files = ModelFiles::open(&dir).unwrap();
    let missing = files
        .encoder(&EncoderOutput::Hidden, DType::F32)
        .unwrap_err();
    assert!(
        matches!(missing, Error::Model(ModelError::MissingWeight { .. })),
        "{missing:?}"
    );
}

#[test]
fn decoders_that_see_both_ways_embed_and_write_nothing() {
    let files = ModelFiles::open(of_tests("embedding_gemma-a")).unwrap();
    let spec = files.decoder_spec().unwrap();
    assert!(spec.is_bidirectional());
    // Half of the file's window is on each side.
    assert_eq!(spec.layers[0].window, Some(3));
    let refused = files.decoder(DecoderOptions::new).unwrap_err();
    assert!(chain(&refused).contains("tercet embed"), "{refused}");
    let refused = files
        .encoder(&EncoderOutput::Classes(2), DType::F32)
        .unwrap_err();
    assert!(
        matches!(refused, Error::Hf(_) | Error::Model(_)),
        "{refused}"
    );
    for (name, value, said) in [
        ("sliding_window", json!(-1), "sliding_window"),
        ("use_bidirectional_attention", json!("all"), "true or false"),
    ] {
        let dir = copied("embedding_gemma-a", &format!("gemma-{name}"));
        change(&dir.join("config.json"), json!({ name: value }));
        let e = ModelFiles::open(&dir).unwrap().decoder_spec().unwrap_err();
        assert!(chain(&e).contains(said), "{name}: {}", chain(&e));
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn encoder_decoders_are_read_whole() {
    let of = |fields: Value| {
        let dir = crate::common::data("text-to-text").join("t5-b");
        let to = temp_dir("t5-fields");
        copy(&dir, &to);
        change(&to.join("config.json"), fields);
        let read = ModelFiles::open(&to).unwrap().seq2seq_spec();
        std::fs::remove_dir_all(to).unwrap();
        read.map_err(|e| chain(&e))
    };
    let spec = of(json!({})).unwrap();
    assert!(spec.untied_output && !spec.scaled_output);
    assert_eq!((spec.encoder.layers.len(), spec.decoder_layers), (2, 3));
    for (fields, said) in [
        (json!({"is_gated_act": false}), "is_gated_act is false"),
        (json!({"feed_forward_proj": "gated-sine"}), "gated-sine"),
        (json!({"is_encoder_decoder": false}), "is_encoder_decoder"),
        (json!({"decoder_start_token_id": 60}), "token 60"),
        // A layer whose tensors would not be read.
        (json!({"num_decoder_layers": 2}), "decoder.block.2"),
    ] {
        let e = of(fields.clone()).unwrap_err();
        assert!(e.contains(said), "{fields}: {e}");
    }
}
