//! The state of a generation between two tokens. Callbacks and iterators share it.

use std::vec::IntoIter;

use super::{FinishReason, GenerateOptions, Generation, IncrementalDetokenizer};
use crate::error::Error;
use tercet_networks::maybe_async::WaitMode;
use tercet_networks::{Generator, ModelError};
use tercet_text::tokenizer::Tokenizer;

/// A step of a generation.
pub(crate) enum TextStep {
    /// Final text of the next token, which may be empty.
    Text(String),
    /// The context is full: [`TokenLoop::feed`] the tokens of a shorter one, or [`TokenLoop::end`].
    Full,
    /// The text ended with this text.
    End(String, FinishReason),
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

    /// Generates the next token.
    pub(crate) async fn step(
        &mut self,
        generator: &mut Generator,
        waits: WaitMode,
    ) -> Result<TextStep, Error> {
        if let (None, Some(&last)) = (self.next, self.tokens.last()) {
            self.next = self.known.next();
            if self.next.is_none() {
                if generator.position() >= generator.context() {
                    return Ok(TextStep::Full);
                }
                let most = self.max_tokens - self.tokens.len();
                let follow = generator.advance_in(last, most, &self.eos, waits);
                self.known = follow.await?.into_iter();
                self.next = self.known.next();
            }
        }
        if self.tokens.len() >= self.max_tokens {
            return self.end(generator, String::new(), FinishReason::Length);
        }
        let Some(token) = self.next.take() else {
            let reason = "the graph of the model does not sample; build it with sampling options";
            return Err(ModelError::Unsupported(reason.into()).into());
        };
        if self.eos.contains(&token) {
            return self.end(generator, String::new(), FinishReason::End);
        }
        self.tokens.push(token);
        let (text, stopped) = self.pieces.push(token)?;
        if stopped {
            self.rollback(generator);
            return Ok(TextStep::End(text, FinishReason::Stop));
        }
        match self.tokens.len() >= self.max_tokens {
            _ if self.pieces.is_looping() => self.end(generator, text, FinishReason::End),
            true => self.end(generator, text, FinishReason::Length),
            false => Ok(TextStep::Text(text)),
        }
    }

    /// Ends the generation with `text` and the text that was held back.
    pub(crate) fn end(
        &mut self,
        generator: &mut Generator,
        text: String,
        reason: FinishReason,
    ) -> Result<TextStep, Error> {
        self.rollback(generator);
        let rest = IncrementalDetokenizer::new(self.tokenizer, &[]);
        let (rest, stopped) = std::mem::replace(&mut self.pieces, rest).finish()?;
        let reason = if stopped { FinishReason::Stop } else { reason };
        Ok(TextStep::End(text + &rest, reason))
    }

    /// Removes the accepted tokens that are not part of the text from the context.
    fn rollback(&self, generator: &mut Generator) {
        generator.rollback(self.known.len());
    }

    pub(crate) fn into_generation(self, finish: FinishReason) -> Generation {
        Generation {
            tokens: self.tokens,
            finish,
        }
    }
}
