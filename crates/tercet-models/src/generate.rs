//! Text from a language model, piece by piece: what every door to it does between a prompt and a finish.
//!
//! [`write`] feeds the prompt, then token after token, and gives complete characters as they come. Text that may turn
//! out to begin a stop string is held back until it is known not to.

use crate::builder::Generator;
use crate::error::Error;
use crate::tokenizer::{StreamDecoder, Tokenizer};
use crate::waits::{Waits, now};

/// Where a text ends besides the model's own end.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions<'a> {
    /// The most tokens to write.
    pub max_tokens: usize,
    /// Texts that end it; the first to be complete does, and is not part of the text. Empty ones are passed over.
    pub stop: &'a [String],
    /// Tokens that end it.
    pub eos: &'a [u32],
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// The model ended it.
    End,
    /// A stop string.
    Stop,
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    Context,
    /// Whom it was for wanted no more.
    Cancelled,
}

/// What happens while a text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// So many tokens of the prompt are done.
    Prompt(usize),
    /// Text that stays, and the tokens written so far; the text is empty where a token completes no character.
    Text(&'a str, usize),
}

/// Tokens that end a turn in one of the usual templates, beside the one that ends a text.
const TURN_ENDS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|return|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_utterance>",
];

/// The tokens that end a text, and those of the vocabulary that end a turn of a conversation.
#[must_use]
pub fn turn_ends(eos: &[u32], tokenizer: &Tokenizer) -> Vec<u32> {
    let of_turns = TURN_ENDS.iter().filter_map(|t| tokenizer.token_to_id(t));
    eos.iter().copied().chain(of_turns).collect()
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The tokens, without the one that ended the text.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
}

