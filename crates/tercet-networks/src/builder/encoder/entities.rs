//! Named entity recognition: adjacent tokens of one class are merged into a span of the text.

use std::ops::Range;

use super::super::ModelError;
use super::classifier::{ClassScore, TextClassifier};
use crate::maybe_async::{WaitMode, block_on_ready};

/// Class name of tokens outside any entity.
const OUTSIDE: &str = "O";

/// A named entity: a span of a text with its class.
///
/// ```
/// use tercet_networks::Entity;
/// let entity = Entity { name: "LOC".to_string(), score: 0.99, span: 8..14 };
/// assert_eq!(&"I am in Berlin"[entity.span.clone()], "Berlin");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Entity {
    /// Class name without the begin or inside prefix (`B-`, `I-`).
    pub name: String,
    /// Mean score of the entity's tokens.
    pub score: f32,
    /// Byte range in the text.
    pub span: Range<usize>,
}

impl TextClassifier {
    /// Entities of each text, for a token classification model. Adjacent tokens are merged if their
    /// most likely classes have the same name; a class `B-...` starts a new entity. Tokens of class
    /// `O` are ignored. This is the aggregation strategy "simple" of the transformers pipeline.
    ///
    /// # Errors
    /// Same errors as [`TextClassifier::classify_tokens`].
    pub fn entities<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Vec<Entity>>, ModelError> {
        self.entities_with_progress(texts, &mut |_| true)
    }

    /// Like [`Self::entities`], with a callback.
    ///
    /// # Errors
    /// Same errors as [`TextClassifier::classify_tokens`].
    pub fn entities_with_progress<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<Entity>>, ModelError> {
        let all = self.tokens(texts.iter().map(|text| (text.as_ref(), None)))?;
        let before = self.tokenizer.surrounding()?.0.len();
        let mut spans = Vec::with_capacity(texts.len());
        for (at, (text, own)) in texts.iter().zip(&all).enumerate() {
            let text = text.as_ref();
            let all_of_it = 0..text.len();
            let literal = std::slice::from_ref(&all_of_it);
            let found = self.tokenizer.encode_mixed_with_spans(text, literal)?;
            // Compare only the common prefix of both token lists: the encoder may have truncated
            // the text.
            let same = found.iter().zip(own.row.ids.iter().skip(before));
            let count = same.take_while(|((id, _), own)| id == *own).count();
            if count == 0 && !found.is_empty() {
                let reason = format!(
                    "text {}: the tokenizer does not map tokens to byte ranges",
                    at + 1
                );
                return Err(ModelError::Unsupported(reason));
            }
            let found = found.into_iter().take(count).map(|(_, span)| span);
            spans.push(found.collect::<Vec<_>>());
        }
        let (labels, scoring) = (&self.labels, self.scoring);
        let mut entities = vec![Vec::new(); all.len()];
        let take = &mut |at: usize, logits: &[f32]| {
            let rows = logits.chunks_exact(labels.len()).skip(before);
            let tokens = rows.zip(&spans[at]).map(|(logits, span)| {
                let label = ClassScore::top_class(logits, scoring);
                (label, span.clone())
            });
            entities[at] = joined(tokens, labels);
        };
        block_on_ready((self.runner).run_all(&all, progress, take, WaitMode::Blocking))?;
        Ok(entities)
    }
}

/// Splits a class into its begin flag and its name without the prefix.
fn tag(label: &str) -> (bool, &str) {
    match (label.strip_prefix("B-"), label.strip_prefix("I-")) {
        (Some(tag), _) => (true, tag),
        (None, Some(tag)) => (false, tag),
        (None, None) => (false, label),
    }
}

/// The entities of a text, from the most probable class and the byte range of each token.
pub fn joined(
    tokens: impl Iterator<Item = (ClassScore, Range<usize>)>,
    labels: &[String],
) -> Vec<Entity> {
    /// An entity under construction: class name, sum and number of scores, byte range, class label.
    type Piece<'a> = (&'a str, f32, usize, Range<usize>, &'a str);
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    for (ClassScore { class, score }, span) in tokens {
        let label = labels[class].as_str();
        let (begins, tag) = tag(label);
        match pieces.last_mut() {
            Some((last, sum, count, whole, _)) if *last == tag && !begins => {
                *sum += score;
                *count += 1;
                whole.end = span.end;
            }
            Some(_) | None => pieces.push((tag, score, 1, span, label)),
        }
    }
    let named = pieces
        .into_iter()
        .map(|(_, sum, count, span, label)| Entity {
            name: label
                .split_once('-')
                .map_or(label, |(_, name)| name)
                .to_string(),
            score: sum / count as f32,
            span,
        });
    named.filter(|entity| entity.name != OUTSIDE).collect()
}
