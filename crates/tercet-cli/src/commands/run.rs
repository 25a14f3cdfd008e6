//! `tercet run`: a graph in text form on arrays from files.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use tercet::{
    Bindings, CompileError, CompileOptions, DType, Graph, Port, Signature, Tensor, TensorType,
};

use super::device;
use crate::error::{CliError, Outcome};
use crate::npy::{NpyArray, NpyDtype, read_npy, read_npz, write_npy, write_npz};
use crate::output;

/// What of a tensor a person is shown.
const MAX_ROWS: usize = 16;
const MAX_COLUMNS: usize = 8;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The graph; docs/text-form.md has the language
    graph: PathBuf,
    /// An array as NAME=FILE.npy, or several by name as FILE.npz
    #[arg(short, long, value_name = "[NAME=]FILE")]
    input: Vec<String>,
    /// Write the results to an .npz file, or a single one to .npy
    #[arg(short, long, value_name = "FILE")]
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
    /// In the shortest form that gives the same number; NaN and infinities as strings.
    values: Vec<Value>,
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
    let target = match &args.output {
        Some(path) => Some(target(path, &signature)?),
        None => None,
    };
    let tensors = read_tensors(&signature, &args.input)?;

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
        exe.set_param(&name, tensor)?;
    }
    for (name, tensor) in of(&signature.states) {
        exe.write_state(&name, &tensor)?;
    }
    let results = exe.run(&inputs)?;
    if let Some(target) = target {
        save(target, &signature, &results)?;
    }
    show(args, &signature, &results)?;
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
    match path.extension().and_then(|e| e.to_str()) {
        Some("npz") => Ok(Target::Npz(path)),
        Some("npy") if n == 1 => Ok(Target::Npy(path)),
        Some("npy") => Err(CliError::Usage(format!(
            "the graph has {n} outputs and {shown} holds one; write to an .npz file"
        ))),
        Some(_) | None => Err(CliError::Usage(format!(
            "cannot write to {shown}; results go to .npz or .npy files"
        ))),
    }
}

fn save(target: Target<'_>, signature: &Signature, results: &[Tensor]) -> Result<(), CliError> {
    let named = signature.outputs.iter().zip(results);
    let arrays: Vec<_> = named.map(|(o, t)| (o.name.clone(), to_array(t))).collect();
    match (target, arrays.as_slice()) {
        (Target::Npy(path), [(_, array)]) => write_npy(path, array)?,
        (Target::Npy(path) | Target::Npz(path), arrays) => write_npz(path, arrays)?,
    }
    Ok(())
}

/// The tensors of `--input` arguments, by the names of the graph.
pub(crate) fn read_tensors(
    signature: &Signature,
    inputs: &[String],
) -> Result<Vec<(String, Tensor)>, CliError> {
    let mut given = Vec::new();
    for input in inputs {
        given.extend(read_arrays(input)?);
    }
    to_tensors(signature, given)
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
            let known = match known.as_slice() {
                [] => "nothing".to_string(),
                known => known.join(", "),
            };
            return Err(CliError::Usage(format!(
                "the graph has no `{name}`; it takes: {known}"
            )));
        };
        if tensors.iter().any(|(n, _)| *n == name) {
            return Err(CliError::Usage(format!("`{name}` is given twice")));
        }
        let tensor = to_tensor(&name, array, port.ty.dtype)?;
        let (found, wanted) = (tensor.dtype(), port.ty.dtype);
        if found != wanted {
            return Err(CliError::Usage(format!(
                "array `{name}` is {found}, the graph takes {wanted}; convert it with numpy's astype"
            )));
        }
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
    if args.json {
        let rows: Vec<Row<'_>> = named()
            .map(|(name, t)| Row {
                name,
                dtype: t.dtype().name(),
                shape: t.shape(),
                values: values(t),
            })
            .collect();
        return output::json(&rows);
    }
    let mut out = std::io::stdout().lock();
    for (name, tensor) in named() {
        writeln!(out, "{name}: {}", tensor.ty())?;
        print(&mut out, tensor)?;
    }
    Ok(())
}

/// The first rows of the last axis, a line each.
fn print(out: &mut impl Write, tensor: &Tensor) -> std::io::Result<()> {
    let all = values(tensor);
    let row = tensor.shape().last().map_or(1, |&n| n.max(1));
    for (i, values) in all.chunks(row).enumerate() {
        if i == MAX_ROWS {
            return writeln!(out, "  ... {} more rows", all.len() / row - MAX_ROWS);
        }
        write!(out, " ")?;
        for value in values.iter().take(MAX_COLUMNS) {
            let text = match value {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            write!(out, " {text:>12}")?;
        }
        if values.len() > MAX_COLUMNS {
            write!(out, "  ... {} more", values.len() - MAX_COLUMNS)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// The elements as JSON. Wide integers keep every digit; a float is printed as its own type is.
fn values(tensor: &Tensor) -> Vec<Value> {
    let float = |x: f64| match x {
        _ if x.is_nan() => Value::from("nan"),
        f64::INFINITY => Value::from("inf"),
        f64::NEG_INFINITY => Value::from("-inf"),
        x => Value::from(x),
    };
    // The shortest decimal of an f32, which serde_json would print as the f64 that it equals.
    let short = |x: f64| match (x as f32).to_string().parse() {
        Ok(x) => float(x),
        Err(_) => float(x),
    };
    match tensor.dtype() {
        DType::F64 => tensor.to_f64s().into_iter().map(float).collect(),
        DType::F32 | DType::F16 | DType::BF16 => tensor.to_f64s().into_iter().map(short).collect(),
        DType::I8 | DType::I32 | DType::I64 | DType::U8 | DType::U32 => {
            tensor.to_i64s().into_iter().map(Value::from).collect()
        }
        DType::Bool => {
            let bits = tensor.to_i64s().into_iter();
            bits.map(|x| Value::from(x != 0)).collect()
        }
    }
}
