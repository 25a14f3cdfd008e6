//! Tests of split models: equal to the unsplit model, and saved as one file.

use std::collections::BTreeMap;
use std::path::Path;

use tercet_models::save::{SaveOptions, save_model};
use tercet_models::{DecoderSpec, Gguf, ModelFiles, ModelWeight, SaveError, gguf_weight};

use super::common::{data, temp_dir};
use super::parts::{path_of, split, written};

fn bytes_of(weight: ModelWeight) -> Vec<u8> {
    match weight {
        ModelWeight::Dense(t) => t.bytes().to_vec(),
        ModelWeight::Packed { blocks, .. } => blocks.bytes().to_vec(),
    }
}

#[test]
fn a_split_model_is_the_whole_one() {
    let path = data("decoders/qwen3_moe-a/model.gguf");
    let bytes = std::fs::read(&path).unwrap();
    let whole = Gguf::open(&path).unwrap();
    let dir = temp_dir("split-model");
    // The first part may have no tensors, as the splitter can write it.
    written(&dir, &split(&bytes, &[0, 7, whole.tensors().len() - 7]));
    let joined = Gguf::open(path_of(&dir, 1, 3)).unwrap();
    assert_eq!(
        DecoderSpec::from_gguf(&joined).unwrap(),
        DecoderSpec::from_gguf(&whole).unwrap()
    );
    assert_eq!(joined.tensors().len(), whole.tensors().len());
    for info in whole.tensors() {
        let same = joined.tensor(info.name()).unwrap();
        assert_eq!(same.shape(), info.shape());
        assert_eq!(
            bytes_of(gguf_weight(&joined, same).unwrap()),
            bytes_of(gguf_weight(&whole, info).unwrap()),
            "{}",
            info.name()
        );
    }

    // Saving writes one file, and refuses to overwrite any of the parts.
    let files = ModelFiles::open(path_of(&dir, 0, 3)).unwrap();
    let save = |to: &Path| save_model(&files, &BTreeMap::new(), to, &SaveOptions::default());
    for number in 0..3 {
        let over = save(&path_of(&dir, number, 3)).unwrap_err();
        assert!(matches!(over, SaveError::OverModel { .. }), "{over:?}");
    }
    let again = dir.join("again.gguf");
    save(&again).unwrap();
    let again = Gguf::open(&again).unwrap();
    assert!(again.metadata().get("split.count").is_none());
    for info in whole.tensors() {
        let same = again.tensor(info.name()).unwrap();
        assert_eq!(again.data(same), whole.data(info), "{}", info.name());
    }
}

#[test]
fn special_tokens_that_do_not_exist_are_ignored() {
    let path = data("tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
    let bytes = std::fs::read(&path).unwrap();
    let whole = ModelFiles::open(&path).unwrap();
    let mut part = split(&bytes, &[38]).remove(0);
    // `llama-finetune` writes the u32 of -1 for each token that the vocabulary does not have.
    for name in [
        "eot",
        "eom",
        "unknown",
        "seperator",
        "padding",
        "cls",
        "mask",
        "fim_pre",
    ] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        part = part.u32(&key, u32::MAX);
    }
    part = part.raw(
        "tokenizer.ggml.fim_suf_token_id",
        5,
        &(-1_i32).to_le_bytes(),
    );
    let tuned = ModelFiles::from_gguf_bytes(&part.bytes()).unwrap();
    assert_eq!(tuned.decoder_spec().unwrap(), whole.decoder_spec().unwrap());
    let (tokenizer, same) = (tuned.tokenizer().unwrap(), whole.tokenizer().unwrap());
    assert_eq!(tokenizer.pad(), same.pad());
    let text = "fn main() {}";
    assert_eq!(
        tokenizer.encode(text, true).unwrap(),
        same.encode(text, true).unwrap()
    );
}
