//! Opening a model of any kind: a GGUF file or a Hugging Face folder.

use std::path::Path;

use crate::builder::{Bert, Decoder, DecoderOptions, ModelError, Pooling, Weights};
use crate::config::{BertConfig, DecoderSpec, decoder};
use crate::error::Error;
use crate::gguf::Gguf;
use crate::hf::HfFolder;
use crate::mmap::MappedFile;
use crate::tokenizer::Tokenizer;

/// The model families that have a builder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Decoders of any family of [`DecoderSpec`]: text generation.
    Decoder,
    /// BERT encoders: sentence embeddings.
    Bert,
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
            ModelFiles::Hf(_) => decoder::of_model_type(name).is_some(),
        };
        match name {
            _ if is_decoder => Ok(Family::Decoder),
            "bert" => Ok(Family::Bert),
            _ => Err(Error::Architecture {
                name: name.chars().take(64).collect(),
            }),
        }
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
            ModelFiles::Gguf(gguf) => Ok(Tokenizer::from_gguf(gguf)?),
            ModelFiles::Hf(folder) => Ok(folder.tokenizer()?),
        }
    }

    /// The specification of a decoder.
    ///
    /// # Errors
    /// [`Error`] when it is not one, or a field is not supported.
    pub fn decoder_spec(&self) -> Result<DecoderSpec, Error> {
        match self {
            ModelFiles::Gguf(gguf) => Ok(DecoderSpec::from_gguf(gguf)?),
            ModelFiles::Hf(folder) => Ok(folder.decoder_spec()?),
        }
    }

    /// The configuration of a BERT encoder.
    ///
    /// # Errors
    /// [`Error`] when it is not one, or a field is not supported.
    pub fn bert_config(&self) -> Result<BertConfig, Error> {
        match self {
            ModelFiles::Gguf(_) => Err(Error::Architecture {
                name: "bert in GGUF".to_string(),
            }),
            ModelFiles::Hf(folder) => Ok(folder.bert_config()?),
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

    /// How a sentence encoder pools, as its folder says; the mean where it says nothing.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a pooling that has no builder, or several of them at once;
    /// [`Error`] of the folder's files.
    pub fn pooling(&self) -> Result<Pooling, Error> {
        let said = match self {
            ModelFiles::Gguf(_) => None,
            ModelFiles::Hf(folder) => folder.pooling_modes()?,
        };
        let Some(modes) = said else {
            return Ok(Pooling::MeanNormalized);
        };
        match modes.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["mean_tokens"] => Ok(Pooling::MeanNormalized),
            ["cls_token"] => Ok(Pooling::ClsNormalized),
            _ => {
                let modes = modes.join(", ");
                let reason = format!(
                    "the model pools by `{modes}`; supported: mean_tokens or cls_token alone"
                );
                Err(ModelError::Unsupported(reason).into())
            }
        }
    }

    /// The graph of a BERT encoder, computed in `dtype`. A pooling must be what the folder says
    /// ([`ModelFiles::pooling`]), if it says.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`Bert::build`]; [`ModelError::Unsupported`] for
    /// another pooling.
    pub fn bert(&self, pooling: Pooling, dtype: tercet::DType) -> Result<Bert, Error> {
        if let ModelFiles::Hf(folder) = self
            && pooling != Pooling::None
            && folder.pooling_modes()?.is_some()
        {
            let said = self.pooling()?;
            if said != pooling {
                let reason =
                    format!("the model's folder says Pooling::{said:?}, not Pooling::{pooling:?}");
                return Err(ModelError::Unsupported(reason).into());
            }
        }
        Ok(Bert::build(
            &self.bert_config()?,
            &self.weights(),
            pooling,
            dtype,
        )?)
    }
}
