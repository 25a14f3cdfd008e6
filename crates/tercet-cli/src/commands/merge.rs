//! `tercet merge`: merges LoRA adapters into a model's weights.

use std::path::PathBuf;

use tercet_models::ModelFamily;
use tercet_models::adapter::merge;
use tercet_models::save::{RepackFormat, SaveOptions};

use super::generate::{adapters, open_model};
use crate::error::{CliError, CommandOutcome};
use crate::{output, progress};

#[derive(clap::Args)]
pub(crate) struct MergeArgs {
    /// A GGUF file, or a folder with safetensors [default: the embedded model]
    #[arg(short, long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// LoRA adapter: a PEFT folder or a GGUF file, optionally with a weight as PATH=SCALE;
    /// repeatable
    #[arg(long, value_name = "PATH[=SCALE]", required = true)]
    lora: Vec<String>,
    /// Output path: a folder if the model is a folder, a GGUF file if it is a GGUF file
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
    /// Write changed quantized weights as Q8_0 instead of f16
    #[arg(long)]
    q8_0: bool,
}

pub(crate) fn run(args: &MergeArgs) -> Result<CommandOutcome, CliError> {
    let (files, what) = open_model(args.model.as_deref())?;
    let family = files.family().map_err(CliError::model(what.clone()))?;
    let config = match family {
        ModelFamily::Decoder => Some(files.decoder_spec().map_err(CliError::model(what))?),
        ModelFamily::Encoder
        | ModelFamily::TextToText
        | ModelFamily::Vision
        | ModelFamily::VisionLanguage
        | ModelFamily::Speech => None,
    };
    let adapters = adapters(&args.lora, config.as_ref())?;
    let options = SaveOptions {
        packed: match args.q8_0 {
            true => RepackFormat::Q8_0,
            false => RepackFormat::F16,
        },
        ..SaveOptions::default()
    };
    let failed = || CliError::model(format!("cannot write {}", args.out.display()));
    let spinner = progress::spinner("merging");
    let saved = merge(&files, &adapters, &args.out, &options);
    spinner.finish_and_clear();
    let saved = saved.map_err(failed())?;
    let unpacked = match saved.unpacked.len() {
        0 => String::new(),
        n => format!(
            ", {n} of them quantized, now {}",
            if args.q8_0 { "Q8_0" } else { "F16" }
        ),
    };
    output::print_note(format_args!(
        "{} weights changed{unpacked}; wrote {}",
        saved.changed.len(),
        saved.path.display()
    ));
    Ok(CommandOutcome::Done)
}
