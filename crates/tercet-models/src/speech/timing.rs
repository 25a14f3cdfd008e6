//! Timing of a recognition window.

use std::time::Instant;

use super::features::FeatureStream;
use super::recognizer::RecognizerKind;
use super::whisper::WhisperRecognizer;
use super::window::{WindowPrompt, decode_window};
use super::{Recognizer, SpeechOptions};
use crate::Error;
use tercet_networks::MoonshineModel;
use tercet_networks::config::speech::{HOP, RATE};

/// Measured times of one window in seconds, from samples to tokens on the host.
///
/// ```
/// use tercet_models::speech::WindowTime;
/// let (features, encoder, text) = (0.25, 0.5, 1.25);
/// let time = WindowTime { recording: 30.0, tokens: 100, features, encoder, text };
/// assert_eq!(time.recording / time.total(), 15.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowTime {
    /// Length of the audio in seconds.
    pub recording: f64,
    /// Number of generated tokens.
    pub tokens: usize,
    /// Time of the features, in seconds.
    pub features: f64,
    /// Time of the encoder with the cross-attention keys and values, in seconds.
    pub encoder: f64,
    /// Time of the decoder for the prompt and the generated tokens, in seconds.
    pub text: f64,
}

impl WindowTime {
    /// Total time in seconds.
    pub fn total(&self) -> f64 {
        self.features + self.encoder + self.text
    }
}

impl Recognizer {
    /// Measures one window of noise and a text of `tokens` tokens, fewer if the model has not
    /// enough positions. Decoding is greedy without timestamps and never ends early. Moonshine
    /// measures one chunk of maximum length. The call discards the recognizer's audio.
    ///
    /// # Errors
    /// [`crate::ModelError::Run`] of the device.
    pub fn time_window(&mut self, tokens: usize) -> Result<WindowTime, Error> {
        match &mut self.kind {
            RecognizerKind::Whisper(whisper) => whisper.time_window(tokens),
            RecognizerKind::Raw(raw) => {
                raw.time_piece(&noise(MoonshineModel::MAX_SECONDS * RATE), tokens)
            }
        }
    }
}

impl WhisperRecognizer {
    fn time_window(&mut self, tokens: usize) -> Result<WindowTime, Error> {
        self.discard();
        let options = SpeechOptions::default();
        let all = self.spec.frames();
        let samples = noise(all * HOP);
        let started = Instant::now();
        let mut recorded = FeatureStream::new(self.spec.mels);
        let exe = self.features.as_mut();
        recorded.push(exe, &samples)?;
        recorded.finish(exe, samples.len())?;
        let window = recorded.window((0, all), recorded.top(), all)?;
        let features = started.elapsed().as_secs_f64();
        let started = Instant::now();
        self.engine.listen(&[("features", &window)])?;
        let encoder = started.elapsed().as_secs_f64();
        let started = Instant::now();
        let mut first = self.first_tokens(&options)?;
        self.settle(&mut first, false)?;
        let first: Vec<u32> = first.into_iter().flatten().collect();
        let prompt = WindowPrompt {
            tokens: &first,
            start: 0,
            max_tokens: (first.len() + tokens).min(self.spec.text_positions),
            timestamps: false,
            window: 0,
            ends: false,
        };
        let written = decode_window(&mut self.engine, &self.tokens, &prompt, &options)?;
        let text = started.elapsed().as_secs_f64();
        Ok(WindowTime {
            recording: samples.len() as f64 / RATE as f64,
            tokens: written.text.len(),
            features,
            encoder,
            text,
        })
    }
}

/// Deterministic noise samples.
fn noise(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 24) as f32 - 0.5) * 0.2
    };
    std::iter::repeat_with(next).take(len).collect()
}
