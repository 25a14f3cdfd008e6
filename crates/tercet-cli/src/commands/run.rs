//! `tercet run`: a graph in text form or an ONNX model on arrays from files.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tercet::{Bindings, CompileError, CompileOptions, Graph, Port, Signature, Tensor, counted};
use tercet_onnx::Counted;

use super::device;
use super::dump::dump;
use super::onnx;
use super::source::read_graph;
use super::strings::{self, Meaning};
use super::tensors::{Elements, print, read_tensors, to_array};
use crate::error::{CliError, Outcome};
use crate::npy::{write_npy, write_npz};
use crate::{destination, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A graph in text form (docs/text-form.md has the language), or an .onnx file
    graph: PathBuf,
    /// An array as NAME=FILE.npy, several by name as FILE.npz, or for an ONNX model strings, a line each, as NAME=FILE.txt
    #[arg(short, long, value_name = "[NAME=]FILE")]
    input: Vec<String>,
    /// Write the results to an .npz file, or a single one to .npy
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Where to run; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Write what every node computes to DIR, an .npy file each: by its number, operator and, for results, name
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// Fail at the first node whose result is not finite although its operands are, and say what they are
    #[arg(long)]
    first_nonfinite: bool,
    /// Print JSON with every value
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [usize],
    /// In the shortest form that gives the same number; NaN and infinities as strings.
    values: Elements<'a>,
    /// Of an ONNX model's strings, whose places the values are.
    #[serde(skip_serializing_if = "Option::is_none")]
    strings: Option<Vec<Option<String>>>,
    /// Of an ONNX model's maps: the keys of the columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    columns: Option<&'a [String]>,
}

impl<'a> Row<'a> {
    fn new(name: &'a str, tensor: &'a Tensor, meaning: &'a Meaning) -> Row<'a> {
        Row {
            name,
            dtype: tensor.dtype().name(),
            shape: tensor.shape(),
            values: Elements(tensor),
            strings: meaning.strings(name, tensor),
            columns: meaning.columns(name),
        }
    }
}

/// A graph, and all that is given for it, weights included, where it took that to make it.
struct Loaded {
    graph: Graph,
    tensors: Option<Vec<(String, Tensor)>>,
    /// Outputs whose size depends on data.
    counted: Vec<Counted>,
    meaning: Meaning,
}

fn load(args: &Args) -> Result<Loaded, CliError> {
    if !onnx::is_onnx(&args.graph) {
        return Ok(Loaded {
            graph: read_graph(&args.graph)?,
            tensors: None,
            counted: Vec::new(),
            meaning: Meaning::default(),
        });
    }
    let onnx::Opened {
        imported, given, ..
    } = onnx::open(&args.graph, &args.input, &[])?;
    let meaning = Meaning::of(&imported);
    let mut tensors = given;
    tensors.extend(imported.params);
    Ok(Loaded {
        graph: imported.graph,
        tensors: Some(tensors),
        counted: imported.counted,
        meaning,
    })
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let Loaded {
        graph,
        tensors,
        counted,
        meaning,
    } = load(args)?;
    let mut signature = Signature::of(&graph);
    // Behind the outputs of the model there is what says how much of them is used.
    let shown = signature.outputs.len().saturating_sub(counted.len());
    signature.outputs.truncate(shown);
    if signature.outputs.iter().any(|o| o.name.is_empty()) {
        let text = "an output of the graph has no name; results are shown and written by name";
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
                "`{name}` of type {ty} is missing; give it with --input {name}=FILE.npy"
            )));
        }
    }
    let inputs = of(&signature.inputs);
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    // The graph runs once: its bounds are the sizes at hand.
    let mut sizes = Bindings::new();
    signature.bind(&inputs, &Bindings::new(), &mut sizes)?;
    let options = CompileOptions {
        bounds: sizes,
        ..Default::default()
    };
    let mut exe = device.compile(&graph, &options).map_err(compile_error)?;
    for (name, tensor) in of(&signature.params) {
        // What no result depends on may be gone.
        if exe.signature().params.iter().any(|p| p.name == name) {
            exe.set_param(&name, tensor)?;
        }
    }
    for (name, tensor) in of(&signature.states) {
        exe.write_state(&name, &tensor)?;
    }
    if let Some(dir) = &args.dump {
        dump(dir, &graph, &tensors, &plain)?;
    }
    let results = tercet_onnx::cut(&counted, exe.run(&inputs)?).map_err(CliError::Usage)?;
    if args.first_nonfinite {
        output::note(format_args!(
            "no node computes a number that is not finite of finite operands"
        ));
    }
    if let Some(target) = target {
        save(target, &signature, &results)?;
    }
    show(args, &signature, &results, &meaning)?;
    Ok(Outcome::Done)
}

/// Here only inputs give sizes, so the remedy of a symbol without one is another than in a program.
fn compile_error(e: CompileError) -> CliError {
    if let CompileError::Unbounded { symbol } = &e {
        return CliError::Usage(format!(
            "no input has the size `{symbol}`; write a number in its place in the graph"
        ));
    }
    e.into()
}

/// Where results go.
enum Target<'a> {
    Npy(&'a Path),
    Npz(&'a Path),
}

fn target<'a>(path: &'a Path, signature: &Signature) -> Result<Target<'a>, CliError> {
    let shown = path.display();
    let n = signature.outputs.len();
    let target = match path.extension().and_then(|e| e.to_str()) {
        Some("npz") => Target::Npz(path),
        Some("npy") if n == 1 => Target::Npy(path),
        Some("npy") => {
            return Err(CliError::Usage(format!(
                "the graph has {} and {shown} holds one; write to an .npz file",
                counted(n, "output", "outputs")
            )));
        }
        Some(_) | None => {
            return Err(CliError::Usage(format!(
                "cannot write to {shown}; results go to .npz or .npy files"
            )));
        }
    };
    destination::check(path)?;
    Ok(target)
}

fn save(target: Target<'_>, signature: &Signature, results: &[Tensor]) -> Result<(), CliError> {
    let named = signature.outputs.iter().zip(results);
    let arrays: Vec<_> = named.map(|(o, t)| (o.name.clone(), to_array(t))).collect();
    match (target, arrays.as_slice()) {
        (Target::Npy(path), [(_, array)]) => {
            destination::write(path, |mut file| write_npy(&mut file, array))
        }
        (Target::Npy(path) | Target::Npz(path), arrays) => {
            destination::write(path, |file| write_npz(file, arrays))
        }
    }
}

fn show(
    args: &Args,
    signature: &Signature,
    results: &[Tensor],
    meaning: &Meaning,
) -> Result<(), CliError> {
    let named = || {
        let outputs = signature.outputs.iter();
        outputs.map(|o| o.name.as_str()).zip(results)
    };
    if args.json {
        let row = |(name, tensor): (_, _)| Row::new(name, tensor, meaning);
        let rows: Vec<Row<'_>> = named().map(row).collect();
        return output::json(&rows);
    }
    output::people(|out| {
        for (name, tensor) in named() {
            writeln!(out, "{}: {}", output::shown(name), tensor.ty())?;
            if let Some(keys) = meaning.columns(name) {
                let shown: Vec<_> = keys.iter().map(|k| output::shown(k)).collect();
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
