//! Decoding of one window with temperature fallback.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use tercet_ir::random::philox4x32;

use super::SpeechOptions;
use super::engine::SpeechEngine;
use super::rules::{log_sum, restrict};
use tercet_networks::ModelError;
use tercet_networks::config::SpeechTokens;

/// Decoded text of a window with its quality measures.
#[derive(Clone, Debug)]
pub(super) struct WindowTranscript {
    /// Token ids without the end token.
    pub(super) text: Vec<u32>,
    pub(super) temperature: f64,
    pub(super) log_probability: f64,
    pub(super) compression: f64,
    pub(super) no_speech: f64,
    /// True if the window is classified as silence.
    pub(super) silent: bool,
}

/// Prompt of a window.
pub(super) struct WindowPrompt<'a> {
    pub(super) tokens: &'a [u32],
    /// Index of the start token, after the previous text.
    pub(super) start: usize,
    /// Maximum tokens, including the prompt.
    pub(super) max_tokens: usize,
    pub(super) timestamps: bool,
    /// Window index; it selects an independent random stream.
    pub(super) window: usize,
    /// True if the text may end before `max_tokens`.
    pub(super) ends: bool,
}

/// Decodes the last encoded window; tries the temperatures in order until the text passes the
/// limits.
pub(super) fn decode_window(
    engine: &mut SpeechEngine,
    tokens: &SpeechTokens,
    prompt: &WindowPrompt<'_>,
    options: &SpeechOptions,
) -> Result<WindowTranscript, ModelError> {
    let mut written = None;
    for (attempt, &temperature) in options.temperatures.iter().enumerate() {
        let random = FallbackRng {
            seed: options.seed,
            window: prompt.window as u32,
            attempt: attempt as u32,
        };
        let mut own = attempted(engine, tokens, prompt, (temperature, random))?;
        let above = |limit: Option<f64>, x: f64| limit.is_some_and(|limit| x > limit);
        let unlikely = (options.min_log_probability).map(|least| own.log_probability < least);
        let poor = above(options.max_compression_ratio, own.compression) || unlikely == Some(true);
        own.silent =
            above(options.max_no_speech_probability, own.no_speech) && unlikely != Some(false);
        let done = own.silent || !poor;
        written = Some(own);
        if done {
            break;
        }
    }
    written.ok_or_else(|| ModelError::Unsupported("no temperatures".to_string()))
}

/// Random number generator of one decoding attempt.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct FallbackRng {
    /// Seed of the transcription.
    pub seed: u64,
    /// Index of the window.
    pub window: u32,
    /// Index of the attempt.
    pub attempt: u32,
}

impl FallbackRng {
    /// Uniform random number in `[0, 1)`.
    pub fn unit(self, at: usize) -> f64 {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let [word, ..] = philox4x32([at as u32, self.window, self.attempt, 0], key);
        f64::from(word) / (1u64 << 32) as f64
    }
}

fn attempted(
    engine: &mut SpeechEngine,
    tokens: &SpeechTokens,
    prompt: &WindowPrompt<'_>,
    (temperature, random): (f64, FallbackRng),
) -> Result<WindowTranscript, ModelError> {
    let vocab = engine.vocab;
    let last = prompt.tokens.len().saturating_sub(1);
    let logits = engine.forward(prompt.tokens, 0, &[prompt.start, last])?;
    let (at_start, logits) = logits.split_at(vocab);
    let silence = at_start[tokens.no_timestamps as usize - 1];
    let no_speech = (f64::from(silence) - log_sum(at_start)).exp();
    let mut logits = logits.to_vec();
    let mut text = Vec::new();
    let mut sum = 0.0;
    while prompt.tokens.len() + text.len() < prompt.max_tokens {
        restrict(&mut logits, tokens, &text, prompt.timestamps);
        if !prompt.ends {
            logits[tokens.end as usize] = f32::NEG_INFINITY;
        }
        let token = match temperature > 0.0 {
            true => drawn(&logits, temperature, random.unit(text.len())),
            false => greatest(&logits),
        };
        // `None` means that no token is allowed, or that the logits are NaN.
        let Some(token) = token else {
            break;
        };
        sum += f64::from(logits[token as usize]) - log_sum(&logits);
        text.push(token);
        let position = prompt.tokens.len() + text.len() - 1;
        if token == tokens.end || position + 1 >= prompt.max_tokens {
            break;
        }
        let next = engine.forward(&[token], position, &[0])?;
        logits.copy_from_slice(next);
    }
    let compression = compression(&text, vocab);
    let count = text.len().max(1) as f64;
    if text.last() == Some(&tokens.end) {
        text.pop();
    }
    Ok(WindowTranscript {
        text,
        temperature,
        log_probability: sum / count,
        compression,
        no_speech,
        silent: false,
    })
}

/// Token with the greatest logit, the lowest id among equals.
pub fn greatest(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > best.map_or(f32::NEG_INFINITY, |(_, logit)| logit) {
            best = Some((token, logit));
        }
    }
    best.map(|(token, _)| token as u32)
}

/// Token sampled at this temperature with the random number `unit`.
pub fn drawn(logits: &[f32], temperature: f64, unit: f64) -> Option<u32> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !top.is_finite() {
        return None;
    }
    let weight = |x: f32| ((f64::from(x) - f64::from(top)) / temperature).exp();
    let all: f64 = logits.iter().map(|x| weight(*x)).sum();
    let mut left = unit * all;
    let mut chosen = None;
    for (token, &logit) in logits.iter().enumerate() {
        let weight = weight(logit);
        if weight > 0.0 {
            chosen = Some(token as u32);
            left -= weight;
            if left < 0.0 {
                break;
            }
        }
    }
    chosen
}

/// zlib compression ratio of the token ids, each stored in the number of bytes that the vocabulary
/// size requires.
pub fn compression(text: &[u32], vocab: usize) -> f64 {
    let width = ((vocab as f64).log2() / 8.0) as usize + 1;
    let bytes: Vec<u8> = text
        .iter()
        .flat_map(|token| token.to_le_bytes().into_iter().take(width))
        .collect();
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let packed = encoder.write_all(&bytes).and_then(|()| encoder.finish());
    let packed = packed.expect("invariant: writing to a vector does not fail");
    bytes.len() as f64 / packed.len() as f64
}
