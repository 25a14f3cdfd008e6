//! Streamed text generation with a language model: the loop from prompt to finish that all front
//! ends share.
//!
//! [`generate`] feeds the prompt, generates token by token, and returns complete characters as they
//! arrive. Text that may be the beginning of a stop string is held back until that is decided.

use crate::builder::Generator;
use crate::error::Error;
use crate::maybe_async::{WaitMode, block_on_ready};
use crate::tokenizer::{StreamDecoder, Tokenizer};

/// Stop conditions in addition to the model's EOS tokens.
///
/// ```
/// use tercet_models::GenerateOptions;
/// let stop = ["\n\n".to_string()];
/// let options = GenerateOptions { max_tokens: 64, stop: &stop, eos: &[2] };
/// assert_eq!((options.stop.len(), options.eos), (1, &[2][..]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GenerateOptions<'a> {
    /// Maximum number of tokens to generate.
    pub max_tokens: usize,
    /// Stop strings. Generation ends at the first complete one, which is not part of the text.
    /// Empty strings are ignored.
    pub stop: &'a [String],
    /// End-of-sequence tokens.
    pub eos: &'a [u32],
}

/// The reason why generation ended.
///
/// ```
/// use tercet_models::{FinishReason, Generation};
/// let generation = Generation { tokens: vec![5, 9], finish: FinishReason::Stop };
/// assert!(matches!(generation.finish, FinishReason::End | FinishReason::Stop));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model generated an end-of-sequence token.
    End,
    /// A stop string was generated.
    Stop,
    /// The maximum number of tokens was reached.
    Length,
    /// The context is full.
    Context,
    /// Cancelled by the caller.
    Cancelled,
}

/// A progress event during generation.
///
/// ```
/// use tercet_models::GenerateEvent;
/// let events = [GenerateEvent::Text("Hel", 1), GenerateEvent::Text("lo", 2)];
/// let texts = events.iter().map(|event| match event {
///     GenerateEvent::Text(text, _) => *text,
///     GenerateEvent::Prompt(_) => "",
/// });
/// assert_eq!(texts.collect::<String>(), "Hello");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerateEvent<'a> {
    /// The number of prompt tokens that are processed.
    Prompt(usize),
    /// New final text, and the number of generated tokens. The text is empty if the token completes
    /// no character.
    Text(&'a str, usize),
}

/// Tokens that end a turn in common chat templates, in addition to the end-of-sequence tokens.
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

/// The end-of-sequence tokens, and the tokens of the vocabulary that end a turn of a conversation.
#[must_use]
pub fn end_of_turn_ids(eos: &[u32], tokenizer: &Tokenizer) -> Vec<u32> {
    let of_turns = TURN_ENDS.iter().filter_map(|t| tokenizer.token_to_id(t));
    eos.iter().copied().chain(of_turns).collect()
}

/// The result of a generation.
///
/// ```
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/");
/// # let path = format!("{data}tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
/// use tercet_models::{DecoderOptions, FinishReason, GenerateOptions, ModelFiles, generate};
/// let files = ModelFiles::open(path)?;
/// let tokenizer = files.tokenizer()?;
/// let mut generator = files.decoder(DecoderOptions::new)?.generator(&tercet::Device::cpu())?;
/// let prompt = tokenizer.encode("fn main", true)?;
/// let options = GenerateOptions { max_tokens: 4, stop: &[], eos: &[] };
/// let generation = generate(&mut generator, &tokenizer, &prompt, &options, &mut |_| true)?;
/// assert_eq!((generation.tokens.len(), generation.finish), (4, FinishReason::Length));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The generated tokens, without the one that ended the text.
    pub tokens: Vec<u32>,
    /// The reason why generation ended.
    pub finish: FinishReason,
}

