//! A text that is being generated, as an iterator.

use crate::error::Error;
use crate::generate::{FinishReason, GenerateOptions, TextStep, TokenLoop};
use tercet_networks::Generator;
use tercet_networks::maybe_async::{WaitMode, block_on_ready};
use tercet_text::tokenizer::Tokenizer;

/// Iterator over pieces of a text that is being generated. Each step computes tokens until
/// characters are complete. Dropping the stream ends the generation.
///
/// ```
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/");
/// # let path = format!("{data}tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
/// use tercet::Device;
/// use tercet_models::{FinishReason, LanguageModel, TextOptions};
/// let mut model = LanguageModel::options().device(Device::cpu()).open(path)?;
/// let mut stream = model.generate_stream("fn main", &TextOptions::new().max_tokens(4))?;
/// while let Some(piece) = stream.next() {
///     print!("{}", piece?);
/// }
/// assert_eq!(stream.finish_reason(), Some(FinishReason::Length));
/// assert_eq!(stream.tokens().len(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TextStream<'m> {
    generator: &'m mut Generator,
    run: TokenLoop<'m>,
    finish: Option<FinishReason>,
}

impl<'m> TextStream<'m> {
    /// Processes the prompt.
    pub(super) fn start(
        generator: &'m mut Generator,
        tokenizer: &'m Tokenizer,
        prompt: &[u32],
        (max_tokens, stop, eos): (usize, &[String], Vec<u32>),
    ) -> Result<TextStream<'m>, Error> {
        let options = GenerateOptions {
            max_tokens,
            stop,
            eos: &eos,
            spelled: &[],
        };
        let mut run = TokenLoop::new(tokenizer, &options);
        generator.set_penalty_start(generator.position() + prompt.len());
        let progress = &mut |_| true;
        block_on_ready(run.feed(generator, prompt, progress, WaitMode::Blocking))?;
        Ok(TextStream {
            generator,
            run,
            finish: None,
        })
    }

    /// The remaining text.
    ///
    /// # Errors
    /// [`Error`] of the device or the tokenizer.
    pub fn text(self) -> Result<String, Error> {
        self.collect()
    }

    /// The tokens of the text so far.
    pub fn tokens(&self) -> &[u32] {
        self.run.tokens()
    }

    /// The reason why the generation ended; `None` before its end.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// The text of the next token, which may be empty.
    fn advance(&mut self) -> Result<String, Error> {
        let step = block_on_ready(self.run.step(self.generator, WaitMode::Blocking))?;
        let step = match step {
            TextStep::Full => {
                let reason = FinishReason::Context;
                self.run.end(self.generator, String::new(), reason)?
            }
            step => step,
        };
        match step {
            TextStep::Text(text) => Ok(text),
            TextStep::End(text, reason) => {
                self.finish = Some(reason);
                Ok(text)
            }
            TextStep::Full => Ok(String::new()),
        }
    }
}

impl Iterator for TextStream<'_> {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.finish.is_none() {
            match self.advance() {
                Ok(text) if text.is_empty() => {}
                Ok(text) => return Some(Ok(text)),
                Err(e) => {
                    self.finish = Some(FinishReason::Cancelled);
                    return Some(Err(e));
                }
            }
        }
        None
    }
}
