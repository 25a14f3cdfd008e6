//! Texts to vectors.

use tercet::Device;

use super::super::ModelError;
use super::Encoder;
use super::runner::{Longer, Runner, all_tokens};
use crate::config::TextPooling;
use crate::tokenizer::{Row, Tokenizer};
use crate::waits::{Waits, now};

/// A compiled sentence encoder with its tokenizer: texts in, vectors out, of length 1 where the model normalizes.
pub struct Embedder {
    runner: Runner,
    tokenizer: Tokenizer,
    most: usize,
    width: usize,
    longer: Longer,
    lower_case: bool,
    prompt: String,
    /// Tokens of the prompt.
    prompt_tokens: usize,
    /// Which token stands for a text, where the graph is told; texts are filled up to so many tokens with this one.
    pooling: Option<(TextPooling, usize, u32)>,
}

impl Embedder {
    /// Compiles `encoder` (built for [`EncoderOutput::Embedding`](super::EncoderOutput)) for texts of at most
    /// `most` tokens, `batch` of them at once (32, fewer of long ones, where there is none); longer ones are an error
    /// ([`Self::cutting`]).
    ///
    /// # Errors
    /// As [`Encoder::compile`]; [`ModelError::Unsupported`] when the graph gives no vectors.
    pub fn new(
        encoder: &Encoder,
        tokenizer: Tokenizer,
        device: &Device,
        batch: Option<usize>,
        most: usize,
    ) -> Result<Embedder, ModelError> {
        let pad = tokenizer.pad().unwrap_or(0);
        let runner = Runner::new(encoder, device, pad, (batch, most))?;
        if runner.output() != Some("embedding") {
            return Err(ModelError::Unsupported(
                "the encoder was built without pooling; build it with the modules of its folder"
                    .into(),
            ));
        }
        Ok(Embedder {
            runner,
            tokenizer,
            most,
            width: encoder.width,
            longer: Longer::Refused,
            lower_case: false,
            prompt: String::new(),
            prompt_tokens: 0,
            pooling: None,
        })
    }

    /// Cuts texts that are too long.
    #[must_use]
    pub fn cutting(mut self, cut: bool) -> Embedder {
        self.set_cutting(cut);
        self
    }

    /// Of a graph that is told which token stands for a text ([`Encoder::of_texts`]), with the positions of the model and
    /// its padding token.
    pub(crate) fn pooled(mut self, pooling: TextPooling, (context, pad): (usize, u32)) -> Embedder {
        let pad = self.tokenizer.pad().unwrap_or(pad);
        self.pooling = Some((pooling, context, pad));
        self
    }

    /// As [`Self::cutting`], from the next texts on.
    pub fn set_cutting(&mut self, cut: bool) {
        self.longer = match cut {
            true => Longer::Cut,
            false => Longer::Refused,
        };
    }

    /// Makes texts lower case first, as some folders ask for.
    #[must_use]
    pub fn lower_case(mut self, lower: bool) -> Embedder {
        self.lower_case = lower;
        self
    }

    /// Puts this before each text.
    ///
    /// # Errors
    /// [`crate::Error`] of the tokenizer.
    pub fn with_prompt(mut self, prompt: &str) -> Result<Embedder, crate::Error> {
        self.prompt = prompt.to_string();
        self.prompt_tokens = 0;
        if !prompt.is_empty() {
            let row = self.tokenizer.encode_row(&self.text(""), None, None)?;
            let around = self.tokenizer.encode_row("", None, None)?;
            let ended = row.ids.last() == around.ids.last() && !around.ids.is_empty();
            self.prompt_tokens = row.ids.len() - usize::from(ended);
        }
        Ok(self)
    }

    /// The number of elements of an embedding.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Tokens of the longest text that is not cut or refused.
    pub fn most_tokens(&self) -> usize {
        self.most
    }

    fn text(&self, text: &str) -> String {
        let whole = format!("{}{text}", self.prompt);
        match self.lower_case {
            true => whole.to_lowercase(),
            false => whole,
        }
    }

    /// The embeddings of these texts, in their order. Texts of similar length share a batch.
    /// `progress` is called with the number of texts done; false stops early with what is done.
    ///
    /// # Errors
    /// [`ModelError::TextTooLong`], before any text is computed; [`crate::Error`] of the tokenizer or the device.
    pub fn embed<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, crate::Error> {
        now(self.embed_in(texts, progress, Waits::Blocking))
    }

    /// As [`Self::embed`], awaiting the device: the thread is not blocked where the executor can be awaited, in browsers
    /// above all.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub async fn embed_async<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, crate::Error> {
        self.embed_in(texts, progress, Waits::Awaiting).await
    }

    async fn embed_in<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
        waits: Waits,
    ) -> Result<Vec<Vec<f32>>, crate::Error> {
        let written = texts.iter().map(|text| (self.text(text.as_ref()), None));
        let written: Vec<(String, Option<String>)> = written.collect();
        let limit = (self.most, self.longer);
        let mut all = all_tokens(&self.tokenizer, &written, limit)?;
        for own in &mut all {
            own.left_out = self.prompt_tokens;
            if let Some((pooling, context, pad)) = self.pooling {
                own.place = place(pooling, &mut own.row, (context, pad));
            }
        }
        let mut embeddings = vec![Vec::new(); texts.len()];
        let take = &mut |at: usize, row: &[f32]| embeddings[at] = row.to_vec();
        self.runner.run_all(&all, progress, take, waits).await?;
        Ok(embeddings)
    }
}

/// The place of the token that stands for a text. Where that is the last of all positions, the text is filled up.
fn place(pooling: TextPooling, row: &mut Row, (context, pad): (usize, u32)) -> usize {
    let ids = &mut row.ids;
    match pooling {
        TextPooling::First(end) => ids.iter().position(|id| *id == end).unwrap_or(0),
        TextPooling::Greatest => {
            let most = ids.iter().max().copied();
            ids.iter().position(|id| Some(*id) == most).unwrap_or(0)
        }
        TextPooling::Last => {
            ids.resize(context, pad);
            context - 1
        }
    }
}
