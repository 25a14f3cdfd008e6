//! `tercet search`: an index of a folder by meaning, and what in it is nearest to a query.

use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;
use tercet::counted;
use tercet_models::search::{Found, Indexed, Indexer, Passage, Query, Searcher, Unit};
use tercet_models::{EncoderOptions, Family};

use super::Arithmetic;
use super::pictures::is_picture;
use super::texts::{Encoding, Prompting};
use crate::error::{CliError, Outcome};
use crate::interrupt::{self, interrupted};
use crate::{destination, output, progress};

/// Characters of a passage that people are shown.
const SHOWN: usize = 160;
/// Names of files that were left out that people are shown.
const NAMES: usize = 3;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    finding: Option<Finding>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make the index of a folder, or bring it up to date
    Index(Indexing),
}

/// Arguments of its own throughout: what is optional as a whole may not hold other structs of them.
#[derive(clap::Args)]
struct Finding {
    /// The folder of the model that made the index
    #[arg(short, long, value_name = "DIR")]
    model: PathBuf,
    /// Where to run; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// The float type to compute in; f16 and bf16 add up in f32
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Arithmetic::F32)]
    dtype: Arithmetic,
    /// Cut a query that is longer than the model reads instead of refusing it
    #[arg(long)]
    truncate: bool,
    /// Put the model's prompt of this name before the query [default: its prompt of queries]
    #[arg(long, value_name = "NAME", conflicts_with = "prompt_text")]
    prompt: Option<String>,
    /// Put this text before the query
    #[arg(long, value_name = "TEXT")]
    prompt_text: Option<String>,
    /// The index
    index: PathBuf,
    /// The query; for a model of pictures also a file that ends in .png, .jpg or .jpeg
    query: String,
    /// Show so many, the nearest
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = super::positive)]
    top: usize,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Indexing {
    #[command(flatten)]
    encoding: Encoding,
    #[command(flatten)]
    prompting: Prompting,
    /// The folder; hidden files and links are left out
    folder: PathBuf,
    /// The index, a safetensors file; one that is there is brought up to date
    #[arg(short, long, value_name = "INDEX")]
    output: PathBuf,
    /// What a vector stands for [default: paragraphs; pictures where the model is one of pictures]
    #[arg(long, value_name = "UNIT", value_enum)]
    by: Option<By>,
    /// Keep only so many leading elements of a vector, for models that were trained for it
    #[arg(long, value_name = "N", value_parser = super::positive)]
    dims: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Passages of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// Lines that are not blank
    Lines,
    /// Lines without a blank one between them
    Paragraphs,
}

#[derive(Serialize)]
struct Row<'a> {
    file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<[usize; 2]>,
    score: f32,
    /// None of a picture, and where the file changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    /// Whether the file changed since it was indexed, or is gone.
    changed: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    vectors: usize,
    made: usize,
    files: usize,
    left_out: &'a [String],
    finished: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    match (&args.command, &args.finding) {
        (Some(Command::Index(indexing)), _) => index(indexing),
        (None, Some(finding)) => find(finding),
        (None, None) => Err(CliError::Usage(
            "no index and no query; give both, or make an index with `tercet search index`".into(),
        )),
    }
}

