//! `tercet run`: a graph in text form on arrays from files.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tercet::{Bindings, CompileOptions, DType, Graph, Port, Signature, Tensor, TensorType};

use super::device;
use crate::error::{CliError, Outcome};
use crate::npy::{NpyArray, NpyDtype, read_npy, read_npz, write_npz};
use crate::output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The graph; docs/text-form.md has the language
    graph: PathBuf,
    /// NAME=FILE.npy for an input, parameter or state, or FILE.npz with arrays by those names
    #[arg(short, long, value_name = "[NAME=]FILE")]
    input: Vec<String>,
    /// Write all results to this .npz file
    #[arg(short, long, value_name = "FILE.npz")]
    output: Option<PathBuf>,
    /// Where to run; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Print JSON with every value
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [usize],
    values: Vec<f64>,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let device = device(&args.device)?;
    let path = args.graph.clone();
    let text = std::fs::read_to_string(&path).map_err(|source| CliError::File {
        path: path.clone(),
        source,
    })?;
    let graph: Graph = text
        .parse()
        .map_err(|source| CliError::Graph { path, source })?;
    let signature = Signature::of(&graph);
    let mut given = Vec::new();
    for input in &args.input {
        given.extend(read_arrays(input)?);
    }
    let tensors = to_tensors(&signature, given)?;

    let of = |ports: &[Port]| -> Vec<(String, Tensor)> {
        let is_of = |name: &str| ports.iter().any(|p| p.name == name);
        tensors.iter().filter(|(n, _)| is_of(n)).cloned().collect()
    };
    let inputs = of(&signature.inputs);
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    // The graph runs once: its bounds are the sizes at hand.
    let mut sizes = Bindings::new();
    signature.bind(&inputs, &Bindings::new(), &mut sizes)?;
    let mut exe = device.compile(
        &graph,
        &CompileOptions {
            bounds: sizes,
            ..Default::default()
        },
    )?;
    for (name, tensor) in of(&signature.params) {
        exe.set_param(&name, tensor)?;
    }
    for (name, tensor) in of(&signature.states) {
        exe.write_state(&name, &tensor)?;
    }
    let results = exe.run(&inputs)?;
    show(args, &signature, &results)?;
    Ok(Outcome::Done)
}

/// The arrays of `NAME=FILE.npy` or `FILE.npz`.
fn read_arrays(input: &str) -> Result<Vec<(String, NpyArray)>, CliError> {
    match input.split_once('=') {
        Some((name, file)) => Ok(vec![(name.to_string(), read_npy(Path::new(file))?)]),
        None if input.ends_with(".npz") => Ok(read_npz(Path::new(input))?),
        None => Err(CliError::Usage(format!(
            "`{input}` is neither NAME=FILE.npy nor FILE.npz"
        ))),
    }
}

fn to_tensors(
    signature: &Signature,
    arrays: Vec<(String, NpyArray)>,
) -> Result<Vec<(String, Tensor)>, CliError> {
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    let ports = || {
        signature
            .inputs
            .iter()
            .chain(&signature.params)
            .chain(&signature.states)
    };
    for (name, array) in arrays {
        let Some(port) = ports().find(|p| p.name == name) else {
            let known: Vec<&str> = ports().map(|p| p.name.as_str()).collect();
            let known = known.join(", ");
            return Err(CliError::Usage(format!(
                "the graph has no `{name}`; it takes: {known}"
            )));
        };
        if tensors.iter().any(|(n, _)| *n == name) {
            return Err(CliError::Usage(format!("`{name}` is given twice")));
        }
        let tensor = to_tensor(&name, array, port.ty.dtype)?;
        tensors.push((name, tensor));
    }
    Ok(tensors)
}

/// NumPy has no bfloat16: an array of f4 is rounded where the graph takes bf16. All other dtypes
/// must be the graph's own.
fn to_tensor(name: &str, array: NpyArray, wanted: DType) -> Result<Tensor, CliError> {
    let (dtype, shape, bytes) = array.into_parts();
    let dtype = match dtype {
        NpyDtype::F16 => DType::F16,
        NpyDtype::F32 => DType::F32,
        NpyDtype::F64 => DType::F64,
        NpyDtype::I8 => DType::I8,
        NpyDtype::I32 => DType::I32,
        NpyDtype::I64 => DType::I64,
        NpyDtype::U8 => DType::U8,
        NpyDtype::U32 => DType::U32,
        NpyDtype::Bool => DType::Bool,
    };
    let bad = |source| CliError::Tensor {
        what: format!("array `{name}`"),
        source,
    };
    let tensor = Tensor::from_bytes(TensorType::new(dtype, &shape), &bytes).map_err(bad)?;
    if dtype == DType::F32 && wanted == DType::BF16 {
        let ty = TensorType::new(wanted, &shape);
        return Tensor::from_f64s(ty, &tensor.to_f64s()).map_err(bad);
    }
    Ok(tensor)
}

fn to_array(tensor: &Tensor) -> NpyArray {
    let shape = tensor.shape().to_vec();
    let (dtype, bytes) = match tensor.dtype() {
        DType::F16 => (NpyDtype::F16, tensor.bytes().to_vec()),
        DType::F32 => (NpyDtype::F32, tensor.bytes().to_vec()),
        DType::F64 => (NpyDtype::F64, tensor.bytes().to_vec()),
        DType::I8 => (NpyDtype::I8, tensor.bytes().to_vec()),
        DType::I32 => (NpyDtype::I32, tensor.bytes().to_vec()),
        DType::I64 => (NpyDtype::I64, tensor.bytes().to_vec()),
        DType::U8 => (NpyDtype::U8, tensor.bytes().to_vec()),
        DType::U32 => (NpyDtype::U32, tensor.bytes().to_vec()),
        DType::Bool => (NpyDtype::Bool, tensor.bytes().to_vec()),
        DType::BF16 => {
            let wide: Vec<u8> = tensor
                .to_f64s()
                .iter()
                .flat_map(|&x| (x as f32).to_le_bytes())
                .collect();
            (NpyDtype::F32, wide)
        }
    };
    NpyArray::new(dtype, shape, bytes).expect("invariant: a tensor's bytes fit its shape")
}

fn show(args: &Args, signature: &Signature, results: &[Tensor]) -> Result<(), CliError> {
    let named = || {
        signature
            .outputs
            .iter()
            .map(|o| o.name.as_str())
            .zip(results)
    };
    if let Some(path) = &args.output {
        let arrays: Vec<_> = named()
            .map(|(name, t)| (name.to_string(), to_array(t)))
            .collect();
        write_npz(path, &arrays)?;
    }
    if args.json {
        let rows: Vec<Row<'_>> = named()
            .map(|(name, t)| Row {
                name,
                dtype: t.dtype().name(),
                shape: t.shape(),
                values: t.to_f64s(),
            })
            .collect();
        return output::json(&rows);
    }
    let mut out = std::io::stdout().lock();
    for (name, tensor) in named() {
        writeln!(out, "{name}: {tensor:?}")?;
    }
    Ok(())
}
