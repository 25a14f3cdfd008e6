//! Opening text-to-text encoder-decoders.

use super::ModelFiles;
use crate::error::Error;
use tercet_networks::config::Seq2SeqSpec;
use tercet_networks::{Seq2Seq, Seq2SeqOptions};

impl ModelFiles {
    /// The specification of a text-to-text encoder-decoder.
    ///
    /// # Errors
    /// [`Error`] if the model is not one, or a field or tensor is not supported.
    pub fn seq2seq_spec(&self) -> Result<Seq2SeqSpec, Error> {
        Ok(self.folder()?.seq2seq_spec()?)
    }

    /// Builds the graphs of a text-to-text encoder-decoder. `options` receives the specification
    /// and returns the build options.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`Seq2Seq::build`].
    pub fn seq2seq(
        &self,
        options: impl FnOnce(&Seq2SeqSpec) -> Seq2SeqOptions,
    ) -> Result<Seq2Seq, Error> {
        let spec = self.seq2seq_spec()?;
        let options = options(&spec);
        Ok(Seq2Seq::build(&spec, &self.weights(), options)?)
    }
}
