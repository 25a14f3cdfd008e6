//! SentencePiece vocabularies: BPE (`llama`) and Unigram (`t5`), with `tokenizer.ggml.scores`.

use super::super::charsmap::CharsMap;
use super::super::sentencepiece::{
    SentencePieceAlgorithm, SentencePieceEntry, SentencePieceKind, SentencePieceModel,
    SentencePieceNormalizer, SentencePieceSpec, UNKNOWN_SURFACE, byte_of,
};
use super::super::{Tokenizer, TokenizerError, ends};
use super::{BosEosDefaults, TokenType, bad, read_types, strings};
use tercet_files::clip;
use tercet_files::gguf::{GgufMetadata, GgufValue, GgufValueType};

const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// Reads a `llama` vocabulary.
pub(super) fn build_bpe(meta: &GgufMetadata) -> Result<Tokenizer, TokenizerError> {
    let prefix = meta.opt_bool("tokenizer.ggml.add_space_prefix")?;
    let tokenizer = build(meta, SentencePieceAlgorithm::Bpe, prefix.unwrap_or(true), 0)?;
    let around = BosEosDefaults {
        bos: true,
        eos: false,
    };
    around.with_special_tokens(meta, tokenizer, [Some(1), Some(2), None])
}

/// Reads a `t5` vocabulary.
pub(super) fn build_unigram(meta: &GgufMetadata) -> Result<Tokenizer, TokenizerError> {
    let prefix = meta.opt_bool("tokenizer.ggml.add_space_prefix")?;
    let tokenizer = build(
        meta,
        SentencePieceAlgorithm::Unigram,
        prefix.unwrap_or(false),
        2,
    )?;
    let around = BosEosDefaults {
        bos: false,
        eos: true,
    };
    let pad = (tokenizer.vocab_len() > 0).then_some(0);
    around.with_special_tokens(meta, tokenizer, [None, Some(1), pad])
}

fn build(
    meta: &GgufMetadata,
    algorithm: SentencePieceAlgorithm,
    add_dummy_prefix: bool,
    usual_unknown: u32,
) -> Result<Tokenizer, TokenizerError> {
    let remove = meta.opt_bool("tokenizer.ggml.remove_extra_whitespaces")?;
    let pieces = read_pieces(meta)?;
    let key = "tokenizer.ggml.unknown_token_id";
    let marked = pieces.iter().any(|p| p.kind == SentencePieceKind::Unknown);
    let unknown = match meta.opt_token(key)? {
        // If no piece has the type `Unknown`, an id outside of the vocabulary is an error, which
        // `opt_u32` leaves to `SentencePieceModel::new`.
        None if !marked => meta.opt_u32(key)?,
        found => found,
    };
    let model = SentencePieceModel::new(SentencePieceSpec {
        pieces,
        algorithm,
        normalizer: SentencePieceNormalizer {
            charsmap: read_charsmap(meta)?,
            add_dummy_prefix,
            remove_extra_whitespaces: remove.unwrap_or(false),
            escape_whitespaces: true,
            whitespace_as_suffix: false,
        },
        unknown: Some(unknown.unwrap_or(usual_unknown)),
        unknown_surface: UNKNOWN_SURFACE.to_owned(),
    })?;
    Ok(Tokenizer::from_pieces(model))
}

fn read_pieces(meta: &GgufMetadata) -> Result<Vec<SentencePieceEntry>, TokenizerError> {
    let types = read_types(meta)?;
    let scores = read_scores(meta, types.len())?;
    let tokens = strings(meta, "tokenizer.ggml.tokens")?;
    let entries = tokens.zip(types).zip(scores).enumerate();
    let pieces = entries.map(|(id, ((token, ty), score))| {
        let kind = match ty {
            TokenType::Undefined | TokenType::Normal => SentencePieceKind::Normal,
            TokenType::Unknown => SentencePieceKind::Unknown,
            TokenType::Control => SentencePieceKind::Control,
            // Some converters mark the end-of-text token as user-defined.
            TokenType::UserDefined if ends::is_unmistakable(token) => SentencePieceKind::Control,
            TokenType::UserDefined => SentencePieceKind::UserDefined,
            TokenType::Unused => SentencePieceKind::Unused,
            TokenType::Byte => SentencePieceKind::Byte(byte_of(token).ok_or_else(|| {
                let token = clip(token);
                bad(format!(
                    "token {id} (`{token}`) is a byte, but not spelled as one"
                ))
            })?),
        };
        // Some files pad their vocabulary with empty tokens.
        let (text, kind) = match token {
            "" => (format!("[EMPTY_{id}]"), SentencePieceKind::Unused),
            _ => (token.to_owned(), kind),
        };
        Ok(SentencePieceEntry { text, score, kind })
    });
    pieces.collect()
}

fn read_scores(meta: &GgufMetadata, len: usize) -> Result<Vec<f32>, TokenizerError> {
    let scores = meta.get_array("tokenizer.ggml.scores", GgufValueType::F32)?;
    if scores.len() != len as u64 {
        let scores = scores.len();
        return Err(bad(format!("there are {len} tokens, but {scores} scores")));
    }
    let scores = scores.iter().filter_map(GgufValue::as_float);
    Ok(scores.map(|score| score as f32).collect())
}

/// Reads the replacement table: an array of signed or unsigned bytes.
fn read_charsmap(meta: &GgufMetadata) -> Result<Option<CharsMap>, TokenizerError> {
    let array = match meta.get(CHARSMAP) {
        None => return Ok(None),
        Some(GgufValue::Array(array)) if array.element_type() == GgufValueType::I8 => array,
        Some(_) => meta.get_array(CHARSMAP, GgufValueType::U8)?,
    };
    if array.is_empty() {
        return Ok(None);
    }
    let bytes = array.iter().filter_map(GgufValue::as_integer);
    let bytes: Vec<u8> = bytes.map(|byte| byte as u8).collect();
    CharsMap::parse(&bytes)
        .map(Some)
        .map_err(|reason| TokenizerError::BadCharsMap { reason })
}
