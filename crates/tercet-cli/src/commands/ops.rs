//! `tercet ops`: every operator, its semantics and its support on each executor.

use std::io::Write;

use crate::error::{CliError, CommandOutcome};
use crate::output;

/// The operator table of the documentation, which a test compares with the code. `cargo xtask package --check`
/// compares this copy with it.
const TABLE: &str = include_str!("operators.txt");

#[derive(clap::Args)]
pub(crate) struct OpsArgs {
    /// Operators to show [default: all]
    names: Vec<String>,
}

pub(crate) fn run(args: &OpsArgs) -> Result<CommandOutcome, CliError> {
    if args.names.is_empty() {
        output::print_for_humans(|out| out.write_all(TABLE.as_bytes()))?;
        return Ok(CommandOutcome::Done);
    }
    let mut rows = TABLE.lines().filter(|line| line.starts_with("| "));
    let head: Vec<String> = rows.next().map(cells).unwrap_or_default();
    let rows: Vec<Vec<String>> = rows.map(cells).collect();
    let mut found = Vec::new();
    for name in &args.names {
        let quoted = format!("`{name}`");
        let Some(row) = rows.iter().find(|row| row.first() == Some(&quoted)) else {
            let known: Vec<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
            let known = known.join(" ");
            return Err(CliError::Usage(format!(
                "unknown operator `{name}`; expected one of: {known}"
            )));
        };
        found.push(row);
    }
    output::print_for_humans(|out| {
        for row in found {
            for (head, cell) in head.iter().zip(row) {
                writeln!(out, "{head:<12} {}", cell.replace('`', ""))?;
            }
            writeln!(out)?;
        }
        Ok(())
    })?;
    Ok(CommandOutcome::Done)
}

/// Splits a table row into cells; `\|` is a literal bar inside a cell.
fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_start_matches('|').replace("\\|", "\u{0}");
    let cells = row.split('|').map(|c| c.trim().replace('\u{0}', "|"));
    let mut cells: Vec<String> = cells.collect();
    cells.pop();
    cells
}
