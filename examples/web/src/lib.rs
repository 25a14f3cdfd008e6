//! A language model and a sentence encoder, loaded from files in memory and run asynchronously on
//! any device. Only `page.rs` depends on the browser, so tests run the other code natively.

mod loops;
#[cfg(target_arch = "wasm32")]
mod page;

pub use loops::{Root, Roots};

use serde_json::{Map, Value};
use tercet::{DType, Device};
use tercet_models::{
    DecoderOptions, Embedder, Encoder, EncoderOutput, EncoderSpec, FinishReason, GenerateEvent,
    GenerateOptions, Generator, HfWeights, MappedFile, ModelFiles, Tokenizer, Weights, end_ids,
    generate_async,
};

/// Error type with a readable message.
pub type Failure = Box<dyn std::error::Error>;

/// A language model with greedy decoding.
pub struct Language {
    generator: Generator,
    tokenizer: Tokenizer,
    eos: Vec<u32>,
}

impl Language {
    /// Compiles the model of a GGUF file for a device.
    ///
    /// # Errors
    /// If the file is invalid or the device cannot run the model.
    pub fn open(gguf: &[u8], device: &Device) -> Result<Language, Failure> {
        let files = ModelFiles::from_gguf_bytes(gguf)?;
        let tokenizer = files.tokenizer()?;
        let decoder = files.decoder(DecoderOptions::new)?;
        let mut generator = decoder.generator(device)?;
        generator.skip_logits();
        Ok(Language {
            generator,
            eos: end_ids(&decoder.config.eos, &tokenizer),
            tokenizer,
        })
    }

    /// Generates up to `most` tokens after a prompt and returns them. `text` is called with each
    /// piece of text; returning `false` stops the generation.
    ///
    /// # Errors
    /// If the model or the device fails.
    pub async fn write(
        &mut self,
        prompt: &str,
        most: usize,
        text: &mut dyn FnMut(&str) -> bool,
    ) -> Result<(Vec<u32>, FinishReason), Failure> {
        self.generator.reset();
        let prompt = self.tokenizer.encode(prompt, true)?;
        let options = GenerateOptions {
            max_tokens: most,
            stop: &[],
            eos: &self.eos,
            spelled: &[],
        };
        let event = &mut |event: GenerateEvent<'_>| match event {
            GenerateEvent::Prompt(_) => true,
            GenerateEvent::Text(piece, _) => text(piece),
        };
        let written = generate_async(
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

/// A sentence encoder with mean pooling.
pub struct Sentences {
    embedder: Embedder,
}

/// Texts per run. A small batch saves memory, which matters more in a web page than speed.
const BATCH: usize = 8;
/// Maximum tokens of a text; longer texts are truncated.
const MAX_TOKENS: usize = 256;

impl Sentences {
    /// Compiles an encoder for a device, from the contents of `config.json`, `tokenizer.json` and
    /// `model.safetensors`.
    ///
    /// # Errors
    /// If a file is invalid or the device cannot run the model.
    pub fn open(
        config: &[u8],
        tokenizer: &[u8],
        weights: Vec<u8>,
        device: &Device,
    ) -> Result<Sentences, Failure> {
        let config: Map<String, Value> = serde_json::from_slice(config)?;
        let weights = HfWeights::parse(MappedFile::from_vec(weights))?;
        let spec = EncoderSpec::from_weights(&config, &weights)?;
        let output = EncoderOutput::mean_normalized();
        let encoder = Encoder::build(&spec, &Weights::Hf(weights), &output, DType::F32)?;
        let tokenizer = Tokenizer::from_json(tokenizer)?;
        let most = MAX_TOKENS.min(encoder.context);
        let embedder = Embedder::new(&encoder, tokenizer, device, Some(BATCH), most)?;
        Ok(Sentences {
            embedder: embedder.truncating(true),
        })
    }

    /// Embeddings of texts, with unit length.
    ///
    /// # Errors
    /// If the tokenizer or the device fails.
    pub async fn embed<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Vec<f32>>, Failure> {
        Ok(self.embedder.embed_async(texts, &mut |_| true).await?)
    }
}
