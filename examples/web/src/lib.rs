//! A language model and a sentence encoder from files in memory, on any device, awaiting it. Nothing here is of the browser
//! but `page.rs`, so that tests run the same natively.

mod loops;
#[cfg(target_arch = "wasm32")]
mod page;

pub use loops::{Root, Roots};

use serde_json::{Map, Value};
use tercet::{DType, Device};
use tercet_models::{
    DecoderOptions, Embedder, Encoder, EncoderOutput, Event, Finish, Generator, HfWeights,
    MappedFile, ModelFiles, Tokenizer, Weights, WriteOptions, turn_ends, write_async,
};

/// What goes wrong, for people.
pub type Failure = Box<dyn std::error::Error>;

/// A language model that writes greedily.
pub struct Language {
    generator: Generator,
    tokenizer: Tokenizer,
    eos: Vec<u32>,
}

impl Language {
    /// The model of a GGUF file, compiled for a device.
    ///
    /// # Errors
    /// Of the file or the device.
    pub fn open(gguf: &[u8], device: &Device) -> Result<Language, Failure> {
        let files = ModelFiles::from_gguf_bytes(gguf)?;
        let tokenizer = files.tokenizer()?;
        let decoder = files.decoder(DecoderOptions::new)?;
        let mut generator = decoder.generator(device)?;
        generator.skip_logits();
        Ok(Language {
            generator,
            eos: turn_ends(&decoder.config.eos, &tokenizer),
            tokenizer,
        })
    }

    /// Writes up to `most` tokens after a prompt, which begins a text, and gives them. `text` is called with each piece as it
    /// comes, and says with `false` that nothing more is wanted.
    ///
    /// # Errors
    /// Of the model or the device.
    pub async fn write(
        &mut self,
        prompt: &str,
        most: usize,
        text: &mut dyn FnMut(&str) -> bool,
    ) -> Result<(Vec<u32>, Finish), Failure> {
        self.generator.reset();
        let prompt = self.tokenizer.encode(prompt, true)?;
        let options = WriteOptions {
            max_tokens: most,
            stop: &[],
            eos: &self.eos,
        };
        let event = &mut |event: Event<'_>| match event {
            Event::Prompt(_) => true,
            Event::Text(piece, _) => text(piece),
        };
        let written = write_async(
            &mut self.generator,
            &self.tokenizer,
            &prompt,
            &options,
            event,
        );
        let written = written.await?;
        Ok((written.tokens, written.finish))
    }
}

/// A sentence encoder that takes the mean of tokens.
pub struct Sentences {
    embedder: Embedder,
}

/// Texts of a run: little memory matters more in a page than speed.
const BATCH: usize = 8;
/// Tokens of the longest text; of longer ones the rest is left out.
const MOST_TOKENS: usize = 256;

impl Sentences {
    /// The encoder of a folder's `config.json`, `tokenizer.json` and `model.safetensors`, compiled for a device.
    ///
    /// # Errors
    /// Of the files or the device.
    pub fn open(
        config: &[u8],
        tokenizer: &[u8],
        weights: Vec<u8>,
        device: &Device,
    ) -> Result<Sentences, Failure> {
        let config: Map<String, Value> = serde_json::from_slice(config)?;
        let weights = HfWeights::parse(MappedFile::from_vec(weights))?;
        let spec = weights.encoder_spec(&config)?;
        let output = EncoderOutput::mean_normalized();
        let encoder = Encoder::build(&spec, &Weights::Hf(weights), &output, DType::F32)?;
        let tokenizer = Tokenizer::from_json(tokenizer)?;
        let most = MOST_TOKENS.min(encoder.context);
        let embedder = Embedder::new(&encoder, tokenizer, device, Some(BATCH), most)?;
        Ok(Sentences {
            embedder: embedder.cutting(true),
        })
    }

    /// The embeddings of texts, of length 1.
    ///
    /// # Errors
    /// Of the tokenizer or the device.
    pub async fn embed<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Vec<f32>>, Failure> {
        Ok(self.embedder.embed_async(texts, &mut |_| true).await?)
    }
}
