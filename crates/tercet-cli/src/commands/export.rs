//! `tercet export`: a graph, or a model's, as an ONNX model.

use std::collections::HashMap;
use std::path::PathBuf;

use tercet::Tensor;

use super::onnx;
use super::source::Source;
use crate::error::{CliError, Outcome};
use crate::output;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Values that decide shapes of an ONNX model, and of parameters of a graph, as NAME=FILE.npy or FILE.npz
    #[arg(short, long, value_name = "[NAME=]FILE")]
    input: Vec<String>,
    /// Where the model goes, a name that ends in .onnx; above 1 GiB its weights go to a file beside it
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    if !onnx::is_onnx(&args.out) {
        let name = args.out.display();
        return Err(CliError::Usage(format!(
            "{name} does not end in .onnx, by which tools know the format"
        )));
    }
    let sourced = args.source.load(&args.input)?;
    let tensors = sourced.params.into_iter().chain(sourced.given);
    let tensors: HashMap<String, Tensor> = tensors.collect();
    let failed = |source| CliError::Export {
        path: args.out.clone(),
        source,
    };
    let weight = |name: &str| tensors.get(name).cloned();
    let model = tercet_onnx::export(&sourced.graph, weight).map_err(failed)?;
    let nodes = model.graph.as_ref().map_or(0, |g| g.node.len());
    let weights = model.graph.as_ref().map_or(0, |g| g.initializer.len());
    tercet_onnx::write(model, &args.out).map_err(failed)?;
    output::note(format_args!(
        "{}: {}, {}",
        args.out.display(),
        tercet::counted(nodes, "node", "nodes"),
        tercet::counted(weights, "tensor", "tensors"),
    ));
    Ok(Outcome::Done)
}
