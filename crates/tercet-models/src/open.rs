//! Opening a model of any supported type: a GGUF file or a Hugging Face folder.

mod encoder;
mod gguf;
mod seq2seq;
mod speech;
mod vision;
mod vision_language;

use std::path::Path;

use tercet::{DType, Device};

use crate::error::Error;
use crate::family::ModelFamily;
use crate::model_path::{ModelPlace, ModelStores};
use tercet_files::MappedFile;
use tercet_files::gguf::Gguf;
use tercet_networks::config::{self, DecoderSpec, decoder};
use tercet_networks::hf::HfFolder;
use tercet_networks::{
    BatchDecoder, BatchOptions, Decoder, DecoderOptions, Draft, MatmulPrecision, ModelError,
    Sampling, Weights,
};
use tercet_text::dataset::TemplateFiles;
use tercet_text::tokenizer::Tokenizer;

pub use encoder::{EmbeddingPrompt, EncoderOptions, OpenModel};
pub use vision::SimilarityHead;

/// The files of a model.
///
/// ```
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/");
/// # let path = format!("{data}tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
/// use tercet_models::ModelFiles;
/// let files = ModelFiles::open(path)?;
/// assert_eq!(files.decoder_spec()?.vocab, 2048);
/// assert!(matches!(files, ModelFiles::Gguf(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub enum ModelFiles {
    /// A GGUF file.
    Gguf(Gguf),
    /// A Hugging Face folder.
    Hf(HfFolder),
}

impl<'a> From<&'a ModelFiles> for TemplateFiles<'a> {
    fn from(files: &'a ModelFiles) -> TemplateFiles<'a> {
        match files {
            ModelFiles::Gguf(gguf) => TemplateFiles::Gguf(gguf),
            ModelFiles::Hf(folder) => TemplateFiles::Folder(folder.dir()),
        }
    }
}

