//! Speech recognizer for all model families.

use tercet::Device;

use super::moonshine::MoonshineRecognizer;
use super::segments::{Transcript, TranscriptSegment};
use super::whisper::WhisperRecognizer;
use super::{SpeechError, SpeechOptions, SpeechTask};
use crate::error::Error;
use crate::open::ModelFiles;
use tercet_networks::config::SpeechTokens;
use tercet_networks::config::speech::RATE;
use tercet_networks::{ModelError, MoonshineModel, SpeechModel};
use tercet_text::tokenizer::Tokenizer;

/// Required sample rate in Hz.
pub const SAMPLE_RATE: usize = RATE;

/// Progress of a transcription.
///
/// ```
/// use tercet_models::speech::TranscriptionProgress;
/// let progress = TranscriptionProgress { done: 30.0, seconds: 120.0, segments: &[] };
/// assert_eq!(progress.done / progress.seconds, 0.25);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TranscriptionProgress<'a> {
    /// Seconds of audio processed.
    pub done: f64,
    /// Total seconds of audio.
    pub seconds: f64,
    /// Segments that are new since the last call.
    pub segments: &'a [TranscriptSegment],
}

/// A compiled speech recognizer and its audio buffer.
///
/// ```no_run
/// use tercet::Device;
/// use tercet_models::ModelFiles;
/// use tercet_models::speech::{SAMPLE_RATE, SpeechOptions};
/// let mut recognizer = ModelFiles::open("whisper-tiny")?.recognizer(&Device::cpu())?;
/// recognizer.push(&[0.0; SAMPLE_RATE])?;
/// let transcript = recognizer.finish(&SpeechOptions::default(), &mut |_| true)?;
/// assert_eq!(transcript.seconds, 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Recognizer {
    pub(super) kind: RecognizerKind,
}

/// Recognizer of a model family.
pub(super) enum RecognizerKind {
    /// Whisper: log-mel features and windows.
    Whisper(Box<WhisperRecognizer>),
    /// Moonshine: chunks of raw samples.
    Raw(Box<MoonshineRecognizer>),
}

impl Recognizer {
    /// Compiles a Whisper model for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn new(
        speech: &SpeechModel,
        tokens: SpeechTokens,
        tokenizer: Tokenizer,
        device: &Device,
    ) -> Result<Recognizer, ModelError> {
        let whisper = WhisperRecognizer::new(speech, tokens, tokenizer, device)?;
        Ok(Recognizer {
            kind: RecognizerKind::Whisper(Box::new(whisper)),
        })
    }

    /// Compiles a Moonshine model for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn moonshine(
        model: &MoonshineModel,
        tokenizer: Tokenizer,
        device: &Device,
    ) -> Result<Recognizer, ModelError> {
        Ok(Recognizer {
            kind: RecognizerKind::Raw(Box::new(MoonshineRecognizer::new(
                model, tokenizer, device,
            )?)),
        })
    }

    /// Special speech tokens, for models that have them.
    pub fn tokens(&self) -> Option<&SpeechTokens> {
        match &self.kind {
            RecognizerKind::Whisper(whisper) => Some(&whisper.tokens),
            RecognizerKind::Raw(_) => None,
        }
    }

    /// Task to set if the user selects none: transcription, for a model with task tokens but no
    /// default in its files.
    pub fn default_task(&self) -> Option<SpeechTask> {
        match &self.kind {
            RecognizerKind::Whisper(whisper) => whisper.default_task(),
            RecognizerKind::Raw(_) => None,
        }
    }

    /// Appends mono samples to the audio, [`SAMPLE_RATE`] per second, nominally in `[-1, 1]`.
    ///
    /// # Errors
    /// [`SpeechError::NotFinite`], [`SpeechError::TooLong`]; [`ModelError::Run`] of the device.
    pub fn push(&mut self, samples: &[f32]) -> Result<(), Error> {
        match &mut self.kind {
            RecognizerKind::Whisper(whisper) => whisper.push(samples),
            RecognizerKind::Raw(raw) => Ok(raw.push(samples)?),
        }
    }

    /// Discards the audio.
    pub fn discard(&mut self) {
        match &mut self.kind {
            RecognizerKind::Whisper(whisper) => whisper.discard(),
            RecognizerKind::Raw(raw) => raw.discard(),
        }
    }

    /// Ends the audio and transcribes it; the recognizer is then ready for new audio. `progress` is
    /// called after each window or chunk. If `progress` returns false, the call returns the
    /// transcript so far.
    ///
    /// # Errors
    /// [`SpeechError`] for empty audio and for options that the model does not support;
    /// [`ModelError::Run`] of the device.
    pub fn finish(
        &mut self,
        options: &SpeechOptions,
        progress: &mut dyn FnMut(&TranscriptionProgress<'_>) -> bool,
    ) -> Result<Transcript, Error> {
        match &mut self.kind {
            RecognizerKind::Whisper(whisper) => whisper.finish(options, progress),
            RecognizerKind::Raw(raw) => raw.finish(options, progress),
        }
    }
}

/// Checks that samples are finite and that the audio stays within the maximum length.
pub(super) fn check_samples(before: usize, samples: &[f32]) -> Result<(), SpeechError> {
    if let Some(at) = samples.iter().position(|x| !x.is_finite()) {
        return Err(SpeechError::NotFinite { at: before + at });
    }
    if before.saturating_add(samples.len()) > MAX_SECONDS * RATE {
        let max_seconds = MAX_SECONDS;
        return Err(SpeechError::TooLong { max_seconds });
    }
    Ok(())
}

/// Maximum audio length in seconds: four hours. Features with 128 bands then take 740 MB, raw
/// samples 920 MB.
const MAX_SECONDS: usize = 4 * 3600;

impl ModelFiles {
    /// Compiles a speech recognizer of either family.
    ///
    /// # Errors
    /// [`Error`] of the files, the configuration or the device.
    pub fn recognizer(&self, device: &Device) -> Result<Recognizer, Error> {
        if self.is_moonshine() {
            let (moonshine, tokenizer) = (self.moonshine()?, self.tokenizer()?);
            return Ok(Recognizer::moonshine(&moonshine, tokenizer, device)?);
        }
        let speech = self.speech()?;
        let (tokens, tokenizer) = (self.speech_tokens()?, self.tokenizer()?);
        Ok(Recognizer::new(&speech, tokens, tokenizer, device)?)
    }
}
