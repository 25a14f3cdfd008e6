//! `tercet embed`: sentences to vectors, or a table of their similarities.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tercet_models::{Embedder, ModelFiles};

use super::{Precision, device};
use crate::error::{CliError, Outcome};
use crate::interrupt::{self, interrupted};
use crate::{output, progress};

/// More sentences than this make a table that nobody reads.
const MAX_TABLE: usize = 40;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A folder with a BERT encoder: config.json, model.safetensors, tokenizer.json
    #[arg(short, long, value_name = "DIR")]
    model: PathBuf,
    /// The sentences
    sentences: Vec<String>,
    /// Files with one sentence a line; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Print the vectors as JSON instead of a table of cosine similarities
    #[arg(long)]
    json: bool,
    /// How many sentences to run at a time
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = super::positive)]
    batch: usize,
    /// Cut sentences at so many tokens [default: as the model says]
    #[arg(long, value_name = "N", value_parser = super::positive)]
    max_len: Option<usize>,
    /// Where to run; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// The float type to compute in; f16 and bf16 add up in f32
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Precision::F32)]
    dtype: Precision,
}

#[derive(Serialize)]
struct Row<'a> {
    text: &'a str,
    embedding: &'a [f32],
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let texts = sentences(args)?;
    if texts.is_empty() {
        return Err(CliError::Usage(
            "no sentences; give some as arguments, or a file of them with --file".into(),
        ));
    }
    if !args.json && texts.len() > MAX_TABLE {
        let n = texts.len();
        return Err(CliError::Usage(format!(
            "{n} sentences make no readable table (at most {MAX_TABLE}); use --json"
        )));
    }
    let device = device(&args.device)?;
    let what = format!("cannot load the model {}", args.model.display());
    let spinner = progress::spinner("loading");
    let mut embedder =
        load(args, &device, &texts).map_err(|e| CliError::Model { what, source: e })?;
    spinner.finish_and_clear();

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
    if args.json {
        let rows: Vec<Row<'_>> = texts
            .iter()
            .zip(&embeddings)
            .map(|(text, embedding)| Row { text, embedding })
            .collect();
        output::json(&rows)?;
    } else {
        table(&texts, &embeddings)?;
    }
    Ok(Outcome::Done)
}

fn load(
    args: &Args,
    device: &tercet::Device,
    texts: &[String],
) -> Result<Embedder, tercet_models::Error> {
    let files = ModelFiles::open(&args.model)?;
    let bert = files.bert(files.pooling()?, args.dtype.dtype())?;
    let said = match &files {
        ModelFiles::Hf(folder) => folder.max_seq_length()?,
        ModelFiles::Gguf(_) => None,
    };
    let positions = bert.config.max_positions;
    let len = args.max_len.or(said).unwrap_or(positions).min(positions);
    let batch = args.batch.clamp(1, texts.len());
    Ok(Embedder::new(
        &bert,
        files.tokenizer()?,
        device,
        batch,
        len,
    )?)
}

fn sentences(args: &Args) -> Result<Vec<String>, CliError> {
    let mut texts = args.sentences.clone();
    for path in &args.file {
        let text = read_text(path).map_err(|source| CliError::File {
            path: path.clone(),
            source,
        })?;
        texts.extend(
            text.lines()
                .filter(|l| !l.trim().is_empty())
                .map(str::to_string),
        );
    }
    Ok(texts)
}

fn read_text(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(path)
}

/// The cosine of every pair; embeddings have length 1.
fn table(texts: &[String], embeddings: &[Vec<f32>]) -> Result<(), CliError> {
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
                let cosine: f32 = a.iter().zip(b).map(|(x, y)| x * y).sum();
                write!(out, " {cosine:>6.3}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    })
}
