//! What tokens and timestamps mean: segments of text with times.

use crate::config::SpeechTokens;

/// Seconds of a step of timestamps.
const STEP: f64 = 0.02;
/// Frames of a step of timestamps.
const FRAMES_OF_STEP: usize = 2;

/// A piece of text and when it is spoken.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Where it begins, in seconds from the beginning of the recording.
    pub start: f64,
    /// Where it ends, in seconds.
    pub end: f64,
    /// Its text.
    pub text: String,
    /// Its tokens, timestamps included.
    pub tokens: Vec<u32>,
    /// The temperature that it was written at.
    pub temperature: f64,
    /// The mean natural logarithm of the probabilities of its window's tokens.
    pub log_probability: f64,
    /// By how much zlib compresses its window's tokens.
    pub compression: f64,
    /// The probability that its window has no speech.
    pub no_speech: f64,
}

/// What was said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// The code of the language, where the model knows several and it was chosen or found out.
    pub language: Option<String>,
    /// The segments in order.
    pub segments: Vec<Segment>,
    /// The length of the recording, in seconds.
    pub seconds: f64,
}

impl Transcript {
    /// The text of all segments.
    pub fn text(&self) -> String {
        self.segments.iter().map(|s| s.text.as_str()).collect()
    }
}

/// Times and tokens of a segment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) tokens: Vec<u32>,
}

/// The segments of what was written of the window from frame `from` on, of `frames`, without what ends the text; and how many
/// frames further the next window begins.
///
/// Two timestamps that follow each other end a segment. After the last such pair the recording goes on, in the next window, unless
/// a single timestamp ends the text: then nothing is spoken behind it.
pub(super) fn split(
    text: &[u32],
    tokens: &SpeechTokens,
    (from, frames): (usize, usize),
) -> (Vec<Span>, usize) {
    let first = tokens.first_timestamp();
    let is_time: Vec<bool> = text.iter().map(|token| *token >= first).collect();
    let offset = from as f64 * STEP / FRAMES_OF_STEP as f64;
    let at = |token: u32| offset + (f64::from(token) - f64::from(first)) * STEP;
    let mut ends: Vec<usize> = (1..text.len())
        .filter(|i| is_time[i - 1] && is_time[*i])
        .collect();
    let Some(last) = ends.last_mut() else {
        let latest = text.iter().rfind(|token| **token > first);
        // Of the last timestamp alone, if it is not the first of all.
        let latest = latest.filter(|_| text.iter().rfind(|token| **token >= first) != Some(&first));
        let steps = (frames as f64 * 0.01 / STEP).floor();
        let whole = Span {
            start: offset,
            end: latest.map_or(offset + steps * STEP, |token| at(*token)),
            tokens: text.to_vec(),
        };
        return (vec![whole], frames);
    };
    let ends_single = matches!(is_time.as_slice(), [.., false, true]);
    match ends_single {
        true => ends.push(text.len()),
        // Both timestamps belong to the last segment, which tells it from a single one.
        false => *last += 1,
    }
    let mut spans = Vec::new();
    let mut start = 0;
    let count = ends.len();
    for (i, end) in ends.into_iter().enumerate() {
        let own = &text[start..end];
        let before_end = match i + 1 < count || ends_single {
            true => own.len().checked_sub(1),
            false => own.len().checked_sub(2),
        };
        if let (Some(first), Some(last)) = (own.first(), before_end.map(|i| own[i])) {
            spans.push(Span {
                start: at(*first),
                end: at(last),
                tokens: own.to_vec(),
            });
        }
        start = end;
    }
    let next = match ends_single {
        true => frames,
        false => (text[start - 2] - first) as usize * FRAMES_OF_STEP,
    };
    (spans, next)
}