/// Generates text after `prompt`, which is appended to the generator's context. The graph must
/// sample ([`crate::DecoderOptions::sampling`]). If `event` returns `false`, generation is
/// cancelled.
///
/// # Errors
/// [`Error`] of the model or the tokenizer.
pub fn generate(
    generator: &mut Generator,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: &GenerateOptions<'_>,
    event: &mut dyn FnMut(GenerateEvent<'_>) -> bool,
) -> Result<Generation, Error> {
    block_on_ready(write_in(
        generator,
        tokenizer,
        prompt,
        options,
        event,
        WaitMode::Blocking,
    ))
}

/// Like [`generate()`], but awaits the device ([`Generator::forward_async`]).
///
/// # Errors
/// The errors of [`generate()`].
pub async fn generate_async(
    generator: &mut Generator,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: &GenerateOptions<'_>,
    event: &mut dyn FnMut(GenerateEvent<'_>) -> bool,
) -> Result<Generation, Error> {
    let waits = WaitMode::Awaiting;
    write_in(generator, tokenizer, prompt, options, event, waits).await
}

async fn write_in(
    generator: &mut Generator,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: &GenerateOptions<'_>,
    event: &mut dyn FnMut(GenerateEvent<'_>) -> bool,
    waits: WaitMode,
) -> Result<Generation, Error> {
    let mut wanted = true;
    generator.set_penalty_start(generator.position() + prompt.len());
    let progress = &mut |done| {
        wanted = event(GenerateEvent::Prompt(done));
        wanted
    };
    let step = generator.forward_in(prompt, progress, waits).await?;
    let mut next = step.next;
    let mut tokens = Vec::new();
    let mut pieces = IncrementalDetokenizer::new(tokenizer, options.stop);
    // Further accepted tokens of the last speculative run.
    let mut known = Vec::<u32>::new().into_iter();
    let finish = loop {
        if !wanted {
            break FinishReason::Cancelled;
        }
        if tokens.len() >= options.max_tokens {
            break FinishReason::Length;
        }
        let Some(token) = next else {
            let reason = "the graph of the model does not sample; build it with sampling options";
            return Err(crate::ModelError::Unsupported(reason.into()).into());
        };
        if options.eos.contains(&token) {
            break FinishReason::End;
        }
        tokens.push(token);
        let (text, stopped) = pieces.push(token)?;
        wanted = event(GenerateEvent::Text(&text, tokens.len()));
        if stopped {
            generator.rollback(known.len());
            return Ok(Generation {
                tokens,
                finish: FinishReason::Stop,
            });
        }
        if tokens.len() >= options.max_tokens {
            break FinishReason::Length;
        }
        next = known.next();
        if next.is_none() && generator.position() >= generator.context() {
            break FinishReason::Context;
        }
        if next.is_none() && wanted {
            let most = options.max_tokens - tokens.len();
            let follow = generator.advance_in(token, most, options.eos, waits);
            known = follow.await?.into_iter();
            next = known.next();
        }
    };
    generator.rollback(known.len());
    let (rest, stopped) = pieces.finish()?;
    let heard = rest.is_empty() || !wanted || event(GenerateEvent::Text(&rest, tokens.len()));
    let finish = match (stopped, heard) {
        (true, _) => FinishReason::Stop,
        (false, true) => finish,
        (false, false) => FinishReason::Cancelled,
    };
    Ok(Generation { tokens, finish })
}

/// Incremental conversion of tokens to text: complete characters that cannot be part of a stop
/// string.
///
/// ```
/// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
/// #     "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
/// #     "decoder": null,
/// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}"#;
/// # let tokenizer = tercet_models::Tokenizer::from_json(json.as_bytes())?;
/// use tercet_models::IncrementalDetokenizer;
/// let mut text = IncrementalDetokenizer::new(&tokenizer, &["b".to_string()]);
/// assert_eq!(text.push(0)?, ("a".to_string(), false));
/// let (_, stopped) = text.push(1)?;
/// assert!(stopped);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct IncrementalDetokenizer<'t> {
    stream: StreamDecoder<'t>,
    holdback: StopHoldback,
}

impl<'t> IncrementalDetokenizer<'t> {
    /// A converter for tokens of this tokenizer that ends at the first stop string; empty strings
    /// are ignored.
    #[must_use]
    pub fn new(tokenizer: &'t Tokenizer, stop: &[String]) -> IncrementalDetokenizer<'t> {
        IncrementalDetokenizer {
            stream: tokenizer.stream(),
            holdback: StopHoldback::new(stop),
        }
    }

    /// The text that becomes final with this token, and whether a stop string is complete, which
    /// ends the text.
    ///
    /// # Errors
    /// [`Error`] of the tokenizer.
    pub fn push(&mut self, token: u32) -> Result<(String, bool), Error> {
        Ok(self.holdback.push(&self.stream.push(token)?))
    }

    /// The remaining text after the last token, and whether a stop string ended it.
    ///
    /// # Errors
    /// [`Error`] of the tokenizer.
    pub fn finish(mut self) -> Result<(String, bool), Error> {
        let (text, stopped) = self.holdback.push(&self.stream.finish()?);
        let rest = if stopped {
            text
        } else {
            text + &self.holdback.pending
        };
        Ok((rest, stopped))
    }
}

/// A buffer of text that may be the beginning of a stop string.
struct StopHoldback {
    stop: Vec<String>,
    pending: String,
}

impl StopHoldback {
    fn new(stop: &[String]) -> StopHoldback {
        StopHoldback {
            stop: stop.iter().filter(|s| !s.is_empty()).cloned().collect(),
            pending: String::new(),
        }
    }

    fn stops(&self) -> impl Iterator<Item = &str> {
        self.stop.iter().map(String::as_str)
    }

    /// Adds a piece and returns the text that cannot be part of a stop string, and whether a stop
    /// string is complete.
    fn push(&mut self, piece: &str) -> (String, bool) {
        self.pending.push_str(piece);
        if let Some(at) = self.stops().filter_map(|s| self.pending.find(s)).min() {
            self.pending.truncate(at);
            return (std::mem::take(&mut self.pending), true);
        }
        let begins = |at: &usize| self.stops().any(|s| s.starts_with(&self.pending[*at..]));
        let longest = self.stops().map(str::len).max().unwrap_or(0);
        let first = self.pending.len().saturating_sub(longest);
        let places = (first..self.pending.len()).filter(|at| self.pending.is_char_boundary(*at));
        let at = places
            .into_iter()
            .find(begins)
            .unwrap_or(self.pending.len());
        let kept = self.pending.split_off(at);
        (std::mem::replace(&mut self.pending, kept), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stop: &[&str], pieces: &[&str], given: &[&str], stopped: bool, held: &str) {
        let stop: Vec<String> = stop.iter().map(ToString::to_string).collect();
        let mut buffer = StopHoldback::new(&stop);
        let mut last = false;
        for (piece, want) in pieces.iter().zip(given) {
            assert!(!last);
            let (text, done) = buffer.push(piece);
            assert_eq!(text, *want, "{pieces:?}");
            last = done;
        }
        assert_eq!(
            (last, buffer.pending.as_str()),
            (stopped, held),
            "{pieces:?}"
        );
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
