//! Tokenizers from the vocabulary of a GGUF file.
//!
//! `tokenizer.ggml.model` is the vocabulary type. Token `i` of `tokenizer.ggml.tokens` has id `i`,
//! and `tokenizer.ggml.token_type` is the type of each token. `tokenizer.ggml.add_bos_token` and
//! similar keys determine the special tokens around a text; the defaults depend on the vocabulary
//! type.

mod bpe;
mod sentencepiece;
mod word_piece;

use super::{Tokenizer, TokenizerError};
use tercet_files::clip;
use tercet_files::gguf::{GgufMetadata, GgufValue, GgufValueType};

/// Creates the tokenizer of one vocabulary type.
type TokenizerBuildFn = fn(&GgufMetadata) -> Result<Tokenizer, TokenizerError>;

/// The supported values of `tokenizer.ggml.model`.
const KINDS: &[(&str, TokenizerBuildFn)] = &[
    ("llama", sentencepiece::build_bpe),
    ("gpt2", bpe::build),
    ("bert", word_piece::build),
    ("t5", sentencepiece::build_unigram),
];

pub(super) fn build(meta: &GgufMetadata) -> Result<Tokenizer, TokenizerError> {
    let name = meta.get_str("tokenizer.ggml.model")?;
    match KINDS.iter().find(|(kind, _)| *kind == name) {
        Some((_, build)) => build(meta),
        None => {
            let names: Vec<_> = KINDS.iter().map(|(kind, _)| *kind).collect();
            Err(TokenizerError::UnsupportedModel {
                found: clip(name),
                supported: names.join(", "),
            })
        }
    }
}

fn bad(reason: String) -> TokenizerError {
    TokenizerError::BadVocabulary { reason }
}

fn strings<'a>(
    meta: &'a GgufMetadata,
    key: &str,
) -> Result<impl Iterator<Item = &'a str>, TokenizerError> {
    let array = meta.get_array(key, GgufValueType::String)?;
    Ok(array.iter().filter_map(GgufValue::as_str))
}

/// The values of `tokenizer.ggml.token_type`, from 0.
///
/// ```
/// use tercet_text::tokenizer::TokenType;
/// assert_eq!(TokenType::Control as i32, 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// No type.
    Undefined,
    /// A piece of text.
    Normal,
    /// The token of text that is not in the vocabulary.
    Unknown,
    /// A special token without text.
    Control,
    /// An added token with text.
    UserDefined,
    /// An id without token.
    Unused,
    /// A byte.
    Byte,
}

impl TokenType {
    const ALL: [TokenType; 7] = [
        TokenType::Undefined,
        TokenType::Normal,
        TokenType::Unknown,
        TokenType::Control,
        TokenType::UserDefined,
        TokenType::Unused,
        TokenType::Byte,
    ];
}

/// Reads the type of each token; the default is normal.
fn read_types(meta: &GgufMetadata) -> Result<Vec<TokenType>, TokenizerError> {
    let tokens = meta.get_array("tokenizer.ggml.tokens", GgufValueType::String)?;
    let Some(types) = meta.opt_array("tokenizer.ggml.token_type", GgufValueType::I32)? else {
        return Ok(vec![TokenType::Normal; tokens.len() as usize]);
    };
    if types.len() != tokens.len() {
        let (tokens, types) = (tokens.len(), types.len());
        return Err(bad(format!(
            "there are {tokens} tokens, but {types} token types"
        )));
    }
    let read = |(id, (ty, token)): (usize, (GgufValue<'_>, GgufValue<'_>))| {
        let known = ty.as_integer().and_then(|ty| usize::try_from(ty).ok());
        let known = known.and_then(|ty| TokenType::ALL.get(ty).copied());
        known.ok_or_else(|| {
            let token = clip(token.as_str().unwrap_or_default());
            let last = TokenType::ALL.len() - 1;
            bad(format!(
                "token {id} (`{token}`) has type {ty}; expected 0 to {last}"
            ))
        })
    };
    types
        .iter()
        .zip(tokens.iter())
        .enumerate()
        .map(read)
        .collect()
}

/// The defaults of BOS and EOS for files that do not specify them.
struct BosEosDefaults {
    bos: bool,
    eos: bool,
}

impl BosEosDefaults {
    /// Adds the special tokens that the file specifies around a text. `usual` are the default ids
    /// of BOS, EOS and padding.
    fn with_special_tokens(
        &self,
        meta: &GgufMetadata,
        mut tokenizer: Tokenizer,
        usual: [Option<u32>; 3],
    ) -> Result<Tokenizer, TokenizerError> {
        let [bos, eos, pad] = usual;
        // A token that is added must exist, so an id out of range is an error here.
        let named = |key: &str, usual: Option<u32>| match meta.opt_u32(key)? {
            Some(id) => Ok(id),
            None => usual.map_or_else(|| meta.get_u32(key), Ok),
        };
        let pad = meta.opt_token("tokenizer.ggml.padding_token_id")?.or(pad);
        if let Some(pad) = pad.filter(|pad| tokenizer.known(*pad).is_ok()) {
            tokenizer.pad = Some(pad);
        }
        let add_bos = meta.opt_bool("tokenizer.ggml.add_bos_token")?;
        if add_bos.unwrap_or(self.bos) {
            let bos = named("tokenizer.ggml.bos_token_id", bos)?;
            tokenizer = tokenizer.with_bos(bos)?;
        }
        let add_eos = meta.opt_bool("tokenizer.ggml.add_eos_token")?;
        if add_eos.unwrap_or(self.eos) {
            let eos = named("tokenizer.ggml.eos_token_id", eos)?;
            tokenizer = tokenizer.with_eos(eos)?;
        }
        Ok(tokenizer)
    }
}
