//! `tercet embed`: sentences and pictures to vectors, or a table of their similarities.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tercet_models::{Embedder, EncoderOptions, Error, Family};

use super::pictures::Both;
use super::texts::{Prompting, Reading};
use crate::error::{CliError, Outcome};
use crate::interrupt::{self, interrupted};
use crate::npy::{NpyArray, NpyDtype, write_npy};
use crate::{destination, output, progress};

/// More sentences than this make a table that nobody reads.
const MAX_TABLE: usize = 40;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    reading: Reading,
    /// The sentences; for a model of pictures also files that end in .png, .jpg or .jpeg
    sentences: Vec<String>,
    /// Print the vectors as JSON instead of a table of cosine similarities
    #[arg(long)]
    json: bool,
    /// Write the vectors to a .npy file, float32 of shape (sentences, elements)
    #[arg(long, value_name = "OUT")]
    npy: Option<PathBuf>,
    #[command(flatten)]
    prompting: Prompting,
    /// Keep only so many leading elements of a vector, for models that were trained for it
    #[arg(long, value_name = "N", value_parser = super::positive)]
    dims: Option<usize>,
}

#[derive(Serialize)]
struct Row<'a> {
    text: &'a str,
    embedding: &'a [f32],
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let texts = args.reading.texts(&args.sentences, "sentences")?;
    if !args.json && args.npy.is_none() && texts.len() > MAX_TABLE {
        let n = texts.len();
        return Err(CliError::Usage(format!(
            "{n} sentences make no readable table (at most {MAX_TABLE}); use --json or --npy"
        )));
    }
    if let Some(path) = &args.npy {
        destination::check(path)?;
    }
    let options = EncoderOptions {
        prompt: args.prompting.prompt(),
        dims: args.dims,
        ..args.reading.options()
    };
    let mut embedder = (args.reading).load(|files, device| match files.family()? {
        Family::Vision => Ok(Side::Both(Both::load(files, device, &options, &texts)?)),
        Family::Decoder
        | Family::Encoder
        | Family::VisionLanguage
        | Family::TextToText
        | Family::Speech => Ok(Side::Texts(files.embedder(device, &options)?)),
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
        return Ok(Outcome::Interrupted);
    }
    if let Some(path) = &args.npy {
        write(path, &embeddings, embedder.width())?;
    }
    if args.json {
        let rows: Vec<Row<'_>> = texts
            .iter()
            .zip(&embeddings)
            .map(|(text, embedding)| Row { text, embedding })
            .collect();
        output::json(&rows)?;
    } else if args.npy.is_none() {
        table(&texts, &embeddings)?;
    }
    Ok(Outcome::Done)
}

/// What reads the arguments.
#[allow(clippy::large_enum_variant, reason = "a command has one of them")]
enum Side {
    Texts(Embedder),
    Both(Both),
}

impl Side {
    fn width(&self) -> usize {
        match self {
            Side::Texts(embedder) => embedder.width(),
            Side::Both(both) => both.width(),
        }
    }

    fn embed(
        &mut self,
        texts: &[String],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, Error> {
        match self {
            Side::Texts(embedder) => embedder.embed(texts, progress),
            Side::Both(both) => both.embed(texts, progress),
        }
    }
}

fn write(path: &Path, embeddings: &[Vec<f32>], width: usize) -> Result<(), CliError> {
    let numbers = embeddings.iter().flatten();
    let bytes: Vec<u8> = numbers.flat_map(|x| x.to_le_bytes()).collect();
    destination::write(path, |file| {
        let array = NpyArray::new(NpyDtype::F32, vec![embeddings.len(), width], bytes);
        let mut file = std::io::BufWriter::new(file);
        write_npy(&mut file, &array.map_err(std::io::Error::other)?)?;
        file.flush()
    })
}

/// The cosine of every pair.
fn table(texts: &[String], embeddings: &[Vec<f32>]) -> Result<(), CliError> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    output::people(|out| {
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
