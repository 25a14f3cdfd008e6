//! Tests of the conversion of safetensors folders to GGUF: equal logits, token ids and
//! specification, or an error.

use std::path::{Path, PathBuf};

use tercet::Device;
use tercet_models::save::{QuantMix, quantize_model};
use tercet_models::{DecoderOptions, GgmlType, ModelFiles};

const FAMILIES: [&str; 20] = [
    "llama",
    "mistral",
    "mixtral",
    "smollm3",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3",
    "phi",
    "phi3",
    "granite",
    "olmo2",
    "cohere",
    "cohere2",
    "stablelm",
    "starcoder2",
    "gpt_neox",
];

fn varint(mut n: u64, to: &mut Vec<u8>) {
    while n >= 0x80 {
        to.push(n as u8 | 0x80);
        n >>= 7;
    }
    to.push(n as u8);
}

/// Appends a length-delimited protocol buffer field.
fn field(number: u64, bytes: &[u8], to: &mut Vec<u8>) {
    varint(number << 3 | 2, to);
    varint(bytes.len() as u64, to);
    to.extend_from_slice(bytes);
}

/// A `tokenizer.model` with `count` pieces: letters and pairs of letters.
fn pieces(count: usize) -> Vec<u8> {
    let mut all: Vec<(String, f32, u64)> = [("<unk>", 2), ("<s>", 3), ("</s>", 3)]
        .map(|(text, kind)| (text.to_string(), 0.0, kind))
        .to_vec();
    let letters = "\u{2581}etaoinsrhldcumfpgwybv,.".chars().map(String::from);
    let pairs = [
        "th",
        "he",
        "in",
        "er",
        "an",
        "\u{2581}t",
        "the",
        "ll",
        "ing",
    ]
    .map(String::from);
    let own = letters.chain(pairs).enumerate();
    all.extend(own.map(|(rank, text)| (text, -(rank as f32), 1)));
    let mut proto = Vec::new();
    for (text, score, kind) in all.into_iter().take(count) {
        let mut piece = Vec::new();
        field(1, text.as_bytes(), &mut piece);
        varint(2 << 3 | 5, &mut piece);
        piece.extend(score.to_le_bytes());
        varint(3 << 3, &mut piece);
        varint(kind, &mut piece);
        field(1, &piece, &mut proto);
    }
    // The trainer field `model_type` is 2, which stands for BPE.
    field(2, &[3 << 3, 2], &mut proto);
    proto
}

/// A copy of a test data folder with an added tokenizer.
fn folder(test: &str, name: &str) -> PathBuf {
    let dir = crate::common::temp_dir(&format!("folder_to_gguf-{test}-{name}"));
    let from = crate::common::data("decoders").join(name);
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), dir.join(file)).unwrap();
    }
    std::fs::write(dir.join("tokenizer.model"), pieces(35)).unwrap();
    dir
}

fn quantize(from: &Path, to: &Path, ty: GgmlType) -> Result<ModelFiles, String> {
    let files = ModelFiles::open(from).unwrap();
    let recipe = QuantMix {
        to: ty,
        mixed: false,
    };
    quantize_model(&files, to, &recipe, &|_, _| ()).map_err(|e| e.to_string())?;
    Ok(ModelFiles::open(to).unwrap())
}

fn logits(files: &ModelFiles) -> Vec<f32> {
    let decoder = files.decoder(|spec| DecoderOptions {
        context: 64,
        chunk: 64,
        ..DecoderOptions::new(spec)
    });
    let mut generator = decoder.unwrap().generator(&Device::cpu()).unwrap();
    let tokens: Vec<u32> = (0..40).map(|i| i * 13 % 29 + 3).collect();
    generator.forward(&tokens).unwrap().logits.to_vec()
}

fn off(want: &[f32], got: &[f32]) -> f32 {
    let most = want.iter().fold(0f32, |most, x| most.max(x.abs()));
    let apart = want.iter().zip(got).map(|(a, b)| (a - b).abs());
    apart.fold(0f32, f32::max) / most
}

#[test]
fn every_family_keeps_its_logits_and_ids() {
    for name in FAMILIES
        .iter()
        .flat_map(|f| ["a", "b", "c"].map(|of| format!("{f}-{of}")))
    {
        let dir = folder("keeps", &name);
        let (files, to) = (ModelFiles::open(&dir).unwrap(), dir.join("made.gguf"));
        let made = quantize(&dir, &to, GgmlType::F32);
        let made = made.unwrap_or_else(|e| panic!("{name}: {e}"));
        let want = logits(&files);
        let apart = off(&want, &logits(&made));
        assert!(apart < 2e-5, "{name}: {apart:e}");
        let text = "then hello, the inner thing";
        let ids = |files: &ModelFiles| files.tokenizer().unwrap().encode(text, true).unwrap();
        assert_eq!(ids(&files), ids(&made), "{name}");
        let left = std::fs::read_dir(&dir).unwrap().count();
        assert_eq!(left, 4, "{name}: a file was left behind");
        if !name.ends_with("-a") {
            continue;
        }
        for (ty, most) in [(GgmlType::F16, 2e-3), (GgmlType::Q8_0, 0.15)] {
            let [rounded, of_file] = ["rounded.gguf", "again.gguf"].map(|name| dir.join(name));
            let rounded = logits(&quantize(&dir, &rounded, ty).unwrap());
            let apart = off(&want, &rounded);
            assert!(apart < most, "{name} {}: {apart:e}", ty.name());
            // The result equals that of quantizing the unquantized file.
            assert_eq!(logits(&quantize(&to, &of_file, ty).unwrap()), rounded);
        }
    }
}

