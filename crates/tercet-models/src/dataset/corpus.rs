//! Documents as tokens.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use super::chat::ChatTemplate;
use super::error::{DataError, LineError};
use super::records::{Chat, ReadLimits, Record, Records, Task};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// A text longer than this is tokenized in pieces that end with a line.
const PIECE_BYTES: usize = 4 << 20;

/// A document as tokens, and which of them are learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    tokens: Vec<u32>,
    learnt: Learnt,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Learnt {
    All,
    /// One for each token.
    Some(Vec<bool>),
}

impl Document {
    /// A document of which every token is learnt from those before it.
    #[must_use]
    pub fn new(tokens: Vec<u32>) -> Document {
        Document {
            tokens,
            learnt: Learnt::All,
        }
    }

    /// A document of which the tokens are learnt where `learnt` says so; tokens beyond its end are
    /// not.
    #[must_use]
    pub fn masked(tokens: Vec<u32>, mut learnt: Vec<bool>) -> Document {
        learnt.resize(tokens.len(), false);
        Document {
            tokens,
            learnt: Learnt::Some(learnt),
        }
    }

    /// The tokens.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether a token is learnt from those before it: never the first one.
    #[must_use]
    pub fn is_learnt(&self, at: usize) -> bool {
        at > 0
            && match &self.learnt {
                Learnt::All => at < self.tokens.len(),
                Learnt::Some(learnt) => learnt.get(at).is_some_and(|l| *l),
            }
    }

    /// How many tokens are learnt.
    #[must_use]
    pub fn learnt(&self) -> usize {
        (0..self.tokens.len())
            .filter(|at| self.is_learnt(*at))
            .count()
    }

    /// A part, as a document of its own. The range must lie inside.
    pub(super) fn part(&self, range: Range<usize>) -> Document {
        let learnt = match &self.learnt {
            Learnt::All => Learnt::All,
            Learnt::Some(learnt) => Learnt::Some(learnt[range.clone()].to_vec()),
        };
        Document {
            tokens: self.tokens[range].to_vec(),
            learnt,
        }
    }
}

/// How a corpus is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorpusOptions {
    /// The token that ends a text, so that the model learns to end: put behind every document, unless the
    /// tokenizer does that, and behind an answer at the end of a conversation where the template
    /// has nothing that ends it.
    pub eos: Option<u32>,
    /// Bounds.
    pub limits: ReadLimits,
}

/// The documents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corpus {
    pub(super) documents: Vec<Document>,
    pub(super) notes: Vec<String>,
}

impl Corpus {
    /// A corpus of these documents; those without anything to learn are left out.
    #[must_use]
    pub fn new(documents: Vec<Document>) -> Corpus {
        let mut corpus = Corpus {
            documents,
            notes: Vec::new(),
        };
        corpus.documents.retain(|d| d.learnt() > 0);
        corpus
    }

    /// Reads and tokenizes a file of texts or conversations ([`Task::Language`]).
    ///
    /// A text has around it the special tokens that the tokenizer wants, and the end of
    /// sequence; a conversation has those that the template writes, and only its answers are
    /// learnt. Documents with nothing to learn (of fewer than two tokens) are left out, and
    /// [`Self::notes`] says how many.
    ///
    /// # Errors
    /// [`DataError`]: `Line` with the number of the line that was refused, `Empty`, `NothingLeft`,
    /// `File`.
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
        let writer = Writer::new(tokenizer, template, options.eos)?;
        let mut corpus = Corpus::default();
        let mut skipped = 0;
        let mut any_chat = false;
        for record in Records::open(path, Task::Language, options.limits)? {
            let (line, record) = record?;
            let document = match record {
                Record::Text(text) => writer.text(&text),
                Record::Chat(chat) => {
                    any_chat = true;
                    writer.chat(&chat)
                }
                Record::Labelled { .. } | Record::Pair { .. } => continue,
            };
            let document = document.map_err(|e| located(line, e))?;
            match document.learnt() {
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
            let note = format!("{skipped} documents have fewer than two tokens and are left out");
            corpus.notes.push(note);
        }
        if any_chat && let Some(note) = template.and_then(ChatTemplate::note) {
            corpus.notes.push(note.to_owned());
        }
        Ok(corpus)
    }

    /// The documents, in the order of the file.
    #[must_use]
    pub fn documents(&self) -> &[Document] {
        &self.documents
    }

    /// What a user should know about how the file was read.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Tokens in all.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.documents.iter().map(|d| d.tokens.len()).sum()
    }

    /// Tokens that are learnt, in all.
    #[must_use]
    pub fn learnt(&self) -> usize {
        self.documents.iter().map(Document::learnt).sum()
    }
}

/// What turns records into documents.
struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<&'a ChatTemplate>,
    before: Vec<u32>,
    after: Vec<u32>,
    special: HashSet<u32>,
    eos: Option<u32>,
}

impl<'a> Writer<'a> {
    fn new(
        tokenizer: &'a Tokenizer,
        template: Option<&'a ChatTemplate>,
        eos: Option<u32>,
    ) -> Result<Writer<'a>, TokenizerError> {
        let (before, mut after) = tokenizer.surrounding()?;
        if after.is_empty() {
            after.extend(eos);
        }
        Ok(Writer {
            tokenizer,
            template,
            before,
            after,
            special: tokenizer.special_ids(),
            eos,
        })
    }

    fn text(&self, text: &str) -> Result<Document, LineError> {
        let mut tokens = self.before.clone();
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(piece_len(rest, PIECE_BYTES));
            tokens.extend(self.tokenizer.encode(piece, false)?);
            rest = tail;
        }
        if tokens.len() == self.before.len() {
            return Ok(Document::new(Vec::new()));
        }
        tokens.extend(&self.after);
        Ok(Document::new(tokens))
    }

    fn chat(&self, chat: &Chat) -> Result<Document, LineError> {
        let template = self.template.ok_or(LineError::NoTemplate)?;
        let conversation = template.conversation(chat)?;
        let encoded = self.tokenizer.encode_with_spans(&conversation.text)?;
        let mut learnt = vec![false; encoded.len()];
        for answer in &conversation.answers {
            let Range { start, end: stop } = answer.range;
            // A token that begins before the answer, with a space, is where the answer begins.
            let inside = |span: &Range<usize>| !span.is_empty() && span.end > start;
            // Spans are in order.
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
            // The end of the turn, where the template keeps it out of the answer.
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
        Ok(Document::masked(tokens, learnt))
    }
}

/// How much of a text to tokenize at once: all of it, or up to the last line end within `most`
/// bytes, or, of a line that is longer, up to a character's end.
fn piece_len(text: &str, most: usize) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_with_lines() {
        assert_eq!(piece_len("ab\ncd", 5), 5);
        assert_eq!(piece_len("ab\ncd", 4), 3);
        assert_eq!(piece_len("abcd", 3), 3);
        assert_eq!(piece_len("\u{e9}\u{e9}", 3), 2);
    }

    #[test]
    fn parts_keep_what_is_learnt() {
        let document = Document::masked(vec![1, 2, 3, 4], vec![true, false, true]);
        assert_eq!(document.learnt(), 1);
        let part = document.part(1..4);
        assert_eq!(part.tokens(), [2, 3, 4]);
        assert!(part.is_learnt(1) && !part.is_learnt(2));
        assert_eq!(document.part(2..4).learnt(), 0);
    }
}
