//! Streamed text generation with a language model: the loop from prompt to finish that all front
//! ends share.
//!
//! [`generate`] feeds the prompt, generates token by token, and returns complete characters as they
//! arrive. Text that may be the beginning of a stop string is held back until that is decided.

mod token_loop;

use std::ops::Range;
use std::sync::Arc;

use crate::error::Error;
pub use tercet_networks::FinishReason;
use tercet_networks::Generator;
use tercet_networks::maybe_async::{WaitMode, block_on_ready};
use tercet_text::tokenizer::{StreamDecoder, Tokenizer, TokenizerError};

pub(crate) use self::token_loop::{TextStep, TokenLoop};

/// Stop conditions in addition to the model's EOS tokens.
///
/// ```
/// use tercet_models::GenerateOptions;
/// let stop = ["\n\n".to_string()];
/// let options = GenerateOptions { max_tokens: 64, stop: &stop, eos: &[2], spelled: &[] };
/// assert_eq!((options.stop.len(), options.eos), (1, &[2][..]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GenerateOptions<'a> {
    /// Maximum number of tokens to generate.
    pub max_tokens: usize,
    /// Stop strings. Generation ends at the first complete stop string, which is not part of the
    /// text. Empty strings are ignored.
    pub stop: &'a [String],
    /// End-of-sequence tokens.
    pub eos: &'a [u32],
    /// Special tokens that are part of the text, such as the markers of thoughts and calls
    /// ([`AnswerFormat::special_tokens`](tercet_text::answer::AnswerFormat::special_tokens)).
    pub spelled: &'a [u32],
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

