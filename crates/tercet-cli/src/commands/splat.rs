//! `tercet splat`: scenes of 3-D Gaussians, drawn (`draw.rs`) and fitted to pictures (`fit.rs`).

mod draw;
mod fit;
mod pictures;

use crate::error::{CliError, Outcome};

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    draw: draw::Args,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Fit a scene to pictures whose cameras are known, or to pictures of another scene
    Fit(Box<fit::Args>),
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    match &args.command {
        Some(Command::Fit(args)) => fit::run(args),
        None => draw::run(&args.draw),
    }
}
