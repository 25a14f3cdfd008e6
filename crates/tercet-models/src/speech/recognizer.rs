//! Recognizers of all families.

use tercet::Device;

use super::raw::Raw;
use super::segments::{Segment, Transcript};
use super::whisper::Whisper;
use super::{SpeechError, SpeechOptions, Task};
use crate::Error;
use crate::builder::{ModelError, Moonshine, Speech};
use crate::config::SpeechTokens;
use crate::config::speech::RATE;
use crate::tokenizer::Tokenizer;

/// Samples of a second.
pub const SAMPLE_RATE: usize = RATE;

/// How far a transcription is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'a> {
    /// Seconds that are done.
    pub done: f64,
    /// Seconds of the recording.
    pub seconds: f64,
    /// The segments since the last call.
    pub segments: &'a [Segment],
}

/// A compiled speech recognizer and the recording that it hears.
pub struct Recognizer {
    pub(super) kind: Kind,
}

/// What it is made of.
pub(super) enum Kind {
    /// Whisper's features, windows and rules.
    Whisper(Box<Whisper>),
    /// Samples in pieces.
    Raw(Box<Raw>),
}

impl Recognizer {
    /// Compiles a model for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn new(
        speech: &Speech,
        tokens: SpeechTokens,
        tokenizer: Tokenizer,
        device: &Device,
    ) -> Result<Recognizer, ModelError> {
        let whisper = Whisper::new(speech, tokens, tokenizer, device)?;
        Ok(Recognizer {
            kind: Kind::Whisper(Box::new(whisper)),
        })
    }

    /// Compiles a model of the Moonshine family for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn moonshine(
        model: &Moonshine,
        tokenizer: Tokenizer,
        device: &Device,
    ) -> Result<Recognizer, ModelError> {
        Ok(Recognizer {
            kind: Kind::Raw(Box::new(Raw::new(model, tokenizer, device)?)),
        })
    }

    /// What tokens mean, in models that have some beside those of texts.
    pub fn tokens(&self) -> Option<&SpeechTokens> {
        match &self.kind {
            Kind::Whisper(whisper) => Some(&whisper.tokens),
            Kind::Raw(_) => None,
        }
    }

    /// The task to tell the model where nobody chooses one: to transcribe, for a model that knows tasks but whose files say
    /// none.
    pub fn task_to_tell(&self) -> Option<Task> {
        match &self.kind {
            Kind::Whisper(whisper) => whisper.task_to_tell(),
            Kind::Raw(_) => None,
        }
    }

    /// Adds samples to the recording: one channel, [`SAMPLE_RATE`] a second, mostly from -1 to 1.
    ///
    /// # Errors
    /// [`SpeechError::NotFinite`], [`SpeechError::TooLong`]; [`ModelError::Run`] of the device.
    pub fn push(&mut self, samples: &[f32]) -> Result<(), Error> {
        match &mut self.kind {
            Kind::Whisper(whisper) => whisper.push(samples),
            Kind::Raw(raw) => Ok(raw.push(samples)?),
        }
    }

    /// Forgets the recording.
    pub fn discard(&mut self) {
        match &mut self.kind {
            Kind::Whisper(whisper) => whisper.discard(),
            Kind::Raw(raw) => raw.discard(),
        }
    }

    /// Ends the recording and writes what is said in it; the next one may begin. `progress` is called after each window or piece;
    /// what there is by then is returned when it answers false.
    ///
    /// # Errors
    /// [`SpeechError`] for a recording without samples and for options that the model does not have; [`ModelError::Run`] of the
    /// device.
    pub fn finish(
        &mut self,
        options: &SpeechOptions,
        progress: &mut dyn FnMut(&Progress<'_>) -> bool,
    ) -> Result<Transcript, Error> {
        match &mut self.kind {
            Kind::Whisper(whisper) => whisper.finish(options, progress),
            Kind::Raw(raw) => raw.finish(options, progress),
        }
    }
}

/// Refuses samples that are no numbers, and more than are kept.
pub(super) fn check_samples(before: usize, samples: &[f32]) -> Result<(), SpeechError> {
    if let Some(at) = samples.iter().position(|x| !x.is_finite()) {
        return Err(SpeechError::NotFinite { at: before + at });
    }
    if before.saturating_add(samples.len()) > MOST_SECONDS * RATE {
        let most_seconds = MOST_SECONDS;
        return Err(SpeechError::TooLong { most_seconds });
    }
    Ok(())
}

/// Seconds of a recording at most: four hours, whose features of 128 bands take 740 MB, and whose samples 920 MB.
const MOST_SECONDS: usize = 4 * 3600;
