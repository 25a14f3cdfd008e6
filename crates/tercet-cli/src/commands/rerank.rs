//! `tercet rerank`: ranks documents by relevance to a query.

use std::io::Write;

use serde::Serialize;

use super::texts::TextInputArgs;
use crate::error::{CliError, CommandOutcome};
use crate::interrupt::{self, interrupted};
use crate::{output, progress};

/// Maximum characters of a document in the ranking; `--json` has whole documents.
const SHOWN: usize = 160;

#[derive(clap::Args)]
pub(crate) struct RerankArgs {
    #[command(flatten)]
    reading: TextInputArgs,
    /// Query
    query: String,
    /// Documents to rank
    documents: Vec<String>,
    /// Show only the N best documents
    #[arg(long, value_name = "N", value_parser = super::positive)]
    top: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct RankedDocumentRow<'a> {
    /// Position in the list of input documents, from 0.
    index: usize,
    score: f32,
    text: &'a str,
}

pub(crate) fn run(args: &RerankArgs) -> Result<CommandOutcome, CliError> {
    let documents = args.reading.texts(&args.documents, "documents")?;
    let options = args.reading.options();
    let mut reranker = (args.reading).load(|files, device| files.reranker(device, &options))?;
    interrupt::listen();
    let bar = progress::bar("rerank", documents.len(), "documents");
    let scores = reranker.rerank_with_progress(&args.query, &documents, &mut |done| {
        bar.set_position(done as u64);
        !interrupted()
    });
    let scores = scores.map_err(CliError::model("cannot score the documents"))?;
    bar.finish_and_clear();
    if interrupted() {
        return Ok(CommandOutcome::Interrupted);
    }
    let rows = documents.iter().zip(scores).enumerate();
    let rows = rows.map(|(index, (text, score))| RankedDocumentRow { index, score, text });
    let mut rows: Vec<RankedDocumentRow<'_>> = rows.collect();
    // The sort is stable: documents with equal scores stay in input order.
    rows.sort_by(|a, b| b.score.total_cmp(&a.score));
    rows.truncate(args.top.unwrap_or(usize::MAX));
    if args.json {
        output::json(&rows)?;
        return Ok(CommandOutcome::Done);
    }
    output::print_for_humans(|out| {
        for row in &rows {
            let text = output::clip(row.text, SHOWN);
            writeln!(out, "{:>9.4}  [{}] {text}", row.score, row.index + 1)?;
        }
        Ok(())
    })?;
    Ok(CommandOutcome::Done)
}
