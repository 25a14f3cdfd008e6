//! `tercet devices`: the devices that this build can use.

use std::io::Write;

use serde::Serialize;

use crate::error::{CliError, CommandOutcome};
use crate::{drivers, output};

#[derive(clap::Args)]
pub(crate) struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct DeviceRow {
    name: String,
    usable: bool,
    description: String,
}

pub(crate) fn run(args: &DevicesArgs) -> Result<CommandOutcome, CliError> {
    let rows: Vec<DeviceRow> = drivers::labelled(tercet::devices)
        .into_iter()
        .map(|d| DeviceRow {
            name: d.name,
            usable: d.usable,
            description: d.description,
        })
        .collect();
    if args.json {
        output::json(&rows)?;
        return Ok(CommandOutcome::Done);
    }
    output::print_for_humans(|out| {
        for DeviceRow {
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
    Ok(CommandOutcome::Done)
}
