//! Opening language models.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tercet::{DType, Device, Graph};

use super::{LanguageModel, PromptReader};
use crate::adapter::Adapter;
use crate::context_fit::{ContextFit, ContextRequest, MAX_CONTEXT};
use crate::error::Error;
use crate::family::ModelFamily;
use crate::generate::end_ids;
use crate::open::ModelFiles;
use tercet_networks::config::{DecoderSpec, RopeOverrides};
use tercet_networks::{
    CacheFormat, DecoderOptions, Generator, MatmulPrecision, ModelError, Sampling, ScaledAdapter,
    Seq2SeqOptions,
};
use tercet_text::tokenizer::Tokenizer;

/// Options for opening a [`LanguageModel`].
///
/// ```
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/");
/// # let path = format!("{data}tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
/// use tercet::Device;
/// use tercet_models::LanguageModelOptions;
/// let options = LanguageModelOptions::new().device(Device::cpu()).context(256);
/// assert_eq!(options.open(path)?.context(), 256);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LanguageModelOptions {
    device: Option<Device>,
    context: Option<usize>,
    fit: Option<ContextFit>,
    dtype: DType,
    matmul_precision: MatmulPrecision,
    cache: Option<CacheFormat>,
    /// Paths and factors.
    adapters: Vec<(PathBuf, f64)>,
    opened_adapters: Vec<ScaledAdapter>,
    sampling: Option<Sampling>,
    chunk: Option<usize>,
    logit_rows: usize,
    text_length: Option<usize>,
    rope: RopeOverrides,
    tokenizer: Option<Arc<Tokenizer>>,
    is_text_only: bool,
}

impl Default for LanguageModelOptions {
    fn default() -> LanguageModelOptions {
        LanguageModelOptions::new()
    }
}

impl LanguageModelOptions {
    /// The defaults: the best device of this machine, the context that fits its memory, F32 with
    /// reduced precision in matmuls if the device gains from it, no adapter.
    pub fn new() -> LanguageModelOptions {
        LanguageModelOptions {
            device: None,
            context: None,
            fit: None,
            dtype: DType::F32,
            matmul_precision: MatmulPrecision::Auto,
            cache: None,
            adapters: Vec::new(),
            opened_adapters: Vec::new(),
            sampling: Some(Sampling::GREEDY),
            chunk: None,
            logit_rows: 1,
            text_length: None,
            rope: RopeOverrides::default(),
            tokenizer: None,
            is_text_only: false,
        }
    }

    /// Sets the device; the default is [`Device::auto`].
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    /// Sets the context length in tokens, at most [`MAX_CONTEXT`]; 0 is that of training. The default
    /// fits the memory of the device, see [`ContextFit`].
    #[must_use]
    pub fn context(mut self, tokens: usize) -> Self {
        self.context = Some(tokens);
        self
    }

    /// Sets a context that was determined before, for a further copy of a model. The memory is not
    /// checked again.
    #[must_use]
    pub fn context_fit(mut self, fit: ContextFit) -> Self {
        self.fit = Some(fit);
        self
    }

