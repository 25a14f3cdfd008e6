//! Decoding tokens as they come.
//!
//! A token of a byte-level vocabulary may end in the middle of a character, so text is held back
//! until the character is complete; what can never become one is given out as U+FFFD. The pieces
//! joined are exactly what decoding all tokens at once gives.
//!
//! Other decoders look at neighbouring tokens (spaces between words, bytes in a row). There, a
//! window of tokens is decoded with and without the newest ones, and the difference given out.

use super::byte_level::ByteVocab;
use super::sentencepiece::PieceDecoder;
use super::{Engine, Specials, Tokenizer, TokenizerError};

/// Tokens that may be held back because their text ends in U+FFFD: a character of UTF-8 has at
/// most four bytes, so with more the replacement character is really meant.
const MAX_HELD: usize = 4;

/// Takes tokens one by one and gives complete characters; made by [`Tokenizer::stream`].
///
/// ```
/// # fn demo(tokenizer: &tercet_models::Tokenizer, ids: &[u32])
/// #     -> Result<(), tercet_models::TokenizerError> {
/// let mut stream = tokenizer.stream();
/// for id in ids {
///     print!("{}", stream.push(*id)?);
/// }
/// println!("{}", stream.finish()?); // what an incomplete character left
/// # Ok(())
/// # }
/// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
/// #     "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
/// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}"#;
/// # demo(&tercet_models::Tokenizer::from_json(json.as_bytes())?, &[0, 1])?;
/// # Ok::<(), tercet_models::TokenizerError>(())
/// ```
#[derive(Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    state: State<'a>,
}

#[derive(Debug)]
enum State<'a> {
    /// The bytes of an incomplete character.
    Bytes {
        vocab: &'a ByteVocab,
        pending: Vec<u8>,
    },
    /// SentencePiece: decodes in one pass.
    Pieces(PieceDecoder<'a>),
    /// Tokens of which the first `given` have been given out.
    Window { ids: Vec<u32>, given: usize },
}

impl<'a> StreamDecoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        let state = match &tokenizer.engine {
            Engine::Pieces(model) => State::Pieces(PieceDecoder::new(model, Specials::Skip)),
            Engine::Crate {
                byte_vocab: Some(vocab),
                ..
            } => State::Bytes {
                vocab,
                pending: Vec::new(),
            },
            Engine::Crate {
                byte_vocab: None, ..
            } => State::Window {
                ids: Vec::new(),
                given: 0,
            },
        };
        Self { tokenizer, state }
    }

    /// Takes the next token and gives the text that is complete with it; special tokens give
    /// none.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`], [`TokenizerError::Failed`]; the stream goes on without
    /// the token.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        match &mut self.state {
            State::Bytes { vocab, pending } => {
                let token = vocab.get(id).ok_or_else(|| self.tokenizer.unknown(id))?;
                if token.special {
                    return Ok(String::new());
                }
                pending.extend_from_slice(&token.bytes);
                Ok(take_complete(pending))
            }
            State::Pieces(decoder) => decoder.push(id).ok_or_else(|| self.tokenizer.unknown(id)),
            State::Window { ids, given } => {
                self.tokenizer.known(id)?;
                ids.push(id);
                let held = ids.len() - *given;
                let fresh = fresh_text(self.tokenizer, ids, *given)?;
                if fresh.is_empty() || (fresh.ends_with('\u{FFFD}') && held < MAX_HELD) {
                    return Ok(String::new());
                }
                // The tokens just given out stay as the context of the next ones.
                ids.drain(..*given);
                *given = ids.len();
                Ok(fresh)
            }
        }
    }

    /// Ends the stream and gives what was held back.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn finish(self) -> Result<String, TokenizerError> {
        match self.state {
            State::Bytes { pending, .. } => Ok(String::from_utf8_lossy(&pending).into_owned()),
            State::Pieces(decoder) => Ok(decoder.finish()),
            State::Window { ids, given } => fresh_text(self.tokenizer, &ids, given),
        }
    }
}

/// The text that the tokens from `given` on add to those before.
fn fresh_text(tokenizer: &Tokenizer, ids: &[u32], given: usize) -> Result<String, TokenizerError> {
    let before = tokenizer.decode_ids(&ids[..given], Specials::Skip)?;
    let all = tokenizer.decode_ids(ids, Specials::Skip)?;
    // Decoders that clean up may change text that was given out; what follows the part that
    // stayed is new then.
    let same: usize = before
        .chars()
        .zip(all.chars())
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a.len_utf8())
        .sum();
    Ok(all[same..].to_owned())
}

/// Takes the complete characters from the front of `pending`; bytes that no continuation could
/// save become U+FFFD, as in `String::from_utf8_lossy`.
fn take_complete(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut incomplete = 0;
    let mut chunks = pending.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        if chunk.invalid().is_empty() {
            continue;
        }
        // Only what stands at the very end can still be continued.
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

#[cfg(test)]
mod tests {
    use super::take_complete;

    #[test]
    fn pieces_join_to_the_lossy_text_wherever_they_are_cut() {
        let bytes = b"a\xC3\xA9\xFF\xE2\x82\xAC\xE2\x82x\xF0\x9F\x98\x80\xC0\x80\xF0\x9F\x98";
        let whole = String::from_utf8_lossy(bytes);
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let mut pending = Vec::new();
                let mut text = String::new();
                for part in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                    pending.extend_from_slice(part);
                    text.push_str(&take_complete(&mut pending));
                }
                text.push_str(&String::from_utf8_lossy(&pending));
                assert_eq!(text, whole, "cut at {first} and {second}");
            }
        }
    }
}
