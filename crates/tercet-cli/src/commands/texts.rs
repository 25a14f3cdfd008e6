//! What commands that read texts with an encoder have in common.

use std::io::Read;
use std::path::{Path, PathBuf};

use tercet::Device;
use tercet_models::{EncoderOptions, ModelFiles, Prompt};

use super::{Arithmetic, device};
use crate::error::CliError;
use crate::progress;

/// The model, where it runs, and how texts go through it.
#[derive(clap::Args)]
pub(crate) struct Encoding {
    /// A folder with a text encoder: config.json, model.safetensors, tokenizer.json
    #[arg(short, long, value_name = "DIR")]
    pub(crate) model: PathBuf,
    /// How many texts to run at a time [default: 32, fewer of long ones]
    #[arg(long, value_name = "N", value_parser = super::positive)]
    pub(crate) batch: Option<usize>,
    /// The longest text, in tokens [default: as the model says]
    #[arg(long, value_name = "N", value_parser = super::positive)]
    pub(crate) max_len: Option<usize>,
    /// Cut longer texts instead of refusing them
    #[arg(long)]
    pub(crate) truncate: bool,
    /// Where to run; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub(crate) device: String,
    /// The float type to compute in; f16 and bf16 add up in f32
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Arithmetic::F32)]
    pub(crate) dtype: Arithmetic,
}

/// A model and files of texts for it.
#[derive(clap::Args)]
pub(crate) struct Reading {
    #[command(flatten)]
    pub(crate) encoding: Encoding,
    /// Files with one text a line; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,
}

impl Encoding {
    /// The choices that hold for every encoder.
    pub(crate) fn options(&self) -> EncoderOptions {
        EncoderOptions {
            dtype: self.dtype.dtype(),
            products: self.dtype.products(),
            batch: self.batch,
            most: self.max_len,
            cut: self.truncate,
            ..EncoderOptions::default()
        }
    }

    /// Opens model and device, and what `load` makes of them.
    pub(crate) fn load<T>(
        &self,
        load: impl FnOnce(&ModelFiles, &Device) -> Result<T, tercet_models::Error>,
    ) -> Result<T, CliError> {
        let device = device(&self.device)?;
        let what = format!("cannot load the model {}", self.model.display());
        let spinner = progress::spinner("loading");
        let loaded = ModelFiles::open(&self.model).and_then(|files| load(&files, &device));
        let loaded = loaded.map_err(CliError::model(what))?;
        spinner.finish_and_clear();
        Ok(loaded)
    }
}

/// What is put before each text.
#[derive(clap::Args)]
pub(crate) struct Prompting {
    /// Put the model's prompt of this name before each sentence [default: as the model says]
    #[arg(long, value_name = "NAME", conflicts_with = "prompt_text")]
    pub(crate) prompt: Option<String>,
    /// Put this text before each sentence
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt_text: Option<String>,
}

impl Prompting {
    pub(crate) fn prompt(&self) -> Prompt {
        match (&self.prompt, &self.prompt_text) {
            (_, Some(text)) => Prompt::Text(text.clone()),
            (Some(name), None) => Prompt::Named(name.clone()),
            (None, None) => Prompt::Default,
        }
    }
}

impl Reading {
    /// The choices that hold for every encoder.
    pub(crate) fn options(&self) -> EncoderOptions {
        self.encoding.options()
    }

    /// Opens model and device, and what `load` makes of them.
    pub(crate) fn load<T>(
        &self,
        load: impl FnOnce(&ModelFiles, &Device) -> Result<T, tercet_models::Error>,
    ) -> Result<T, CliError> {
        self.encoding.load(load)
    }

    /// The lines of the files, without those that are blank.
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

    /// These texts and the lines of the files.
    pub(crate) fn texts(&self, given: &[String], what: &str) -> Result<Vec<String>, CliError> {
        let texts = [given.to_vec(), self.lines()?].concat();
        match texts.is_empty() {
            false => Ok(texts),
            true => Err(CliError::Usage(format!(
                "no {what}; give some as arguments, or a file of them with --file"
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
