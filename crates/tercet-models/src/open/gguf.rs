//! The settings of a sentence encoder in GGUF metadata.

use crate::error::Error;
use tercet_files::gguf::{Gguf, GgufError};
use tercet_networks::config::decoder::DENSE_OF_GGUF;
use tercet_networks::config::encoder::is_encoder;
use tercet_networks::hf::{SentenceFolder, SentencePrompts};
use tercet_networks::{
    DenseModule, ModelError, PoolingMode, SentenceModule, SentenceModules, Weights,
};
use tercet_text::tokenizer::Tokenizer;

/// The pooling modes by the value of `<architecture>.pooling_type`, from 0. Value 0 is no pooling;
/// the last is a ranking head.
const POOLINGS: [Option<PoolingMode>; 5] = [
    None,
    Some(PoolingMode::Mean),
    Some(PoolingMode::Cls),
    Some(PoolingMode::LastToken),
    None,
];
const RANKS: u32 = 4;

/// The pooling in the file's metadata; `None` if it has none.
///
/// # Errors
/// [`GgufError`] for a value of another type. [`ModelError::Unsupported`] for an unknown value, and
/// for a ranking model.
pub(super) fn pooling(gguf: &Gguf) -> Result<Option<PoolingMode>, Error> {
    let meta = gguf.metadata();
    let key = format!("{}.pooling_type", meta.get_str("general.architecture")?);
    // -1 is llama.cpp's kind for files that do not specify it.
    let Some(found) = meta.opt_token(&key)? else {
        return Ok(None);
    };
    let known = POOLINGS.get(found as usize).copied();
    match (known, found) {
        (Some(_), RANKS) => Err(ModelError::Unsupported(format!(
            "{key} is {found}: a ranking model is supported only as a Hugging Face folder"
        ))
        .into()),
        (Some(pooling), _) => Ok(pooling),
        (None, _) => Err(ModelError::Unsupported(format!(
            "{key} is {found}; expected 0 (none), 1 (mean), 2 (first token) or 3 (last token)"
        ))
        .into()),
    }
}

/// Reads the pooling and the dense layers after it, and adds normalization, which is customary for
/// such files. GGUF files have no prompts, and no length limit other than the model's positions.
///
/// # Errors
/// The errors of [`pooling`]; [`Error::Model`] of the dense layers.
pub(super) fn sentence(gguf: &Gguf) -> Result<SentenceFolder, Error> {
    let stated = pooling(gguf)?;
    let mut then = Vec::new();
    for name in DENSE_OF_GGUF {
        if let Some(dense) = dense(gguf, name)? {
            then.push(SentenceModule::Dense(dense));
        }
    }
    then.push(SentenceModule::Normalize);
    Ok(SentenceFolder {
        modules: SentenceModules {
            modes: vec![stated.unwrap_or(PoolingMode::Mean)],
            include_prompt: true,
            then,
            dims: None,
        },
        stated: stated.is_some(),
        prompts: SentencePrompts::default(),
        longest_text: None,
        lower_case: false,
    })
}

/// Reads a dense layer without bias.
fn dense(gguf: &Gguf, name: &str) -> Result<Option<DenseModule>, Error> {
    let weight = format!("{name}.weight");
    if !gguf.has_tensor(&weight) {
        return Ok(None);
    }
    let shape = gguf.tensor(&weight)?.shape();
    if shape.len() != 2 {
        return Err(ModelError::WeightShape {
            tensor: weight,
            expected: vec![0, 0],
            found: shape.to_vec(),
        }
        .into());
    }
    let weights = Weights::Gguf(gguf.clone());
    let tensor = weights.dense_f32(&weight, &shape)?;
    let meta = gguf.metadata();
    let architecture = meta.get_str("general.architecture")?;
    for (end, wanted) in [("feat_out", shape[0]), ("feat_in", shape[1])] {
        let key = format!("{architecture}.{name}_{end}");
        let said = meta.opt_u32(&key)?;
        if said.is_some_and(|said| said as usize != wanted) {
            return Err(ModelError::Unsupported(format!(
                "{key} is {}, but `{weight}` has {wanted}",
                said.unwrap_or_default()
            ))
            .into());
        }
    }
    Ok(Some(DenseModule {
        name: name.to_string(),
        weight: tensor,
        bias: None,
        activation: None,
    }))
}

/// The tokenizer of an encoder. For byte-level BPE, the class token is prepended and the separator
/// appended even if the file does not specify it.
///
/// # Errors
/// [`Error`] of the vocabulary.
pub(super) fn tokenizer(gguf: &Gguf) -> Result<Tokenizer, Error> {
    let mut tokenizer = Tokenizer::from_gguf(gguf)?;
    let meta = gguf.metadata();
    let encoder = is_encoder(meta.get_str("general.architecture")?);
    if !encoder || meta.get_str("tokenizer.ggml.model")? != "gpt2" {
        return Ok(tokenizer);
    }
    let refused = |keys: &[&str]| -> Result<bool, GgufError> {
        let mut said = false;
        for key in keys {
            said |= meta.opt_bool(&format!("tokenizer.ggml.{key}"))? == Some(false);
        }
        Ok(said)
    };
    let first = |keys: [&str; 2]| -> Result<Option<u32>, GgufError> {
        let [one, other] = keys.map(|key| meta.opt_token(&format!("tokenizer.ggml.{key}")));
        Ok(one?.or(other?))
    };
    let bos = first(["cls_token_id", "bos_token_id"])?;
    if let (Some(bos), false) = (bos, refused(&["add_bos_token"])?) {
        tokenizer = tokenizer.with_bos(bos)?;
    }
    // The GGUF specification misspells the key `seperator_token_id`.
    let eos = first(["seperator_token_id", "eos_token_id"])?;
    if let (Some(eos), false) = (eos, refused(&["add_eos_token", "add_sep_token"])?) {
        tokenizer = tokenizer.with_eos(eos)?;
    }
    Ok(tokenizer)
}

/// Whether a file specifies a pooling.
///
/// # Errors
/// [`GgufError`] for a value of another type.
pub(super) fn pools(gguf: &Gguf) -> Result<bool, GgufError> {
    let meta = gguf.metadata();
    let key = format!("{}.pooling_type", meta.get_str("general.architecture")?);
    Ok(meta.opt_token(&key)?.is_some_and(|kind| kind != 0))
}
