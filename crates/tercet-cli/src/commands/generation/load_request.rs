//! The request that a command passes when it loads a model: its prompt and required outputs.

use tercet_models::{DecoderSpec, ModelFiles, Tokenizer};

use crate::error::{self, CliError};
use crate::output;

/// Rows of logits per run: with a vocabulary of 150,000 they take 40 MB.
const ROWS: usize = 64;

/// The prompt, if it is known, and the outputs that are read from the model.
#[derive(Clone, Copy, Default)]
pub(crate) struct LoadRequest<'a> {
    /// The prompt as text.
    pub(crate) prompt: Option<&'a str>,
    /// The prompt as token ids. A model for them needs no tokenizer.
    pub(crate) ids: Option<&'a [u32]>,
    /// Whether the logits of all tokens are read.
    pub(crate) logits: bool,
}

impl LoadRequest<'_> {
    /// Rows of logits that one run must return.
    pub(super) fn logit_rows(&self) -> usize {
        match self.logits {
            true => ROWS,
            false => 1,
        }
    }

    /// The tokenizer, and whether the model has none. Then, and only for a prompt of ids, the text of
    /// a token is its id.
    pub(super) fn tokenizer(
        &self,
        files: &ModelFiles,
        vocab: usize,
        what: &str,
    ) -> Result<(Tokenizer, bool), CliError> {
        let e = match (files.tokenizer(), self.ids) {
            (Ok(tokenizer), _) => return Ok((tokenizer, false)),
            (Err(e), None) => return Err(CliError::model(what)(e)),
            (Err(e), Some(_)) => CliError::model("tokenizer")(e),
        };
        let reason = error::causes(&e).join(": ");
        output::print_note(format_args!(
            "note: token ids are printed instead of text, because the tokenizer cannot be used: {reason}"
        ));
        let tokenizer = Tokenizer::from_vocab_len(vocab);
        Ok((tokenizer.map_err(CliError::model(what))?, true))
    }

    /// The choice of frequency factors of a model with LongRoPE; `None` for other models.
    pub(super) fn longrope(
        &self,
        config: &DecoderSpec,
        tokenizer: &Tokenizer,
    ) -> Option<LongRopeChoice> {
        let limit = config.longrope_limit()?;
        let length = match self.ids {
            Some(ids) => Some(ids.len()),
            // An invalid prompt is an error later.
            None => self
                .prompt
                .and_then(|text| Some(tokenizer.encode(text, true).ok()?.len())),
        };
        Some(LongRopeChoice { length, limit })
    }
}

/// The length of the prompt, by which models with LongRoPE choose between their short and long
/// frequency factors.
pub(super) struct LongRopeChoice {
    /// Tokens of the prompt, if it is known.
    pub(super) length: Option<usize>,
    /// Longest text with the short factors.
    limit: usize,
}

impl LongRopeChoice {
    /// Prints a note about the chosen factors.
    pub(super) fn report(&self, context: usize) {
        let limit = self.limit;
        let (chosen_by, by) = match self.length {
            Some(length) => (length, format!("the prompt's {length} tokens")),
            None => (context, format!("the context of {context} tokens")),
        };
        let (list, other) = match chosen_by > limit {
            true => ("long", "at most"),
            false => ("short", "more than"),
        };
        output::print_note(format_args!(
            "note: LongRoPE: {by} select the {list} factors; texts of {other} {limit} tokens have the others"
        ));
    }
}
