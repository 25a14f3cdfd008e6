//! SentencePiece tokenizers (Kudo and Richardson 2018), of a `tokenizer.model` or a GGUF file.
//!
//! A text is normalised, cut into pieces, and pieces that do not exist become bytes or the
//! unknown token. Ids and texts are those of the library `sentencepiece`. Beyond it, control
//! tokens spelled out in a text can be recognised; what stands behind one is encoded like a
//! text of its own, with the space before it that the model asks for.
//!
//! Invariants: no piece is empty, longer than [`MAX_PIECE_BYTES`] or there twice; scores are
//! finite; there are all 256 byte pieces or none, and without them there is an unknown token.

mod bpe;
mod decode;
mod normalizer;
mod proto;
mod unigram;

use std::collections::HashMap;
use std::ops::Range;

pub(super) use decode::PieceDecoder;
pub(super) use normalizer::Normalizer;
pub(super) use proto::read;

use super::TokenizerError;
use super::trie::Trie;
use crate::gguf::clip;

/// What stands for a space inside of pieces.
pub(super) const SPACE: &str = "\u{2581}";
/// What an unknown token decodes to where the model does not say.
pub(super) const UNKNOWN_SURFACE: &str = " \u{2047} ";
/// The longest piece that is read; it bounds the time that a character of a text can take.
const MAX_PIECE_BYTES: usize = 4096;

/// What a piece is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte(u8),
}

/// One entry of a vocabulary; its id is its place.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: Kind,
}

impl Piece {
    /// What it stands for in the middle of a text, and whether it is of no text.
    pub(super) fn bytes(&self) -> (Vec<u8>, bool) {
        match self.kind {
            Kind::Byte(byte) => (vec![byte], false),
            Kind::Control | Kind::Unknown => (self.text.clone().into_bytes(), true),
            Kind::Normal | Kind::UserDefined | Kind::Unused => {
                (self.text.replace(SPACE, " ").into_bytes(), false)
            }
        }
    }
}

/// How a text is cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Unigram,
    Bpe,
    Characters,
}

/// All that a file says.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) pieces: Vec<Piece>,
    pub(super) algorithm: Algorithm,
    pub(super) normalizer: Normalizer,
    /// Used where no piece is of the kind.
    pub(super) unknown: Option<u32>,
    pub(super) unknown_surface: String,
}

/// Where a piece lies in the normalised text, and its id.
type Span = (Range<usize>, Option<u32>);

/// A token and the bytes of the text that it stands for.
pub(super) type Token = (u32, Range<usize>);

/// A SentencePiece tokenizer.
#[derive(Debug)]
pub(super) struct Model {
    pieces: Vec<Piece>,
    algorithm: Algorithm,
    normalizer: Normalizer,
    unknown: Option<u32>,
    unknown_surface: String,
    /// Pieces that texts are cut into.
    ids: HashMap<String, u32>,
    /// Unknown, control and byte pieces, which a text's characters never become.
    reserved: HashMap<String, u32>,
    user_defined: Trie,
    /// Normal and user-defined pieces; empty unless the algorithm is [`Algorithm::Unigram`].
    usable: Trie,
    /// What may be recognised in a text as a whole: control and unknown tokens.
    special: Trie,
    bytes: Option<Box<[u32; 256]>>,
    max_piece_len: usize,
    /// Of normal pieces.
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

impl Model {
    /// # Errors
    /// [`TokenizerError::BadVocabulary`].
    pub(super) fn new(description: Description) -> Result<Model, TokenizerError> {
        let Description {
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
            // -0.0 is 0.0 where scores are compared.
            piece.score += 0.0;
            let known = match piece.kind {
                Kind::Normal | Kind::UserDefined | Kind::Unused => &mut ids,
                Kind::Unknown | Kind::Control | Kind::Byte(_) => &mut reserved,
            };
            if let Some(first) = known.insert(piece.text.clone(), id) {
                let text = clip(&piece.text);
                return Err(bad(format!("pieces {first} and {id} are both `{text}`")));
            }
            if piece.kind == Kind::Unknown
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
            return Err(bad(format!("the unknown token {id} is not among {count}")));
        }
        let bytes = byte_ids(&pieces)?;
        if unknown.is_none() && bytes.is_none() {
            return Err(bad(
                "there is no unknown token, nor one for each byte".into()
            ));
        }
        let of = |wanted: &dyn Fn(Kind) -> bool| {
            let entries = (0..).zip(&pieces).filter(|(_, piece)| wanted(piece.kind));
            Trie::new(entries.map(|(id, piece)| (piece.text.as_str(), id)))
        };
        let normal = pieces.iter().filter(|piece| piece.kind == Kind::Normal);
        let scores = normal.map(|piece| piece.score);
        Ok(Model {
            user_defined: of(&|kind| kind == Kind::UserDefined),
            usable: match algorithm {
                Algorithm::Unigram => of(&|kind| matches!(kind, Kind::Normal | Kind::UserDefined)),
                Algorithm::Bpe | Algorithm::Characters => Trie::default(),
            },
            special: of(&|kind| matches!(kind, Kind::Control | Kind::Unknown)),
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

    pub(super) fn piece(&self, id: u32) -> Option<&Piece> {
        self.pieces.get(id as usize)
    }

    /// The tokens that stand for no text.
    pub(super) fn control_ids(&self) -> impl Iterator<Item = u32> + '_ {
        let entries = (0..).zip(&self.pieces);
        entries.filter_map(|(id, piece)| (piece.kind == Kind::Control).then_some(id))
    }

    /// The id of a piece of any kind.
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

    /// The tokens of `text`; with `parse_special`, control tokens spelled out in it are
    /// themselves.
    pub(super) fn encode(&self, text: &str, parse_special: bool) -> Vec<Token> {
        let mut tokens = Vec::new();
        let (mut start, mut at) = (0, 0);
        while parse_special && at < text.len() {
            match self.special.longest(&text.as_bytes()[at..]) {
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

    fn encode_part(&self, text: &str, part: Range<usize>, tokens: &mut Vec<Token>) {
        let offset = part.start;
        let normalized = self.normalizer.normalize(&text[part], &self.user_defined);
        let spans = match self.algorithm {
            Algorithm::Unigram => self.likeliest(&normalized.text),
            Algorithm::Bpe => self.merge(&normalized.text),
            Algorithm::Characters => self.characters(&normalized.text),
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
                // Unknown pieces beside each other are one.
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

fn check_piece(id: u32, piece: &Piece) -> Result<(), TokenizerError> {
    let (len, score) = (piece.text.len(), piece.score);
    if len == 0 || len > MAX_PIECE_BYTES {
        return Err(bad(format!(
            "piece {id} has {len} bytes; 1 to {MAX_PIECE_BYTES} can be read"
        )));
    }
    if !score.is_finite() {
        let text = clip(&piece.text);
        return Err(bad(format!("piece {id} (`{text}`) has the score {score}")));
    }
    Ok(())
}

fn byte_ids(pieces: &[Piece]) -> Result<Option<Box<[u32; 256]>>, TokenizerError> {
    let mut found = [None; 256];
    for (id, piece) in (0_u32..).zip(pieces) {
        if let Kind::Byte(byte) = piece.kind {
            found[usize::from(byte)] = Some(id);
        }
    }
    if found.iter().all(Option::is_none) {
        return Ok(None);
    }
    let mut ids = Box::new([0; 256]);
    for (byte, (id, found)) in ids.iter_mut().zip(found).enumerate() {
        *id =
            found.ok_or_else(|| bad(format!("the byte {byte:#04x} has no piece, others have")))?;
    }
    Ok(Some(ids))
}
