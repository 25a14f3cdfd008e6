//! `tercet rerank`: documents by how well they answer a query.

use std::io::Write;

use serde::Serialize;

use super::texts::Reading;
use crate::error::{CliError, Outcome};
use crate::interrupt::{self, interrupted};
use crate::{output, progress};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    reading: Reading,
    /// The query
    query: String,
    /// The documents
    documents: Vec<String>,
    /// Show only so many, the best
    #[arg(long, value_name = "N", value_parser = super::positive)]
    top: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    /// Its place among the documents that were given, from 0 on.
    index: usize,
    score: f32,
    text: &'a str,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let documents = args.reading.texts(&args.documents, "documents")?;
    let options = args.reading.options();
    let mut reranker = (args.reading).load(|files, device| files.reranker(device, &options))?;
    interrupt::listen();
    let bar = progress::bar("rerank", documents.len(), "documents");
    let scores = reranker.rerank(&args.query, &documents, &mut |done| {
        bar.set_position(done as u64);
        !interrupted()
    });
    let scores = scores.map_err(CliError::model("cannot score the documents"))?;
    bar.finish_and_clear();
    if interrupted() {
        return Ok(Outcome::Interrupted);
    }
    let rows = documents.iter().zip(scores).enumerate();
    let rows = rows.map(|(index, (text, score))| Row { index, score, text });
    let mut rows: Vec<Row<'_>> = rows.collect();
    // Equal scores stay in their order.
    rows.sort_by(|a, b| b.score.total_cmp(&a.score));
    rows.truncate(args.top.unwrap_or(usize::MAX));
    if args.json {
        output::json(&rows)?;
        return Ok(Outcome::Done);
    }
    output::people(|out| {
        for row in &rows {
            let text = output::shown(row.text);
            writeln!(out, "{:>9.4}  [{}] {text}", row.score, row.index + 1)?;
        }
        Ok(())
    })?;
    Ok(Outcome::Done)
}
