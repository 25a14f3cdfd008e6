//! The state of a generation between two tokens. Callbacks and iterators share it.

use std::vec::IntoIter;

use super::{FinishReason, GenerateOptions, Generation, IncrementalDetokenizer};
use crate::error::Error;
use tercet_networks::maybe_async::WaitMode;
use tercet_networks::{Generator, ModelError};
use tercet_text::tokenizer::Tokenizer;

/// The text of the next token, or the end of the generation.
pub(crate) enum NextText {
    /// Final text, and whether a stop string is complete.
    Text(String, bool),
    /// No token follows.
    End(FinishReason),
}

/// The tokens of a generation so far, and the next one.
pub(crate) struct TokenLoop<'t> {
    tokenizer: &'t Tokenizer,
    max_tokens: usize,
    eos: Vec<u32>,
    pieces: IncrementalDetokenizer<'t>,
    tokens: Vec<u32>,
    /// The token that the model selected last.
    next: Option<u32>,
    /// Further accepted tokens of the last speculative run.
    known: IntoIter<u32>,
}

impl<'t> TokenLoop<'t> {
    pub(crate) fn new(tokenizer: &'t Tokenizer, options: &GenerateOptions<'_>) -> TokenLoop<'t> {
        TokenLoop {
            tokenizer,
            max_tokens: options.max_tokens,
            eos: options.eos.to_vec(),
            pieces: IncrementalDetokenizer::new(tokenizer, options.stop)
                .with_spelled(options.spelled.into()),
            tokens: Vec::new(),
            next: None,
            known: Vec::new().into_iter(),
        }
    }

    /// The tokens of the text so far.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether the model must run before [`Self::take`].
    pub(crate) fn is_waiting(&self) -> bool {
        self.next.is_none()
    }

    /// Processes a prompt, or the tokens after a truncation of the context.
    pub(crate) async fn feed(
        &mut self,
        generator: &mut Generator,
        prompt: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
        waits: WaitMode,
    ) -> Result<(), Error> {
        self.next = generator.forward_in(prompt, progress, waits).await?.next;
        Ok(())
    }

    /// Takes the token that the model selected.
    pub(crate) fn take(&mut self) -> Result<NextText, Error> {
        if self.tokens.len() >= self.max_tokens {
            return Ok(NextText::End(FinishReason::Length));
        }
        let Some(token) = self.next.take() else {
            let reason = "the graph of the model does not sample; build it with sampling options";
            return Err(ModelError::Unsupported(reason.into()).into());
        };
        if self.eos.contains(&token) {
            return Ok(NextText::End(FinishReason::End));
        }
        self.tokens.push(token);
        let (text, stopped) = self.pieces.push(token)?;
        Ok(NextText::Text(text, stopped))
    }

    /// The reason to end after the last token, if there is one.
    pub(crate) fn end_after_token(&self) -> Option<FinishReason> {
        match self.tokens.len() >= self.max_tokens {
            _ if self.pieces.is_looping() => Some(FinishReason::End),
            true => Some(FinishReason::Length),
            false => None,
        }
    }

    /// Selects the next accepted token of the last speculative run; false if there is none.
    pub(crate) fn take_known(&mut self) -> bool {
        self.next = self.known.next();
        self.next.is_some()
    }

    /// Runs the model on the last token.
    pub(crate) async fn advance(
        &mut self,
        generator: &mut Generator,
        waits: WaitMode,
    ) -> Result<(), Error> {
        if let Some(&last) = self.tokens.last() {
            let most = self.max_tokens - self.tokens.len();
            let follow = generator.advance_in(last, most, &self.eos, waits);
            self.known = follow.await?.into_iter();
            self.take_known();
        }
        Ok(())
    }

    /// Removes the accepted tokens that are not part of the text from the context.
    pub(crate) fn rollback(&self, generator: &mut Generator) {
        generator.rollback(self.known.len());
    }

    /// The text after the last token, and whether a stop string ended it.
    pub(crate) fn finish(&mut self) -> Result<(String, bool), Error> {
        let rest = IncrementalDetokenizer::new(self.tokenizer, &[]);
        std::mem::replace(&mut self.pieces, rest).finish()
    }

    pub(crate) fn into_generation(self, finish: FinishReason) -> Generation {
        Generation {
            tokens: self.tokens,
            finish,
        }
    }
}
