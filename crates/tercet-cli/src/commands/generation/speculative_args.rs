//! Speculative decoding: a draft proposes tokens, and the model verifies several in one run.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use tercet_models::{Draft, DraftCounts, DraftOptions, MAX_DRAFT_TOKENS, Sampling};

use super::super::generate::open_model;
use super::{ModelArgs, TextGenerator};
use crate::error::CliError;
use crate::progress;

/// Speculative decoding flags.
#[derive(clap::Args)]
pub(crate) struct SpeculativeArgs {
    /// Speculative decoding with a draft: a smaller model with the same vocabulary, or `ngram`,
    /// which proposes the tokens that followed the last n-gram earlier in the text. The output does
    /// not change
    #[arg(long, value_name = "PATH|ngram")]
    draft: Option<String>,
    /// Maximum draft tokens per run, 1 to 7
    #[arg(long, default_value_t = 5, value_name = "N", requires = "draft", value_parser = parse_draft_count)]
    draft_tokens: usize,
}

fn parse_draft_count(text: &str) -> Result<usize, String> {
    let n: Option<usize> = text.parse().ok();
    n.filter(|n| (1..=MAX_DRAFT_TOKENS).contains(n))
        .ok_or_else(|| format!("expected a whole number from 1 to {MAX_DRAFT_TOKENS}"))
}

/// Counts of draft tokens.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct SpeculationStats {
    proposed: u64,
    accepted: u64,
    runs: u64,
    near_ties: u64,
}

impl SpeculationStats {
    /// Counts between two readings of the generator's counters.
    pub(crate) fn since(before: DraftCounts, now: DraftCounts) -> SpeculationStats {
        SpeculationStats {
            proposed: now.proposed - before.proposed,
            accepted: now.accepted - before.accepted,
            runs: now.runs - before.runs,
            near_ties: now.near_ties - before.near_ties,
        }
    }
}

impl fmt::Display for SpeculationStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SpeculationStats {
            proposed, accepted, ..
        } = self;
        let percent = 100.0 * *accepted as f64 / (*proposed).max(1) as f64;
        write!(
            f,
            "{accepted} of {proposed} draft tokens accepted ({percent:.0} %)"
        )
    }
}

impl SpeculativeArgs {
    /// Whether the flags request speculative decoding.
    pub(crate) fn is_enabled(&self) -> bool {
        self.draft.is_some()
    }

    /// Rows of logits that one run must return.
    pub(crate) fn rows(&self) -> usize {
        match self.draft {
            Some(_) => self.draft_tokens + 1,
            None => 1,
        }
    }

    /// Attaches the draft to a model that was loaded by `loading` with this sampling.
    pub(crate) fn attach(
        &self,
        writer: &mut TextGenerator,
        loading: &ModelArgs,
        sampling: Sampling,
    ) -> Result<(), CliError> {
        let draft = match self.draft.as_deref() {
            None => return Ok(()),
            Some("ngram") => Draft::ngrams(),
            Some(path) => self.model(Path::new(path), writer, loading, sampling)?,
        };
        let set = writer.generator().set_draft(Some(draft), self.draft_tokens);
        set.map_err(CliError::model("cannot use the draft"))
    }

    fn model(
        &self,
        path: &Path,
        writer: &TextGenerator,
        loading: &ModelArgs,
        sampling: Sampling,
    ) -> Result<Draft, CliError> {
        let spinner = progress::spinner("loading the draft");
        let (files, _) = open_model(Some(path))?;
        let options = DraftOptions {
            device: writer.model.device(),
            context: writer.model.context(),
            dtype: loading.dtype(),
            matmul_precision: loading.matmul_precision(),
            sampling,
        };
        let draft = files.draft(&options, writer.model.tokenizer());
        spinner.finish_and_clear();
        let what = format!("cannot use the draft model {}", path.display());
        draft.map_err(CliError::model(what))
    }

    /// Speculative decoding options of a server.
    #[cfg(feature = "serve")]
    pub(crate) fn served(&self) -> Result<Option<tercet_serve::SpeculativeOptions>, CliError> {
        let by = match self.draft.as_deref() {
            None => return Ok(None),
            Some("ngram") => tercet_serve::DraftSource::Ngrams,
            Some(path) => tercet_serve::DraftSource::Model(std::sync::Arc::new(
                open_model(Some(Path::new(path)))?.0,
            )),
        };
        Ok(Some(tercet_serve::SpeculativeOptions {
            by,
            tokens: self.draft_tokens,
        }))
    }
}
