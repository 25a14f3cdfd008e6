//! `tercet merge`: a model with adapters in its weights.

use std::path::PathBuf;

use tercet_models::Family;
use tercet_models::adapter::merge;
use tercet_models::save::{PackedAs, SaveOptions};

use super::generate::{adapters, open_model};
use crate::error::{CliError, Outcome};
use crate::output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A GGUF file, or a folder with safetensors [default: the embedded model]
    #[arg(short, long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// An adapter: a folder of PEFT or a GGUF file, with =SCALE behind it to weigh it; as often as there are adapters
    #[arg(long, value_name = "PATH[=SCALE]", required = true)]
    lora: Vec<String>,
    /// Where the model goes: a folder where the model is one, a GGUF file where it is one
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
    /// Write changed weights that were packed as Q8_0 instead of f16
    #[arg(long)]
    q8_0: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let (files, what) = open_model(args.model.as_deref())?;
    let family = files.family().map_err(CliError::model(what.clone()))?;
    let config = match family {
        Family::Decoder => Some(files.decoder_spec().map_err(CliError::model(what))?),
        Family::Encoder
        | Family::TextToText
        | Family::Vision
        | Family::VisionLanguage
        | Family::Speech => None,
    };
    let adapters = adapters(&args.lora, config.as_ref())?;
    let options = SaveOptions {
        packed: match args.q8_0 {
            true => PackedAs::Q8_0,
            false => PackedAs::F16,
        },
        ..SaveOptions::default()
    };
    let failed = || CliError::model(format!("cannot write {}", args.out.display()));
    let saved = merge(&files, &adapters, &args.out, &options).map_err(failed())?;
    let unpacked = match saved.unpacked.len() {
        0 => String::new(),
        n => format!(
            ", {n} of which were packed and are {} now",
            if args.q8_0 { "Q8_0" } else { "F16" }
        ),
    };
    output::note(format_args!(
        "{} weights changed{unpacked}; wrote {}",
        saved.changed.len(),
        saved.path.display()
    ));
    Ok(Outcome::Done)
}
