//! Models of pictures and texts of files.

use super::ModelFiles;
use crate::builder::{DecoderOptions, VisionLanguage};
use crate::config::VisionLanguageSpec;
use crate::error::Error;

impl ModelFiles {
    /// The specification of a model of pictures and texts.
    ///
    /// # Errors
    /// [`Error`] when it is not one, or a field or tensor is not supported.
    pub fn vision_language_spec(&self) -> Result<VisionLanguageSpec, Error> {
        Ok(self.folder()?.vision_language_spec()?)
    }

    /// The graphs of a model of pictures and texts; `options` chooses from its specification, of which
    /// [`DecoderOptions::pictures`] is set here.
    ///
    /// # Errors
    /// [`Error`] of the configurations or of [`VisionLanguage::build`].
    pub fn vision_language(
        &self,
        options: impl FnOnce(&VisionLanguageSpec) -> DecoderOptions,
    ) -> Result<VisionLanguage, Error> {
        let spec = self.vision_language_spec()?;
        let processor = self.folder()?.tile_processor(&spec)?;
        let options = options(&spec);
        let weights = self.weights();
        Ok(VisionLanguage::build(&spec, processor, &weights, options)?)
    }
}
