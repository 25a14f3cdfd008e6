//! Markers of answers: texts such as `<tool_call>` that separate thoughts, calls and text.

/// A part of a marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MarkerPart {
    Text(String),
    /// One or more digits: the index of a call.
    Digits,
    /// Letters, digits, `_` and `-`: the id of a call.
    Id,
}

/// A marker: parts with any white space between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TextMarker {
    pub(super) parts: Vec<MarkerPart>,
    /// The marker as the template writes it, with its white space.
    pub(super) spelling: String,
}

/// How a text begins, compared with a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkerMatch {
    No,
    /// More text decides.
    Partial,
    /// The marker has this many bytes.
    Yes(usize),
}

/// A piece of a text without white space, and its byte range.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextPiece<'a> {
    pub(super) text: &'a str,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Splits a text at white space and around tags.
pub(super) fn pieces(text: &str) -> Vec<TextPiece<'_>> {
    let mut all = Vec::new();
    let mut start = 0;
    let mut push = |from: usize, to: usize| {
        if from < to {
            all.push(TextPiece {
                text: &text[from..to],
                start: from,
                end: to,
            });
        }
    };
    for (at, c) in text.char_indices() {
        let next = at + c.len_utf8();
        if c.is_whitespace() {
            push(start, at);
            start = next;
        } else if matches!(c, '<' | '[' | '{') {
            push(start, at);
            start = at;
        } else if matches!(c, '>' | ']' | ',' | ';') {
            push(start, next);
            start = next;
        }
    }
    push(start, text.len());
    all
}

impl TextMarker {
    pub(super) fn new(spelling: &str) -> TextMarker {
        let parts = pieces(spelling).into_iter();
        let parts = parts.map(|piece| MarkerPart::Text(piece.text.to_string()));
        TextMarker {
            parts: parts.collect(),
            spelling: spelling.to_string(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether the marker is unlikely in ordinary text.
    pub(super) fn is_distinct(&self) -> bool {
        self.parts.iter().any(|part| match part {
            MarkerPart::Text(text) => text.len() > 2 && text.contains(['<', '[', '|', '>']),
            MarkerPart::Digits | MarkerPart::Id => false,
        })
    }

    /// Two markers in a row.
    pub(super) fn followed_by(&self, next: &TextMarker) -> TextMarker {
        TextMarker {
            parts: [self.parts.clone(), next.parts.clone()].concat(),
            spelling: format!("{}{}", self.spelling, next.spelling),
        }
    }

    /// Compares the start of a text with the marker.
    pub(super) fn matches(&self, text: &str) -> MarkerMatch {
        self.matches_with_id(text).0
    }

    /// Like [`Self::matches`], with the id in the text.
    pub(super) fn matches_with_id<'t>(&self, text: &'t str) -> (MarkerMatch, Option<&'t str>) {
        let (mut at, mut id) = (0, None);
        for (i, part) in self.parts.iter().enumerate() {
            if i > 0 {
                at += blanks(&text[at..]);
            }
            let rest = &text[at..];
            let is_word = |c: char| match part {
                MarkerPart::Digits => c.is_ascii_digit(),
                MarkerPart::Text(_) | MarkerPart::Id => {
                    c.is_ascii_alphanumeric() || c == '_' || c == '-'
                }
            };
            match part {
                MarkerPart::Text(part) if rest.starts_with(part.as_str()) => at += part.len(),
                MarkerPart::Text(part) if part.starts_with(rest) => {
                    return (MarkerMatch::Partial, id);
                }
                MarkerPart::Text(_) => return (MarkerMatch::No, id),
                MarkerPart::Digits | MarkerPart::Id => match rest.find(|c| !is_word(c)) {
                    None => return (MarkerMatch::Partial, id),
                    Some(0) => return (MarkerMatch::No, id),
                    Some(end) => {
                        if *part == MarkerPart::Id {
                            id = Some(&rest[..end]);
                        }
                        at += end;
                    }
                },
            }
        }
        (MarkerMatch::Yes(at), id)
    }

    /// The first place in a text at which the marker begins or may begin.
    pub(super) fn find(&self, text: &str) -> Option<(usize, MarkerMatch)> {
        let Some(MarkerPart::Text(first)) = self.parts.first() else {
            return None;
        };
        let first = first.chars().next()?;
        let starts = text.match_indices(first).map(|(at, _)| at);
        starts
            .map(|at| (at, self.matches(&text[at..])))
            .find(|(_, found)| *found != MarkerMatch::No)
    }

    /// Whether a text ends with the marker, up to white space.
    pub(super) fn ends(&self, text: &str) -> bool {
        let found = pieces(text);
        let parts = self.parts.iter().rev();
        let mut pairs = found.iter().rev().zip(parts);
        !self.is_empty()
            && found.len() >= self.parts.len()
            && pairs.all(|(piece, part)| *part == MarkerPart::Text(piece.text.to_string()))
    }
}

/// The bytes of white space at the start of a text.
pub(super) fn blanks(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// Whether a text begins with one of these markers.
pub(super) fn begins_any(markers: &[TextMarker], text: &str) -> MarkerMatch {
    let found = markers.iter().map(|marker| marker.matches(text));
    found.fold(MarkerMatch::No, |all, found| match (all, found) {
        (MarkerMatch::Yes(_), _) => all,
        (_, MarkerMatch::Yes(_)) => found,
        (MarkerMatch::Partial, _) => all,
        (MarkerMatch::No, found) => found,
    })
}