fn index(args: &Indexing) -> Result<Outcome, CliError> {
    destination::check(&args.output)?;
    let options = EncoderOptions {
        prompt: args.prompting.prompt(),
        dims: args.dims,
        ..args.encoding.options()
    };
    let mut indexer = args.encoding.load(|files, device| {
        let unit = match (args.by, files.family()?) {
            (Some(By::Lines), _) => Unit::Lines,
            (Some(By::Paragraphs), _) => Unit::Paragraphs,
            (None, Family::Vision) => Unit::Pictures,
            (
                None,
                Family::Decoder
                | Family::Encoder
                | Family::VisionLanguage
                | Family::TextToText
                | Family::Speech,
            ) => Unit::Paragraphs,
        };
        Indexer::new(files, device, &options, unit)
    })?;
    interrupt::listen();
    let bar = progress::bar("index", 0, "files");
    let done = indexer.index(&args.folder, &args.output, &mut |now| {
        bar.set_length(now.of_files as u64);
        bar.set_position(now.files as u64);
        !interrupted()
    });
    let done = done.map_err(CliError::model(format!(
        "cannot index {}",
        args.folder.display()
    )))?;
    bar.finish_and_clear();
    let Indexed {
        vectors,
        made,
        files,
        left_out,
        finished,
    } = &done;
    if args.json {
        output::json(&Report {
            vectors: *vectors,
            made: *made,
            files: *files,
            left_out,
            finished: *finished,
        })?;
    } else {
        say(&done);
    }
    match finished {
        true => Ok(Outcome::Done),
        false => Ok(Outcome::Interrupted),
    }
}

/// What became of it, for people.
fn say(done: &Indexed) {
    let of = counted(done.files, "file", "files");
    let vectors = counted(done.vectors, "vector", "vectors");
    output::note(format_args!("{vectors} of {of}, {} new", done.made));
    if !done.left_out.is_empty() {
        let names: Vec<&str> = done
            .left_out
            .iter()
            .take(NAMES)
            .map(String::as_str)
            .collect();
        let more = if done.left_out.len() > NAMES {
            ", ..."
        } else {
            ""
        };
        output::note(format_args!(
            "note: {} left out, which the model cannot read: {}{more}",
            counted(done.left_out.len(), "file", "files"),
            names.join(", ")
        ));
    }
    if !done.finished {
        output::note(format_args!(
            "interrupted: what was done is kept, the same command goes on"
        ));
    }
}

fn find(args: &Finding) -> Result<Outcome, CliError> {
    let encoding = Encoding {
        model: args.model.clone(),
        batch: None,
        max_len: None,
        truncate: args.truncate,
        device: args.device.clone(),
        dtype: args.dtype,
    };
    let prompting = Prompting {
        prompt: args.prompt.clone(),
        prompt_text: args.prompt_text.clone(),
    };
    let options = EncoderOptions {
        prompt: prompting.prompt(),
        ..encoding.options()
    };
    let mut searcher = encoding.load(|files, device| {
        let picture = files.family()? == Family::Vision && is_picture(&args.query);
        let query = match picture {
            true => Query::Picture,
            false => Query::Text,
        };
        Searcher::open(&args.index, files, device, &options, query)
    })?;
    let found = searcher.find(&args.query, args.top);
    let found = found.map_err(CliError::model("cannot use the query"))?;
    let index = searcher.index();
    let passages: Vec<(&Found, Passage)> = found
        .iter()
        .map(|found| (found, index.passage(found)))
        .collect();
    let rows: Vec<Row<'_>> = passages
        .iter()
        .map(|(found, passage)| Row {
            file: &found.file,
            lines: found.lines,
            score: found.score,
            text: match passage {
                Passage::Text(text) => Some(text),
                Passage::Picture | Passage::Changed => None,
            },
            changed: *passage == Passage::Changed,
        })
        .collect();
    if args.json {
        output::json(&rows)?;
        return Ok(Outcome::Done);
    }
    output::people(|out| {
        for row in &rows {
            let place = match row.lines {
                Some([first, last]) if first == last => format!(":{first}"),
                Some([first, last]) => format!(":{first}-{last}"),
                None => String::new(),
            };
            let text = match (row.text, row.changed) {
                (Some(text), _) => output::clip(text, SHOWN),
                (None, true) => "(changed since it was indexed)".to_string(),
                (None, false) => String::new(),
            };
            let file = output::shown(row.file);
            writeln!(
                out,
                "{}",
                format!("{:>9.4}  {file}{place}  {text}", row.score).trim_end()
            )?;
        }
        Ok(())
    })?;
    Ok(Outcome::Done)
}
