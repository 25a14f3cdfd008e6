//! `tercet list`: lists the models of the cache.

use std::io::Write;
use std::time::UNIX_EPOCH;

use serde::Serialize;
use tercet_hub::CachedRepo;

use super::hub;
use crate::error::{CliError, CommandOutcome};
use crate::output;

#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct CachedRepoRow<'a> {
    repo: &'a str,
    commit: Option<&'a str>,
    models: Vec<CachedFormatRow<'a>>,
    bytes: u64,
    incomplete_bytes: u64,
    /// Seconds since 1970.
    modified: Option<u64>,
}

#[derive(Serialize)]
struct CachedFormatRow<'a> {
    format: &'static str,
    quant: Option<&'a str>,
}

impl<'a> CachedRepoRow<'a> {
    fn new(repo: &'a CachedRepo) -> CachedRepoRow<'a> {
        let model = |(format, quant): &'a (tercet_hub::ModelFormat, Option<String>)| {
            let (format, quant) = (format.label(), quant.as_deref());
            CachedFormatRow { format, quant }
        };
        let since = repo
            .modified
            .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        CachedRepoRow {
            repo: &repo.repo,
            commit: repo.commit.as_deref(),
            models: repo.models.iter().map(model).collect(),
            bytes: repo.bytes,
            incomplete_bytes: repo.partial_bytes,
            modified: since.map(|since| since.as_secs()),
        }
    }

    /// The quantizations or formats: `Q4_K_M, Q8_0`.
    fn contents(&self) -> String {
        let label = |model: &CachedFormatRow<'_>| match model.quant {
            Some(quant) => quant.to_string(),
            None => model.format.to_string(),
        };
        let all: Vec<String> = self.models.iter().map(label).collect();
        match (all.is_empty(), self.incomplete_bytes) {
            (false, _) => all.join(", "),
            (true, 0) => "no model".to_string(),
            (true, _) => "incomplete".to_string(),
        }
    }
}

pub(crate) fn run(args: &ListArgs) -> Result<CommandOutcome, CliError> {
    let hub = hub()?;
    let repos = hub.repos()?;
    let rows: Vec<CachedRepoRow<'_>> = repos.iter().map(CachedRepoRow::new).collect();
    if args.json {
        output::json(&rows)?;
        return Ok(CommandOutcome::Done);
    }
    let cache = hub.settings().cache.display();
    if rows.is_empty() {
        output::print_note(format_args!("note: the cache {cache} has no models"));
        return Ok(CommandOutcome::Done);
    }
    let width = |of: &dyn Fn(&CachedRepoRow<'_>) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let names = width(&|row| row.repo.chars().count());
    let contents = width(&|row| row.contents().chars().count());
    output::print_for_humans(|out| {
        for row in &rows {
            let (repo, size) = (row.repo, output::bytes(row.bytes));
            write!(
                out,
                "{repo:names$}  {:contents$}  {size:>10}",
                row.contents()
            )?;
            if row.incomplete_bytes > 0 {
                let rest = output::bytes(row.incomplete_bytes);
                write!(out, "  and {rest} incomplete")?;
            }
            writeln!(out)?;
        }
        Ok(())
    })?;
    Ok(CommandOutcome::Done)
}
