//! `tercet run`: runs a graph in text form or an ONNX model on arrays from files.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tercet::{Bindings, CompileError, CompileOptions, Graph, Port, Signature, Tensor, counted};
use tercet_onnx::DynamicSizeOutput;

use super::device;
use super::dump::dump;
use super::onnx;
use super::source::read_graph;
use super::strings::{self, OutputLabels};
use super::tensors::{JsonElements, print, read_tensors, to_array};
use crate::error::{CliError, CommandOutcome};
use crate::npy::{write_npy, write_npz};
use crate::{output, output_path, progress};

#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// A graph in text form (see docs/reference/text-format.md), or an .onnx file
    graph: PathBuf,
    /// Input array as NAME=FILE.npy, several arrays as FILE.npz, or strings of an ONNX model as
    /// NAME=FILE.txt, one per line; repeatable
    #[arg(short, long, value_name = "[NAME=]FILE")]
    input: Vec<String>,
    /// Write the results to an .npz file, or a single result to .npy
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Device to run on; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Write the value of every node to DIR as an .npy file, named after its number, its operator
    /// and the output name
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// With --dump: write the values of the optimized program, those that it writes to memory with
    /// all passes and fused kernels
    #[arg(long, alias = "optimised", requires = "dump")]
    optimized: bool,
    /// Stop at the first node that produces NaN or inf from finite inputs, and print its operands
    #[arg(long)]
    first_nonfinite: bool,
    /// Print JSON with all values
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct OutputTensorRow<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [usize],
    /// Each number in the shortest decimal form that parses back to it; NaN and infinities as
    /// strings.
    values: JsonElements<'a>,
    /// Strings of an ONNX model; `values` are then positions in the model's string list.
    #[serde(skip_serializing_if = "Option::is_none")]
    strings: Option<Vec<Option<String>>>,
    /// Keys of the columns, if the output represents ONNX maps.
    #[serde(skip_serializing_if = "Option::is_none")]
    columns: Option<&'a [String]>,
}

