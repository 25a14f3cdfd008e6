//! Transcription of whole recordings.

use std::path::Path;

use tercet::Device;

use super::{Recognizer, SpeechOptions, Transcript};
use crate::error::Error;
use crate::family::ModelFamily;
use crate::open::ModelFiles;

/// A speech recognizer that is ready to transcribe recordings. A [`Recognizer`] takes audio in
/// parts and reports its progress.
///
/// ```no_run
/// use tercet_models::Transcriber;
/// let mut transcriber = Transcriber::open("whisper-tiny")?;
/// # #[cfg(feature = "audio")]
/// println!("{}", transcriber.transcribe("speech.wav")?.text());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Transcriber {
    recognizer: Recognizer,
}

impl Transcriber {
    /// Opens a model on the best device of this machine. The path is that of
    /// [`ModelFiles::open`].
    ///
    /// # Errors
    /// The errors of [`Self::from_files`].
    pub fn open(path: impl AsRef<Path>) -> Result<Transcriber, Error> {
        Transcriber::from_files(&ModelFiles::open(path)?, &Device::auto()?)
    }

    /// Compiles the model of opened files for a device.
    ///
    /// # Errors
    /// [`Error`] of the files or the device; [`Error::OtherFamily`] for another model.
    pub fn from_files(files: &ModelFiles, device: &Device) -> Result<Transcriber, Error> {
        let (wanted, found) = ("Transcriber", files.family()?);
        match found {
            ModelFamily::Speech => Ok(Transcriber {
                recognizer: files.recognizer(device)?,
            }),
            _ => Err(Error::OtherFamily { wanted, found }),
        }
    }

    /// The default options: temperature fallback, and transcription in the spoken language.
    pub fn default_options(&self) -> SpeechOptions {
        SpeechOptions {
            task: self.recognizer.default_task(),
            ..SpeechOptions::with_fallback()
        }
    }

    /// Transcribes a WAV, FLAC or MP3 file with the default options.
    ///
    /// # Errors
    /// The errors of [`Self::transcribe_with`].
    #[cfg(feature = "audio")]
    pub fn transcribe(&mut self, path: impl AsRef<Path>) -> Result<Transcript, Error> {
        self.transcribe_with(path, &self.default_options())
    }

    /// Transcribes a WAV, FLAC or MP3 file.
    ///
    /// # Errors
    /// [`Error::Audio`] of the file; the errors of [`Self::transcribe_samples`].
    #[cfg(feature = "audio")]
    pub fn transcribe_with(
        &mut self,
        path: impl AsRef<Path>,
        options: &SpeechOptions,
    ) -> Result<Transcript, Error> {
        self.recognizer.discard();
        let recognizer = &mut self.recognizer;
        super::audio::read(path, &mut |samples| recognizer.push(samples))?;
        self.finish(options)
    }

    /// Transcribes mono samples, [`SAMPLE_RATE`](super::SAMPLE_RATE) per second, nominally in
    /// `[-1, 1]`.
    ///
    /// # Errors
    /// [`SpeechError`](super::SpeechError) for empty or too long audio, samples that are not
    /// finite, and options that the model does not support; [`Error::Model`] of the device.
    pub fn transcribe_samples(
        &mut self,
        samples: &[f32],
        options: &SpeechOptions,
    ) -> Result<Transcript, Error> {
        self.recognizer.discard();
        self.recognizer.push(samples)?;
        self.finish(options)
    }

    /// The recognizer, for audio in parts.
    pub fn recognizer_mut(&mut self) -> &mut Recognizer {
        &mut self.recognizer
    }

    fn finish(&mut self, options: &SpeechOptions) -> Result<Transcript, Error> {
        self.recognizer.finish(options, &mut |_| true)
    }
}
