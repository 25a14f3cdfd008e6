//! Opening language models.

use std::path::{Path, PathBuf};

use tercet::{DType, Device};

use super::{LanguageModel, PromptReader};
use crate::adapter::Adapter;
use crate::context_fit::{ContextFit, ContextRequest, MAX_CONTEXT};
use crate::error::Error;
use crate::family::ModelFamily;
use crate::generate::end_ids;
use crate::open::ModelFiles;
use tercet_networks::config::DecoderSpec;
use tercet_networks::{
    CacheFormat, DecoderOptions, Generator, MatmulPrecision, ModelError, Sampling, ScaledAdapter,
    Seq2SeqOptions,
};

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
    dtype: DType,
    matmul_precision: MatmulPrecision,
    cache: Option<CacheFormat>,
    /// Paths and factors.
    adapters: Vec<(PathBuf, f64)>,
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
            dtype: DType::F32,
            matmul_precision: MatmulPrecision::Auto,
            cache: None,
            adapters: Vec::new(),
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

    /// Sets the storage format of the KV cache; the default is the dtype.
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
        let (reader, mut generator, eos, vocab) = match family {
            ModelFamily::TextToText => self.text_to_text(files, &device)?,
            _ => self.decoder(files, family, &device)?,
        };
        generator.skip_logits();
        generator.run_ahead();
        let tokenizer = files.tokenizer()?;
        Ok(LanguageModel {
            files: files.clone(),
            device,
            eos: end_ids(&eos, &tokenizer),
            tokenizer,
            generator,
            reader,
            vocab,
            template: None,
            #[cfg(feature = "grammar")]
            grammars: None,
        })
    }

    /// Compiles a decoder, with an image encoder if the model has one.
    fn decoder(
        &self,
        files: &ModelFiles,
        family: ModelFamily,
        device: &Device,
    ) -> Result<OpenedModel, Error> {
        let sees = family == ModelFamily::VisionLanguage;
        let spec = match sees {
            true => files.vision_language_spec()?.decoder,
            false => files.decoder_spec()?,
        };
        let request = ContextRequest {
            context: self.context,
            dtype: self.dtype,
            cache: self.cache,
            ..ContextRequest::default()
        };
        let context = ContextFit::new(files, &spec, device, &request)?.context;
        let adapters = self.adapters(sees, &spec)?;
        let options = |spec: &DecoderSpec| DecoderOptions {
            context,
            chunk: DecoderOptions::new(spec).chunk.min(context),
            dtype: self.dtype,
            cache: self.cache,
            matmul_precision: self.matmul_precision,
            sampling: Some(Sampling::GREEDY),
            adapters,
            ..DecoderOptions::new(spec)
        };
        if sees {
            let graphs = files.vision_language(|spec| options(&spec.decoder))?;
            let (images, generator) = graphs.compile(device)?;
            let reader = PromptReader::Images(Box::new(images));
            return Ok((reader, generator, spec.eos, spec.vocab));
        }
        let generator = files.decoder(options)?.generator(device)?;
        Ok((PromptReader::Decoder, generator, spec.eos, spec.vocab))
    }

    /// Compiles an encoder-decoder.
    fn text_to_text(&self, files: &ModelFiles, device: &Device) -> Result<OpenedModel, Error> {
        let refused = match (self.dtype, self.cache) {
            _ if !self.adapters.is_empty() => Some("does not support adapters"),
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
            sampling: Some(Sampling::GREEDY),
        })?;
        let (source, generator) = model.compile(device)?;
        let reader = PromptReader::Source(Box::new(source));
        Ok((reader, generator, model.spec.eos, model.spec.encoder.vocab))
    }

    fn adapters(&self, sees: bool, spec: &DecoderSpec) -> Result<Vec<ScaledAdapter>, Error> {
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
        all.collect()
    }
}

/// The prompt reader, the compiled decoder, its end tokens and its vocabulary size.
type OpenedModel = (PromptReader, Generator, Vec<u32>, usize);
