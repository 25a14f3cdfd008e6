//! Files that claim more than they have, or that make a library panic, are typed errors.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tercet::{DType, Device};
use tercet_models::{
    DecoderOptions, EncoderOptions, EncoderOutput, Error, ModelFamily, ModelFiles, Tokenizer,
    TokenizerError,
};

use crate::common::{data, temp_dir};

/// A copy of a tiny model's folder with one number of `config.json` changed.
fn claiming(model: &str, field: &str, value: u64) -> PathBuf {
    let name = format!("hostile-{}-{field}", model.replace('/', "-"));
    let dir = temp_dir(&name);
    for entry in std::fs::read_dir(data(model)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && path.extension().is_none_or(|e| e != "gguf") {
            std::fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
        }
    }
    let path = dir.join("config.json");
    // Python writes infinities, which JSON does not have.
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("Infinity", "null");
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let mut place = &mut config;
    for part in field.split('.') {
        place = &mut place[part];
    }
    *place = value.into();
    std::fs::write(&path, config.to_string()).unwrap();
    dir
}

/// Opens a model and builds its graphs.
fn build(path: &Path) -> Result<(), Error> {
    let files = ModelFiles::open(path)?;
    match files.family()? {
        ModelFamily::Decoder => {
            let options = |spec: &_| DecoderOptions {
                context: 16,
                chunk: 16,
                ..DecoderOptions::new(spec)
            };
            files.decoder(options).map(drop)
        }
        ModelFamily::Encoder => files.encoder(&EncoderOutput::Hidden, DType::F32).map(drop),
        ModelFamily::Vision => files.vision_spec().map(drop),
        ModelFamily::VisionLanguage => files.vision_language_spec().map(drop),
        ModelFamily::TextToText => files.seq2seq_spec().map(drop),
        ModelFamily::Speech => {
            let ModelFiles::Hf(folder) = &files else {
                unreachable!("recognizers are folders")
            };
            match folder.model_type() {
                Some("moonshine") => Ok(folder.moonshine_spec().map(drop)?),
                _ => Ok(folder.speech_spec().map(drop)?),
            }
        }
    }
}

/// Whether the error says that a count exceeds the model's tensors, or the sizes of any model.
fn says_so(e: &Error) -> bool {
    let said = tercet::one_line(e);
    ["but the model has only", "4096", "expected 2 to 16384"]
        .iter()
        .any(|part| said.contains(part))
}

#[test]
fn counts_of_a_configuration_are_compared_with_the_tensors() {
    for (model, fields) in [
        (
            "decoders/llama-a",
            &[
                "num_hidden_layers",
                "head_dim",
                "intermediate_size",
                "vocab_size",
            ][..],
        ),
        (
            "decoders/qwen3_next-a",
            &["num_hidden_layers", "num_experts", "linear_conv_kernel_dim"],
        ),
        ("decoders/gpt_oss-a", &["num_local_experts"]),
        ("decoders/deepseek_v3-a", &["kv_lora_rank", "v_head_dim"]),
        ("decoders/gpt2-a", &["n_layer"]),
        ("decoders/mamba2-a", &["num_hidden_layers", "conv_kernel"]),
        (
            "encoders/bert-a",
            &["num_hidden_layers", "vocab_size", "type_vocab_size"],
        ),
        (
            "encoders/modernbert-a",
            &["num_hidden_layers", "intermediate_size"],
        ),
        ("vision/vit-a", &["num_hidden_layers", "intermediate_size"]),
        (
            "vision/clip-a",
            &[
                "projection_dim",
                "text_config.num_hidden_layers",
                "text_config.vocab_size",
            ],
        ),
        ("vision/resnet-a", &["embedding_size"]),
        (
            "speech/whisper-a",
            &[
                "encoder_layers",
                "decoder_ffn_dim",
                "num_mel_bins",
                "max_target_positions",
            ],
        ),
        (
            "speech/moonshine-a",
            &[
                "decoder_num_hidden_layers",
                "vocab_size",
                "max_position_embeddings",
            ],
        ),
        ("text-to-text/t5-a", &["num_layers", "d_kv"]),
        (
            "vision-language/idefics3-a",
            &[
                "text_config.num_hidden_layers",
                "vision_config.num_hidden_layers",
            ],
        ),
    ] {
        build(&data(model)).unwrap_or_else(|e| panic!("{model}: {}", tercet::one_line(&e)));
        for field in fields {
            for value in [1_000_000, 1 << 31] {
                let e = build(&claiming(model, field, value)).unwrap_err();
                let said = tercet::one_line(&e);
                assert!(says_so(&e), "{model}: {field} = {value}: {said}");
            }
        }
    }
}