/// All tokens that end a text: those of the model's configuration, and those that the vocabulary has
/// by their names ([`Tokenizer::end_ids`]).
#[must_use]
pub fn end_ids(eos: &[u32], tokenizer: &Tokenizer) -> Vec<u32> {
    let mut ends = eos.to_vec();
    for id in tokenizer.end_ids() {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    ends
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
/// let options = GenerateOptions { max_tokens: 4, stop: &[], eos: &[], spelled: &[] };
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
    generate_past_context(generator, tokenizer, prompt, options, event, &mut |_, _| {
        None
    })
}

/// Like [`generate()`], but can go on when the context is full. `refill` then gets the generator and
/// the tokens of the text so far. It removes a part of the context ([`Generator::truncate`]) and
/// returns the tokens to append, which end with those of the text. With `None`, generation ends with
/// [`FinishReason::Context`].
///
/// # Errors
/// The errors of [`generate()`].
///
/// ```
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/");
/// # let path = format!("{data}tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
/// use tercet_models::{DecoderOptions, GenerateOptions, ModelFiles, generate_past_context};
/// let files = ModelFiles::open(path)?;
/// let tokenizer = files.tokenizer()?;
/// let decoder = files.decoder(|spec| DecoderOptions { context: 16, chunk: 16, ..DecoderOptions::new(spec) })?;
/// let mut generator = decoder.generator(&tercet::Device::cpu())?;
/// let prompt = tokenizer.encode("fn main", true)?;
/// let options = GenerateOptions { max_tokens: 40, stop: &[], eos: &[], spelled: &[] };
/// let generation = generate_past_context(
///     &mut generator, &tokenizer, &prompt, &options, &mut |_| true,
///     &mut |generator, tokens| {
///         generator.truncate(0);
///         Some(tokens[tokens.len() - 8..].to_vec())
///     },
/// )?;
/// assert_eq!(generation.tokens.len(), 40);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn generate_past_context(
    generator: &mut Generator,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: &GenerateOptions<'_>,
    event: &mut dyn FnMut(GenerateEvent<'_>) -> bool,
    refill: &mut RefillCallback<'_>,
) -> Result<Generation, Error> {
    let waits = WaitMode::Blocking;
    block_on_ready(write_in(
        generator,
        tokenizer,
        prompt,
        options,
        (event, refill),
        waits,
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
    let refill = &mut |_: &mut Generator, _: &[u32]| None::<Vec<u32>>;
    write_in(
        generator,
        tokenizer,
        prompt,
        options,
        (event, refill),
        waits,
    )
    .await
}

/// Makes room in a full context, given the tokens of the text; see [`generate_past_context`].
type RefillCallback<'a> = dyn FnMut(&mut Generator, &[u32]) -> Option<Vec<u32>> + 'a;

/// The callbacks of a generation: for its events, and for a full context.
type GenerationCallbacks<'a> = (
    &'a mut dyn FnMut(GenerateEvent<'_>) -> bool,
    &'a mut RefillCallback<'a>,
);

async fn write_in(
    generator: &mut Generator,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: &GenerateOptions<'_>,
    (event, refill): GenerationCallbacks<'_>,
    waits: WaitMode,
) -> Result<Generation, Error> {
    let mut wanted = true;
    generator.set_penalty_start(generator.position() + prompt.len());
    let mut run = TokenLoop::new(tokenizer, options);
    let progress = &mut |done| {
        wanted = event(GenerateEvent::Prompt(done));
        wanted
    };
    run.feed(generator, prompt, progress, waits).await?;
    loop {
        let count = run.tokens().len();
        let step = match wanted {
            true => run.step(generator, waits).await?,
            false => run.end(generator, String::new(), FinishReason::Cancelled)?,
        };
        let step = match step {
            TextStep::Full => match refill(generator, run.tokens()) {
                None => run.end(generator, String::new(), FinishReason::Context)?,
                Some(rest) => {
                    let end = generator.position() + rest.len();
                    generator.set_penalty_start(end.saturating_sub(count));
                    let progress = &mut |done| {
                        wanted = event(GenerateEvent::Prompt(done));
                        wanted
                    };
                    run.feed(generator, &rest, progress, waits).await?;
                    continue;
                }
            },
            step => step,
        };
        match step {
            TextStep::Text(text) => {
                wanted = event(GenerateEvent::Text(&text, run.tokens().len()));
            }
            TextStep::End(text, finish) => {
                let has_news = run.tokens().len() > count || !text.is_empty();
                if wanted && has_news {
                    event(GenerateEvent::Text(&text, run.tokens().len()));
                }
                return Ok(run.into_generation(finish));
            }
            TextStep::Full => {}
        }
    }
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
    tokenizer: &'t Tokenizer,
    stream: StreamDecoder<'t>,
    holdback: StopHoldback,
    /// The special tokens since the last token with text.
    special_run: Vec<u32>,
    /// Special tokens that are part of the text.
    spelled: Arc<[u32]>,
}

/// Number of special tokens without text after which a text is taken to loop.
const LOOP_TOKENS: usize = 32;
/// Maximum number of different tokens in a loop.
const LOOP_PERIOD: usize = 4;

impl<'t> IncrementalDetokenizer<'t> {
    /// A converter for tokens of this tokenizer that ends at the first stop string. A stop string may
    /// spell special tokens, although they have no text. Empty strings are ignored.
    #[must_use]
    pub fn new(tokenizer: &'t Tokenizer, stop: &[String]) -> IncrementalDetokenizer<'t> {
        IncrementalDetokenizer {
            tokenizer,
            stream: tokenizer.stream(),
            holdback: StopHoldback::new(stop),
            special_run: Vec::new(),
            spelled: Arc::default(),
        }
    }

    /// Makes these special tokens part of the text, as the vocabulary spells them.
    #[must_use]
    pub fn with_spelled(mut self, spelled: Arc<[u32]>) -> IncrementalDetokenizer<'t> {
        self.spelled = spelled;
        self
    }

    /// The text that becomes final with this token, and whether a stop string is complete, which
    /// ends the text. A token that the tokenizer does not have is without text: models pad their
    /// vocabularies.
    ///
    /// # Errors
    /// [`Error`] of the tokenizer.
    pub fn push(&mut self, token: u32) -> Result<(String, bool), Error> {
        let text = match self.stream.push(token) {
            Err(TokenizerError::UnknownToken { .. }) => String::new(),
            text => text?,
        };
        if self.spelled.contains(&token) {
            self.special_run.clear();
            let spelling = self.tokenizer.id_to_token(token).unwrap_or_default();
            return Ok(self.holdback.push(&(text + &spelling)));
        }
        if !self.tokenizer.is_special(token) {
            self.special_run.clear();
            return Ok(self.holdback.push(&text));
        }
        if self.special_run.len() == LOOP_TOKENS {
            self.special_run.remove(0);
        }
        self.special_run.push(token);
        let (mut text, stopped) = self.holdback.push(&text);
        if stopped || self.holdback.stop.is_empty() {
            return Ok((text, stopped));
        }
        let spelling = self.tokenizer.id_to_token(token).unwrap_or_default();
        let (more, stopped) = self.holdback.push_hidden(&spelling);
        text += &more;
        Ok((text, stopped))
    }

    /// The stop string that ended the text, if one did.
    #[must_use]
    pub fn stop_string(&self) -> Option<&str> {
        self.holdback.found.as_deref()
    }

    /// Whether the last tokens repeat a few special tokens, which have no text. The text then
    /// counts as finished, although the model generated no end token.
    #[must_use]
    pub fn is_looping(&self) -> bool {
        let run = &self.special_run;
        let firsts = (0..run.len()).filter(|&at| !run[..at].contains(&run[at]));
        run.len() == LOOP_TOKENS && firsts.count() <= LOOP_PERIOD
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
            text + &self.holdback.take(self.holdback.pending.len())
        };
        Ok((rest, stopped))
    }
}

