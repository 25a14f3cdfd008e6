//! Tokens that are proposed and checked several at a time.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use tercet_models::{Draft, DraftCounts, DraftOptions, MOST_DRAFTED, Sampling};

use super::super::generate::open_model;
use super::{Loading, Writer};
use crate::error::CliError;
use crate::progress;

/// The arguments of commands that write texts.
#[derive(clap::Args)]
pub(crate) struct Drafting {
    /// Have tokens proposed, and check several in one run: by a smaller model with the same vocabulary, or by `ngram`, which
    /// proposes what followed the last tokens earlier in the text. What is written stays the same
    #[arg(long, value_name = "PATH|ngram")]
    draft: Option<String>,
    /// The most tokens proposed at a time, 1 to 7
    #[arg(long, default_value_t = 5, value_name = "N", requires = "draft", value_parser = drafted)]
    draft_tokens: usize,
}

fn drafted(text: &str) -> Result<usize, String> {
    let n: Option<usize> = text.parse().ok();
    n.filter(|n| (1..=MOST_DRAFTED).contains(n))
        .ok_or_else(|| format!("expected a whole number from 1 to {MOST_DRAFTED}"))
}

/// What became of proposed tokens.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Drafts {
    proposed: u64,
    accepted: u64,
    runs: u64,
    near_ties: u64,
}

impl Drafts {
    /// Of what happened in between.
    pub(crate) fn between(before: DraftCounts, now: DraftCounts) -> Drafts {
        Drafts {
            proposed: now.proposed - before.proposed,
            accepted: now.accepted - before.accepted,
            runs: now.runs - before.runs,
            near_ties: now.near_ties - before.near_ties,
        }
    }
}

impl fmt::Display for Drafts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drafts {
            proposed, accepted, ..
        } = self;
        let percent = 100.0 * *accepted as f64 / (*proposed).max(1) as f64;
        write!(
            f,
            "{accepted} of {proposed} drafted accepted ({percent:.0} %)"
        )
    }
}

impl Drafting {
    /// Whether tokens are to be proposed.
    pub(crate) fn is_asked(&self) -> bool {
        self.draft.is_some()
    }

    /// Rows of logits that one run has to give.
    pub(crate) fn rows(&self) -> usize {
        match self.draft {
            Some(_) => self.draft_tokens + 1,
            None => 1,
        }
    }

    /// Has tokens proposed to a model, which was loaded by `loading` and samples like this.
    pub(crate) fn attach(
        &self,
        writer: &mut Writer,
        loading: &Loading,
        sampling: Sampling,
    ) -> Result<(), CliError> {
        let draft = match self.draft.as_deref() {
            None => return Ok(()),
            Some("ngram") => Draft::ngrams(),
            Some(path) => self.model(Path::new(path), writer, loading, sampling)?,
        };
        let set = writer.generator.set_draft(Some(draft), self.draft_tokens);
        set.map_err(CliError::model("cannot use the draft"))
    }

    fn model(
        &self,
        path: &Path,
        writer: &Writer,
        loading: &Loading,
        sampling: Sampling,
    ) -> Result<Draft, CliError> {
        let spinner = progress::spinner("loading the draft");
        let (files, _) = open_model(Some(path))?;
        let options = DraftOptions {
            device: &writer.device,
            context: writer.generator.context(),
            dtype: loading.dtype(),
            products: loading.products(),
            sampling,
        };
        let draft = files.draft(&options, &writer.tokenizer);
        spinner.finish_and_clear();
        let what = format!("cannot use the draft model {}", path.display());
        draft.map_err(CliError::model(what))
    }

    /// What a server is told of it.
    #[cfg(feature = "serve")]
    pub(crate) fn served(&self) -> Result<Option<tercet_serve::Drafting>, CliError> {
        let by = match self.draft.as_deref() {
            None => return Ok(None),
            Some("ngram") => tercet_serve::DraftSource::Ngrams,
            Some(path) => tercet_serve::DraftSource::Model(std::sync::Arc::new(
                open_model(Some(Path::new(path)))?.0,
            )),
        };
        Ok(Some(tercet_serve::Drafting {
            by,
            tokens: self.draft_tokens,
        }))
    }
}
