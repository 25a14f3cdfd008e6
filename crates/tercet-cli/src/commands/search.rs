//! `tercet search`: builds a semantic index of a folder, and finds the entries nearest to a query.

use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;
use tercet::counted;
use tercet_models::search::{
    Hit, IndexStats, IndexUnit, Indexer, PassageState, SearchQuery, Searcher,
};
use tercet_models::{EncoderOptions, ModelFamily};

use super::pictures::is_image_path;
use super::texts::{PoolingArgs, PoolingName, PromptPrefixArgs, TextEncodingArgs};
use super::{ComputePrecision, DeviceArgs};
use crate::error::{CliError, CommandOutcome};
use crate::interrupt::{self, interrupted};
use crate::{output, output_path, progress};

/// Maximum characters of a passage in text output.
const SHOWN: usize = 160;
/// Maximum number of skipped files that text output names.
const NAMES: usize = 3;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SearchArgs {
    #[command(subcommand)]
    command: Option<SearchCommand>,
    #[command(flatten)]
    finding: Option<QueryArgs>,
}

#[derive(clap::Subcommand)]
enum SearchCommand {
    /// Build or update the index of a folder
    Index(IndexArgs),
}

/// Query flags. clap does not allow flattened structs inside an optional struct, so the fields
/// repeat those of `TextEncodingArgs` and `PromptPrefixArgs`.
#[derive(clap::Args)]
struct QueryArgs {
    /// Folder of the model that built the index
    #[arg(short, long, value_name = "DIR")]
    model: PathBuf,
    /// Device to run on; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Threads of the CPU device [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = super::positive)]
    threads: Option<usize>,
    /// Float type for computation; f16 and bf16 accumulate in f32
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = ComputePrecision::F32)]
    dtype: ComputePrecision,
    /// Truncate a query that exceeds the model's maximum length; otherwise it is an error
    #[arg(long)]
    truncate: bool,
    /// Prepend the model's prompt with this name to the query [default: the model's query prompt]
    #[arg(long, value_name = "NAME", conflicts_with = "prompt_text")]
    prompt: Option<String>,
    /// Prepend this text to the query
    #[arg(long, value_name = "TEXT")]
    prompt_text: Option<String>,
    /// Pooling of the token states, which must be that of the index [default: that of the index]
    #[arg(long, value_name = "MODE", value_enum)]
    pooling: Option<PoolingName>,
    /// Index file
    index: PathBuf,
    /// Query; for an image-text model also a file that ends in .png, .jpg, .jpeg, .webp or .gif
    query: String,
    /// Number of results
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = super::positive)]
    top: usize,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct IndexArgs {
    #[command(flatten)]
    encoding: TextEncodingArgs,
    #[command(flatten)]
    prompting: PromptPrefixArgs,
    #[command(flatten)]
    pooling: PoolingArgs,
    /// Folder to index; hidden files and links are skipped
    folder: PathBuf,
    /// Index file (safetensors); an existing index is updated
    #[arg(short, long, value_name = "INDEX")]
    output: PathBuf,
    /// Unit that one vector represents [default: paragraphs; images for an image model]
    #[arg(long, value_name = "UNIT", value_enum)]
    by: Option<PassageUnit>,
    /// Truncate vectors to the first N elements, for models trained for it (Matryoshka)
    #[arg(long, value_name = "N", value_parser = super::positive)]
    dims: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Units of a text file that one vector represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PassageUnit {
    /// Lines that are not blank
    Lines,
    /// Runs of lines without a blank line
    Paragraphs,
}

#[derive(Serialize)]
struct SearchHitRow<'a> {
    file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<[usize; 2]>,
    /// First byte of the passage in the file, and the byte after its last.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<[usize; 2]>,
    score: f32,
    /// The passage. `None` for images, and if the file changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    /// Whether the file changed since it was indexed, or no longer exists.
    changed: bool,
}

#[derive(Serialize)]
struct IndexReport<'a> {
    vectors: usize,
    made: usize,
    files: usize,
    left_out: &'a [String],
    finished: bool,
}

pub(crate) fn run(args: &SearchArgs) -> Result<CommandOutcome, CliError> {
    match (&args.command, &args.finding) {
        (Some(SearchCommand::Index(indexing)), _) => index(indexing),
        (None, Some(finding)) => find(finding),
        (None, None) => Err(CliError::Usage(
            "an index and a query are required; `tercet search index` builds an index".into(),
        )),
    }
}

