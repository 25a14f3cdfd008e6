//! SentencePiece tokenizers (Kudo and Richardson 2018), from a `tokenizer.model` or a GGUF file.
//!
//! A text is normalized and split into pieces. Unknown pieces become bytes or the unknown token.
//! Ids and texts equal those of the `sentencepiece` library. In addition, control tokens spelled in
//! a text can be recognized; the text after one is encoded like a separate text, with the model's
//! space prefix.
//!
//! Invariants: no piece is empty, longer than [`MAX_PIECE_BYTES`] or duplicate; scores are finite.
//! Either all 256 byte pieces exist or none; without them there is an unknown token.

mod bpe;
mod decode;
mod normalizer;
mod proto;
mod unigram;

use std::collections::HashMap;
use std::ops::Range;

pub(super) use decode::PieceDecoder;
pub(super) use normalizer::SentencePieceNormalizer;
pub(super) use proto::read;

use super::TokenizerError;
use super::literal::longest_outside;
use super::trie::Trie;
use tercet_files::clip;

/// The character that replaces a space inside pieces.
pub(super) const SPACE: &str = "\u{2581}";
/// The default text of an unknown token.
pub(super) const UNKNOWN_SURFACE: &str = " \u{2047} ";
/// Maximum length of a piece, in bytes. The limit bounds the time per character of a text.
const MAX_PIECE_BYTES: usize = 4096;

/// The type of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentencePieceKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte(u8),
}

/// One entry of a vocabulary; its id is its index.
#[derive(Debug)]
pub(super) struct SentencePieceEntry {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: SentencePieceKind,
}

impl SentencePieceEntry {
    /// The bytes of the piece in the middle of a text, and whether the piece is special (without
    /// text).
    pub(super) fn bytes(&self) -> (Vec<u8>, bool) {
        match self.kind {
            SentencePieceKind::Byte(byte) => (vec![byte], false),
            SentencePieceKind::Control | SentencePieceKind::Unknown => {
                (self.text.clone().into_bytes(), true)
            }
            SentencePieceKind::Normal
            | SentencePieceKind::UserDefined
            | SentencePieceKind::Unused => (self.text.replace(SPACE, " ").into_bytes(), false),
        }
    }
}

/// The segmentation algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentencePieceAlgorithm {
    Unigram,
    Bpe,
    Characters,
}

/// The content of a model file.
#[derive(Debug)]
pub(super) struct SentencePieceSpec {
    pub(super) pieces: Vec<SentencePieceEntry>,
    pub(super) algorithm: SentencePieceAlgorithm,
    pub(super) normalizer: SentencePieceNormalizer,
    /// The default id of the unknown token, for files without a piece of the type `UNKNOWN`.
    pub(super) unknown: Option<u32>,
    pub(super) unknown_surface: String,
}

/// The byte range of a piece in the normalized text, and its id.
type SentencePieceSpan = (Range<usize>, Option<u32>);

/// A token and its byte range in the original text.
pub(super) type SentencePieceToken = (u32, Range<usize>);

/// A SentencePiece tokenizer.
#[derive(Debug)]
pub(super) struct SentencePieceModel {
    pieces: Vec<SentencePieceEntry>,
    algorithm: SentencePieceAlgorithm,
    normalizer: SentencePieceNormalizer,
    unknown: Option<u32>,
    unknown_surface: String,
    /// Ids of the pieces that texts are segmented into.
    ids: HashMap<String, u32>,
    /// Ids of unknown, control and byte pieces, which ordinary characters never match.
    reserved: HashMap<String, u32>,
    user_defined: Trie,
    /// Normal and user-defined pieces; empty unless the algorithm is [`SentencePieceAlgorithm::Unigram`].
    usable: Trie,
    /// The control and unknown tokens that can be recognized in a text.
    special: Trie,
    bytes: Option<Box<[u32; 256]>>,
    max_piece_len: usize,
    /// The lowest score of a normal piece.
    min_score: f32,
}

fn bad(reason: String) -> TokenizerError {
    TokenizerError::BadVocabulary { reason }
}