    /// Sets the float dtype for computation. Matmuls then have its precision.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self.matmul_precision = MatmulPrecision::Full;
        self
    }

    /// Sets the precision of matmuls in F32.
    #[must_use]
    pub fn matmul_precision(mut self, precision: MatmulPrecision) -> Self {
        self.matmul_precision = precision;
        self
    }

    /// Sets the storage format of the KV cache; the default is that of [`CacheFormat::choose`].
    #[must_use]
    pub fn cache(mut self, format: CacheFormat) -> Self {
        self.cache = Some(format);
        self
    }

    /// Adds an adapter: a PEFT folder or a GGUF file, and the factor of its effect.
    #[must_use]
    pub fn adapter(mut self, path: impl Into<PathBuf>, scale: f64) -> Self {
        self.adapters.push((path.into(), scale));
        self
    }

    /// Adds an opened adapter.
    #[must_use]
    pub fn opened_adapter(mut self, adapter: ScaledAdapter) -> Self {
        self.opened_adapters.push(adapter);
        self
    }

    /// Sets the sampling that the device computes, greedy decoding by default. Texts with other
    /// options copy the logits to the host. `None` leaves it out, for a model that only computes
    /// logits.
    #[must_use]
    pub fn device_sampling(mut self, sampling: Option<Sampling>) -> Self {
        self.sampling = sampling;
        self
    }

    /// Sets the maximum prompt tokens per run; the default is 512.
    #[must_use]
    pub fn chunk(mut self, tokens: usize) -> Self {
        self.chunk = Some(tokens);
        self
    }

    /// Sets the maximum rows of logits per run, 1 by default: those that
    /// [`Generator::forward_rows`] computes together, and one more than the tokens of a draft.
    #[must_use]
    pub fn logit_rows(mut self, rows: usize) -> Self {
        self.logit_rows = rows;
        self
    }

    /// Sets the length of the text in tokens, which selects the frequency factors of LongRoPE; the
    /// default is the context.
    #[must_use]
    pub fn text_length(mut self, tokens: usize) -> Self {
        self.text_length = Some(tokens);
        self
    }

    /// Changes the rotary positions.
    #[must_use]
    pub fn rope(mut self, rope: RopeOverrides) -> Self {
        self.rope = rope;
        self
    }

    /// Sets the tokenizer; the default is that of the files.
    #[must_use]
    pub fn tokenizer(mut self, tokenizer: Arc<Tokenizer>) -> Self {
        self.tokenizer = Some(tokenizer);
        self
    }

    /// Leaves out the image encoder of a vision-language model.
    #[must_use]
    pub fn text_only(mut self) -> Self {
        self.is_text_only = true;
        self
    }

    /// Opens and compiles a model. The path is that of [`ModelFiles::open`].
    ///
    /// # Errors
    /// [`Error`] of the files and the device; [`Error::OtherFamily`] if the model does not generate
    /// text; [`ModelError::ContextMemory`] if the context does not fit the memory.
    pub fn open(self, path: impl AsRef<Path>) -> Result<LanguageModel, Error> {
        self.open_files(&ModelFiles::open(path)?)
    }

    /// Compiles a model from opened files.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    pub fn open_files(self, files: &ModelFiles) -> Result<LanguageModel, Error> {
        let family = files.family()?;
        if !matches!(
            family,
            ModelFamily::Decoder | ModelFamily::VisionLanguage | ModelFamily::TextToText
        ) {
            let wanted = "LanguageModel";
            return Err(Error::OtherFamily {
                wanted,
                found: family,
            });
        }
        if let Some(context) = self.context.filter(|context| *context > MAX_CONTEXT) {
            return Err(ModelError::Unsupported(format!(
                "a context of {context} tokens is out of range; expected 0 (as trained) to {MAX_CONTEXT}"
            ))
            .into());
        }
        let device = match &self.device {
            Some(device) => device.clone(),
            None => Device::auto()?,
        };
        let tokenizer = match &self.tokenizer {
            Some(tokenizer) => Arc::clone(tokenizer),
            None => Arc::new(files.tokenizer()?),
        };
        let OpenedModel {
            reader,
            mut generator,
            eos,
            vocab,
            fit,
            matmul_dtype,
        } = match family {
            ModelFamily::TextToText => self.text_to_text(files, &device)?,
            _ => self.decoder(files, family, &device)?,
        };
        generator.skip_logits();
        generator.run_ahead();
        Ok(LanguageModel {
            files: files.clone(),
            device,
            eos: end_ids(&eos, &tokenizer),
            tokenizer,
            generator,
            reader,
            vocab,
            fit,
            matmul_dtype,
            template: None,
            #[cfg(feature = "grammar")]
            grammars: None,
        })
    }

    /// The graph of the decoder, without compiling it.
    ///
    /// # Errors
    /// The errors of [`Self::open_files`], except those of the compilation.
    pub fn decoder_graph(&self, files: &ModelFiles) -> Result<Graph, Error> {
        let device = self.device.clone().map_or_else(Device::auto, Ok)?;
        let (spec, context) = self.spec_and_context(files, &device)?;
        let sees = self.sees(files.family()?);
        let sizes = (context.context, self.cache_format(files, &device));
        let options = self.decoder_options(&spec, sizes, self.all_adapters(sees, &spec)?);
        let decoder = match sees {
            true => files.vision_language(|_| options)?.decoder,
            false => files.decoder(|_| options)?,
        };
        Ok(decoder.model.graph)
    }

    /// Whether the image encoder is part of the model.
    fn sees(&self, family: ModelFamily) -> bool {
        family == ModelFamily::VisionLanguage && !self.is_text_only
    }

    fn spec_and_context(
        &self,
        files: &ModelFiles,
        device: &Device,
    ) -> Result<(DecoderSpec, ContextFit), Error> {
        let spec = match self.sees(files.family()?) {
            true => files.vision_language_spec()?.decoder,
            false => files.decoder_spec()?,
        };
        if let Some(fit) = &self.fit {
            return Ok((spec, fit.clone()));
        }
        let request = ContextRequest {
            context: self.context,
            dtype: self.dtype,
            cache: self.cache_format(files, device),
            ..ContextRequest::default()
        };
        let fit = ContextFit::new(files, &spec, device, &request)?;
        Ok((spec, fit))
    }

    /// The given format of the KV cache, or the one for the files and the device.
    fn cache_format(&self, files: &ModelFiles, device: &Device) -> Option<CacheFormat> {
        let chosen =
            || CacheFormat::choose(&files.weights(), device, self.dtype, self.matmul_precision);
        Some(self.cache.unwrap_or_else(chosen))
    }

    fn decoder_options(
        &self,
        spec: &DecoderSpec,
        (context, cache): (usize, Option<CacheFormat>),
        adapters: Vec<ScaledAdapter>,
    ) -> DecoderOptions {
        let options = DecoderOptions::new(spec);
        DecoderOptions {
            context,
            text_length: self.text_length,
            chunk: self.chunk.unwrap_or(options.chunk).min(context),
            logit_rows: self.logit_rows.min(context),
            dtype: self.dtype,
            cache,
            matmul_precision: self.matmul_precision,
            sampling: self.sampling,
            adapters,
            rope: self.rope.clone(),
            ..options
        }
    }

    /// Compiles a decoder, with an image encoder if the model has one.
    fn decoder(
        &self,
        files: &ModelFiles,
        family: ModelFamily,
        device: &Device,
    ) -> Result<OpenedModel, Error> {
        let sees = self.sees(family);
        let (spec, fit) = self.spec_and_context(files, device)?;
        let cache = self.cache_format(files, device);
        let options =
            self.decoder_options(&spec, (fit.context, cache), self.all_adapters(sees, &spec)?);
        let (reader, generator, matmul_dtype) = match sees {
            true => {
                let graphs = files.vision_language(|_| options)?;
                let (images, generator) = graphs.compile(device)?;
                let reader = PromptReader::Images(Box::new(images));
                (reader, generator, graphs.decoder.matmul_dtype(device))
            }
            false => {
                let decoder = files.decoder(|_| options)?;
                let generator = decoder.generator(device)?;
                (
                    PromptReader::Decoder,
                    generator,
                    decoder.matmul_dtype(device),
                )
            }
        };
        Ok(OpenedModel {
            reader,
            generator,
            eos: spec.eos,
            vocab: spec.vocab,
            fit: Some(fit),
            matmul_dtype,
        })
    }

    /// Compiles an encoder-decoder.
    fn text_to_text(&self, files: &ModelFiles, device: &Device) -> Result<OpenedModel, Error> {
        let refused = match (self.dtype, self.cache) {
            _ if !self.adapters.is_empty() || !self.opened_adapters.is_empty() => {
                Some("does not support adapters")
            }
            (DType::F32, None) => None,
            _ => Some("runs in f32 with an f32 cache"),
        };
        if let Some(refused) = refused {
            let reason = format!("an encoder-decoder {refused}; leave out this option");
            return Err(ModelError::Unsupported(reason).into());
        }
        let context = self.context.filter(|context| *context > 0);
        let model = files.seq2seq(|spec| Seq2SeqOptions {
            context: context.unwrap_or(spec.encoder.context),
            sampling: self.sampling,
        })?;
        let (source, generator) = model.compile(device)?;
        Ok(OpenedModel {
            reader: PromptReader::Source(Box::new(source)),
            generator,
            eos: model.spec.eos,
            vocab: model.spec.encoder.vocab,
            fit: None,
            matmul_dtype: None,
        })
    }

    fn all_adapters(&self, sees: bool, spec: &DecoderSpec) -> Result<Vec<ScaledAdapter>, Error> {
        let opened = self.opened_adapters.iter().cloned().map(Ok);
        let all = self.adapters.iter().map(|(path, scale)| {
            if !scale.is_finite() {
                let reason = format!("the adapter scale {scale} is not a finite number");
                return Err(ModelError::Unsupported(reason).into());
            }
            let adapter = match sees {
                true => Adapter::from_peft(path)?,
                false => Adapter::open(path, spec)?,
            };
            Ok(ScaledAdapter::new(adapter).scaled(*scale))
        });
        opened.chain(all).collect()
    }
}

/// The compiled parts of a model.
struct OpenedModel {
    reader: PromptReader,
    generator: Generator,
    /// End tokens of the configuration.
    eos: Vec<u32>,
    vocab: usize,
    fit: Option<ContextFit>,
    matmul_dtype: Option<DType>,
}
