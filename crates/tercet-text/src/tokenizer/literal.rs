//! Encoding of texts whose special tokens are ordinary text, in whole or in part.
//!
//! The `tokenizers` crate recognizes special tokens either everywhere or nowhere. For a text with
//! both template text and user input, a copy of the tokenizer spells each special token with a
//! marker character before it. The marker is then inserted before the special tokens of the
//! template. The whole text is encoded at once, so ordinary text has the same tokens as with the
//! original tokenizer.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer as Inner};

use super::trie::Trie;
use super::{Tokenizer, TokenizerEngine, TokenizerError};

/// The marker: a noncharacter, which texts do not have.
const MARK: char = '\u{FDD0}';
/// Replaces a marker in a text; it has the same number of bytes.
const REPLACED: &str = "\u{FFFD}";

/// A tokenizer that recognizes a special token only after a marker.
#[derive(Debug)]
pub(super) struct MarkedTokenizer {
    inner: Inner,
    /// The original ids of added tokens whose id differs in the copy.
    ids: HashMap<u32, u32>,
    special: Trie,
}

impl MarkedTokenizer {
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub(super) fn new(of: &Inner) -> Result<MarkedTokenizer, TokenizerError> {
        let mut inner = Inner::new(model_without_special(of)?);
        inner.with_normalizer(of.get_normalizer().cloned());
        inner.with_pre_tokenizer(of.get_pre_tokenizer().cloned());
        let mut added: Vec<(u32, AddedToken)> = of.get_added_tokens_decoder().into_iter().collect();
        added.sort_unstable_by_key(|(id, _)| *id);
        let special = added.iter().filter(|(_, token)| token.special);
        let special = Trie::new(special.map(|(id, token)| (token.content.as_str(), *id)));
        let marked = |token: &AddedToken| match token.special {
            true => AddedToken {
                content: format!("{MARK}{}", token.content),
                normalized: false,
                single_word: false,
                ..token.clone()
            },
            false => token.clone(),
        };
        let copies: Vec<AddedToken> = added.iter().map(|(_, token)| marked(token)).collect();
        inner.add_tokens(&copies);
        let mut ids = HashMap::new();
        for ((id, _), copy) in added.iter().zip(&copies) {
            if let Some(own) = inner.token_to_id(&copy.content)
                && own != *id
            {
                ids.insert(own, *id);
            }
        }
        Ok(MarkedTokenizer {
            inner,
            ids,
            special,
        })
    }

    /// The tokens of a text, with special tokens recognized outside of the `literal` ranges.
    fn encode(
        &self,
        text: &str,
        literal: &[Range<usize>],
    ) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        let mut marked = String::with_capacity(text.len());
        // The positions of the inserted markers, ascending.
        let mut marks = Vec::new();
        let (mut start, mut at) = (0, 0);
        let copy = |part: &str| part.replace(MARK, REPLACED);
        while at < text.len() {
            match longest_outside(&self.special, text, at, literal) {
                Some((len, _)) => {
                    marked.push_str(&copy(&text[start..at]));
                    marks.push(marked.len());
                    marked.push(MARK);
                    marked.push_str(&text[at..at + len]);
                    at += len;
                    start = at;
                }
                None => at += 1,
            }
        }
        marked.push_str(&copy(&text[start..]));
        let encoding = self.inner.encode(marked, false);
        let encoding = encoding.map_err(TokenizerError::failed("encoding"))?;
        let original = |at: usize| {
            let before = marks.partition_point(|mark| *mark < at);
            at - before * MARK.len_utf8()
        };
        let spans = encoding.get_offsets().iter();
        let spans = spans.map(|&(start, end)| original(start)..original(end));
        let ids = encoding.get_ids().iter();
        let ids = ids.map(|id| self.ids.get(id).copied().unwrap_or(*id));
        Ok(ids.zip(spans).collect())
    }
}

/// A copy of the tokenizer that treats special tokens as ordinary text.
///
/// # Errors
/// [`TokenizerError::Failed`].
pub(super) fn literal_copy(of: &Inner) -> Result<Inner, TokenizerError> {
    let mut copy = of.clone();
    copy.with_model(model_without_special(of)?);
    copy.set_encode_special_tokens(true);
    Ok(copy)
}

