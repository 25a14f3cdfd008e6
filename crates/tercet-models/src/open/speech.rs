//! Speech recognizers of files.

use tercet::Device;

use super::ModelFiles;
use crate::builder::Speech;
use crate::config::{SpeechSpec, SpeechTokens};
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

    /// A compiled speech recognizer.
    ///
    /// # Errors
    /// [`Error`] of the files, the configuration or the device.
    pub fn recognizer(&self, device: &Device) -> Result<Recognizer, Error> {
        let speech = self.speech()?;
        let (tokens, tokenizer) = (self.speech_tokens()?, self.tokenizer()?);
        Ok(Recognizer::new(&speech, tokens, tokenizer, device)?)
    }
}
