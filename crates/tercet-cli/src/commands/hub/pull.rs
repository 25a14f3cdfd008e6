//! `tercet pull`: downloads a model.

use std::io::Write;

use tercet_hub::{HubName, ModelFormat, PullOptions};

use super::pull_progress::BarProgress;
use super::{CachedModelRow, hub};
use crate::commands::DeviceArgs;
use crate::error::{CliError, CommandOutcome};
use crate::output;

#[derive(clap::Args)]
pub(crate) struct PullArgs {
    /// ORG/NAME, ORG/NAME:QUANT or ORG/NAME/FILE of the hub [default of QUANT: Q4_K_M if it fits the
    /// memory, or else the best that fits]
    name: String,
    /// Branch, tag or commit
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// Leave out the image projector (mmproj) of a GGUF repository
    #[arg(long)]
    no_mmproj: bool,
    /// Compute the digests of files that are there already, and replace wrong ones
    #[arg(long)]
    verify: bool,
    /// Device whose memory decides between quantizations; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &PullArgs) -> Result<CommandOutcome, CliError> {
    let hub = hub()?;
    let mut name: HubName = match hub.resolve(&args.name)? {
        Some(name) => name,
        None => args.name.parse()?,
    };
    if let Some(revision) = &args.revision {
        name = name.with_revision(revision)?;
    }
    let device = DeviceArgs {
        device: args.device.clone(),
        threads: None,
    };
    let free = || device.open().ok()?.free_memory_bytes();
    let options = PullOptions {
        free_bytes: Some(&free),
        has_projector: !args.no_mmproj,
        rehashes: args.verify,
    };
    let shown = name.to_string();
    let progress = BarProgress::new(&shown);
    let pulled = hub.pull(&name, &options, &progress);
    progress.finish();
    let model = pulled?;
    if args.json {
        output::json(&CachedModelRow::from(&model))?;
        return Ok(CommandOutcome::Done);
    }
    output::print_for_humans(|out| {
        let label = match &model.quant {
            Some(quant) => format!("{} {quant}", model.format.label()),
            None => model.format.label().to_string(),
        };
        writeln!(
            out,
            "{}: {label}, {}",
            model.repo,
            output::bytes(model.bytes)
        )?;
        if let Some(projector) = &model.projector {
            writeln!(out, "image projector: {}", projector.display())?;
        }
        writeln!(out, "{}", model.path.display())
    })?;
    if model.format == ModelFormat::Adapter {
        output::print_note(format_args!(
            "note: it is an adapter; use it as `--lora {}` with its base model",
            model.repo
        ));
    }
    Ok(CommandOutcome::Done)
}