/// The model of a tokenizer. Except for BPE, special tokens in the model's vocabulary get another
/// spelling, since the model would otherwise find them in ordinary text.
fn model_without_special(of: &Inner) -> Result<ModelWrapper, TokenizerError> {
    let model = of.get_model();
    match model {
        ModelWrapper::BPE(_) => return Ok(model.clone()),
        ModelWrapper::Unigram(_) | ModelWrapper::WordLevel(_) | ModelWrapper::WordPiece(_) => {}
    }
    let added = of.get_added_tokens_decoder();
    let special = |text: &str| {
        let mut all = added.values().filter(|token| token.special);
        all.any(|token| token.content == text)
    };
    let hidden = |text: &str| format!("{MARK}{text}");
    let failed = |e: serde_json::Error| TokenizerError::failed("copying the model")(e.into());
    let mut json = serde_json::to_value(model).map_err(failed)?;
    // These models refer to their unknown token by its spelling, so it keeps that spelling.
    let unknown = json.get("unk_token").and_then(Value::as_str);
    let unknown = unknown.map(str::to_owned);
    match json.get_mut("vocab") {
        Some(Value::Array(entries)) => {
            for entry in entries.iter_mut().filter_map(Value::as_array_mut) {
                if let Some(Value::String(text)) = entry.first_mut()
                    && special(text)
                {
                    *text = hidden(text);
                }
            }
        }
        Some(Value::Object(entries)) => {
            for token in added.values().filter(|token| token.special) {
                if Some(&token.content) != unknown.as_ref()
                    && let Some(id) = entries.remove(&token.content)
                {
                    entries.insert(hidden(&token.content), id);
                }
            }
        }
        Some(_) | None => {}
    }
    serde_json::from_value(json).map_err(failed)
}

/// The longest string of the trie that starts at `at` and does not overlap the `literal` ranges,
/// which ascend.
pub(super) fn longest_outside(
    trie: &Trie,
    text: &str,
    at: usize,
    literal: &[Range<usize>],
) -> Option<(usize, u32)> {
    let found = trie.prefixes(&text.as_bytes()[at..]);
    found
        .filter(|(len, _)| !overlaps(literal, &(at..at + len)))
        .last()
}

fn overlaps(ranges: &[Range<usize>], range: &Range<usize>) -> bool {
    let next = ranges.partition_point(|r| r.end <= range.start);
    ranges.get(next).is_some_and(|r| r.start < range.end)
}

impl Tokenizer {
    /// The token ids of a text without special tokens around it. Special tokens spelled in the text
    /// are recognized, but for the byte ranges `literal`, which ascend: those are ordinary text. In
    /// the prompt of a conversation, the literal ranges are the content of messages
    /// ([`RenderedTemplate::literal`](crate::dataset::template::RenderedTemplate::literal)), so no
    /// message can end its turn or start another.
    ///
    /// ```
    /// # let json = r###"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
    /// #     {"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
    /// #      "normalized": false, "special": true}], "normalizer": null, "pre_tokenizer":
    /// #     {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false},
    /// #     "post_processor": null, "decoder": null, "model": {"type": "WordLevel",
    /// #     "unk_token": "a", "vocab": {"<s>": 0, "a": 1, "<": 2, "s": 3, ">": 4}}}"###;
    /// # let tokenizer = tercet_text::Tokenizer::from_json(json.as_bytes())?;
    /// assert_eq!(tokenizer.encode_mixed("<s><s>", &[3..6])?, [0, 2, 3, 4]);
    /// # Ok::<(), tercet_text::TokenizerError>(())
    /// ```
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn encode_mixed(
        &self,
        text: &str,
        literal: &[Range<usize>],
    ) -> Result<Vec<u32>, TokenizerError> {
        if literal.is_empty() {
            return self.encode(text, false);
        }
        let tokens = self.encode_mixed_with_spans(text, literal)?;
        Ok(tokens.into_iter().map(|(id, _)| id).collect())
    }

    /// Like [`Self::encode_mixed`], each token with its byte range in `text`
    /// ([`Self::encode_with_spans`]).
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn encode_mixed_with_spans(
        &self,
        text: &str,
        literal: &[Range<usize>],
    ) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        let TokenizerEngine::Crate { inner, marked, .. } = &self.engine else {
            return self.encode_with_spans_outside(text, literal);
        };
        let tokens = self.encode_with_spans(text)?;
        let is_spelled = |(id, span): &(u32, Range<usize>)| {
            overlaps(literal, span) && spells(inner, *id, text.get(span.clone()).unwrap_or(text))
        };
        if !tokens.iter().any(is_spelled) {
            return Ok(tokens);
        }
        let marked = match marked.get() {
            Some(marked) => marked,
            None => {
                let made = Box::new(MarkedTokenizer::new(inner)?);
                marked.get_or_init(|| made)
            }
        };
        marked.encode(text, literal)
    }
}

/// Whether `id` is a special token that `text` spells. An unknown token also stands for other texts.
pub(super) fn spells(inner: &Inner, id: u32, text: &str) -> bool {
    let added = inner.get_added_vocabulary().get_added_tokens_decoder();
    let token = added.get(&id).filter(|token| token.special);
    token.is_some_and(|token| {
        let content = token.content.as_str();
        text.contains(content) || text.to_lowercase().contains(&content.to_lowercase())
    })
}