#[test]
fn counts_of_a_gguf_file_are_compared_with_the_tensors() {
    let bytes = std::fs::read(data("tiny-rust-llama/tiny-rust-llama-q8_0.gguf")).unwrap();
    for key in ["block_count", "feed_forward_length"] {
        let key = format!("llama.{key}");
        let at = bytes.windows(key.len()).position(|w| w == key.as_bytes());
        let at = at.expect("the file has the key");
        let value = at + key.len() + 4;
        for claim in [1_000_000_u32, 1 << 31] {
            let mut bytes = bytes.clone();
            bytes[value..value + 4].copy_from_slice(&claim.to_le_bytes());
            let files = ModelFiles::from_gguf_bytes(&bytes).unwrap();
            let e = files.decoder_spec().unwrap_err();
            assert!(says_so(&e), "{key} = {claim}: {}", tercet::one_line(&e));
        }
    }
}

/// A `tokenizer.json` of words with one field changed.
fn words(field: &str, value: Value) -> String {
    let mut json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "a": 1, "b": 2}},
    });
    json[field] = value;
    json.to_string()
}

fn refused(json: &str) -> String {
    match Tokenizer::from_json(json.as_bytes()) {
        Ok(_) => panic!("{json}"),
        Err(e) => tercet::one_line(&e),
    }
}

fn text(id: &str) -> Value {
    json!({"Sequence": {"id": id, "type_id": 0}})
}

