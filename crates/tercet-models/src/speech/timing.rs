//! How long a window takes.

use std::time::Instant;

use super::features::Recorded;
use super::recognizer::Kind;
use super::whisper::Whisper;
use super::window::{Prompt, write};
use super::{Recognizer, SpeechOptions};
use crate::Error;
use crate::builder::PIECE_SECONDS;
use crate::config::speech::{HOP, RATE};

/// Seconds that the parts of one window take, from samples to tokens on the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowTime {
    /// Seconds of the recording.
    pub recording: f64,
    /// Tokens that were written.
    pub tokens: usize,
    /// Samples to features.
    pub features: f64,
    /// Features to the keys and values that texts attend to.
    pub encoder: f64,
    /// The tokens that every text begins with, and those that were written.
    pub text: f64,
}

impl WindowTime {
    /// Seconds of all.
    pub fn total(&self) -> f64 {
        self.features + self.encoder + self.text
    }
}

impl Recognizer {
    /// Times a window of noise and a text of so many tokens for it, fewer where the model has not as many positions. The
    /// likeliest tokens are taken by the rules without timestamps, but none that ends the text. Of Moonshine it is a piece of the
    /// longest kind. A recording that was begun is
    /// forgotten.
    ///
    /// # Errors
    /// [`crate::ModelError::Run`] of the device.
    pub fn time_window(&mut self, tokens: usize) -> Result<WindowTime, Error> {
        match &mut self.kind {
            Kind::Whisper(whisper) => whisper.time_window(tokens),
            Kind::Raw(raw) => raw.time_piece(&noise(PIECE_SECONDS * RATE), tokens),
        }
    }
}

impl Whisper {
    fn time_window(&mut self, tokens: usize) -> Result<WindowTime, Error> {
        self.discard();
        let options = SpeechOptions::default();
        let all = self.spec.frames();
        let samples = noise(all * HOP);
        let started = Instant::now();
        let mut recorded = Recorded::new(self.spec.mels);
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
        let prompt = Prompt {
            tokens: &first,
            start: 0,
            most: (first.len() + tokens).min(self.spec.text_positions),
            timestamps: false,
            window: 0,
            ends: false,
        };
        let written = write(&mut self.engine, &self.tokens, &prompt, &options)?;
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

/// Samples of noise, the same each time.
fn noise(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 24) as f32 - 0.5) * 0.2
    };
    std::iter::repeat_with(next).take(len).collect()
}
