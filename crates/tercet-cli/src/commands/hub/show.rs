//! `tercet show`: the files of a model, in the cache or on the hub.

use std::io::Write;

use serde::Serialize;
use tercet_hub::{CachedModel, FileSet, HubName, RepoListing};

use super::{CachedModelRow, hub};
use crate::error::{CliError, CommandOutcome};
use crate::output;

#[derive(clap::Args)]
pub(crate) struct ShowArgs {
    /// ORG/NAME, with :QUANT or /FILE; a short name works if the model is in the cache
    name: String,
    /// Ask the hub, even if the model is in the cache
    #[arg(long)]
    remote: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The models of a repository of the hub, in JSON.
#[derive(Serialize)]
struct RemoteRepoRow<'a> {
    repo: &'a str,
    commit: &'a str,
    models: Vec<RemoteModelRow<'a>>,
    mmproj: Option<&'a str>,
    files: Vec<RemoteFileRow<'a>>,
}

#[derive(Serialize)]
struct RemoteModelRow<'a> {
    format: &'static str,
    quant: Option<&'a str>,
    open: &'a str,
    files: usize,
    bytes: u64,
    needed_bytes: u64,
}

#[derive(Serialize)]
struct RemoteFileRow<'a> {
    path: &'a str,
    bytes: Option<u64>,
}

pub(crate) fn run(args: &ShowArgs) -> Result<CommandOutcome, CliError> {
    let hub = hub()?;
    if !args.remote
        && let Some(model) = hub.find(&args.name)?
    {
        print_cached(&model, args.json)?;
        return Ok(CommandOutcome::Done);
    }
    let name: HubName = match hub.resolve(&args.name)? {
        Some(name) => name,
        None => args.name.parse()?,
    };
    let listing = hub.listing(&name)?;
    let sets = match name.quant().is_some() || name.file().is_some() {
        true => vec![FileSet::choose(&listing, &name, None)?],
        false => {
            let quants = FileSet::quants(&listing)?;
            match quants.is_empty() {
                true => vec![FileSet::choose(&listing, &name, None)?],
                false => quants,
            }
        }
    };
    print_remote(&listing, &sets, args.json)?;
    Ok(CommandOutcome::Done)
}

fn print_cached(model: &CachedModel, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::json(&CachedModelRow::from(model));
    }
    output::print_for_humans(|out| {
        let quant = model.quant.as_deref().unwrap_or_default();
        writeln!(out, "repository  {}", model.repo)?;
        writeln!(out, "commit      {}", model.commit)?;
        writeln!(out, "format      {} {quant}", model.format.label())?;
        writeln!(out, "size        {}", output::bytes(model.bytes))?;
        writeln!(out, "path        {}", model.path.display())?;
        if let Some(projector) = &model.projector {
            writeln!(out, "mmproj      {}", projector.display())?;
        }
        for file in model.files.iter().filter(|file| **file != model.path) {
            writeln!(out, "file        {}", file.display())?;
        }
        Ok(())
    })
}

fn print_remote(listing: &RepoListing, sets: &[FileSet], as_json: bool) -> Result<(), CliError> {
    let projector = sets.iter().find_map(|set| set.projector.as_ref());
    if as_json {
        let models = sets.iter().map(|set| RemoteModelRow {
            format: set.format.label(),
            quant: set.quant.as_deref(),
            open: &set.open,
            files: set.files.len(),
            bytes: set.bytes(),
            needed_bytes: set.needed_bytes(),
        });
        let files = listing.files.iter().map(|file| RemoteFileRow {
            path: &file.path,
            bytes: file.bytes,
        });
        return output::json(&RemoteRepoRow {
            repo: &listing.repo,
            commit: &listing.commit,
            models: models.collect(),
            mmproj: projector.map(|file| file.path.as_str()),
            files: files.collect(),
        });
    }
    output::print_for_humans(|out| {
        writeln!(
            out,
            "{} at {}, not downloaded:",
            listing.repo, listing.commit
        )?;
        for set in sets {
            let label = set.quant.as_deref().unwrap_or(set.format.label());
            let size = output::bytes(set.bytes());
            let what = match (set.open.as_str(), set.files.len()) {
                ("", count) => format!("{count} files"),
                (open, 1) => open.to_string(),
                (open, count) => format!("{open} and {} more", count - 1),
            };
            writeln!(out, "  {label:<12} {size:>10}  {what}")?;
        }
        if let Some(file) = projector {
            let size = output::bytes(file.bytes.unwrap_or_default());
            writeln!(out, "  {:<12} {size:>10}  {}", "mmproj", file.path)?;
        }
        Ok(())
    })
}