impl<'a> OutputTensorRow<'a> {
    fn new(name: &'a str, tensor: &'a Tensor, meaning: &'a OutputLabels) -> OutputTensorRow<'a> {
        OutputTensorRow {
            name,
            dtype: tensor.dtype().name(),
            shape: tensor.shape(),
            values: JsonElements(tensor),
            strings: meaning.strings(name, tensor),
            columns: meaning.columns(name),
        }
    }
}

/// A graph with its inputs and weights. `tensors` is set if loading the graph already needed the
/// arrays (ONNX).
struct RunnableGraph {
    graph: Graph,
    tensors: Option<Vec<(String, Tensor)>>,
    /// Outputs whose size depends on data.
    data_sized: Vec<DynamicSizeOutput>,
    labels: OutputLabels,
}

fn load(args: &RunArgs) -> Result<RunnableGraph, CliError> {
    if !onnx::is_onnx(&args.graph) {
        return Ok(RunnableGraph {
            graph: read_graph(&args.graph)?,
            tensors: None,
            data_sized: Vec::new(),
            labels: OutputLabels::default(),
        });
    }
    let onnx::OpenedOnnxModel {
        imported,
        arrays: given,
        ..
    } = onnx::open(&args.graph, &args.input, &[])?;
    let meaning = OutputLabels::new(&imported);
    let mut tensors = given;
    tensors.extend(imported.params);
    Ok(RunnableGraph {
        graph: imported.graph,
        tensors: Some(tensors),
        data_sized: imported.counted,
        labels: meaning,
    })
}

pub(crate) fn run(args: &RunArgs) -> Result<CommandOutcome, CliError> {
    let RunnableGraph {
        graph,
        tensors,
        data_sized: counted,
        labels: meaning,
    } = load(args)?;
    let mut signature = Signature::of(&graph);
    // The last outputs are the used sizes of data-dependent outputs; they are not shown.
    let shown = signature.outputs.len().saturating_sub(counted.len());
    signature.outputs.truncate(shown);
    if signature.outputs.iter().any(|o| o.name.is_empty()) {
        let text = "an output of the graph has no name; results are identified by name";
        return Err(CliError::Usage(text.into()));
    }
    let target = match &args.output {
        Some(path) => Some(target(path, &signature)?),
        None => None,
    };
    let tensors = match tensors {
        Some(tensors) => tensors,
        None => read_tensors(&signature, &args.input)?,
    };
    let plain = device(&args.device)?;
    let device = match args.first_nonfinite {
        true => plain.with_finite_check(),
        false => plain.clone(),
    };

    let of = |ports: &[Port]| -> Vec<(String, Tensor)> {
        let is_of = |name: &str| ports.iter().any(|p| p.name == name);
        tensors.iter().filter(|(n, _)| is_of(n)).cloned().collect()
    };
    for port in signature.inputs.iter().chain(&signature.params) {
        let Port { name, ty } = port;
        if !tensors.iter().any(|(n, _)| n == name) {
            return Err(CliError::Usage(format!(
                "`{name}` of type {ty} is missing; provide it with --input {name}=FILE.npy"
            )));
        }
    }
    let inputs = of(&signature.inputs);
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    // The graph runs once, so its bounds are the sizes of the inputs.
    let mut sizes = Bindings::new();
    signature.bind(&inputs, &Bindings::new(), &mut sizes)?;
    let options = CompileOptions {
        bounds: sizes,
        ..Default::default()
    };
    let spinner = progress::spinner("running");
    let mut exe = device.compile(&graph, &options).map_err(compile_error)?;
    for (name, tensor) in of(&signature.params) {
        // Compilation removes parameters that no result depends on.
        if exe.signature().params.iter().any(|p| p.name == name) {
            exe.set_param(&name, tensor)?;
        }
    }
    for (name, tensor) in of(&signature.states) {
        exe.write_state(&name, &tensor)?;
    }
    if let Some(dir) = &args.dump {
        dump(dir, &graph, &tensors, &plain, args.optimized)?;
    }
    let results = tercet_onnx::cut(&counted, exe.run(&inputs)?).map_err(CliError::Usage)?;
    spinner.finish_and_clear();
    if args.first_nonfinite {
        output::print_note(format_args!(
            "no node produces NaN or inf from finite inputs"
        ));
    }
    if let Some(target) = target {
        save(target, &signature, &results)?;
    }
    show(args, &signature, &results, &meaning)?;
    Ok(CommandOutcome::Done)
}

/// Input arrays are the only source of sizes here, so a symbol without a size needs a different
/// remedy than in the library.
fn compile_error(e: CompileError) -> CliError {
    if let CompileError::Unbounded { symbol } = &e {
        return CliError::Usage(format!(
            "no input determines the size `{symbol}`; replace it by a number in the graph"
        ));
    }
    e.into()
}

/// Output file format.
enum OutputFile<'a> {
    Npy(&'a Path),
    Npz(&'a Path),
}

fn target<'a>(path: &'a Path, signature: &Signature) -> Result<OutputFile<'a>, CliError> {
    let shown = path.display();
    let n = signature.outputs.len();
    let target = match path.extension().and_then(|e| e.to_str()) {
        Some("npz") => OutputFile::Npz(path),
        Some("npy") if n == 1 => OutputFile::Npy(path),
        Some("npy") => {
            return Err(CliError::Usage(format!(
                "the graph has {}, but {shown} can store only one; write to an .npz file",
                counted(n, "output", "outputs")
            )));
        }
        Some(_) | None => {
            return Err(CliError::Usage(format!(
                "cannot write to {shown}; expected an .npz or .npy file"
            )));
        }
    };
    output_path::check(path)?;
    Ok(target)
}

fn save(target: OutputFile<'_>, signature: &Signature, results: &[Tensor]) -> Result<(), CliError> {
    let named = signature.outputs.iter().zip(results);
    let arrays: Vec<_> = named.map(|(o, t)| (o.name.clone(), to_array(t))).collect();
    match (target, arrays.as_slice()) {
        (OutputFile::Npy(path), [(_, array)]) => {
            output_path::write(path, |mut file| write_npy(&mut file, array))
        }
        (OutputFile::Npy(path) | OutputFile::Npz(path), arrays) => {
            output_path::write(path, |file| write_npz(file, arrays))
        }
    }
}

fn show(
    args: &RunArgs,
    signature: &Signature,
    results: &[Tensor],
    meaning: &OutputLabels,
) -> Result<(), CliError> {
    let named = || {
        let outputs = signature.outputs.iter();
        outputs.map(|o| o.name.as_str()).zip(results)
    };
    if args.json {
        let row = |(name, tensor): (_, _)| OutputTensorRow::new(name, tensor, meaning);
        let rows: Vec<OutputTensorRow<'_>> = named().map(row).collect();
        return output::json(&rows);
    }
    output::print_for_humans(|out| {
        for (name, tensor) in named() {
            writeln!(out, "{}: {}", output::escape_line(name), tensor.ty())?;
            if let Some(keys) = meaning.columns(name) {
                let shown: Vec<_> = keys.iter().map(|k| output::escape_line(k)).collect();
                writeln!(out, "  columns: {}", shown.join(", "))?;
            }
            match meaning.strings(name, tensor) {
                None => print(out, tensor)?,
                Some(found) => strings::print(out, &found)?,
            }
        }
        Ok(())
    })
}
