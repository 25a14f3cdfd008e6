//! Byte-level vocabularies: the bytes of each token.
//!
//! Byte-level BPE (GPT-2, Radford et al. 2019) spells every byte as a printable character:
//! printable Latin-1 as itself, the 68 others as U+0100 and up. Decoding is the inverse.

use std::collections::HashMap;

use tokenizers::DecoderWrapper;

/// One token of a byte-level vocabulary.
#[derive(Debug)]
pub(super) struct ByteToken {
    pub(super) bytes: Box<[u8]>,
    pub(super) special: bool,
}

/// Bytes by token id. A map, because ids in a `tokenizer.json` need not be consecutive.
#[derive(Debug)]
pub(super) struct ByteVocab(HashMap<u32, ByteToken>);

impl ByteVocab {
    /// The table of a tokenizer with a byte-level decoder; `None` for other tokenizers.
    pub(super) fn from_tokenizer(inner: &tokenizers::Tokenizer) -> Option<Self> {
        let Some(DecoderWrapper::ByteLevel(_)) = inner.get_decoder() else {
            return None;
        };
        let byte_of = byte_of_char();
        let mut tokens: HashMap<u32, ByteToken> = inner
            .get_vocab(false)
            .into_iter()
            .map(|(text, id)| {
                let bytes: Option<Box<[u8]>> =
                    text.chars().map(|c| byte_of.get(&c).copied()).collect();
                let token = ByteToken {
                    // A token outside the byte alphabet was added manually, so its text is used
                    // unchanged.
                    bytes: bytes.unwrap_or_else(|| text.into_bytes().into()),
                    special: false,
                };
                (id, token)
            })
            .collect();
        for (id, added) in inner.get_added_tokens_decoder() {
            let token = ByteToken {
                bytes: added.content.into_bytes().into(),
                special: added.special,
            };
            tokens.insert(id, token);
        }
        Some(Self(tokens))
    }

    pub(super) fn get(&self, id: u32) -> Option<&ByteToken> {
        self.0.get(&id)
    }
}

/// The character that spells each byte.
pub(super) fn char_of_byte() -> [char; 256] {
    let mut next = 0x100_u32;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            return char::from(byte);
        }
        let spelled = char::from_u32(next).expect("invariant: U+0100 to U+0143 are characters");
        next += 1;
        spelled
    })
}

fn byte_of_char() -> HashMap<char, u8> {
    (0..=u8::MAX)
        .zip(char_of_byte())
        .map(|(byte, spelled)| (spelled, byte))
        .collect()
}

/// The bytes of a token in the middle of a text, and whether the token is special. For tokenizers
/// that spell spaces as U+2581 and, with byte fallback, bytes as `<0x0A>`; `None` for other
/// tokenizers.
pub(super) fn piece_bytes(inner: &tokenizers::Tokenizer, id: u32) -> Option<(Vec<u8>, bool)> {
    let (spaces, fallback) = match inner.get_decoder()? {
        DecoderWrapper::Metaspace(_) => (true, false),
        DecoderWrapper::Sequence(all) => {
            let has = |f: fn(&DecoderWrapper) -> bool| all.get_decoders().iter().any(f);
            let fallback = has(|d| matches!(d, DecoderWrapper::ByteFallback(_)));
            (
                fallback || has(|d| matches!(d, DecoderWrapper::Metaspace(_))),
                fallback,
            )
        }
        _ => (false, false),
    };
    let text = inner.id_to_token(id).filter(|_| spaces)?;
    if let Some(added) = inner
        .get_added_vocabulary()
        .get_added_tokens_decoder()
        .get(&id)
    {
        return Some((text.into_bytes(), added.special));
    }
    let hex = text.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
    let byte = hex
        .filter(|_| fallback)
        .and_then(|hex| u8::from_str_radix(hex, 16).ok());
    Some(match byte {
        Some(byte) => (vec![byte], false),
        None => (
            text.replace(super::sentencepiece::SPACE, " ").into_bytes(),
            false,
        ),
    })
}
