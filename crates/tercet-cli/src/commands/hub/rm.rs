//! `tercet rm`: removes models from the cache.

use std::io::Write;

use super::hub;
use crate::error::{CliError, CommandOutcome};
use crate::output;

#[derive(clap::Args)]
pub(crate) struct RmArgs {
    /// Model of `tercet list`: with :QUANT or /FILE only that one, otherwise the whole repository;
    /// repeatable
    #[arg(required = true)]
    name: Vec<String>,
}

pub(crate) fn run(args: &RmArgs) -> Result<CommandOutcome, CliError> {
    let hub = hub()?;
    for name in &args.name {
        let freed = hub.remove(name)?;
        output::print_for_humans(|out| {
            writeln!(out, "removed {name}: {} freed", output::bytes(freed))
        })?;
    }
    Ok(CommandOutcome::Done)
}
