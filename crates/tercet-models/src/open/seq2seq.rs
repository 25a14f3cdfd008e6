//! Encoder-decoders of texts of files.

use super::ModelFiles;
use crate::builder::{TextToText, TextToTextOptions};
use crate::config::TextToTextSpec;
use crate::error::Error;

impl ModelFiles {
    /// The specification of an encoder-decoder of texts.
    ///
    /// # Errors
    /// [`Error`] when it is not one, or a field or tensor is not supported.
    pub fn text_to_text_spec(&self) -> Result<TextToTextSpec, Error> {
        Ok(self.folder()?.text_to_text_spec()?)
    }

    /// The graphs of an encoder-decoder of texts; `options` chooses from its specification.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`TextToText::build`].
    pub fn text_to_text(
        &self,
        options: impl FnOnce(&TextToTextSpec) -> TextToTextOptions,
    ) -> Result<TextToText, Error> {
        let spec = self.text_to_text_spec()?;
        let options = options(&spec);
        Ok(TextToText::build(&spec, &self.weights(), options)?)
    }
}
