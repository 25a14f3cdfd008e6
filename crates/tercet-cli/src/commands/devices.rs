//! `tercet devices`: what this build can run on.

use std::io::Write;

use serde::Serialize;

use crate::error::{CliError, Outcome};
use crate::output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: String,
    usable: bool,
    description: String,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let rows: Vec<Row> = tercet::devices()
        .into_iter()
        .map(|d| Row {
            name: d.name,
            usable: d.usable,
            description: d.description,
        })
        .collect();
    if args.json {
        output::json(&rows)?;
        return Ok(Outcome::Done);
    }
    let mut out = std::io::stdout().lock();
    for Row {
        name, description, ..
    } in &rows
    {
        writeln!(out, "{name:<12} {description}")?;
    }
    Ok(Outcome::Done)
}
