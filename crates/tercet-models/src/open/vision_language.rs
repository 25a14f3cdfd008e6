//! Opening vision-language models.

use super::ModelFiles;
use crate::error::Error;
use tercet_networks::config::VisionLanguageSpec;
use tercet_networks::{BatchDecoder, BatchOptions, DecoderOptions, VisionLanguageGraphs};

impl ModelFiles {
    /// The specification of a vision-language model.
    ///
    /// # Errors
    /// [`Error`] if the model is not one, or a field or tensor is not supported.
    pub fn vision_language_spec(&self) -> Result<VisionLanguageSpec, Error> {
        Ok(self.folder()?.vision_language_spec()?)
    }

    /// Builds the graphs of a vision-language model. `options` receives the specification and
    /// returns the build options, of which this function sets [`DecoderOptions::max_image_rows`].
    ///
    /// # Errors
    /// [`Error`] of the configurations or of [`VisionLanguageGraphs::build`].
    pub fn vision_language(
        &self,
        options: impl FnOnce(&VisionLanguageSpec) -> DecoderOptions,
    ) -> Result<VisionLanguageGraphs, Error> {
        let spec = self.vision_language_spec()?;
        let processor = self.folder()?.tile_processor(&spec)?;
        let options = options(&spec);
        let weights = self.weights();
        Ok(VisionLanguageGraphs::build(
            &spec, processor, &weights, options,
        )?)
    }
    /// Builds the graphs of a vision-language model with a decoder of one slot, for a server.
    /// `options` receives the specification and returns the build options, of which this function
    /// sets [`BatchOptions::max_image_rows`].
    ///
    /// # Errors
    /// [`Error`] of the configurations or of [`VisionLanguageGraphs::build_batch`].
    pub fn vision_language_batch(
        &self,
        options: impl FnOnce(&VisionLanguageSpec) -> BatchOptions,
    ) -> Result<VisionLanguageGraphs<BatchDecoder>, Error> {
        let spec = self.vision_language_spec()?;
        let processor = self.folder()?.tile_processor(&spec)?;
        let options = options(&spec);
        let weights = self.weights();
        Ok(VisionLanguageGraphs::build_batch(
            &spec, processor, &weights, options,
        )?)
    }
}