/// The value of a byte piece, which is spelled `<0x00>` to `<0xFF>`.
pub(super) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let upper = digits
        .bytes()
        .all(|c| matches!(c, b'0'..=b'9' | b'A'..=b'F'));
    (digits.len() == 2 && upper).then(|| u8::from_str_radix(digits, 16).ok())?
}

impl SentencePieceModel {
    /// # Errors
    /// [`TokenizerError::BadVocabulary`].
    pub(super) fn new(
        description: SentencePieceSpec,
    ) -> Result<SentencePieceModel, TokenizerError> {
        let SentencePieceSpec {
            mut pieces,
            algorithm,
            normalizer,
            mut unknown,
            unknown_surface,
        } = description;
        let (mut ids, mut reserved) = (HashMap::new(), HashMap::new());
        let mut of_kind = None;
        for (id, piece) in (0_u32..).zip(&mut pieces) {
            check_piece(id, piece)?;
            // Normalizes -0.0 to 0.0 for the comparison of scores.
            piece.score += 0.0;
            let known = match piece.kind {
                SentencePieceKind::Normal
                | SentencePieceKind::UserDefined
                | SentencePieceKind::Unused => &mut ids,
                SentencePieceKind::Unknown
                | SentencePieceKind::Control
                | SentencePieceKind::Byte(_) => &mut reserved,
            };
            if let Some(first) = known.insert(piece.text.clone(), id) {
                let text = clip(&piece.text);
                return Err(bad(format!("pieces {first} and {id} are both `{text}`")));
            }
            if piece.kind == SentencePieceKind::Unknown
                && let Some(first) = of_kind.replace(id)
            {
                return Err(bad(format!(
                    "pieces {first} and {id} are both the unknown one"
                )));
            }
        }
        unknown = of_kind.or(unknown);
        if let Some(id) = unknown.filter(|id| *id as usize >= pieces.len()) {
            let count = pieces.len();
            return Err(bad(format!(
                "the unknown token {id} is beyond the {count} pieces"
            )));
        }
        let bytes = byte_ids(&pieces)?;
        if unknown.is_none() && bytes.is_none() {
            return Err(bad(
                "there is neither an unknown token nor a token for each byte".into(),
            ));
        }
        let of = |wanted: &dyn Fn(SentencePieceKind) -> bool| {
            let entries = (0..).zip(&pieces).filter(|(_, piece)| wanted(piece.kind));
            Trie::new(entries.map(|(id, piece)| (piece.text.as_str(), id)))
        };
        let normal = pieces
            .iter()
            .filter(|piece| piece.kind == SentencePieceKind::Normal);
        let scores = normal.map(|piece| piece.score);
        Ok(SentencePieceModel {
            user_defined: of(&|kind| kind == SentencePieceKind::UserDefined),
            usable: match algorithm {
                SentencePieceAlgorithm::Unigram => of(&|kind| {
                    matches!(
                        kind,
                        SentencePieceKind::Normal | SentencePieceKind::UserDefined
                    )
                }),
                SentencePieceAlgorithm::Bpe | SentencePieceAlgorithm::Characters => Trie::default(),
            },
            special: of(&|kind| {
                matches!(
                    kind,
                    SentencePieceKind::Control | SentencePieceKind::Unknown
                )
            }),
            max_piece_len: ids.keys().map(String::len).max().unwrap_or(0),
            min_score: scores.fold(f32::MAX, f32::min),
            pieces,
            algorithm,
            normalizer,
            unknown,
            unknown_surface,
            ids,
            reserved,
            bytes,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Length of the longest piece in bytes.
    pub(super) fn longest_piece(&self) -> usize {
        let lengths = self.pieces.iter().map(|piece| piece.text.len());
        lengths.max().unwrap_or(0)
    }

    pub(super) fn piece(&self, id: u32) -> Option<&SentencePieceEntry> {
        self.pieces.get(id as usize)
    }

    /// Whether a token has no text.
    pub(super) fn is_control(&self, id: u32) -> bool {
        let piece = self.piece(id);
        piece.is_some_and(|piece| piece.kind == SentencePieceKind::Control)
    }

    /// The type of a piece.
    pub(super) fn kind(&self, id: u32) -> Option<SentencePieceKind> {
        self.piece(id).map(|piece| piece.kind)
    }

    /// The ids of tokens without text.
    pub(super) fn control_ids(&self) -> impl Iterator<Item = u32> + '_ {
        let entries = (0..).zip(&self.pieces);
        entries.filter_map(|(id, piece)| (piece.kind == SentencePieceKind::Control).then_some(id))
    }

    /// The id of a piece of any type.
    pub(super) fn any_id(&self, text: &str) -> Option<u32> {
        let reserved = self.reserved.get(text);
        reserved.or_else(|| self.ids.get(text)).copied()
    }

    fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    fn id_or_unknown(&self, text: &str) -> Option<u32> {
        self.any_id(text).or(self.unknown)
    }

    /// The tokens of `text`. Control tokens spelled in `text` are recognized outside of the byte
    /// ranges `literal`, which ascend.
    pub(super) fn encode(&self, text: &str, literal: &[Range<usize>]) -> Vec<SentencePieceToken> {
        let mut tokens = Vec::new();
        let (mut start, mut at) = (0, 0);
        while at < text.len() {
            match longest_outside(&self.special, text, at, literal) {
                Some((len, id)) => {
                    self.encode_part(text, start..at, &mut tokens);
                    tokens.push((id, at..at + len));
                    at += len;
                    start = at;
                }
                None => at += 1,
            }
        }
        self.encode_part(text, start..text.len(), &mut tokens);
        tokens
    }

    /// The tokens of `text`, in which control tokens are ordinary text.
    pub(super) fn encode_literally(&self, text: &str) -> Vec<SentencePieceToken> {
        let mut tokens = Vec::new();
        self.encode_part(text, 0..text.len(), &mut tokens);
        tokens
    }

    fn encode_part(&self, text: &str, part: Range<usize>, tokens: &mut Vec<SentencePieceToken>) {
        let offset = part.start;
        let normalized = self.normalizer.normalize(&text[part], &self.user_defined);
        let spans = match self.algorithm {
            SentencePieceAlgorithm::Unigram => self.viterbi(&normalized.text),
            SentencePieceAlgorithm::Bpe => self.merge(&normalized.text),
            SentencePieceAlgorithm::Characters => self.characters(&normalized.text),
        };
        let origins = &normalized.origins;
        let mut after_unknown = false;
        for (range, id) in spans {
            let source = offset + origins[range.start]..offset + origins[range.end];
            let is_unknown = id.is_none() || id == self.unknown;
            match (id, &self.bytes) {
                (_, Some(bytes)) if is_unknown => {
                    let text = normalized.text[range].bytes();
                    tokens.extend(text.map(|b| (bytes[usize::from(b)], source.clone())));
                }
                // Adjacent unknown pieces are merged into one.
                (Some(_), None) if is_unknown && after_unknown => {
                    if let Some((_, last)) = tokens.last_mut() {
                        last.end = source.end;
                    }
                }
                (Some(id), _) => tokens.push((id, source)),
                (None, _) => {}
            }
            after_unknown = is_unknown;
        }
    }
}

fn check_piece(id: u32, piece: &SentencePieceEntry) -> Result<(), TokenizerError> {
    let (len, score) = (piece.text.len(), piece.score);
    if len == 0 || len > MAX_PIECE_BYTES {
        return Err(bad(format!(
            "piece {id} has {len} bytes; expected 1 to {MAX_PIECE_BYTES}"
        )));
    }
    if !score.is_finite() {
        let text = clip(&piece.text);
        return Err(bad(format!("piece {id} (`{text}`) has the score {score}")));
    }
    Ok(())
}

fn byte_ids(pieces: &[SentencePieceEntry]) -> Result<Option<Box<[u32; 256]>>, TokenizerError> {
    let mut found = [None; 256];
    for (id, piece) in (0_u32..).zip(pieces) {
        if let SentencePieceKind::Byte(byte) = piece.kind {
            found[usize::from(byte)] = Some(id);
        }
    }
    if found.iter().all(Option::is_none) {
        return Ok(None);
    }
    let mut ids = Box::new([0; 256]);
    for (byte, (id, found)) in ids.iter_mut().zip(found).enumerate() {
        *id = found.ok_or_else(|| {
            bad(format!(
                "the byte {byte:#04x} has no piece, but other bytes have one"
            ))
        })?;
    }
    Ok(Some(ids))
}
