//! Models that are compiled otherwise: encoder-decoders, and for several sequences.

use tercet_models::{BatchGenerator, BatchOptions, Sampling, TextToTextOptions};

use super::super::{Arithmetic, Precision};
use super::{Loading, Opened, Writer};
use crate::error::CliError;
use crate::progress;

impl Loading {
    /// Opens the device and compiles an encoder-decoder for it.
    pub(super) fn load_text_to_text(&self, sampling: Sampling) -> Result<Writer, CliError> {
        let refused = match (self.lora.is_empty(), self.dtype) {
            _ if self.cache_dtype.is_some() => {
                Some("encoder-decoders are computed in f32; leave out --cache-dtype")
            }
            (false, _) => Some("encoder-decoders take no adapters; leave out --lora"),
            (true, Arithmetic::F16 | Arithmetic::Bf16) => {
                Some("encoder-decoders are computed in f32; leave out --dtype")
            }
            (true, Arithmetic::Auto | Arithmetic::F32) => None,
        };
        if let Some(refused) = refused {
            return Err(CliError::Usage(refused.into()));
        }
        let spinner = progress::spinner("loading");
        let Opened {
            device,
            files,
            what,
            adapters: _,
        } = self.open()?;
        let model = files.text_to_text(|spec| TextToTextOptions {
            context: self.context.unwrap_or(spec.encoder.context),
            sampling: Some(sampling),
        });
        let model = model.map_err(CliError::model(&*what))?;
        let tokenizer = files.tokenizer().map_err(CliError::model(&*what))?;
        let (reader, generator) = model.compile(&device).map_err(CliError::model(&*what))?;
        spinner.finish_and_clear();
        Ok(Writer {
            dtype: Precision::F32.dtype().to_string(),
            noted: false,
            device,
            files,
            tokenizer,
            generator,
            eos: model.spec.eos,
            vocab: model.spec.encoder.vocab,
            reader: Some(reader),
            seeing: None,
            #[cfg(feature = "grammar")]
            constrained: None,
        })
    }

    /// Compiles the model for so many sequences side by side, each of this context.
    pub(crate) fn load_batch(
        &self,
        slots: usize,
        context: usize,
    ) -> Result<BatchGenerator, CliError> {
        let spinner = progress::spinner("loading");
        let Opened {
            device,
            files,
            what,
            adapters,
        } = self.open()?;
        let decoder = files.batch_decoder(|config| BatchOptions {
            context,
            chunk: BatchOptions::new(config, slots).chunk.min(context),
            dtype: self.dtype.dtype(),
            cache: self.cache(),
            products: self.dtype.products(),
            adapters,
            ..BatchOptions::new(config, slots)
        });
        let decoder = decoder.map_err(CliError::model(&*what))?;
        let generator = decoder.generator(&device);
        let generator = generator.map_err(CliError::model(&*what))?;
        spinner.finish_and_clear();
        Ok(generator)
    }
}