#[test]
fn tokenizers_on_which_the_library_panics_are_errors() {
    let length = json!({"type": "FixedLength", "length": 0});
    let nested = json!({"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, length]});
    let unknown = json!({"type": "TemplateProcessing",
        "single": [text("A"), {"SpecialToken": {"id": "X", "type_id": 0}}], "pair": [], "special_tokens": {}});
    let empty = json!({"type": "Replace", "pattern": {"String": ""}, "content": "y"});
    let prefixed = |merges: Value| {
        json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "xyz",
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": merges})
    };
    for (field, value, part) in [
        ("pre_tokenizer", length.clone(), "length of FixedLength"),
        ("pre_tokenizer", nested, "length of FixedLength"),
        ("post_processor", unknown.clone(), "`X`"),
        (
            "post_processor",
            json!({"type": "Sequence", "processors": [unknown]}),
            "`X`",
        ),
        ("normalizer", empty.clone(), "empty text"),
        ("decoder", empty, "empty text"),
        (
            "model",
            prefixed(json!([["a", "b"]])),
            "continuing_subword_prefix",
        ),
        (
            "model",
            prefixed(json!(["a b"])),
            "continuing_subword_prefix",
        ),
    ] {
        let said = refused(&words(field, value));
        assert!(said.contains(part), "{field}: {said}");
    }
}

#[test]
fn a_panic_of_the_library_is_an_error() {
    // The pattern `z*` matches the empty text at every position.
    let replace = json!({"type": "Replace", "pattern": {"Regex": "z*"}, "content": "y"});
    match Tokenizer::from_json(words("normalizer", replace).as_bytes()) {
        Ok(tokenizer) => match tokenizer.encode("a b", true) {
            Ok(ids) => assert!(ids.len() < 100, "{ids:?}"),
            Err(e) => assert!(matches!(e, TokenizerError::Failed { .. }), "{e:?}"),
        },
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

#[test]
fn tokenizers_that_take_minutes_or_all_memory_are_errors() {
    let repeated = json!({"type": "TemplateProcessing", "single": vec![text("A"); 17],
        "pair": [], "special_tokens": {}});
    let said = refused(&words("post_processor", repeated));
    assert!(said.contains("repeats a text"), "{said}");
    let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let sequence = |count| json!({"type": "Sequence", "normalizers": vec![double.clone(); count]});
    let said = refused(&words("normalizer", sequence(30)));
    assert!(said.contains("1073741824 times"), "{said}");
    assert!(Tokenizer::from_json(words("normalizer", sequence(3)).as_bytes()).is_ok());
    let added = |content: String| {
        json!([{"id": 3, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}])
    };
    let said = refused(&words("added_tokens", added("x".repeat(100_000))));
    assert!(said.contains("100000 bytes"), "{said}");
    let long = words("added_tokens", added("x".repeat(1000)));
    assert!(Tokenizer::from_json(long.as_bytes()).is_ok());
}

#[test]
fn pairs_beyond_the_limit_are_cut_before_they_are_joined() {
    let pair = json!({"type": "TemplateProcessing", "single": [text("A")],
        "pair": [text("A"), {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {}});
    let json = words("post_processor", pair);
    let tokenizer = Tokenizer::from_json(json.as_bytes()).unwrap();
    // Joining every piece of one text with every piece of the other would take gigabytes.
    let long = "a b ".repeat(50_000);
    let row = tokenizer.encode_row(&long, Some(&long), Some(8)).unwrap();
    assert_eq!(row.ids, [1, 2, 1, 2, 1, 2, 1, 2]);
    assert_eq!(row.type_ids, [0, 0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn long_texts_are_refused_by_their_bytes() {
    let model = data("encoders/sentence-a");
    let files = ModelFiles::open(model).unwrap();
    let device = Device::cpu();
    let options = EncoderOptions::default();
    let mut embedder = files.embedder(&device, &options).unwrap();
    let long = "a cat ".repeat(200_000);
    let e = embedder.embed(&["a cat", &long]).unwrap_err();
    let said = e.to_string();
    assert!(said.contains("text 2 has 1200000 bytes"), "{said}");
    embedder.set_truncating(true);
    let cut = embedder.embed(&[&long, "a cat a cat a cat a"]).unwrap();
    assert_eq!(cut[0], cut[1]);
}

#[cfg(feature = "audio")]
#[test]
fn a_recording_of_rate_0_is_an_error() {
    let mut wav = b"RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    wav.extend([0_u32.to_le_bytes(), 0_u32.to_le_bytes()].concat());
    wav.extend(b"\x02\0\x10\0data\x08\0\0\0\0\0\0\0\0\0\0\0");
    use tercet_models::speech::audio::{AudioError, read, read_bytes};
    let path = temp_dir("hostile-rate").join("a.wav");
    std::fs::write(&path, &wav).unwrap();
    for e in [
        read_bytes("a.wav", wav, &mut |_| Ok(())).unwrap_err(),
        read(&path, &mut |_| Ok(())).unwrap_err(),
    ] {
        assert!(
            matches!(e, Error::Audio(AudioError::Rate { rate: 0, .. })),
            "{e:?}"
        );
    }
}

#[test]
fn a_recognizer_that_writes_no_token_is_an_error() {
    let dir = claiming("speech/moonshine-a", "decoder_num_attention_heads", 2);
    let path = dir.join("generation_config.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["max_length"] = 1.into();
    std::fs::write(&path, json.to_string()).unwrap();
    let e = build(&dir).unwrap_err();
    let said = tercet::one_line(&e);
    assert!(said.contains("`max_length` = 1"), "{said}");
}
