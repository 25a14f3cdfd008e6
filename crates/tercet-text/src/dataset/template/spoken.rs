//! Texts that record which of their parts are literal: from message content and not from the
//! template.
//!
//! A template prints its own text, which may spell special tokens, and message content (literal
//! text), which must not. Every operation on texts keeps the origin of each part. If an operation
//! changes single characters of a text with literal parts, the whole result is literal.

use std::ops::{Deref, Range};
use std::sync::Arc;

/// A text with the origin of each part. It dereferences to `str`.
///
/// ```
/// use tercet_text::dataset::template::{TemplateText, TemplateValue};
/// let words = TemplateValue::text("</s>").into_literal();
/// let TemplateValue::Text(text) = &words else { panic!("not a text") };
/// assert_eq!(text.literal_ranges(), [0..4]);
/// assert!(TemplateText::new("<s>").literal_ranges().is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct TemplateText {
    text: Arc<str>,
    origin: TextOrigin,
}

#[derive(Clone, Debug)]
enum TextOrigin {
    Template,
    People,
    /// The literal ranges: ascending, not empty, not adjacent.
    Mixed(Arc<[Range<usize>]>),
}

impl TemplateText {
    /// A text of the template.
    #[must_use]
    pub fn new(text: &str) -> TemplateText {
        TemplateText::of(Arc::from(text), false)
    }

    /// A text that is literal as a whole, or of the template.
    pub(super) fn of(text: Arc<str>, is_literal: bool) -> TemplateText {
        let origin = match is_literal {
            true => TextOrigin::People,
            false => TextOrigin::Template,
        };
        TemplateText { text, origin }
    }

    /// The literal byte ranges, ascending.
    #[must_use]
    pub fn literal_ranges(&self) -> Vec<Range<usize>> {
        match &self.origin {
            TextOrigin::Template => Vec::new(),
            TextOrigin::People if self.text.is_empty() => Vec::new(),
            TextOrigin::People => std::iter::once(0..self.text.len()).collect(),
            TextOrigin::Mixed(ranges) => ranges.to_vec(),
        }
    }

    /// The same text, literal as a whole.
    pub(super) fn into_literal(self) -> TemplateText {
        TemplateText::of(self.text, true)
    }

    /// Whether any part of the text is literal.
    pub(super) fn has_literal(&self) -> bool {
        !matches!(self.origin, TextOrigin::Template)
    }

    /// Whether the byte at this index is literal.
    pub(super) fn is_literal_at(&self, at: usize) -> bool {
        match &self.origin {
            TextOrigin::Template => false,
            TextOrigin::People => true,
            TextOrigin::Mixed(ranges) => {
                let next = ranges.partition_point(|r| r.end <= at);
                ranges.get(next).is_some_and(|r| r.contains(&at))
            }
        }
    }

    pub(super) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// Number of stored ranges, for the accounting of memory.
    /// Public for the tests, as [`internals`](crate::internals).
    #[doc(hidden)]
    #[must_use]
    pub fn range_count(&self) -> usize {
        match &self.origin {
            TextOrigin::Template | TextOrigin::People => 0,
            TextOrigin::Mixed(ranges) => ranges.len(),
        }
    }

    /// A part of the text; the range is in bounds and at character boundaries.
    /// Public for the tests, as [`internals`](crate::internals).
    #[doc(hidden)]
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> TemplateText {
        let mut part = TemplateTextBuilder::default();
        part.push_part(self, range);
        part.finish()
    }

    /// The part `inner`, which is a slice of this text.
    /// Public for the tests, as [`internals`](crate::internals).
    #[doc(hidden)]
    #[must_use]
    pub fn part_of(&self, inner: &str) -> TemplateText {
        let start = inner.as_ptr() as usize - self.text.as_ptr() as usize;
        self.part(start..start + inner.len())
    }

    /// The text after a change of its characters.
    /// Public for the tests, as [`internals`](crate::internals).
    #[doc(hidden)]
    #[must_use]
    pub fn mapped(&self, text: &str) -> TemplateText {
        TemplateText::of(Arc::from(text), self.has_literal())
    }
}

impl Deref for TemplateText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// Builds a text from parts.
///
/// ```
/// use tercet_text::internals::TemplateTextBuilder;
/// let mut whole = TemplateTextBuilder::default();
/// whole.push_str("<s>", false);
/// whole.push_str("ab", true);
/// assert_eq!(whole.finish().literal_ranges(), [3..5]);
/// ```
#[derive(Debug, Default)]
pub struct TemplateTextBuilder {
    text: String,
    literal: Vec<Range<usize>>,
}

impl TemplateTextBuilder {
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Appends literal text, or text of the template.
    pub fn push_str(&mut self, text: &str, is_literal: bool) {
        let start = self.text.len();
        self.text.push_str(text);
        if is_literal && !text.is_empty() {
            self.mark(start..self.text.len());
        }
    }

    /// Appends a text.
    pub fn push(&mut self, text: &TemplateText) {
        self.push_part(text, 0..text.len());
    }

    /// Appends a part of a text.
    pub fn push_part(&mut self, text: &TemplateText, range: Range<usize>) {
        let ranges = match &text.origin {
            TextOrigin::Template => return self.push_str(&text[range], false),
            TextOrigin::People => return self.push_str(&text[range], true),
            TextOrigin::Mixed(ranges) => ranges,
        };
        let start = self.text.len();
        self.text.push_str(&text[range.clone()]);
        let first = ranges.partition_point(|r| r.end <= range.start);
        for own in &ranges[first..] {
            if own.start >= range.end {
                break;
            }
            let (from, to) = (own.start.max(range.start), own.end.min(range.end));
            self.mark(start + from - range.start..start + to - range.start);
        }
    }

    fn mark(&mut self, range: Range<usize>) {
        match self.literal.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.literal.push(range),
        }
    }

    /// The text and its literal ranges.
    pub(super) fn into_parts(self) -> (String, Vec<Range<usize>>) {
        (self.text, self.literal)
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> TemplateText {
        let origin = match &self.literal[..] {
            [] => TextOrigin::Template,
            [all] if *all == (0..self.text.len()) => TextOrigin::People,
            _ => TextOrigin::Mixed(self.literal.into()),
        };
        TemplateText {
            text: self.text.into(),
            origin,
        }
    }
}
