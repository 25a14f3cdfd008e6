//! `tercet devices`: what this build can run on.

use std::io::Write;

use serde::Serialize;

use crate::error::{CliError, Outcome};
use crate::{drivers, output};

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
    let rows: Vec<Row> = drivers::labelled(tercet::devices)
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
    output::people(|out| {
        for Row {
            name, description, ..
        } in &rows
        {
            writeln!(out, "{name:<12} {description}")?;
        }
        let compiler = tercet::BUILD.compiler;
        match tercet::compiler_trial() {
            Ok(()) => writeln!(out, "{:<12} {compiler}, its trial passed", "compiler"),
            Err(e) => writeln!(out, "{:<12} {compiler}: {e}", "compiler"),
        }
    })?;
    Ok(Outcome::Done)
}
