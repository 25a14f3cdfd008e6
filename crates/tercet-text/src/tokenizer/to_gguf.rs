//! Conversion of a folder's vocabulary to GGUF metadata.

use serde_json::{Map, Value};

use super::from_gguf::TokenType;
use super::sentencepiece::{self, SentencePieceAlgorithm, SentencePieceKind};
use super::{TokenizerError, pre_tokenizers};

/// A SentencePiece BPE vocabulary.
///
/// ```
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/");
/// # let bytes = std::fs::read(format!("{data}tokenizers/bpe_plain.model"))?;
/// use tercet_text::tokenizer::{TokenType, pieces_of};
/// let vocabulary = pieces_of(&bytes)?;
/// assert_eq!(vocabulary.tokens[0].2, TokenType::Unknown);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SentencePieceBpe {
    /// Spelling, score and type of each token.
    pub tokens: Vec<(String, f32, TokenType)>,
    /// Whether a space is prepended to a text.
    pub add_space_prefix: bool,
    /// Whether leading, trailing and repeated spaces are removed.
    pub remove_extra_whitespaces: bool,
    /// The id of the token of unknown text.
    pub unknown: Option<u32>,
}

/// The vocabulary of a `tokenizer.model`.
///
/// # Errors
/// [`TokenizerError`]: the file is damaged, or is not a BPE model without replacement table.
pub fn pieces_of(bytes: &[u8]) -> Result<SentencePieceBpe, TokenizerError> {
    let model = sentencepiece::read(bytes)?;
    let unsupported = |what| Err(TokenizerError::UnsupportedPieces { what });
    match model.algorithm {
        SentencePieceAlgorithm::Bpe => {}
        SentencePieceAlgorithm::Unigram | SentencePieceAlgorithm::Characters => {
            return unsupported("an algorithm other than BPE (for conversion to GGUF)");
        }
    }
    let normalizer = model.normalizer;
    if normalizer.charsmap.is_some() || normalizer.whitespace_as_suffix {
        return unsupported("character replacements (for conversion to GGUF)");
    }
    let unknown = (model.pieces.iter()).position(|piece| piece.kind == SentencePieceKind::Unknown);
    let tokens = model.pieces.into_iter().map(|piece| {
        let ty = match piece.kind {
            SentencePieceKind::Normal => TokenType::Normal,
            SentencePieceKind::Unknown => TokenType::Unknown,
            SentencePieceKind::Control => TokenType::Control,
            SentencePieceKind::UserDefined => TokenType::UserDefined,
            SentencePieceKind::Unused => TokenType::Unused,
            SentencePieceKind::Byte(_) => TokenType::Byte,
        };
        (piece.text, piece.score, ty)
    });
    Ok(SentencePieceBpe {
        tokens: tokens.collect(),
        add_space_prefix: normalizer.add_dummy_prefix,
        remove_extra_whitespaces: normalizer.remove_extra_whitespaces,
        unknown: unknown.map(|id| id as u32).or(model.unknown),
    })
}

/// The GGUF name of the word splitting in a `tokenizer.json` with byte-level BPE.
///
/// # Errors
/// A description of the setting that has no GGUF name.
pub fn pre_tokenizer_of(json: &Map<String, Value>) -> Result<&'static str, String> {
    let model = json.get("model").and_then(Value::as_object);
    let model = model.ok_or("tokenizer.json has no `model`")?;
    let flag = |name: &str| model.get(name).and_then(Value::as_bool) == Some(true);
    if kind(json.get("model")) != Some("BPE") || flag("byte_fallback") {
        return Err(
            "only byte-level BPE of a tokenizer.json can be converted to GGUF; a SentencePiece \
             vocabulary requires its tokenizer.model"
                .to_string(),
        );
    }
    let nfc = match json.get("normalizer") {
        None | Some(Value::Null) => false,
        normalizer if kind(normalizer) == Some("NFC") => true,
        _ => return Err("GGUF files have no name for the normalizer of tokenizer.json".into()),
    };
    let splits = splits(json.get("pre_tokenizer"));
    let splits = splits.ok_or("GGUF files have no name for the pre-tokenizer of tokenizer.json")?;
    let found = pre_tokenizers::named(&splits, nfc, flag("ignore_merges"));
    found.ok_or_else(|| {
        format!("GGUF files have no name for a pre-tokenizer of these patterns: {splits:?}")
    })
}

fn kind(of: Option<&Value>) -> Option<&str> {
    of?.get("type")?.as_str()
}

/// The patterns that split a text, in order, before the byte-level spelling.
fn splits(of: Option<&Value>) -> Option<Vec<&str>> {
    let flag = |name: &str| of?.get(name)?.as_bool();
    match kind(of)? {
        "Sequence" => {
            let steps = of?.get("pretokenizers")?.as_array()?;
            let (last, before) = steps.split_last()?;
            if kind(Some(last)) != Some("ByteLevel") {
                return None;
            }
            let mut all = Vec::new();
            for step in before.iter().filter(|s| kind(Some(s)) != Some("ByteLevel")) {
                all.extend(splits(Some(step))?);
            }
            all.extend(splits(Some(last))?);
            let levels = before.iter().filter(|s| kind(Some(s)) == Some("ByteLevel"));
            (levels.count() == 0).then_some(all)
        }
        "Split" if flag("invert") == Some(false) => {
            let isolated = of?.get("behavior")?.as_str() == Some("Isolated");
            let pattern = of?.get("pattern")?.get("Regex")?.as_str()?;
            isolated.then(|| vec![pattern])
        }
        "Digits" if flag("individual_digits") == Some(true) => Some(vec![r"\p{N}"]),
        "ByteLevel" if flag("add_prefix_space") == Some(false) => {
            match flag("use_regex").unwrap_or(true) {
                true => Some(vec![pre_tokenizers::GPT2]),
                false => Some(Vec::new()),
            }
        }
        _ => None,
    }
}
