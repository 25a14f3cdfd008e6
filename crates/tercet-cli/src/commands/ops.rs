//! `tercet ops`: every operator, what it means and which executor runs it how.

use std::io::Write;

use crate::error::{CliError, Outcome};
use crate::output;

/// The table as the documentation has it; a test keeps it in line with the code.
const TABLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ops.md"));

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Operators to show; without any, the whole page
    names: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    if args.names.is_empty() {
        output::people(|out| out.write_all(TABLE.as_bytes()))?;
        return Ok(Outcome::Done);
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
                "no operator is named `{name}`; there are: {known}"
            )));
        };
        found.push(row);
    }
    output::people(|out| {
        for row in found {
            for (head, cell) in head.iter().zip(row) {
                writeln!(out, "{head:<12} {}", cell.replace('`', ""))?;
            }
            writeln!(out)?;
        }
        Ok(())
    })?;
    Ok(Outcome::Done)
}

/// The cells of a row of a table; `\|` is a bar in a cell.
fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_start_matches('|').replace("\\|", "\u{0}");
    let cells = row.split('|').map(|c| c.trim().replace('\u{0}', "|"));
    let mut cells: Vec<String> = cells.collect();
    cells.pop();
    cells
}
