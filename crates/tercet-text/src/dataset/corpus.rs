//! Tokenized documents.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use super::chat::ChatTemplate;
use super::error::{DataError, LineError};
use super::records::{ChatRecord, DatasetRecord, DatasetTask, ReadLimits, RecordReader};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Maximum number of bytes tokenized at once. Longer texts are split at line ends.
const PIECE_BYTES: usize = 4 << 20;

/// A tokenized document, with a loss mask.
///
/// ```
/// use tercet_text::dataset::TokenizedDocument;
/// let document = TokenizedDocument::new(vec![1, 5, 2]);
/// assert_eq!((document.loss_tokens(), document.is_in_loss(0)), (2, false));
/// let masked = TokenizedDocument::masked(vec![1, 5, 2], vec![false, false, true]);
/// assert_eq!(masked.loss_tokens(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizedDocument {
    tokens: Vec<u32>,
    loss_mask: LossMask,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum LossMask {
    All,
    /// The loss mask: one entry per token.
    Some(Vec<bool>),
}

impl TokenizedDocument {
    /// A document that is trained on all tokens after the first.
    #[must_use]
    pub fn new(tokens: Vec<u32>) -> TokenizedDocument {
        TokenizedDocument {
            tokens,
            loss_mask: LossMask::All,
        }
    }

    /// A document that is trained on the tokens for which `learnt` is true. Missing entries count
    /// as false.
    #[must_use]
    pub fn masked(tokens: Vec<u32>, mut learnt: Vec<bool>) -> TokenizedDocument {
        learnt.resize(tokens.len(), false);
        TokenizedDocument {
            tokens,
            loss_mask: LossMask::Some(learnt),
        }
    }

    /// The token ids.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether the token at index `at` is a training target. The first token of a document is never
    /// a target.
    #[must_use]
    pub fn is_in_loss(&self, at: usize) -> bool {
        at > 0
            && match &self.loss_mask {
                LossMask::All => at < self.tokens.len(),
                LossMask::Some(learnt) => learnt.get(at).is_some_and(|l| *l),
            }
    }

    /// Number of training targets.
    #[must_use]
    pub fn loss_tokens(&self) -> usize {
        (0..self.tokens.len())
            .filter(|at| self.is_in_loss(*at))
            .count()
    }

    /// A part of the document as a separate document. The range must be in bounds.
    /// Public for the tests, as [`internals`](crate::internals).
    #[doc(hidden)]
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> TokenizedDocument {
        let learnt = match &self.loss_mask {
            LossMask::All => LossMask::All,
            LossMask::Some(learnt) => LossMask::Some(learnt[range.clone()].to_vec()),
        };
        TokenizedDocument {
            tokens: self.tokens[range].to_vec(),
            loss_mask: learnt,
        }
    }
}

/// Options for reading a corpus.
///
/// ```
/// use tercet_text::dataset::{CorpusOptions, ReadLimits};
/// let options = CorpusOptions { eos: Some(2), ..CorpusOptions::default() };
/// assert_eq!(options.limits, ReadLimits::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorpusOptions {
    /// The end-of-sequence token, from which the model learns to stop. The token is appended to
    /// every document unless the tokenizer appends it. In a conversation, the token is appended to
    /// a final answer that the template does not end.
    pub eos: Option<u32>,
    /// Whether special tokens that a text spells are recognized, for texts that are formatted
    /// already. Otherwise special tokens are ordinary text. In a conversation only the template's
    /// own text spells special tokens.
    pub parses_special: bool,
    /// Limits on the input size.
    pub limits: ReadLimits,
}

/// The documents of a file.
///
/// ```
/// use tercet_text::dataset::{Corpus, TokenizedDocument};
/// let documents = [vec![1, 5, 2], vec![1, 7, 8, 2], vec![1]];
/// let corpus = Corpus::new(documents.map(TokenizedDocument::new).to_vec());
/// assert_eq!((corpus.documents().len(), corpus.tokens(), corpus.loss_tokens()), (2, 7, 5));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corpus {
    pub(super) documents: Vec<TokenizedDocument>,
    pub(super) notes: Vec<String>,
}

impl Corpus {
    /// A corpus of these documents, without those that have no training targets.
    #[must_use]
    pub fn new(documents: Vec<TokenizedDocument>) -> Corpus {
        let mut corpus = Corpus {
            documents,
            notes: Vec::new(),
        };
        corpus.documents.retain(|d| d.loss_tokens() > 0);
        corpus
    }

