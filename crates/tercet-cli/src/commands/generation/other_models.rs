//! Other model variants: encoder-decoders, and batched decoders for several sequences.

use tercet_models::config::RopeOverrides;
use tercet_models::{BatchGenerator, BatchOptions, CacheFormat};

use super::super::ComputePrecision;
use super::{ModelArgs, ModelSource};
use crate::error::CliError;
use crate::progress;

impl ModelArgs {
    /// Refuses flags that encoder-decoders do not support.
    pub(super) fn check_text_to_text(&self) -> Result<(), CliError> {
        let refused = match (self.lora.is_empty(), self.dtype) {
            _ if self.rope.overrides()? != RopeOverrides::default() => Some(
                "encoder-decoders have no rotary positions; leave out --rope-... and --yarn-...",
            ),
            _ if self.cache_dtype.is_some() => {
                Some("encoder-decoders run in f32; leave out --cache-dtype")
            }
            (false, _) => Some("encoder-decoders do not support adapters; leave out --lora"),
            (true, ComputePrecision::F16 | ComputePrecision::Bf16) => {
                Some("encoder-decoders run in f32; leave out --dtype")
            }
            (true, ComputePrecision::Auto | ComputePrecision::F32) => None,
        };
        match refused {
            Some(refused) => Err(CliError::Usage(refused.into())),
            None => Ok(()),
        }
    }

    /// Compiles the model for a batch of sequences, each with this context length.
    pub(crate) fn load_batch(
        &self,
        slots: usize,
        context: usize,
    ) -> Result<BatchGenerator, CliError> {
        let rope = self.rope.overrides()?;
        let spinner = progress::spinner("loading");
        let ModelSource {
            device,
            files,
            what,
            adapters,
        } = self.open()?;
        let (dtype, matmul_precision) = (self.dtype.dtype(), self.dtype.matmul_precision());
        let cache = self.cache().unwrap_or_else(|| {
            CacheFormat::choose(&files.weights(), &device, dtype, matmul_precision)
        });
        let decoder = files.batch_decoder(|config| BatchOptions {
            context,
            chunk: BatchOptions::new(config, slots).chunk.min(context),
            dtype,
            cache: Some(cache),
            matmul_precision,
            adapters,
            rope,
            ..BatchOptions::new(config, slots)
        });
        let decoder = decoder.map_err(CliError::model(&*what))?;
        let generator = decoder.generator(&device);
        let generator = generator.map_err(CliError::model(&*what))?;
        spinner.finish_and_clear();
        Ok(generator)
    }
}
