//! Byte-level BPE from the vocabulary inside a GGUF file.
//!
//! Token `i` of `tokenizer.ggml.tokens` has id `i`, `tokenizer.ggml.merges` are in order of
//! rank, and `tokenizer.ggml.token_type` says which tokens are recognised in a text as a whole.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer as Inner};

use super::byte_level::char_of_byte;
use super::{Tokenizer, TokenizerError, pre_tokenizers};
use crate::gguf::{Metadata, Value, ValueType, clip};

/// Types of tokens, the numbers of `tokenizer.ggml.token_type`.
mod token_type {
    pub(super) const CONTROL: i128 = 3;
    pub(super) const USER_DEFINED: i128 = 4;
    pub(super) const LAST: i128 = 6;
}

pub(super) fn build(meta: &Metadata) -> Result<Tokenizer, TokenizerError> {
    let model = meta.get_str("tokenizer.ggml.model")?;
    if model != "gpt2" {
        return Err(TokenizerError::UnsupportedModel { found: clip(model) });
    }
    if meta.opt_bool("tokenizer.ggml.add_space_prefix")? == Some(true) {
        return Err(TokenizerError::UnsupportedSetting {
            key: "tokenizer.ggml.add_space_prefix",
            found: "true".to_owned(),
        });
    }
    let pre = pre_tokenizers::find(meta.opt_str("tokenizer.ggml.pre")?.unwrap_or("default"))?;
    let vocab = read_vocab(meta)?;
    let vocab_len = vocab.len();
    let merges = read_merges(meta, &vocab)?;
    let added = read_added(meta, vocab_len)?;

    let bpe = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(TokenizerError::failed("building the BPE model"))?;
    let mut inner = Inner::new(bpe);
    inner.with_normalizer(pre.normalizer());
    inner.with_pre_tokenizer(Some(pre.build()?));
    inner.with_decoder(Some(ByteLevel::default()));
    inner.add_tokens(&added);

    let mut tokenizer = Tokenizer::new(inner)?;
    if let Some(pad) = meta.opt_u32("tokenizer.ggml.padding_token_id")? {
        tokenizer.pad = Some(tokenizer.known(pad)?);
    }
    let add_bos = meta.opt_bool("tokenizer.ggml.add_bos_token")?;
    if add_bos.unwrap_or(pre.add_bos) {
        tokenizer = tokenizer.with_bos(meta.get_u32("tokenizer.ggml.bos_token_id")?)?;
    }
    if meta.opt_bool("tokenizer.ggml.add_eos_token")? == Some(true) {
        tokenizer = tokenizer.with_eos(meta.get_u32("tokenizer.ggml.eos_token_id")?)?;
    }
    Ok(tokenizer)
}

fn bad(reason: String) -> TokenizerError {
    TokenizerError::BadVocabulary { reason }
}

fn strings<'a>(
    meta: &'a Metadata,
    key: &str,
) -> Result<impl Iterator<Item = &'a str>, TokenizerError> {
    let array = meta.get_array(key, ValueType::String)?;
    Ok(array.iter().filter_map(Value::as_str))
}

fn read_vocab(meta: &Metadata) -> Result<Vocab, TokenizerError> {
    let mut vocab = Vocab::default();
    for (id, token) in strings(meta, "tokenizer.ggml.tokens")?.enumerate() {
        let id = u32::try_from(id).map_err(|_| bad("more than 2^32 tokens".to_owned()))?;
        if let Some(first) = vocab.insert(token.to_owned(), id) {
            return Err(bad(format!(
                "tokens {first} and {id} are both `{}`",
                clip(token)
            )));
        }
    }
    // A byte without a token would vanish from texts without a trace. The bytes left out here
    // do not occur in UTF-8.
    for (byte, spelled) in (0..=u8::MAX).zip(char_of_byte()) {
        let in_utf8 = !matches!(byte, 0xC0 | 0xC1 | 0xF5..=0xFF);
        if in_utf8 && !vocab.contains_key(spelled.to_string().as_str()) {
            return Err(bad(format!(
                "the byte {byte:#04x} has no token (it would be spelled `{spelled}`)"
            )));
        }
    }
    Ok(vocab)
}

fn read_merges(meta: &Metadata, vocab: &Vocab) -> Result<Vec<(String, String)>, TokenizerError> {
    let mut merges = Vec::new();
    for (rank, merge) in strings(meta, "tokenizer.ggml.merges")?.enumerate() {
        let Some((left, right)) = merge.split_once(' ') else {
            return Err(bad(format!(
                "merge {rank} is `{}`, not two tokens with a space between them",
                clip(merge)
            )));
        };
        for token in [left, right, &format!("{left}{right}")] {
            if !vocab.contains_key(token) {
                return Err(bad(format!(
                    "merge {rank} (`{}`) needs the token `{}`, which does not exist",
                    clip(merge),
                    clip(token)
                )));
            }
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    Ok(merges)
}

/// The tokens that are recognised in a text before it is cut into words.
fn read_added(meta: &Metadata, vocab_len: usize) -> Result<Vec<AddedToken>, TokenizerError> {
    let Some(types) = meta.opt_array("tokenizer.ggml.token_type", ValueType::I32)? else {
        return Ok(Vec::new());
    };
    if types.len() != vocab_len as u64 {
        return Err(bad(format!(
            "there are {vocab_len} tokens, but {} token types",
            types.len()
        )));
    }
    let mut added = Vec::new();
    let tokens = strings(meta, "tokenizer.ggml.tokens")?;
    for (id, (token, kind)) in tokens.zip(types.iter()).enumerate() {
        let special = match kind.as_integer() {
            Some(token_type::CONTROL) => true,
            Some(token_type::USER_DEFINED) => false,
            Some(0..=token_type::LAST) => continue,
            Some(_) | None => {
                return Err(bad(format!(
                    "token {id} (`{}`) has type {kind}, 0 to {} exist",
                    clip(token),
                    token_type::LAST
                )));
            }
        };
        added.push(AddedToken::from(token, special).normalized(false));
    }
    Ok(added)
}
