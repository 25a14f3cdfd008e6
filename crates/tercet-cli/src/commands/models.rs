//! `tercet models`: lists the supported model families by kind.

use std::io::Write;

use serde::Serialize;
use tercet_models::config::{FamilyNames, family_names};

use crate::error::{CliError, CommandOutcome};
use crate::output;

/// Maximum width of a line.
const WIDTH: usize = 100;

#[derive(clap::Args)]
pub(crate) struct ModelsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct FamilyNamesRow<'a> {
    kind: &'a str,
    model_types: &'a [&'static str],
    gguf_architectures: &'a [&'static str],
}

impl<'a> FamilyNamesRow<'a> {
    fn new(names: &'a FamilyNames) -> FamilyNamesRow<'a> {
        FamilyNamesRow {
            kind: names.kind,
            model_types: &names.model_types,
            gguf_architectures: &names.architectures,
        }
    }
}

pub(crate) fn run(args: &ModelsArgs) -> Result<CommandOutcome, CliError> {
    let kinds = family_names();
    if args.json {
        output::json(&kinds.iter().map(FamilyNamesRow::new).collect::<Vec<_>>())?;
        return Ok(CommandOutcome::Done);
    }
    output::print_for_humans(|out| {
        writeln!(
            out,
            "Names: `model_type` of config.json, and `general.architecture` of GGUF."
        )?;
        for names in &kinds {
            writeln!(out, "\n{}", names.kind)?;
            list(out, "config.json", &names.model_types)?;
            list(out, "GGUF", &names.architectures)?;
        }
        Ok(())
    })?;
    Ok(CommandOutcome::Done)
}

/// Prints names after a label, in as many lines as they need.
fn list(out: &mut impl Write, label: &str, names: &[&str]) -> std::io::Result<()> {
    let mut line = format!("  {label:<12}");
    for (at, name) in names.iter().enumerate() {
        let end = if at + 1 < names.len() { "," } else { "" };
        if line.len() + 1 + name.len() + end.len() > WIDTH {
            writeln!(out, "{line}")?;
            line = " ".repeat(14);
        }
        line += &format!(" {name}{end}");
    }
    match names.is_empty() {
        true => Ok(()),
        false => writeln!(out, "{line}"),
    }
}
