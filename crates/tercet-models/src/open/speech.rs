//! Opening speech recognizers.

use super::ModelFiles;
use crate::error::Error;
use tercet_networks::config::speech::MOONSHINE;
use tercet_networks::config::{MoonshineSpec, SpeechSpec, SpeechTokens};
use tercet_networks::{MoonshineModel, SpeechModel};

impl ModelFiles {
    /// The specification of a Whisper speech recognizer.
    ///
    /// # Errors
    /// [`Error`] if the model is not one, or a field is not supported.
    pub fn speech_spec(&self) -> Result<SpeechSpec, Error> {
        Ok(self.folder()?.speech_spec()?)
    }

    /// The special tokens of a speech recognizer.
    ///
    /// # Errors
    /// [`Error`] of `generation_config.json`, which must exist.
    pub fn speech_tokens(&self) -> Result<SpeechTokens, Error> {
        let spec = self.speech_spec()?;
        Ok(self.folder()?.speech_tokens(&spec)?)
    }

    /// Builds the graphs of a Whisper speech recognizer.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`SpeechModel::build`].
    pub fn speech(&self) -> Result<SpeechModel, Error> {
        Ok(SpeechModel::build(&self.speech_spec()?, &self.weights())?)
    }

    /// Whether the model is a Moonshine speech recognizer.
    pub fn is_moonshine(&self) -> bool {
        let folder = self.folder().ok();
        folder.and_then(|folder| folder.model_type()) == Some(MOONSHINE)
    }

    /// The specification of a Moonshine speech recognizer.
    ///
    /// # Errors
    /// [`Error`] if the model is not one, or a field is not supported.
    pub fn moonshine_spec(&self) -> Result<MoonshineSpec, Error> {
        Ok(self.folder()?.moonshine_spec()?)
    }

    /// Builds the graphs of a Moonshine speech recognizer.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`MoonshineModel::build`].
    pub fn moonshine(&self) -> Result<MoonshineModel, Error> {
        Ok(MoonshineModel::build(
            &self.moonshine_spec()?,
            &self.weights(),
        )?)
    }
}
