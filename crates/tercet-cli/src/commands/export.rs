//! `tercet export`: writes a graph, or the graph of a model, as an ONNX model.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tercet::Tensor;

use super::onnx;
use super::source::{GraphSourceArgs, LoadedGraph};
use crate::error::{CliError, CommandOutcome};
use crate::{output, progress};

#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    source: GraphSourceArgs,
    /// Values that determine shapes of an ONNX model, and values of a graph's parameters, as
    /// NAME=FILE.npy or FILE.npz
    #[arg(short, long, value_name = "[NAME=]FILE")]
    input: Vec<String>,
    /// Output file, with the extension .onnx; above 1 GiB the weights go to a second file next to
    /// it. A model of several graphs is written to files such as OUT.encoder.onnx, or one of them
    /// with --part
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
}

pub(crate) fn run(args: &ExportArgs) -> Result<CommandOutcome, CliError> {
    if !onnx::is_onnx(&args.out) {
        let name = args.out.display();
        return Err(CliError::Usage(format!(
            "{name} does not end in .onnx; tools recognize the format by this extension"
        )));
    }
    let spinner = progress::spinner("exporting");
    match args.source.all_parts()? {
        None => write(args.source.load(&args.input, None)?, &args.out),
        Some(parts) => {
            if let Some(given) = args.input.first() {
                let text = format!("--input {given}: choose a graph of the model with --part");
                return Err(CliError::Usage(text));
            }
            for (name, part) in parts {
                write(part, &part_path(&args.out, name))?;
            }
            Ok(())
        }
    }?;
    spinner.finish_and_clear();
    Ok(CommandOutcome::Done)
}

/// The file of a part: `model.onnx` becomes `model.decoder.onnx`.
fn part_path(out: &Path, part: &str) -> PathBuf {
    let end = out.extension().unwrap_or_default().to_owned();
    let mut name = out.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{part}."));
    name.push(end);
    out.with_file_name(name)
}

fn write(sourced: LoadedGraph, out: &Path) -> Result<(), CliError> {
    let tensors = sourced.params.into_iter().chain(sourced.arrays);
    let tensors: HashMap<String, Tensor> = tensors.collect();
    let failed = |source| CliError::Export {
        path: out.to_path_buf(),
        source,
    };
    let weight = |name: &str| tensors.get(name).cloned();
    let model = tercet_onnx::export(&sourced.graph, weight).map_err(failed)?;
    let nodes = model.graph.as_ref().map_or(0, |g| g.node.len());
    let weights = model.graph.as_ref().map_or(0, |g| g.initializer.len());
    tercet_onnx::write(model, out).map_err(failed)?;
    output::print_note(format_args!(
        "{}: {}, {}",
        out.display(),
        tercet::counted(nodes, "node", "nodes"),
        tercet::counted(weights, "tensor", "tensors"),
    ));
    Ok(())
}
