//! Compilation of other model variants: encoder-decoders, and batched decoders for several
//! sequences.

use std::sync::Arc;

use tercet_models::answer::AnswerFormat;
use tercet_models::config::RopeOverrides;
use tercet_models::{
    BatchGenerator, BatchOptions, Sampling, SamplingOptions, Seq2SeqOptions, end_ids,
};

use super::super::{ComputePrecision, FloatPrecision};
use super::{LoadRequest, ModelArgs, ModelSource, TextGenerator};
use crate::error::CliError;
use crate::progress;

impl ModelArgs {
    /// Opens the device and compiles an encoder-decoder for it.
    pub(super) fn load_text_to_text(
        &self,
        sampling: Sampling,
        request: &LoadRequest<'_>,
    ) -> Result<TextGenerator, CliError> {
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
        if let Some(refused) = refused {
            return Err(CliError::Usage(refused.into()));
        }
        let spinner = progress::spinner("loading");
        let ModelSource {
            device,
            files,
            what,
            adapters: _,
        } = self.open()?;
        let model = files.seq2seq(|spec| Seq2SeqOptions {
            context: self
                .context
                .filter(|c| *c > 0)
                .unwrap_or(spec.encoder.context),
            sampling: Some(sampling),
        });
        let model = model.map_err(CliError::model(&*what))?;
        let (tokenizer, spells_ids) = request.tokenizer(&files, model.spec.encoder.vocab, &what)?;
        let (reader, generator) = model.compile(&device).map_err(CliError::model(&*what))?;
        spinner.finish_and_clear();
        Ok(TextGenerator {
            dtype: FloatPrecision::F32.dtype().to_string(),
            fallback_reported: false,
            spells_ids,
            device,
            files,
            eos: end_ids(&model.spec.eos, &tokenizer),
            tokenizer,
            generator,
            sampling: SamplingOptions::default(),
            vocab: model.spec.encoder.vocab,
            reader: Some(reader),
            images: None,
            answers: AnswerFormat::default(),
            spelled: Arc::default(),
            ollama: None,
            #[cfg(feature = "grammar")]
            constrained: None,
        })
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
        let decoder = files.batch_decoder(|config| BatchOptions {
            context,
            chunk: BatchOptions::new(config, slots).chunk.min(context),
            dtype: self.dtype.dtype(),
            cache: self.cache(),
            matmul_precision: self.dtype.matmul_precision(),
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
