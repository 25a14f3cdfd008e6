//! SentencePiece vocabularies: BPE (`llama`) and Unigram (`t5`), with `tokenizer.ggml.scores`.

use super::super::charsmap::CharsMap;
use super::super::sentencepiece::{
    Algorithm, Description, Kind, Model, Normalizer, Piece, UNKNOWN_SURFACE, byte_of,
};
use super::super::{Tokenizer, TokenizerError};
use super::{Around, TokenType, bad, read_types, strings};
use crate::gguf::{Metadata, Value, ValueType, clip};

const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// A vocabulary of `llama`.
pub(super) fn build_bpe(meta: &Metadata) -> Result<Tokenizer, TokenizerError> {
    let prefix = meta.opt_bool("tokenizer.ggml.add_space_prefix")?;
    let tokenizer = build(meta, Algorithm::Bpe, prefix.unwrap_or(true), 0)?;
    let around = Around {
        bos: true,
        eos: false,
    };
    around.of(meta, tokenizer, [Some(1), Some(2), None])
}

/// A vocabulary of `t5`.
pub(super) fn build_unigram(meta: &Metadata) -> Result<Tokenizer, TokenizerError> {
    let prefix = meta.opt_bool("tokenizer.ggml.add_space_prefix")?;
    let tokenizer = build(meta, Algorithm::Unigram, prefix.unwrap_or(false), 2)?;
    let around = Around {
        bos: false,
        eos: true,
    };
    let pad = (tokenizer.vocab_len() > 0).then_some(0);
    around.of(meta, tokenizer, [None, Some(1), pad])
}

fn build(
    meta: &Metadata,
    algorithm: Algorithm,
    add_dummy_prefix: bool,
    usual_unknown: u32,
) -> Result<Tokenizer, TokenizerError> {
    let remove = meta.opt_bool("tokenizer.ggml.remove_extra_whitespaces")?;
    let unknown = meta.opt_u32("tokenizer.ggml.unknown_token_id")?;
    let model = Model::new(Description {
        pieces: read_pieces(meta)?,
        algorithm,
        normalizer: Normalizer {
            charsmap: read_charsmap(meta)?,
            add_dummy_prefix,
            remove_extra_whitespaces: remove.unwrap_or(false),
            escape_whitespaces: true,
            whitespace_as_suffix: false,
        },
        unknown: Some(unknown.unwrap_or(usual_unknown)),
        unknown_surface: UNKNOWN_SURFACE.to_owned(),
    })?;
    Ok(Tokenizer::of_pieces(model))
}

fn read_pieces(meta: &Metadata) -> Result<Vec<Piece>, TokenizerError> {
    let types = read_types(meta)?;
    let scores = read_scores(meta, types.len())?;
    let tokens = strings(meta, "tokenizer.ggml.tokens")?;
    let entries = tokens.zip(types).zip(scores).enumerate();
    let pieces = entries.map(|(id, ((token, ty), score))| {
        let kind = match ty {
            TokenType::Undefined | TokenType::Normal => Kind::Normal,
            TokenType::Unknown => Kind::Unknown,
            TokenType::Control => Kind::Control,
            TokenType::UserDefined => Kind::UserDefined,
            TokenType::Unused => Kind::Unused,
            TokenType::Byte => Kind::Byte(byte_of(token).ok_or_else(|| {
                let token = clip(token);
                bad(format!(
                    "token {id} (`{token}`) is a byte, but not spelled as one"
                ))
            })?),
        };
        // Some files fill their vocabulary up with empty tokens.
        let (text, kind) = match token {
            "" => (format!("[EMPTY_{id}]"), Kind::Unused),
            _ => (token.to_owned(), kind),
        };
        Ok(Piece { text, score, kind })
    });
    pieces.collect()
}

fn read_scores(meta: &Metadata, len: usize) -> Result<Vec<f32>, TokenizerError> {
    let scores = meta.get_array("tokenizer.ggml.scores", ValueType::F32)?;
    if scores.len() != len as u64 {
        let scores = scores.len();
        return Err(bad(format!("there are {len} tokens, but {scores} scores")));
    }
    let scores = scores.iter().filter_map(Value::as_float);
    Ok(scores.map(|score| score as f32).collect())
}

/// The table of replacements: an array of bytes, signed or not.
fn read_charsmap(meta: &Metadata) -> Result<Option<CharsMap>, TokenizerError> {
    let array = match meta.get(CHARSMAP) {
        None => return Ok(None),
        Some(Value::Array(array)) if array.element_type() == ValueType::I8 => array,
        Some(_) => meta.get_array(CHARSMAP, ValueType::U8)?,
    };
    if array.is_empty() {
        return Ok(None);
    }
    let bytes = array.iter().filter_map(Value::as_integer);
    let bytes: Vec<u8> = bytes.map(|byte| byte as u8).collect();
    CharsMap::parse(&bytes)
        .map(Some)
        .map_err(|reason| TokenizerError::BadCharsMap { reason })
}