#[test]
fn a_folder_of_bitsandbytes_keeps_its_logits() {
    let dir = folder("bitsandbytes", "nf4-b");
    let want = logits(&ModelFiles::open(&dir).unwrap());
    for (ty, most) in [(GgmlType::F32, 2e-5), (GgmlType::Q8_0, 0.15)] {
        let made = quantize(&dir, &dir.join(format!("{}.gguf", ty.name())), ty).unwrap();
        let apart = off(&want, &logits(&made));
        assert!(apart < most, "{}: {apart:e}", ty.name());
    }
}

#[test]
fn a_folder_of_byte_level_bpe_is_the_file_that_converters_make_of_it() {
    let from = crate::common::data("tiny-rust-llama");
    let dir = crate::common::temp_dir("folder_to_gguf-tiny-rust-llama");
    let made = quantize(&from, &dir.join("made.gguf"), GgmlType::F16).unwrap();
    let converted = ModelFiles::open(from.join("tiny-rust-llama-f16.gguf")).unwrap();
    let (ModelFiles::Gguf(made_file), ModelFiles::Gguf(want_file)) = (&made, &converted) else {
        panic!("both are files");
    };
    for want in want_file.tensors() {
        let found = made_file.tensor(want.name()).unwrap();
        assert_eq!(found.shape(), want.shape(), "{}", want.name());
        assert_eq!(found.ggml_type(), want.ggml_type(), "{}", want.name());
        let same = made_file.data(found) == want_file.data(want);
        assert!(same, "{} has other values", want.name());
    }
    assert_eq!(made_file.tensors().len(), want_file.tensors().len());
    for key in [
        "general.architecture",
        "tokenizer.ggml.model",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.token_type",
        "llama.block_count",
        "llama.rope.freq_base",
        "llama.attention.head_count_kv",
    ] {
        let [found, want] = [made_file, want_file].map(|file| file.metadata().get(key));
        assert_eq!(found, want, "{key}");
    }
    assert_eq!(logits(&made), logits(&converted));
    let text = "fn main() { println!(\"naïve 日本 {}\", 12345); }\n\t// the end";
    let ids = |files: &ModelFiles| files.tokenizer().unwrap().encode(text, true).unwrap();
    let folder = ModelFiles::open(&from).unwrap();
    assert_eq!(ids(&folder), ids(&made));
}

#[test]
fn what_cannot_be_written_is_refused_and_nothing_is_left() {
    let refused = |dir: &Path, what: &str| {
        let e = quantize(dir, &dir.join("made.gguf"), GgmlType::F16).map(drop);
        let e = e.unwrap_err();
        assert!(e.contains(what), "{e}");
        let names = std::fs::read_dir(dir).unwrap();
        let names = names.map(|f| f.unwrap().file_name().into_string().unwrap());
        assert!(names.into_iter().all(|n| !n.contains("made.gguf")));
    };
    let other = folder("refused", "mamba-a");
    refused(&other, "a folder of `mamba` cannot be converted");
    let bare = folder("refused", "llama-a");
    std::fs::remove_file(bare.join("tokenizer.model")).unwrap();
    refused(&bare, "tokenizer");
    let large = folder("refused", "llama-b");
    std::fs::write(large.join("tokenizer.model"), pieces(60)).unwrap();
    let json = r#"{"version": "1.0", "added_tokens": [{"id": 99, "content": "<x>", "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#;
    std::fs::write(large.join("tokenizer.json"), json).unwrap();
    refused(
        &large,
        "the token 99 (`<x>`) has no row in the embedding of 48",
    );
    let packed = folder("refused", "gptq-a");
    refused(&packed, "quantised already");
    // A custom attention scale, which GGUF files of Gemma 2 cannot store.
    let scaled = folder("refused", "gemma2-a");
    let config = std::fs::read_to_string(scaled.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["query_pre_attn_scalar"] = 77.into();
    std::fs::write(scaled.join("config.json"), config.to_string()).unwrap();
    refused(&scaled, "which GGUF files of its family cannot store");
    // The target is the folder itself.
    let own = folder("refused", "llama-c");
    let e = quantize(&own, &own, GgmlType::F16).map(drop).unwrap_err();
    assert!(e.contains("is the model itself"), "{e}");
}