/// Writes after `prompt`, behind what the generator holds already. Its graph samples ([`crate::DecoderOptions::sampling`]).
/// `event` says with `false` that nothing more is wanted.
///
/// # Errors
/// [`Error`] of the model or the tokenizer.
pub fn write(
    generator: &mut Generator,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: &WriteOptions<'_>,
    event: &mut dyn FnMut(Event<'_>) -> bool,
) -> Result<Written, Error> {
    now(write_in(
        generator,
        tokenizer,
        prompt,
        options,
        event,
        Waits::Blocking,
    ))
}

/// As [`write()`], awaiting the device ([`Generator::feed_async`]).
///
/// # Errors
/// As [`write()`].
pub async fn write_async(
    generator: &mut Generator,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: &WriteOptions<'_>,
    event: &mut dyn FnMut(Event<'_>) -> bool,
) -> Result<Written, Error> {
    let waits = Waits::Awaiting;
    write_in(generator, tokenizer, prompt, options, event, waits).await
}

async fn write_in(
    generator: &mut Generator,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: &WriteOptions<'_>,
    event: &mut dyn FnMut(Event<'_>) -> bool,
    waits: Waits,
) -> Result<Written, Error> {
    let mut wanted = true;
    generator.penalties_from(generator.position() + prompt.len());
    let progress = &mut |done| {
        wanted = event(Event::Prompt(done));
        wanted
    };
    let step = generator.feed_in(prompt, progress, waits).await?;
    let mut next = step.next;
    let mut tokens = Vec::new();
    let mut pieces = TextPieces::new(tokenizer, options.stop);
    // Tokens that are known already, as they were proposed and chosen in one run.
    let mut known = Vec::<u32>::new().into_iter();
    let finish = loop {
        if !wanted {
            break Finish::Cancelled;
        }
        if tokens.len() >= options.max_tokens {
            break Finish::Length;
        }
        let Some(token) = next else {
            let reason = "the graph of the model does not sample; build it with sampling options";
            return Err(crate::ModelError::Unsupported(reason.into()).into());
        };
        if options.eos.contains(&token) {
            break Finish::End;
        }
        tokens.push(token);
        let (text, stopped) = pieces.push(token)?;
        wanted = event(Event::Text(&text, tokens.len()));
        if stopped {
            generator.take_back(known.len());
            return Ok(Written {
                tokens,
                finish: Finish::Stop,
            });
        }
        if tokens.len() >= options.max_tokens {
            break Finish::Length;
        }
        next = known.next();
        if next.is_none() && generator.position() >= generator.context() {
            break Finish::Context;
        }
        if next.is_none() && wanted {
            let most = options.max_tokens - tokens.len();
            let follow = generator.advance_in(token, most, options.eos, waits);
            known = follow.await?.into_iter();
            next = known.next();
        }
    };
    generator.take_back(known.len());
    let (rest, stopped) = pieces.finish()?;
    let heard = rest.is_empty() || !wanted || event(Event::Text(&rest, tokens.len()));
    let finish = match (stopped, heard) {
        (true, _) => Finish::Stop,
        (false, true) => finish,
        (false, false) => Finish::Cancelled,
    };
    Ok(Written { tokens, finish })
}

/// Tokens as text: complete characters that no stop string begins with, as they come.
pub struct TextPieces<'t> {
    stream: StreamDecoder<'t>,
    held: Held,
}

impl<'t> TextPieces<'t> {
    /// Of the tokens of this tokenizer, up to the first of these texts; empty ones are passed over.
    #[must_use]
    pub fn new(tokenizer: &'t Tokenizer, stop: &[String]) -> TextPieces<'t> {
        TextPieces {
            stream: tokenizer.stream(),
            held: Held::new(stop),
        }
    }

    /// The text that stays now that this token follows, and whether a stop string is complete: nothing comes after it.
    ///
    /// # Errors
    /// [`Error`] of the tokenizer.
    pub fn push(&mut self, token: u32) -> Result<(String, bool), Error> {
        Ok(self.held.push(&self.stream.push(token)?))
    }

    /// The rest where no token follows, and whether it ended at a stop string.
    ///
    /// # Errors
    /// [`Error`] of the tokenizer.
    pub fn finish(mut self) -> Result<(String, bool), Error> {
        let (text, stopped) = self.held.push(&self.stream.finish()?);
        let rest = if stopped {
            text
        } else {
            text + &self.held.rest
        };
        Ok((rest, stopped))
    }
}

/// Text that may begin a stop string.
struct Held {
    stop: Vec<String>,
    rest: String,
}

impl Held {
    fn new(stop: &[String]) -> Held {
        Held {
            stop: stop.iter().filter(|s| !s.is_empty()).cloned().collect(),
            rest: String::new(),
        }
    }

    fn stops(&self) -> impl Iterator<Item = &str> {
        self.stop.iter().map(String::as_str)
    }

    /// The text that is no part of a stop string, whatever follows; and whether one is complete.
    fn push(&mut self, piece: &str) -> (String, bool) {
        self.rest.push_str(piece);
        if let Some(at) = self.stops().filter_map(|s| self.rest.find(s)).min() {
            self.rest.truncate(at);
            return (std::mem::take(&mut self.rest), true);
        }
        let begins = |at: &usize| self.stops().any(|s| s.starts_with(&self.rest[*at..]));
        let longest = self.stops().map(str::len).max().unwrap_or(0);
        let first = self.rest.len().saturating_sub(longest);
        let places = (first..self.rest.len()).filter(|at| self.rest.is_char_boundary(*at));
        let at = places.into_iter().find(begins).unwrap_or(self.rest.len());
        let kept = self.rest.split_off(at);
        (std::mem::replace(&mut self.rest, kept), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stop: &[&str], pieces: &[&str], given: &[&str], stopped: bool, held: &str) {
        let stop: Vec<String> = stop.iter().map(ToString::to_string).collect();
        let mut buffer = Held::new(&stop);
        let mut last = false;
        for (piece, want) in pieces.iter().zip(given) {
            assert!(!last);
            let (text, done) = buffer.push(piece);
            assert_eq!(text, *want, "{pieces:?}");
            last = done;
        }
        assert_eq!((last, buffer.rest.as_str()), (stopped, held), "{pieces:?}");
    }

    #[test]
    fn stop_strings_are_held_back_and_found_over_pieces() {
        check(&[], &["a", "b"], &["a", "b"], false, "");
        check(
            &["\n\n"],
            &["a\n", "b\n", "\nc"],
            &["a", "\nb", ""],
            true,
            "",
        );
        check(&["END"], &["xE", "N", "Q"], &["x", "", "ENQ"], false, "");
        check(&["END"], &["xE", "N"], &["x", ""], false, "EN");
        check(&["abc", "b"], &["ab"], &["a"], true, "");
        check(&["", "é"], &["caf", "é!"], &["caf", ""], true, "");
        check(&["aab"], &["aaa", "b"], &["a", ""], true, "");
        check(&["ab"], &["日本a", "本"], &["日本", "a本"], false, "");
    }
}