fn index(args: &IndexArgs) -> Result<CommandOutcome, CliError> {
    output_path::check(&args.output)?;
    let options = EncoderOptions {
        prompt: args.prompting.prompt(),
        dims: args.dims,
        pooling: args.pooling.mode(),
        ..args.encoding.options()
    };
    let mut indexer = args.encoding.load(|files, device| {
        let unit = match (args.by, files.family()?) {
            (Some(PassageUnit::Lines), _) => IndexUnit::Lines,
            (Some(PassageUnit::Paragraphs), _) => IndexUnit::Paragraphs,
            (None, ModelFamily::Vision) => IndexUnit::Pictures,
            (
                None,
                ModelFamily::Decoder
                | ModelFamily::Encoder
                | ModelFamily::VisionLanguage
                | ModelFamily::TextToText
                | ModelFamily::Speech,
            ) => IndexUnit::Paragraphs,
        };
        Indexer::new(files, device, &options, unit)
    })?;
    interrupt::listen();
    let bar = progress::bar("index", 0, "files");
    let done = indexer.index(&args.folder, &args.output, &mut |now| {
        bar.set_length(now.file_count as u64);
        bar.set_position(now.files as u64);
        !interrupted()
    });
    let done = done.map_err(CliError::model(format!(
        "cannot index {}",
        args.folder.display()
    )))?;
    bar.finish_and_clear();
    let IndexStats {
        vectors,
        embedded: made,
        files,
        skipped: left_out,
        finished,
    } = &done;
    if args.json {
        output::json(&IndexReport {
            vectors: *vectors,
            made: *made,
            files: *files,
            left_out,
            finished: *finished,
        })?;
    } else {
        print_summary(&done);
    }
    match finished {
        true => Ok(CommandOutcome::Done),
        false => Ok(CommandOutcome::Interrupted),
    }
}

/// Prints a summary of the indexing run to standard error.
fn print_summary(done: &IndexStats) {
    let of = counted(done.files, "file", "files");
    let vectors = counted(done.vectors, "vector", "vectors");
    output::print_note(format_args!("{vectors} of {of}, {} new", done.embedded));
    if !done.skipped.is_empty() {
        let names: Vec<&str> = done
            .skipped
            .iter()
            .take(NAMES)
            .map(String::as_str)
            .collect();
        let more = if done.skipped.len() > NAMES {
            ", ..."
        } else {
            ""
        };
        output::print_note(format_args!(
            "note: skipped {} that the model cannot read: {}{more}",
            counted(done.skipped.len(), "file", "files"),
            names.join(", ")
        ));
    }
    if !done.finished {
        output::print_note(format_args!(
            "interrupted: finished vectors are saved; run the same command to continue"
        ));
    }
}

fn find(args: &QueryArgs) -> Result<CommandOutcome, CliError> {
    let encoding = TextEncodingArgs {
        model: args.model.clone(),
        batch: None,
        max_len: None,
        truncate: args.truncate,
        device: DeviceArgs {
            device: args.device.clone(),
            threads: args.threads,
        },
        dtype: args.dtype,
    };
    let prompting = PromptPrefixArgs {
        prompt: args.prompt.clone(),
        prompt_text: args.prompt_text.clone(),
    };
    let options = EncoderOptions {
        prompt: prompting.prompt(),
        pooling: args.pooling.map(PoolingName::mode),
        ..encoding.options()
    };
    let mut searcher = encoding.load(|files, device| {
        let picture = files.family()? == ModelFamily::Vision && is_image_path(&args.query);
        let query = match picture {
            true => SearchQuery::Image,
            false => SearchQuery::Text,
        };
        Searcher::open(&args.index, files, device, &options, query)
    })?;
    let found = searcher.find(&args.query, args.top);
    let found = found.map_err(CliError::model("cannot use the query"))?;
    let index = searcher.index();
    let passages: Vec<(&Hit, PassageState)> = found
        .iter()
        .map(|found| (found, index.passage(found)))
        .collect();
    let rows: Vec<SearchHitRow<'_>> = passages
        .iter()
        .map(|(found, passage)| SearchHitRow {
            file: &found.file,
            lines: found.lines,
            bytes: found.bytes,
            score: found.score,
            text: match passage {
                PassageState::Text(text) => Some(text),
                PassageState::Picture | PassageState::Changed => None,
            },
            changed: *passage == PassageState::Changed,
        })
        .collect();
    if args.json {
        output::json(&rows)?;
        return Ok(CommandOutcome::Done);
    }
    output::print_for_humans(|out| {
        for row in &rows {
            let place = match row.lines {
                Some([first, last]) if first == last => format!(":{first}"),
                Some([first, last]) => format!(":{first}-{last}"),
                None => String::new(),
            };
            let text = match (row.text, row.changed) {
                (Some(text), _) => output::clip(text, SHOWN),
                (None, true) => "(changed since indexing)".to_string(),
                (None, false) => String::new(),
            };
            let file = output::escape_line(row.file);
            writeln!(
                out,
                "{}",
                format!("{:>9.4}  {file}{place}  {text}", row.score).trim_end()
            )?;
        }
        Ok(())
    })?;
    Ok(CommandOutcome::Done)
}