    /// Reads and tokenizes a file of texts or conversations ([`DatasetTask::Language`]).
    ///
    /// A text gets the tokenizer's special tokens and the end-of-sequence token. A conversation
    /// gets the special tokens of its template, and only its answers are training targets.
    /// Documents without targets (fewer than two tokens) are skipped; [`Self::notes`] reports their
    /// number.
    ///
    /// # Errors
    /// [`DataError`]: `Line` with the number of the invalid line, `Empty`, `NothingLeft`, `File`.
    pub fn read(
        path: impl AsRef<Path>,
        tokenizer: &Tokenizer,
        template: Option<&ChatTemplate>,
        options: CorpusOptions,
    ) -> Result<Corpus, DataError> {
        let path = path.as_ref();
        let located = |line, source: LineError| DataError::Line {
            path: path.to_path_buf(),
            line,
            source,
        };
        let writer = DocumentTokenizer {
            parses_special: options.parses_special,
            ..DocumentTokenizer::new(tokenizer, template, options.eos)?
        };
        let mut corpus = Corpus::default();
        let (mut skipped, mut spelled) = (0, 0);
        let mut any_chat = false;
        for record in RecordReader::open(path, DatasetTask::Language, options.limits)? {
            let (line, record) = record?;
            let document = match record {
                DatasetRecord::Text(text) => writer.text(&text, &mut spelled),
                DatasetRecord::Chat(chat) => {
                    any_chat = true;
                    writer.chat(&chat)
                }
                DatasetRecord::Labelled { .. } | DatasetRecord::Pair { .. } => continue,
            };
            let document = document.map_err(|e| located(line, e))?;
            match document.loss_tokens() {
                0 => skipped += 1,
                _ => corpus.documents.push(document),
            }
        }
        if corpus.documents.is_empty() {
            let path = path.to_path_buf();
            return Err(match skipped {
                0 => DataError::Empty { path },
                _ => DataError::NothingLeft { path, skipped },
            });
        }
        if skipped > 0 {
            let note = format!("{skipped} documents with fewer than two tokens are skipped");
            corpus.notes.push(note);
        }
        if spelled > 0 {
            corpus.notes.push(format!(
                "special tokens that {spelled} texts spell are ordinary text; `--parse-special` recognizes them"
            ));
        }
        if any_chat && let Some(note) = template.and_then(ChatTemplate::warning) {
            corpus.notes.push(note.to_owned());
        }
        Ok(corpus)
    }

    /// The documents, in file order.
    #[must_use]
    pub fn documents(&self) -> &[TokenizedDocument] {
        &self.documents
    }

    /// Notes for the user about how the file was read.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Total number of tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.documents.iter().map(|d| d.tokens.len()).sum()
    }

    /// Total number of training targets.
    #[must_use]
    pub fn loss_tokens(&self) -> usize {
        self.documents
            .iter()
            .map(TokenizedDocument::loss_tokens)
            .sum()
    }
}

/// Converter of records into tokenized documents.
struct DocumentTokenizer<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<&'a ChatTemplate>,
    prefix_tokens: Vec<u32>,
    after: Vec<u32>,
    special: HashSet<u32>,
    eos: Option<u32>,
    parses_special: bool,
}

impl<'a> DocumentTokenizer<'a> {
    fn new(
        tokenizer: &'a Tokenizer,
        template: Option<&'a ChatTemplate>,
        eos: Option<u32>,
    ) -> Result<DocumentTokenizer<'a>, TokenizerError> {
        let (before, mut after) = tokenizer.surrounding()?;
        if after.is_empty() {
            after.extend(eos);
        }
        Ok(DocumentTokenizer {
            tokenizer,
            template,
            prefix_tokens: before,
            after,
            special: tokenizer.special_ids(),
            eos,
            parses_special: false,
        })
    }

    /// Tokenizes a text. Special tokens that the text spells are ordinary text; if there are any,
    /// `spelled` is incremented.
    fn text(&self, text: &str, spelled: &mut usize) -> Result<TokenizedDocument, LineError> {
        let mut tokens = self.prefix_tokens.clone();
        let mut rest = text;
        let mut has_special = false;
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(piece_len(rest, PIECE_BYTES));
            let mut ids = self.tokenizer.encode(piece, false)?;
            if !self.parses_special && ids.iter().any(|id| self.special.contains(id)) {
                let literal = self.tokenizer.encode_literally(piece, false)?;
                has_special |= literal != ids;
                ids = literal;
            }
            tokens.extend(ids);
            rest = tail;
        }
        *spelled += usize::from(has_special);
        if tokens.len() == self.prefix_tokens.len() {
            return Ok(TokenizedDocument::new(Vec::new()));
        }
        tokens.extend(&self.after);
        Ok(TokenizedDocument::new(tokens))
    }

    fn chat(&self, chat: &ChatRecord) -> Result<TokenizedDocument, LineError> {
        let template = self.template.ok_or(LineError::NoTemplate)?;
        let conversation = template.conversation(chat)?;
        let encoded =
            (self.tokenizer).encode_mixed_with_spans(&conversation.text, &conversation.literal)?;
        let mut learnt = vec![false; encoded.len()];
        for answer in &conversation.answers {
            let Range { start, end: stop } = answer.range;
            // The first target is the token that contains the answer's first byte; this token may
            // begin earlier, with a space.
            let inside = |span: &Range<usize>| !span.is_empty() && span.end > start;
            // Spans are sorted.
            let from = encoded.partition_point(|(_, span)| span.end <= start);
            let mut end = from;
            for (at, (_, span)) in encoded.iter().enumerate().skip(from) {
                if span.start >= stop {
                    break;
                }
                if inside(span) {
                    learnt[at] = true;
                    end = at + 1;
                }
            }
            // Include the end of the turn if the template puts it outside the answer.
            if !answer.has_end
                && end > from
                && encoded
                    .get(end)
                    .is_some_and(|(id, _)| self.special.contains(id))
            {
                learnt[end] = true;
            }
        }
        let mut tokens: Vec<u32> = encoded.iter().map(|(id, _)| *id).collect();
        if let (Some(true), Some(last), Some(eos)) = (learnt.last(), tokens.last(), self.eos)
            && !self.special.contains(last)
        {
            tokens.push(eos);
            learnt.push(true);
        }
        Ok(TokenizedDocument::masked(tokens, learnt))
    }
}

/// Length of the next piece of text to tokenize: all of it, or up to the last line end within
/// `most` bytes. A longer line is split at a character boundary.
pub fn piece_len(text: &str, most: usize) -> usize {
    if text.len() <= most {
        return text.len();
    }
    let mut end = most;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    match text[..end].rfind('\n') {
        Some(at) => at + 1,
        None => end.max(1),
    }
}
