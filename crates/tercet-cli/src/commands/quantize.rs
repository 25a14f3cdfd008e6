//! `tercet quantize`: converts a model to a GGUF file with quantized weights.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use tercet_models::GgmlType;
use tercet_models::save::{QuantMix, quantize_model};

use super::generate::open_model;
use crate::error::{CliError, CommandOutcome};
use crate::{output, progress};

#[derive(clap::Args)]
pub(crate) struct QuantizeArgs {
    /// A GGUF file, or a folder with safetensors and a tokenizer [default: the embedded model]
    #[arg(short, long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Target format: q8_0, q6_k, q5_k, q4_k, q3_k, q2_k, q5_1, q5_0, q4_1, q4_0, mxfp4, bf16, f16
    /// or f32; the suffix `_m` of a K format gives the most sensitive tensors more bits
    #[arg(short = 't', long = "type", default_value = "q4_k_m", value_name = "FORMAT", value_parser = recipe)]
    recipe: QuantMix,
    /// Output file
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
    /// Print every tensor with its error as JSON
    #[arg(long)]
    json: bool,
}

fn recipe(text: &str) -> Result<QuantMix, String> {
    let (name, mixed) = match text.to_ascii_lowercase().strip_suffix("_k_m") {
        Some(base) => (format!("{base}_k"), true),
        None => (text.to_ascii_lowercase(), false),
    };
    let found = GgmlType::ALL
        .iter()
        .find(|ty| ty.name().eq_ignore_ascii_case(&name));
    let to = *found.ok_or("expected a format such as q4_k_m, q8_0 or f16")?;
    Ok(QuantMix { to, mixed })
}

#[derive(Serialize)]
struct QuantizedTensorRow<'a> {
    tensor: &'a str,
    before: &'static str,
    after: &'static str,
    bytes: u64,
    relative_error: f64,
}

pub(crate) fn run(args: &QuantizeArgs) -> Result<CommandOutcome, CliError> {
    let (files, _) = open_model(args.model.as_deref())?;
    let bar = progress::bar("rounding", 1, "tensors");
    let done = quantize_model(&files, &args.out, &args.recipe, &|at, of| {
        bar.set_length(of as u64);
        bar.set_position(at as u64);
    });
    bar.finish_and_clear();
    let failed = CliError::model(format!("cannot write {}", args.out.display()));
    let done = done.map_err(failed)?;
    if args.json {
        let rows = done.tensors.iter().map(|t| QuantizedTensorRow {
            tensor: &t.name,
            before: t.source_storage.name(),
            after: t.after.name(),
            bytes: t.bytes,
            relative_error: t.error,
        });
        output::json(&rows.collect::<Vec<_>>())?;
        return Ok(CommandOutcome::Done);
    }
    // For each pair of old and new format: tensors, bytes, maximum error and the tensor with that
    // error.
    let mut kinds: BTreeMap<(&str, &str), (usize, u64, f64, &str)> = BTreeMap::new();
    for t in &done.tensors {
        let kind = kinds.entry((t.source_storage.name(), t.after.name()));
        let (count, bytes, error, worst) = kind.or_insert((0, 0, -1.0, ""));
        *count += 1;
        *bytes += t.bytes;
        if t.error > *error {
            (*error, *worst) = (t.error, &t.name);
        }
    }
    for ((before, after), (count, bytes, error, worst)) in kinds {
        let size = bytes as f64 / (1 << 20) as f64;
        let line = match before == after {
            true => format!("{before} unchanged: {count} tensors, {size:.1} MiB\n"),
            false => format!(
                "{before} to {after}: {count} tensors, {size:.1} MiB; error at most {:.2} % ({worst})\n",
                100.0 * error
            ),
        };
        output::text(&line)?;
    }
    let (elements, bytes) = done
        .tensors
        .iter()
        .fold((0, 0), |(n, b), t| (n + t.elements, b + t.bytes));
    output::print_note(format_args!(
        "{:.2} bits per weight, {:.1} MiB; wrote {}",
        8.0 * bytes as f64 / (elements as f64).max(1.0),
        bytes as f64 / (1 << 20) as f64,
        done.path.display()
    ));
    Ok(CommandOutcome::Done)
}