/// A buffer of text that may be the beginning of a stop string. The spelling of special tokens is part
/// of the buffer, but not of the text.
#[doc(hidden)]
pub struct StopHoldback {
    stop: Vec<String>,
    /// The text that is held back.
    pub pending: String,
    /// The byte ranges of special tokens in `pending`, ascending.
    hidden: Vec<Range<usize>>,
    /// The stop string that ended the text.
    found: Option<String>,
}

impl StopHoldback {
    /// A buffer for these stop strings.
    pub fn new(stop: &[String]) -> StopHoldback {
        StopHoldback {
            stop: stop.iter().filter(|s| !s.is_empty()).cloned().collect(),
            pending: String::new(),
            hidden: Vec::new(),
            found: None,
        }
    }

    /// Adds a piece and returns the text that cannot be part of a stop string, and whether a stop
    /// string is complete.
    pub fn push(&mut self, piece: &str) -> (String, bool) {
        self.pending.push_str(piece);
        self.advance()
    }

    /// Adds the spelling of a special token, as [`Self::push`] adds text.
    pub fn push_hidden(&mut self, spelling: &str) -> (String, bool) {
        let start = self.pending.len();
        self.pending.push_str(spelling);
        self.hidden.push(start..self.pending.len());
        self.advance()
    }

    fn advance(&mut self) -> (String, bool) {
        let whole: Vec<usize> = (0..self.pending.len()).collect();
        let mut views = vec![(self.pending.clone(), whole)];
        if !self.hidden.is_empty() {
            views.push(self.visible());
        }
        let (mut found, mut kept) = (None, self.pending.len());
        for (text, places) in &views {
            let matches = self
                .stop
                .iter()
                .flat_map(|stop| text.match_indices(&**stop));
            let at = matches.filter(|(at, stop)| self.is_whole(places, *at, stop.len()));
            let at = at.map(|(at, stop)| (places[at], stop));
            let first = at.min_by_key(|(at, _)| *at);
            let both = found.into_iter().chain(first);
            found = both.min_by_key(|(at, _)| *at);
            let longest = self.stop.iter().map(String::len).max().unwrap_or(0);
            let first = text.len().saturating_sub(longest);
            let begins = |at: &usize| {
                let rest = &text[*at..];
                let any = self.stop.iter().any(|stop| stop.starts_with(rest));
                any && self.is_whole(places, *at, rest.len())
            };
            let starts = (first..text.len()).filter(|at| text.is_char_boundary(*at));
            kept = kept.min(
                starts
                    .into_iter()
                    .find(begins)
                    .map_or(kept, |at| places[at]),
            );
        }
        match found {
            Some((at, stop)) => {
                let stop = stop.to_string();
                let text = self.take(at);
                self.found = Some(stop);
                self.pending.clear();
                self.hidden.clear();
                (text, true)
            }
            None => (self.take(kept), false),
        }
    }

    /// Whether the match of `len` bytes at `at` contains each special token completely or not at
    /// all.
    fn is_whole(&self, places: &[usize], at: usize, len: usize) -> bool {
        let (start, last) = (places[at], places[at + len - 1]);
        let mut cut = self.hidden.iter();
        !cut.any(|r| r.start < start && start < r.end || r.start <= last && last + 1 < r.end)
    }

    /// The text without special tokens, and the position of each of its bytes in `pending`.
    fn visible(&self) -> (String, Vec<usize>) {
        let is_hidden = |at: &usize| self.hidden.iter().any(|range| range.contains(at));
        let chars = self.pending.char_indices();
        let chars: Vec<(usize, char)> = chars.filter(|(at, _)| !is_hidden(at)).collect();
        let places = chars.iter().flat_map(|(at, c)| *at..at + c.len_utf8());
        (chars.iter().map(|(_, c)| c).collect(), places.collect())
    }

    /// Removes the first `len` bytes of the buffer and returns their text.
    fn take(&mut self, len: usize) -> String {
        let rest = self.pending.split_off(len);
        let mut text = std::mem::replace(&mut self.pending, rest);
        let hidden = std::mem::take(&mut self.hidden);
        for range in hidden.into_iter().rev() {
            match range.start < len {
                true => text.replace_range(range.start..range.end.min(len), ""),
                false => self.hidden.insert(0, range.start - len..range.end - len),
            }
        }
        text
    }
}
