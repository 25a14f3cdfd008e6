//! `tercet embed`: embeds sentences and images as vectors, or prints a table of their similarities.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tercet_models::{Embedder, EncoderOptions, Error, ModelFamily};

use super::pictures::DualEncoder;
use super::texts::{PoolingArgs, PromptPrefixArgs, TextInputArgs};
use crate::error::{CliError, CommandOutcome};
use crate::interrupt::{self, interrupted};
use crate::npy::{NpyArray, NpyDtype, write_npy};
use crate::{output, output_path, progress};

/// Maximum number of sentences in the similarity table; larger tables are unreadable.
const MAX_TABLE: usize = 40;

#[derive(clap::Args)]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    reading: TextInputArgs,
    /// Sentences to embed; for an image-text model also files that end in .png, .jpg, .jpeg, .webp or .gif
    sentences: Vec<String>,
    /// Print the vectors as JSON instead of a table of cosine similarities
    #[arg(long)]
    json: bool,
    /// Write the vectors to a .npy file: float32, shape (sentences, dimensions)
    #[arg(long, value_name = "OUT")]
    npy: Option<PathBuf>,
    #[command(flatten)]
    prompting: PromptPrefixArgs,
    #[command(flatten)]
    pooling: PoolingArgs,
    /// Truncate vectors to the first N elements, for models trained for it (Matryoshka)
    #[arg(long, value_name = "N", value_parser = super::positive)]
    dims: Option<usize>,
}

#[derive(Serialize)]
struct EmbeddingRow<'a> {
    text: &'a str,
    embedding: &'a [f32],
}

pub(crate) fn run(args: &EmbedArgs) -> Result<CommandOutcome, CliError> {
    let texts = args.reading.texts(&args.sentences, "sentences")?;
    if !args.json && args.npy.is_none() && texts.len() > MAX_TABLE {
        let n = texts.len();
        return Err(CliError::Usage(format!(
            "{n} sentences are too many for a table (at most {MAX_TABLE}); use --json or --npy"
        )));
    }
    if let Some(path) = &args.npy {
        output_path::check(path)?;
    }
    let options = EncoderOptions {
        prompt: args.prompting.prompt(),
        pooling: args.pooling.mode(),
        dims: args.dims,
        ..args.reading.options()
    };
    let mut embedder = (args.reading).load(|files, device| match files.family()? {
        ModelFamily::Vision => Ok(EmbedInputEncoder::Both(DualEncoder::load(
            files, device, &options, &texts,
        )?)),
        ModelFamily::Decoder
        | ModelFamily::Encoder
        | ModelFamily::VisionLanguage
        | ModelFamily::TextToText
        | ModelFamily::Speech => Ok(EmbedInputEncoder::Texts(files.embedder(device, &options)?)),
    })?;

    interrupt::listen();
    let bar = progress::bar("embed", texts.len(), "sentences");
    let embeddings = embedder.embed(&texts, &mut |done| {
        bar.set_position(done as u64);
        !interrupted()
    });
    let embeddings = embeddings.map_err(CliError::model("cannot embed the sentences"))?;
    bar.finish_and_clear();
    if interrupted() {
        return Ok(CommandOutcome::Interrupted);
    }
    if let Some(path) = &args.npy {
        write(path, &embeddings, embedder.width())?;
    }
    if args.json {
        let rows: Vec<EmbeddingRow<'_>> = texts
            .iter()
            .zip(&embeddings)
            .map(|(text, embedding)| EmbeddingRow { text, embedding })
            .collect();
        output::json(&rows)?;
    } else if args.npy.is_none() {
        table(&texts, &embeddings)?;
    }
    Ok(CommandOutcome::Done)
}

/// Encoder that embeds the arguments.
#[allow(
    clippy::large_enum_variant,
    reason = "a command creates only one value"
)]
enum EmbedInputEncoder {
    Texts(Embedder),
    Both(DualEncoder),
}

impl EmbedInputEncoder {
    fn width(&self) -> usize {
        match self {
            EmbedInputEncoder::Texts(embedder) => embedder.width(),
            EmbedInputEncoder::Both(both) => both.width(),
        }
    }

    fn embed(
        &mut self,
        texts: &[String],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, Error> {
        match self {
            EmbedInputEncoder::Texts(embedder) => {
                Ok(embedder.embed_with_progress(texts, progress)?)
            }
            EmbedInputEncoder::Both(both) => both.embed(texts, progress),
        }
    }
}

fn write(path: &Path, embeddings: &[Vec<f32>], width: usize) -> Result<(), CliError> {
    let numbers = embeddings.iter().flatten();
    let bytes: Vec<u8> = numbers.flat_map(|x| x.to_le_bytes()).collect();
    output_path::write(path, |file| {
        let array = NpyArray::new(NpyDtype::F32, vec![embeddings.len(), width], bytes);
        let mut file = std::io::BufWriter::new(file);
        write_npy(&mut file, &array.map_err(std::io::Error::other)?)?;
        file.flush()
    })
}

/// Prints the cosine similarity of every pair.
fn table(texts: &[String], embeddings: &[Vec<f32>]) -> Result<(), CliError> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    output::print_for_humans(|out| {
        write!(out, "{:<44}", "")?;
        for i in 0..texts.len() {
            write!(out, " {:>6}", format!("[{}]", i + 1))?;
        }
        writeln!(out)?;
        for (i, (text, a)) in texts.iter().zip(embeddings).enumerate() {
            let text = output::clip(&format!("[{}] {text}", i + 1), 44);
            write!(out, "{text:<44}")?;
            for b in embeddings {
                let norms = (dot(a, a) * dot(b, b)).sqrt().max(f32::MIN_POSITIVE);
                write!(out, " {:>6.3}", dot(a, b) / norms)?;
            }
            writeln!(out)?;
        }
        Ok(())
    })
}
