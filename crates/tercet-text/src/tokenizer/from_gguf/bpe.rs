//! Byte-level BPE (`gpt2`). `tokenizer.ggml.merges` are in rank order, and `tokenizer.ggml.pre`
//! names the word splitting.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer as Inner};

use super::super::byte_level::char_of_byte;
use super::super::{Tokenizer, TokenizerError, ends, pre_tokenizers};
use super::{BosEosDefaults, TokenType, bad, read_types, strings};
use tercet_files::clip;
use tercet_files::gguf::GgufMetadata;

/// Reads a `gpt2` vocabulary.
pub(super) fn build(meta: &GgufMetadata) -> Result<Tokenizer, TokenizerError> {
    if meta.opt_bool("tokenizer.ggml.add_space_prefix")? == Some(true) {
        return Err(TokenizerError::UnsupportedSetting {
            key: "tokenizer.ggml.add_space_prefix",
            found: "true".to_owned(),
        });
    }
    let pre = pre_tokenizers::find(meta.opt_str("tokenizer.ggml.pre")?.unwrap_or("default"))?;
    let vocab = read_vocab(meta)?;
    let merges = read_merges(meta, &vocab)?;
    let added = read_added(meta)?;

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
    let around = BosEosDefaults {
        bos: pre.add_bos,
        eos: false,
    };
    around.with_special_tokens(meta, Tokenizer::new(inner)?, [None; 3])
}

fn read_vocab(meta: &GgufMetadata) -> Result<Vocab, TokenizerError> {
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
    // A byte without a token would silently vanish from texts. The bytes excluded here do not occur
    // in UTF-8.
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

fn read_merges(
    meta: &GgufMetadata,
    vocab: &Vocab,
) -> Result<Vec<(String, String)>, TokenizerError> {
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

/// The tokens that are recognized in a text before it is split into words.
pub(super) fn read_added(meta: &GgufMetadata) -> Result<Vec<AddedToken>, TokenizerError> {
    let tokens = strings(meta, "tokenizer.ggml.tokens")?;
    let added = tokens.zip(read_types(meta)?).filter_map(|(token, ty)| {
        let special = match ty {
            TokenType::Control | TokenType::Unknown => true,
            // Some converters mark the end-of-text token as user-defined.
            TokenType::UserDefined => ends::is_unmistakable(token),
            TokenType::Undefined | TokenType::Normal | TokenType::Unused | TokenType::Byte => {
                return None;
            }
        };
        Some(AddedToken::from(token, special).normalized(false))
    });
    Ok(added.collect())
}
