//! Opening a model of any kind: a GGUF file or a Hugging Face folder.

mod encoder;
mod gguf;
mod speech;
mod text_to_text;
mod vision;
mod vision_language;

use std::path::Path;

use tercet::{DType, Device};

use crate::builder::{
    BatchDecoder, BatchOptions, Decoder, DecoderOptions, Draft, ModelError, Products, Sampling,
    Weights,
};
use crate::config::{self, DecoderSpec, decoder};
use crate::error::Error;
use crate::gguf::Gguf;
use crate::hf::HfFolder;
use crate::mmap::MappedFile;
use crate::tokenizer::Tokenizer;

pub use encoder::{EncoderOptions, Prompt};
pub use vision::Likeness;

/// The model families that have a builder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Decoders of any family of [`DecoderSpec`]: text generation.
    Decoder,
    /// Text encoders of any family of [`EncoderSpec`](crate::EncoderSpec): embeddings, classes.
    Encoder,
    /// Models of pictures, of any family of [`VisionSpec`](crate::VisionSpec): features, classes; some with texts.
    Vision,
    /// Models of pictures and texts that write, of [`VisionLanguageSpec`](crate::VisionLanguageSpec).
    VisionLanguage,
    /// Encoder-decoders of texts of [`TextToTextSpec`](crate::TextToTextSpec): a text for a text.
    TextToText,
    /// Speech recognizers of [`SpeechSpec`](crate::SpeechSpec): transcripts.
    Speech,
}

/// The files of a model.
#[derive(Clone, Debug)]
pub enum ModelFiles {
    /// A GGUF file.
    Gguf(Gguf),
    /// A Hugging Face folder.
    Hf(HfFolder),
}

impl ModelFiles {
    /// Opens a GGUF file, or a folder with `config.json` and safetensors weights. Of a folder's
    /// files `model.safetensors` or `config.json` may be named as well.
    ///
    /// # Errors
    /// [`Error`] of the reader that was tried.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFiles, Error> {
        let path = path.as_ref();
        if path.is_dir() {
            return Ok(ModelFiles::Hf(HfFolder::open(path)?));
        }
        let of_folder = path
            .extension()
            .is_some_and(|e| e == "safetensors" || e == "json");
        match path.parent() {
            Some(dir) if of_folder && path.is_file() => Ok(ModelFiles::Hf(HfFolder::open(dir)?)),
            _ => Ok(ModelFiles::Gguf(Gguf::open(path)?)),
        }
    }

    /// A GGUF file that is in memory already.
    ///
    /// # Errors
    /// [`Error::Gguf`] when the bytes are not one.
    pub fn from_gguf_bytes(bytes: &[u8]) -> Result<ModelFiles, Error> {
        Ok(ModelFiles::Gguf(Gguf::parse(MappedFile::from_vec(
            bytes.to_vec(),
        ))?))
    }

    /// The family that the configuration names.
    ///
    /// # Errors
    /// [`Error::Architecture`] when there is no builder for it.
    pub fn family(&self) -> Result<Family, Error> {
        let name = match self {
            ModelFiles::Gguf(gguf) => gguf.metadata().get_str("general.architecture")?,
            ModelFiles::Hf(folder) => folder.model_type().unwrap_or("(none)"),
        };
        let is_decoder = match self {
            ModelFiles::Gguf(_) => decoder::of_gguf(name).is_some(),
            ModelFiles::Hf(_) => decoder::is_decoder(name),
        };
        let is_encoder = match self {
            ModelFiles::Gguf(_) => config::encoder::is_encoder(name),
            ModelFiles::Hf(_) => config::encoder::of_model_type(name).is_some(),
        };
        let is_vision = match self {
            ModelFiles::Gguf(_) => false,
            ModelFiles::Hf(_) => config::vision::of_model_type(name).is_some(),
        };
        let is_vision_language = match self {
            ModelFiles::Gguf(_) => false,
            ModelFiles::Hf(_) => config::vision_language::of_model_type(name).is_some(),
        };
        let is_speech = match self {
            ModelFiles::Gguf(_) => false,
            ModelFiles::Hf(_) => {
                [config::speech::MODEL_TYPE, config::speech::MOONSHINE].contains(&name)
            }
        };
        match name {
            _ if is_vision => Ok(Family::Vision),
            _ if is_vision_language => Ok(Family::VisionLanguage),
            _ if self.has_decoder(name) => Ok(Family::TextToText),
            _ if is_decoder => Ok(Family::Decoder),
            _ if is_encoder => Ok(Family::Encoder),
            _ if is_speech => Ok(Family::Speech),
            _ => Err(Error::Architecture {
                name: name.chars().take(64).collect(),
            }),
        }
    }

    /// Whether a folder of this `model_type` has a decoder beside its encoder.
    fn has_decoder(&self, name: &str) -> bool {
        let ModelFiles::Hf(folder) = self else {
            return false;
        };
        let norm = "decoder.final_layer_norm.weight";
        config::text_to_text::is_model_type(name) && folder.weights().find(norm).is_some()
    }

    /// The weights.
    pub fn weights(&self) -> Weights {
        match self {
            ModelFiles::Gguf(gguf) => Weights::Gguf(gguf.clone()),
            ModelFiles::Hf(folder) => Weights::Hf(folder.weights().clone()),
        }
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// [`Error`] when it is missing or of a kind that is not supported.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        match self {
            ModelFiles::Gguf(gguf) => gguf::tokenizer(gguf),
            ModelFiles::Hf(folder) => Ok(folder.tokenizer()?),
        }
    }

    /// The specification of a decoder; of a model of pictures and texts that of its texts' side.
    ///
    /// # Errors
    /// [`Error`] when it is not one, or a field is not supported.
    pub fn decoder_spec(&self) -> Result<DecoderSpec, Error> {
        match self {
            ModelFiles::Gguf(gguf) => Ok(DecoderSpec::from_gguf(gguf)?),
            ModelFiles::Hf(folder) => Ok(folder.decoder_spec()?),
        }
    }

    /// The graph of a decoder; `options` chooses from its specification.
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

    /// The graph of a decoder that writes several sequences side by side; `options` chooses from its specification.
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

    /// A draft for a model with the tokenizer `of`, compiled.
    ///
    /// # Errors
    /// [`Error`] of the files and the device; [`DraftError`](crate::DraftError) of another vocabulary, or layers that remember in states.
    pub fn draft(&self, options: &DraftOptions<'_>, of: &Tokenizer) -> Result<Draft, Error> {
        let DraftOptions {
            device,
            context,
            dtype,
            products,
            sampling,
        } = *options;
        let decoder = self.decoder(|config| {
            let options = DecoderOptions::new(config);
            // What is beyond the context that it was trained for is of little use as a proposal.
            let context = context.min(options.context);
            DecoderOptions {
                context,
                chunk: options.chunk.min(context),
                dtype,
                products,
                sampling: Some(sampling),
                ..options
            }
        })?;
        let generator = decoder.generator(device)?;
        let draft = Draft::model(generator, &self.tokenizer()?, of);
        Ok(draft.map_err(ModelError::from)?)
    }
}

/// How a draft model is compiled: as the model that it writes for.
#[derive(Clone, Copy)]
pub struct DraftOptions<'a> {
    /// Where it runs.
    pub device: &'a Device,
    /// Tokens of a text at most.
    pub context: usize,
    /// The float dtype of the arithmetic.
    pub dtype: DType,
    /// What rows of F32 become on their way into products.
    pub products: Products,
    /// How tokens are chosen by the graph.
    pub sampling: Sampling,
}
