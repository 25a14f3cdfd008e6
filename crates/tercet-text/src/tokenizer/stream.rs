//! Incremental decoding of tokens.
//!
//! A token of a byte-level vocabulary may end in the middle of a character. The decoder holds text
//! back until the character is complete; bytes that cannot become a character are returned as
//! U+FFFD. The concatenated output equals the result of decoding all tokens at once.
//!
//! Other decoders depend on neighbouring tokens (spaces between words, consecutive byte tokens).
//! For other decoders, a window of tokens is decoded with and without the newest ones, and the
//! difference is returned.

use super::byte_level::ByteVocab;
use super::sentencepiece::PieceDecoder;
use super::{SpecialTokenDecoding, Tokenizer, TokenizerEngine, TokenizerError};

/// Maximum number of tokens held back because their text ends in U+FFFD. A UTF-8 character has at
/// most four bytes, so after four tokens the U+FFFD is final.
const MAX_HELD: usize = 4;

/// Accepts tokens one by one and returns complete characters; created by [`Tokenizer::stream`].
///
/// ```
/// # fn demo(tokenizer: &tercet_text::Tokenizer, ids: &[u32])
/// #     -> Result<(), tercet_text::TokenizerError> {
/// let mut stream = tokenizer.stream();
/// for id in ids {
///     print!("{}", stream.push(*id)?);
/// }
/// println!("{}", stream.finish()?); // the bytes of an incomplete last character
/// # Ok(())
/// # }
/// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
/// #     "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
/// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}"#;
/// # demo(&tercet_text::Tokenizer::from_json(json.as_bytes())?, &[0, 1])?;
/// # Ok::<(), tercet_text::TokenizerError>(())
/// ```
#[derive(Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    state: StreamDecoderState<'a>,
}

#[derive(Debug)]
enum StreamDecoderState<'a> {
    /// The bytes of an incomplete character.
    Bytes {
        vocab: &'a ByteVocab,
        pending: Vec<u8>,
    },
    /// SentencePiece, which decodes token by token.
    Pieces(PieceDecoder<'a>),
    /// A window of tokens, of which the text of the first `given` was already returned.
    Window { ids: Vec<u32>, given: usize },
}

impl<'a> StreamDecoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        let state = match &tokenizer.engine {
            TokenizerEngine::Pieces(model) => {
                StreamDecoderState::Pieces(PieceDecoder::new(model, SpecialTokenDecoding::Skip))
            }
            TokenizerEngine::Crate {
                byte_vocab: Some(vocab),
                ..
            } => StreamDecoderState::Bytes {
                vocab,
                pending: Vec::new(),
            },
            TokenizerEngine::Crate {
                byte_vocab: None, ..
            } => StreamDecoderState::Window {
                ids: Vec::new(),
                given: 0,
            },
        };
        Self { tokenizer, state }
    }

    /// Adds the next token and returns the text that it completes; special tokens return no text.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`], [`TokenizerError::Failed`]; the stream continues without
    /// the token.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        match &mut self.state {
            StreamDecoderState::Bytes { vocab, pending } => {
                let token = vocab.get(id).ok_or_else(|| self.tokenizer.unknown(id))?;
                if token.special {
                    return Ok(String::new());
                }
                pending.extend_from_slice(&token.bytes);
                Ok(take_complete(pending))
            }
            StreamDecoderState::Pieces(decoder) => {
                decoder.push(id).ok_or_else(|| self.tokenizer.unknown(id))
            }
            StreamDecoderState::Window { ids, given } => {
                self.tokenizer.known(id)?;
                ids.push(id);
                let held = ids.len() - *given;
                let fresh = fresh_text(self.tokenizer, ids, *given)?;
                if fresh.is_empty() || (fresh.ends_with('\u{FFFD}') && held < MAX_HELD) {
                    return Ok(String::new());
                }
                // The tokens that were just decoded stay as context for the next ones.
                ids.drain(..*given);
                *given = ids.len();
                Ok(fresh)
            }
        }
    }

    /// Ends the stream and returns the text that was held back.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn finish(self) -> Result<String, TokenizerError> {
        match self.state {
            StreamDecoderState::Bytes { pending, .. } => {
                Ok(String::from_utf8_lossy(&pending).into_owned())
            }
            StreamDecoderState::Pieces(decoder) => Ok(decoder.finish()),
            StreamDecoderState::Window { ids, given } => fresh_text(self.tokenizer, &ids, given),
        }
    }
}

/// The text that the tokens from index `given` add to the text of the tokens before them.
fn fresh_text(tokenizer: &Tokenizer, ids: &[u32], given: usize) -> Result<String, TokenizerError> {
    let before = tokenizer.decode_ids(&ids[..given], SpecialTokenDecoding::Skip)?;
    let all = tokenizer.decode_ids(ids, SpecialTokenDecoding::Skip)?;
    // A decoder with clean-up may change earlier text. Return everything after the unchanged
    // prefix.
    let same: usize = before
        .chars()
        .zip(all.chars())
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a.len_utf8())
        .sum();
    Ok(all[same..].to_owned())
}

/// Removes the complete characters from the front of `pending`. Bytes that no continuation can
/// complete become U+FFFD, as in `String::from_utf8_lossy`.
pub fn take_complete(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut incomplete = 0;
    let mut chunks = pending.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        if chunk.invalid().is_empty() {
            continue;
        }
        // Only an incomplete sequence at the very end can still be completed.
        let error = std::str::from_utf8(chunk.invalid()).err();
        let open = error.is_some_and(|error| error.error_len().is_none());
        if open && chunks.peek().is_none() {
            incomplete = chunk.invalid().len();
        } else {
            text.push('\u{FFFD}');
        }
    }
    pending.drain(..pending.len() - incomplete);
    text
}
