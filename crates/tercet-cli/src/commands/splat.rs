//! `tercet splat`: renders 3D Gaussian splatting scenes (`draw.rs`) and fits them to images
//! (`fit.rs`).

mod draw;
mod fit;
mod pictures;

use crate::error::{CliError, CommandOutcome};

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub(crate) struct SplatArgs {
    #[command(subcommand)]
    command: Option<SplatCommand>,
    #[command(flatten)]
    draw: draw::SplatDrawArgs,
}

#[derive(clap::Subcommand)]
enum SplatCommand {
    /// Fit a scene to images with known cameras, or to rendered images of another scene
    Fit(Box<fit::SplatFitArgs>),
}

pub(crate) fn run(args: &SplatArgs) -> Result<CommandOutcome, CliError> {
    match &args.command {
        Some(SplatCommand::Fit(args)) => fit::run(args),
        None => draw::run(&args.draw),
    }
}
