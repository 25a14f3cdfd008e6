//! Speech recognizers of files.

use tercet::Device;

use super::ModelFiles;
use crate::builder::{Moonshine, Speech};
use crate::config::speech::MOONSHINE;
use crate::config::{MoonshineSpec, SpeechSpec, SpeechTokens};
use crate::error::Error;
use crate::speech::Recognizer;

impl ModelFiles {
    /// The specification of a speech recognizer.
    ///
    /// # Errors
    /// [`Error`] when it is not one, or a field is not supported.
    pub fn speech_spec(&self) -> Result<SpeechSpec, Error> {
        Ok(self.folder()?.speech_spec()?)
    }

    /// What the tokens of a speech recognizer mean.
    ///
    /// # Errors
    /// [`Error`] of `generation_config.json`, which must be there.
    pub fn speech_tokens(&self) -> Result<SpeechTokens, Error> {
        let spec = self.speech_spec()?;
        Ok(self.folder()?.speech_tokens(&spec)?)
    }

    /// The graphs of a speech recognizer.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`Speech::build`].
    pub fn speech(&self) -> Result<Speech, Error> {
        Ok(Speech::build(&self.speech_spec()?, &self.weights())?)
    }

    /// Whether it is a speech recognizer of the Moonshine family.
    pub fn is_moonshine(&self) -> bool {
        let folder = self.folder().ok();
        folder.and_then(|folder| folder.model_type()) == Some(MOONSHINE)
    }

    /// The specification of a speech recognizer of that family.
    ///
    /// # Errors
    /// [`Error`] when it is not one, or a field is not supported.
    pub fn moonshine_spec(&self) -> Result<MoonshineSpec, Error> {
        Ok(self.folder()?.moonshine_spec()?)
    }

    /// The graphs of a speech recognizer of that family.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`Moonshine::build`].
    pub fn moonshine(&self) -> Result<Moonshine, Error> {
        Ok(Moonshine::build(&self.moonshine_spec()?, &self.weights())?)
    }

    /// A compiled speech recognizer.
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
