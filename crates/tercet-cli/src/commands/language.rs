//! A language model that writes: the arguments that say which, where and how, and what they make ready.

use std::path::PathBuf;

use tercet::Device;
use tercet_models::{Decoder, DecoderOptions, Generator, ModelFiles, Sampling, Tokenizer};

use super::generate::{adapters, open_model};
use super::{Precision, seed, within};
use crate::error::CliError;
use crate::{output, progress};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A GGUF file, or a folder with safetensors [default: the embedded model]
    #[arg(short, long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,
    /// An adapter: a folder of PEFT or a GGUF file, with =SCALE behind it to weigh it; as often as there are adapters
    #[arg(long, value_name = "PATH[=SCALE]")]
    pub(crate) lora: Vec<String>,
    /// Capacity in tokens, prompt included [default: as trained]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = capacity)]
    pub(crate) context: Option<usize>,
    /// 0 always takes the likeliest token; higher is more surprising
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = within(0.0..=1e6))]
    pub(crate) temp: f64,
    /// Choose among the K likeliest tokens; 0 or -1 for all
    #[arg(long, default_value_t = 0, value_name = "K", allow_negative_numbers = true, value_parser = top_k)]
    pub(crate) top_k: usize,
    /// Choose among the likeliest tokens that together have this probability
    #[arg(long, default_value_t = 1.0, value_name = "P", allow_negative_numbers = true, value_parser = within(0.0..=1.0))]
    pub(crate) top_p: f64,
    /// Seed of the random numbers; -1 draws one
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    pub(crate) seed: u64,
    /// Where to run; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub(crate) device: String,
    /// The float type to compute in; f16 and bf16 add up in f32
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Precision::F32)]
    pub(crate) dtype: Precision,
}

/// More than any model of today takes; tables and cache of a mistyped number would fill the memory.
const MAX_CONTEXT: usize = 1 << 20;

fn capacity(text: &str) -> Result<usize, String> {
    let n: Option<usize> = text.parse().ok();
    n.filter(|n| (1..=MAX_CONTEXT).contains(n))
        .ok_or_else(|| format!("expected a whole number from 1 to {MAX_CONTEXT}"))
}

fn top_k(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(0),
        text => text
            .parse()
            .map_err(|_| "expected a whole number; 0 or -1 for all tokens".to_string()),
    }
}

/// A model that is ready to write.
pub(crate) struct Loaded {
    pub(crate) files: ModelFiles,
    pub(crate) llama: Decoder,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) generator: Generator,
}

pub(crate) fn load(args: &Args, device: &Device) -> Result<Loaded, CliError> {
    let spinner = progress::spinner("loading");
    let sampling = Sampling {
        temperature: args.temp,
        top_k: args.top_k,
        top_p: args.top_p,
        ..Sampling::GREEDY
    };
    let (files, what) = open_model(args.model.as_deref())?;
    let adapters = match args.lora.is_empty() {
        true => Vec::new(),
        false => {
            let config = files.decoder_spec().map_err(CliError::model(&*what))?;
            adapters(&args.lora, Some(&config))?
        }
    };
    let llama = files
        .decoder(|config| DecoderOptions {
            context: args.context.unwrap_or(config.context),
            chunk: 512.min(args.context.unwrap_or(config.context)),
            dtype: args.dtype.dtype(),
            sampling: Some(sampling),
            adapters,
            ..DecoderOptions::new(config)
        })
        .map_err(CliError::model(what.clone()))?;
    let tokenizer = files.tokenizer().map_err(CliError::model(what.clone()))?;
    let mut generator = llama
        .generator(device)
        .map_err(CliError::model(what.clone()))?;
    generator.set_seed(args.seed);
    generator.skip_logits();
    spinner.finish_and_clear();
    if args.context.is_some_and(|c| c > llama.config.context) {
        let trained = llama.config.context;
        output::note(format_args!(
            "note: the model was trained for a context of {trained}; beyond it, it may ramble"
        ));
    }
    Ok(Loaded {
        files,
        llama,
        tokenizer,
        generator,
    })
}
