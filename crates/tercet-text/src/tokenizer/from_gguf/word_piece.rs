//! WordPiece (`bert`): the first piece of a word begins with U+2581, and continuations have no
//! mark.
//!
//! The `tokenizers` crate uses the opposite spelling: continuations begin with `##`.

use tokenizers::Tokenizer as Inner;
use tokenizers::decoders::wordpiece::WordPiece as Decoder;
use tokenizers::models::bpe::Vocab;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;

use super::super::sentencepiece::SPACE;
use super::super::{Tokenizer, TokenizerError};
use super::bpe::read_added;
use super::{BosEosDefaults, bad, strings};
use tercet_files::clip;
use tercet_files::gguf::GgufMetadata;

const CONTINUES: &str = "##";

/// Reads a `bert` vocabulary.
pub(super) fn build(meta: &GgufMetadata) -> Result<Tokenizer, TokenizerError> {
    let (vocab, spelled) = read_vocab(meta)?;
    let id = |key: &str, usual: u32| Ok(meta.opt_u32(key)?.unwrap_or(usual));
    let unknown: Result<u32, TokenizerError> = id("tokenizer.ggml.unknown_token_id", 100);
    let unknown = unknown?;
    let Some(unk_token) = spelled.get(unknown as usize) else {
        let vocab_len = spelled.len();
        return Err(TokenizerError::UnknownToken {
            id: unknown,
            vocab_len,
        });
    };
    let model = WordPiece::builder()
        .vocab(vocab)
        .unk_token(unk_token.clone())
        .continuing_subword_prefix(CONTINUES.to_owned())
        .build()
        .map_err(TokenizerError::failed("building the WordPiece model"))?;
    let lowercase = meta.opt_bool("tokenizer.ggml.normalizer.lowercase")?;
    let lowercase = lowercase.unwrap_or(true);
    let strip_accents = meta.opt_bool("tokenizer.ggml.normalizer.strip_accents")?;

    let mut inner = Inner::new(model);
    inner.with_normalizer(Some(BertNormalizer::new(
        true,
        true,
        Some(strip_accents.unwrap_or(lowercase)),
        lowercase,
    )));
    inner.with_pre_tokenizer(Some(BertPreTokenizer));
    inner.with_decoder(Some(Decoder::new(CONTINUES.to_owned(), true)));
    inner.add_tokens(&read_added(meta)?);

    let around = BosEosDefaults {
        bos: true,
        eos: false,
    };
    let cls = meta.opt_token("tokenizer.ggml.cls_token_id")?;
    let mut tokenizer = around.with_special_tokens(
        meta,
        Tokenizer::new(inner)?,
        [Some(cls.unwrap_or(101)), None, Some(0)],
    )?;
    if meta.opt_bool("tokenizer.ggml.add_sep_token")? != Some(false) {
        // The GGUF specification misspells the key `seperator_token_id`.
        tokenizer = tokenizer.with_eos(id("tokenizer.ggml.seperator_token_id", 102)?)?;
    }
    Ok(tokenizer)
}

/// The vocabulary in the crate's spelling, and the original spelling of each token.
fn read_vocab(meta: &GgufMetadata) -> Result<(Vocab, Vec<String>), TokenizerError> {
    let mut vocab = Vocab::default();
    let mut spelled = Vec::new();
    for (id, token) in (0_u32..).zip(strings(meta, "tokenizer.ggml.tokens")?) {
        let bare = token.starts_with('[') && token.ends_with(']');
        let text = match token.strip_prefix(SPACE) {
            Some(word) => word.to_owned(),
            None if bare => token.to_owned(),
            None => format!("{CONTINUES}{token}"),
        };
        if let Some(first) = vocab.insert(text.clone(), id) {
            let token = clip(token);
            return Err(bad(format!("tokens {first} and {id} are both `{token}`")));
        }
        spelled.push(text);
    }
    Ok((vocab, spelled))
}