impl ModelFiles {
    /// Opens a GGUF file, a folder with `config.json` and safetensors weights, or a folder with one
    /// GGUF model. The path of a folder's `model.safetensors` or `config.json` also works.
    ///
    /// If the path does not exist, it can be the name of a model. `ORG/NAME` and `ORG/NAME/FILE`
    /// are in the local cache of the Hugging Face hub, `NAME:TAG` and `ollama:NAME` in Ollama's
    /// store.
    ///
    /// # Errors
    /// [`Error::Path`] if the path is ambiguous or leads nowhere, or [`Error`] of the reader.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFiles, Error> {
        match ModelStores::from_env().locate(path.as_ref())? {
            ModelPlace::Folder(dir) => Ok(ModelFiles::Hf(HfFolder::open(dir)?)),
            ModelPlace::Gguf(path) => Ok(ModelFiles::Gguf(Gguf::open(path)?)),
        }
    }

    /// Opens a GGUF file in memory.
    ///
    /// # Errors
    /// [`Error::Gguf`] if the bytes are not a valid GGUF file.
    pub fn from_gguf_bytes(bytes: &[u8]) -> Result<ModelFiles, Error> {
        Ok(ModelFiles::Gguf(Gguf::parse(MappedFile::from_vec(
            bytes.to_vec(),
        ))?))
    }

    /// The kind of the model, from its configuration.
    ///
    /// # Errors
    /// [`Error::Architecture`] if there is no builder for it.
    pub fn family(&self) -> Result<ModelFamily, Error> {
        let name = match self {
            ModelFiles::Gguf(gguf) => gguf.metadata().get_str("general.architecture")?,
            ModelFiles::Hf(folder) => folder.model_type().unwrap_or("(none)"),
        };
        let is_decoder = match self {
            ModelFiles::Gguf(_) => config::DecoderFamily::from_gguf_architecture(name).is_some(),
            ModelFiles::Hf(_) => decoder::is_decoder(name),
        };
        let is_encoder = match self {
            ModelFiles::Gguf(_) => config::encoder::is_encoder(name),
            ModelFiles::Hf(_) => config::encoder::for_model_type(name).is_some(),
        };
        let is_vision = match self {
            ModelFiles::Gguf(_) => false,
            ModelFiles::Hf(_) => config::vision::for_model_type(name).is_some(),
        };
        let is_vision_language = match self {
            ModelFiles::Gguf(_) => false,
            ModelFiles::Hf(_) => config::vision_language::for_model_type(name).is_some(),
        };
        let is_speech = match self {
            ModelFiles::Gguf(_) => false,
            ModelFiles::Hf(_) => {
                [config::speech::MODEL_TYPE, config::speech::MOONSHINE].contains(&name)
            }
        };
        match name {
            _ if is_vision => Ok(ModelFamily::Vision),
            _ if is_vision_language => Ok(ModelFamily::VisionLanguage),
            _ if self.has_decoder(name) => Ok(ModelFamily::TextToText),
            _ if is_decoder => Ok(ModelFamily::Decoder),
            _ if is_encoder => Ok(ModelFamily::Encoder),
            _ if is_speech => Ok(ModelFamily::Speech),
            _ => Err(Error::Architecture {
                name: name.chars().take(64).collect(),
            }),
        }
    }

    /// The keys of the model's configuration or metadata that are ignored, because they cannot
    /// change the result; sorted. Keys that describe the file or its training are not listed.
    ///
    /// # Errors
    /// [`Error`] of the configuration.
    pub fn ignored_keys(&self) -> Result<Vec<String>, Error> {
        let family = self.family()?;
        let (read, keys) = config::with_notes(|| match family {
            ModelFamily::Decoder => self.decoder_spec().map(drop),
            ModelFamily::Encoder => self.encoder_spec().map(drop),
            ModelFamily::Vision => self.vision_spec().map(drop),
            ModelFamily::VisionLanguage => self.vision_language_spec().map(drop),
            ModelFamily::TextToText => self.seq2seq_spec().map(drop),
            ModelFamily::Speech if self.is_moonshine() => self.moonshine_spec().map(drop),
            ModelFamily::Speech => self.speech_tokens().map(drop),
        });
        read?;
        Ok(keys)
    }

    /// Whether a folder with this `model_type` has a decoder besides its encoder.
    fn has_decoder(&self, name: &str) -> bool {
        let ModelFiles::Hf(folder) = self else {
            return false;
        };
        let norm = "decoder.final_layer_norm.weight";
        config::seq2seq::is_model_type(name) && folder.weights().find(norm).is_some()
    }

    /// The weights.
    pub fn weights(&self) -> Weights {
        match self {
            ModelFiles::Gguf(gguf) => Weights::Gguf(gguf.clone()),
            ModelFiles::Hf(folder) => Weights::Hf(folder.weights().clone()),
        }
    }

    /// Total bytes of the tensors in the files.
    pub fn weight_bytes(&self) -> u64 {
        match self {
            ModelFiles::Gguf(gguf) => gguf.tensors().iter().map(|t| t.range().len() as u64).sum(),
            ModelFiles::Hf(folder) => {
                let tensors = folder.weights().tensors();
                tensors.map(|(_, t)| t.range().len() as u64).sum()
            }
        }
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// [`Error`] if the tokenizer is missing or its type is not supported.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        match self {
            ModelFiles::Gguf(gguf) => gguf::tokenizer(gguf),
            ModelFiles::Hf(folder) => Ok(folder.tokenizer()?),
        }
    }

    /// The specification of a decoder; for a vision-language model, of its text decoder.
    ///
    /// # Errors
    /// [`Error`] if the model is not a decoder, or a field is not supported.
    pub fn decoder_spec(&self) -> Result<DecoderSpec, Error> {
        match self {
            ModelFiles::Gguf(gguf) => Ok(DecoderSpec::from_gguf(gguf)?),
            ModelFiles::Hf(folder) => Ok(folder.decoder_spec()?),
        }
    }

    /// Builds the graph of a decoder. `options` receives the specification and returns the build
    /// options.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`Decoder::build`].
    pub fn decoder(
        &self,
        options: impl FnOnce(&DecoderSpec) -> DecoderOptions,
    ) -> Result<Decoder, Error> {
        let config = self.decoder_spec()?;
        let options = options(&config);
        Ok(Decoder::build(&config, &self.weights(), options)?)
    }

    /// Builds the graph of a decoder that generates several sequences in one batch. `options`
    /// receives the specification and returns the build options.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`BatchDecoder::build`].
    pub fn batch_decoder(
        &self,
        options: impl FnOnce(&DecoderSpec) -> BatchOptions,
    ) -> Result<BatchDecoder, Error> {
        let config = self.decoder_spec()?;
        let options = options(&config);
        Ok(BatchDecoder::build(&config, &self.weights(), options)?)
    }

    /// Compiles this model as a draft model for a model with the tokenizer `of`.
    ///
    /// # Errors
    /// [`Error`] of the files and the device. [`DraftError`](crate::DraftError) if the vocabularies
    /// differ, or if layers have a recurrent state.
    pub fn draft(&self, options: &DraftOptions<'_>, of: &Tokenizer) -> Result<Draft, Error> {
        let DraftOptions {
            device,
            context,
            dtype,
            matmul_precision: products,
            sampling,
        } = *options;
        let decoder = self.decoder(|config| {
            let options = DecoderOptions::new(config);
            // Proposals beyond the draft model's trained context are rarely accepted.
            let context = context.min(options.context);
            DecoderOptions {
                context,
                chunk: options.chunk.min(context),
                dtype,
                matmul_precision: products,
                sampling: Some(sampling),
                ..options
            }
        })?;
        let generator = decoder.generator(device)?;
        let draft = Draft::model(generator, &self.tokenizer()?, of);
        Ok(draft.map_err(ModelError::from)?)
    }
}

/// Options for a draft model. The options must match those of the target model.
///
/// ```
/// use tercet::{DType, Device};
/// use tercet_models::{DraftOptions, MatmulPrecision, Sampling};
/// let (device, sampling) = (&Device::cpu(), Sampling::GREEDY);
/// let (dtype, matmul_precision) = (DType::F32, MatmulPrecision::Full);
/// let options = DraftOptions { device, context: 512, dtype, matmul_precision, sampling };
/// assert_eq!(options.device.name(), "cpu");
/// ```
#[derive(Clone, Copy)]
pub struct DraftOptions<'a> {
    /// The device to run on.
    pub device: &'a Device,
    /// Maximum context length, in tokens.
    pub context: usize,
    /// The float dtype for computation.
    pub dtype: DType,
    /// The rounding of F32 activations in matmuls.
    pub matmul_precision: MatmulPrecision,
    /// The sampling of tokens in the graph.
    pub sampling: Sampling,
}
