//! Flags and helpers shared by commands that use a text encoder.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use tercet::Device;
use tercet_models::{EmbeddingPrompt, EncoderOptions, ModelFamily, ModelFiles, PoolingMode};

use super::open::{check_family, open_files};
use super::{ComputePrecision, DeviceArgs};
use crate::error::CliError;
use crate::progress;

/// The model, the device and the encoder flags.
#[derive(clap::Args)]
pub(crate) struct TextEncodingArgs {
    /// Folder of a text encoder: config.json, model.safetensors, tokenizer.json
    #[arg(short, long, value_name = "DIR")]
    pub(crate) model: PathBuf,
    /// Texts per run [default: 32, fewer if texts are long]
    #[arg(long, value_name = "N", value_parser = super::positive)]
    pub(crate) batch: Option<usize>,
    /// Maximum length of a text in tokens [default: the model's]
    #[arg(long, value_name = "N", value_parser = super::positive)]
    pub(crate) max_len: Option<usize>,
    /// Truncate longer texts; otherwise they are an error, or cut into pieces by `search index`
    #[arg(long)]
    pub(crate) truncate: bool,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Float type for computation; f16 and bf16 accumulate in f32
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = ComputePrecision::F32)]
    pub(crate) dtype: ComputePrecision,
}

/// A model and its text files.
#[derive(clap::Args)]
pub(crate) struct TextInputArgs {
    #[command(flatten)]
    pub(crate) encoding: TextEncodingArgs,
    /// Text file with one text per line; `-` is standard input; repeatable
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,
}

impl TextEncodingArgs {
    /// Options that apply to every encoder.
    pub(crate) fn options(&self) -> EncoderOptions {
        EncoderOptions {
            dtype: self.dtype.dtype(),
            matmul_precision: self.dtype.matmul_precision(),
            batch: self.batch,
            max_tokens: self.max_len,
            truncate: self.truncate,
            ..EncoderOptions::default()
        }
    }

    /// Opens the model and the device, then calls `load` with both.
    pub(crate) fn load<T>(
        &self,
        load: impl FnOnce(&ModelFiles, &Device) -> Result<T, tercet_models::Error>,
    ) -> Result<T, CliError> {
        let device = self.device.open()?;
        let what = format!("cannot load the model {}", self.model.display());
        let files = open_files(&self.model, &what)?;
        check_family(
            &files,
            &what,
            &[
                ModelFamily::Encoder,
                ModelFamily::Vision,
                ModelFamily::Decoder,
                ModelFamily::VisionLanguage,
                ModelFamily::TextToText,
            ],
        )?;
        let spinner = progress::spinner("loading");
        let loaded = load(&files, &device).map_err(|e| match e {
            tercet_models::Error::Search(_) => CliError::model("cannot use the index")(e),
            e => CliError::model(what)(e),
        })?;
        spinner.finish_and_clear();
        Ok(loaded)
    }
}

/// The flag for the pooling of token states.
#[derive(clap::Args)]
pub(crate) struct PoolingArgs {
    /// Pooling of the token states into a vector, instead of that of the model. A language model whose
    /// files have none requires it
    #[arg(long, value_name = "MODE", value_enum)]
    pooling: Option<PoolingName>,
}

impl PoolingArgs {
    pub(crate) fn mode(&self) -> Option<PoolingMode> {
        self.pooling.map(PoolingName::mode)
    }
}

/// Poolings, named as in llama.cpp and sentence-transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PoolingName {
    /// Mean of all tokens
    Mean,
    /// First token
    Cls,
    /// Last token
    #[value(alias = "lasttoken", alias = "last-token")]
    Last,
    /// Maximum of each element
    Max,
    /// Mean with weights that grow with the position
    #[value(alias = "weightedmean")]
    WeightedMean,
    /// Sum divided by the square root of the number of tokens
    #[value(alias = "mean_sqrt_len_tokens")]
    MeanSqrtLen,
}

impl PoolingName {
    pub(crate) fn mode(self) -> PoolingMode {
        match self {
            PoolingName::Mean => PoolingMode::Mean,
            PoolingName::Cls => PoolingMode::Cls,
            PoolingName::Last => PoolingMode::LastToken,
            PoolingName::Max => PoolingMode::Max,
            PoolingName::WeightedMean => PoolingMode::WeightedMean,
            PoolingName::MeanSqrtLen => PoolingMode::MeanSqrtLen,
        }
    }
}

/// Flags that prepend a prompt to each text.
#[derive(clap::Args)]
pub(crate) struct PromptPrefixArgs {
    /// Prepend the model's prompt with this name to each sentence [default: the model's default
    /// prompt]
    #[arg(long, value_name = "NAME", conflicts_with = "prompt_text")]
    pub(crate) prompt: Option<String>,
    /// Prepend this text to each sentence
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt_text: Option<String>,
}

impl PromptPrefixArgs {
    pub(crate) fn prompt(&self) -> EmbeddingPrompt {
        match (&self.prompt, &self.prompt_text) {
            (_, Some(text)) => EmbeddingPrompt::Text(text.clone()),
            (Some(name), None) => EmbeddingPrompt::Named(name.clone()),
            (None, None) => EmbeddingPrompt::Default,
        }
    }
}

impl TextInputArgs {
    /// Options that apply to every encoder.
    pub(crate) fn options(&self) -> EncoderOptions {
        self.encoding.options()
    }

    /// Opens the model and the device, then calls `load` with both.
    pub(crate) fn load<T>(
        &self,
        load: impl FnOnce(&ModelFiles, &Device) -> Result<T, tercet_models::Error>,
    ) -> Result<T, CliError> {
        self.encoding.load(load)
    }

    /// The lines of the files, without blank lines.
    pub(crate) fn lines(&self) -> Result<Vec<String>, CliError> {
        let mut texts = Vec::new();
        for path in &self.file {
            let text = read_text(path).map_err(|source| CliError::File {
                path: path.clone(),
                source,
            })?;
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            texts.extend(lines.map(str::to_string));
        }
        Ok(texts)
    }

    /// The texts of the arguments and of the files.
    pub(crate) fn texts(&self, given: &[String], what: &str) -> Result<Vec<String>, CliError> {
        let texts = [given.to_vec(), self.lines()?].concat();
        match texts.is_empty() {
            false => Ok(texts),
            true => Err(CliError::Usage(format!(
                "no {what}; pass them as arguments, or a file of them with --file"
            ))),
        }
    }
}

fn read_text(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(path)
}
