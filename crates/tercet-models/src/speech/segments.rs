//! Conversion of Whisper tokens and timestamps to text segments with times.

use tercet_networks::config::SpeechTokens;

/// Seconds per timestamp step.
const STEP: f64 = 0.02;
/// Feature frames per timestamp step.
const FRAMES_OF_STEP: usize = 2;

/// A segment of the transcript with its times.
///
/// ```
/// use tercet_models::speech::TranscriptSegment;
/// let segment = TranscriptSegment {
///     start: 0.0, end: 2.5, text: " Hello.".to_string(), tokens: Vec::new(),
///     temperature: 0.0, log_probability: -0.2, compression: 1.0, no_speech: 0.01,
/// };
/// assert_eq!(segment.end - segment.start, 2.5);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TranscriptSegment {
    /// Start in seconds from the beginning of the audio.
    pub start: f64,
    /// End in seconds from the beginning of the audio.
    pub end: f64,
    /// Text of the segment.
    pub text: String,
    /// Token ids of the segment, including timestamps.
    pub tokens: Vec<u32>,
    /// Sampling temperature of the segment's window.
    pub temperature: f64,
    /// Mean natural log probability of the tokens in its window.
    pub log_probability: f64,
    /// zlib compression ratio of the tokens in its window.
    pub compression: f64,
    /// No-speech probability of its window.
    pub no_speech: f64,
}

/// Result of a transcription.
///
/// ```
/// # use tercet_models::speech::TranscriptSegment;
/// # let segment = TranscriptSegment {
/// #     start: 0.0, end: 2.5, text: " Hello.".to_string(), tokens: Vec::new(),
/// #     temperature: 0.0, log_probability: -0.2, compression: 1.0, no_speech: 0.01,
/// # };
/// use tercet_models::speech::Transcript;
/// let transcript = Transcript { segments: vec![segment], ..Transcript::default() };
/// assert_eq!(transcript.text(), " Hello.");
/// assert_eq!(transcript.lines(), "[00:00:00.000 --> 00:00:02.500] Hello.\n");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// Language code, if the model is multilingual and the language was selected or detected.
    pub language: Option<String>,
    /// Segments in order.
    pub segments: Vec<TranscriptSegment>,
    /// Length of the audio in seconds.
    pub seconds: f64,
}

impl Transcript {
    /// Text of all segments.
    pub fn text(&self) -> String {
        self.segments.iter().map(|s| s.text.as_str()).collect()
    }
}

/// Times and tokens of a segment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SegmentTokens {
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) tokens: Vec<u32>,
}

/// Splits the tokens of a window into segments; the window starts at frame `from` and has `frames`
/// frames. The end token must be removed before. Also returns the frame offset of the next window.
///
/// Two adjacent timestamps end a segment, and the next window starts at the last such pair. If the
/// text ends with a single timestamp, no speech follows, and the next window starts after this one.
pub(super) fn split(
    text: &[u32],
    tokens: &SpeechTokens,
    (from, frames): (usize, usize),
) -> (Vec<SegmentTokens>, usize) {
    let first = tokens.first_timestamp();
    let is_time: Vec<bool> = text.iter().map(|token| *token >= first).collect();
    let offset = from as f64 * STEP / FRAMES_OF_STEP as f64;
    let at = |token: u32| offset + (f64::from(token) - f64::from(first)) * STEP;
    let mut ends: Vec<usize> = (1..text.len())
        .filter(|i| is_time[i - 1] && is_time[*i])
        .collect();
    let Some(last) = ends.last_mut() else {
        let latest = text.iter().rfind(|token| **token > first);
        // Use the last timestamp, unless it is the zero timestamp.
        let latest = latest.filter(|_| text.iter().rfind(|token| **token >= first) != Some(&first));
        let steps = (frames as f64 * 0.01 / STEP).floor();
        let whole = SegmentTokens {
            start: offset,
            end: latest.map_or(offset + steps * STEP, |token| at(*token)),
            tokens: text.to_vec(),
        };
        return (vec![whole], frames);
    };
    let ends_single = matches!(is_time.as_slice(), [.., false, true]);
    match ends_single {
        true => ends.push(text.len()),
        // Both timestamps of the pair belong to the last segment, which distinguishes it from a
        // text that ends with a single timestamp.
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
            spans.push(SegmentTokens {
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
