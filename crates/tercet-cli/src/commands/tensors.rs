//! Conversion of tensors to `.npy` arrays, JSON, and abbreviated text output.
//!
//! Elements are converted in pieces of a few thousand. No code here converts a whole tensor to a
//! wider type.

use std::borrow::Cow;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::ser::{Serialize, Serializer};
use serde_json::Value;
use tercet::{DType, Signature, Tensor, TensorType, counted};

use crate::error::CliError;
use crate::npy::{NpyArray, NpyDtype, read_npy, read_npz};

/// Maximum rows and columns of a tensor in text output.
const MAX_ROWS: usize = 16;
const MAX_COLUMNS: usize = 8;

/// Elements converted per piece.
pub const PIECE: usize = 4096;

/// Reads the tensors of `--input` arguments, keyed by names of the graph.
pub(crate) fn read_tensors(
    signature: &Signature,
    inputs: &[String],
) -> Result<Vec<(String, Tensor)>, CliError> {
    read_tensors_with_u64(signature, inputs, &[])
}

/// As [`read_tensors`]; the inputs in `unsigned` store 64-bit unsigned integers as the I64 with the
/// same bits.
pub(crate) fn read_tensors_with_u64(
    signature: &Signature,
    inputs: &[String],
    unsigned: &[String],
) -> Result<Vec<(String, Tensor)>, CliError> {
    let mut given = Vec::new();
    for input in inputs {
        given.extend(read_arrays(input)?);
    }
    to_tensors(signature, given, unsigned)
}

/// Reads the arrays of `NAME=FILE.npy` or `FILE.npz`.
fn read_arrays(input: &str) -> Result<Vec<(String, NpyArray<'static>)>, CliError> {
    match input.split_once('=') {
        Some((name, file)) if !file.is_empty() => {
            Ok(vec![(name.to_string(), read_npy(Path::new(file))?)])
        }
        None if input.ends_with(".npz") => Ok(read_npz(Path::new(input))?),
        Some(_) | None => Err(CliError::Usage(format!(
            "`{input}` is neither NAME=FILE.npy nor FILE.npz"
        ))),
    }
}

fn to_tensors(
    signature: &Signature,
    arrays: Vec<(String, NpyArray<'static>)>,
    unsigned: &[String],
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
                "the graph takes no array `{name}`; expected one of: {known}"
            )));
        };
        if tensors.iter().any(|(n, _)| *n == name) {
            return Err(CliError::Usage(format!("`{name}` occurs twice")));
        }
        let array = widened(&name, array, port.ty.dtype, unsigned.contains(&name))?;
        let tensor = to_tensor(&name, array, port.ty.dtype)?;
        let (found, wanted) = (tensor.dtype(), port.ty.dtype);
        if found != wanted {
            return Err(CliError::Usage(format!(
                "array `{name}` is {found}, expected {wanted}; convert it with numpy's astype"
            )));
        }
        tensors.push((name, tensor));
    }
    Ok(tensors)
}

/// Converts integers without sign that graphs do not have: of 16 bits to I32, of 64 bits to I64.
/// Numbers beyond I64 are an error, unless the input `wraps`. Integers of 16 bits become I32 if the
/// graph takes that.
fn widened(
    name: &str,
    array: NpyArray<'static>,
    wanted: DType,
    wraps: bool,
) -> Result<NpyArray<'static>, CliError> {
    let (dtype, shape, bytes) = array.into_parts();
    let wide = |f: fn([u8; 2]) -> i32| -> Vec<u8> {
        let halves = bytes.chunks_exact(2);
        halves.flat_map(|h| f([h[0], h[1]]).to_le_bytes()).collect()
    };
    let (dtype, bytes) = match dtype {
        NpyDtype::I16 if wanted == DType::I32 => {
            (NpyDtype::I32, wide(|h| i16::from_le_bytes(h).into()))
        }
        NpyDtype::U16 => (NpyDtype::I32, wide(|h| u16::from_le_bytes(h).into())),
        NpyDtype::U64 => {
            let is_beyond = |b: &[u8]| b[7] >= 0x80;
            if !wraps && bytes.chunks_exact(8).any(is_beyond) {
                return Err(CliError::Usage(format!(
                    "array `{name}` has numbers above 9223372036854775807, which i64 does not have"
                )));
            }
            (NpyDtype::I64, bytes)
        }
        other => (other, bytes),
    };
    NpyArray::new(dtype, shape, bytes).map_err(|e| CliError::Usage(format!("array `{name}`: {e}")))
}

/// NumPy has no bfloat16: if the graph takes bf16, an f4 array is rounded. All other dtypes must
/// match the graph.
pub fn to_tensor(name: &str, array: NpyArray<'static>, wanted: DType) -> Result<Tensor, CliError> {
    let (dtype, shape, bytes) = array.into_parts();
    let dtype = match dtype {
        NpyDtype::F16 => DType::F16,
        NpyDtype::F32 => DType::F32,
        NpyDtype::F64 => DType::F64,
        NpyDtype::I8 => DType::I8,
        NpyDtype::I16 => DType::I16,
        NpyDtype::U16 | NpyDtype::I32 => DType::I32,
        NpyDtype::I64 | NpyDtype::U64 => DType::I64,
        NpyDtype::U8 => DType::U8,
        NpyDtype::U32 => DType::U32,
        NpyDtype::Bool => DType::Bool,
    };
    let bad = |source| CliError::Tensor {
        what: format!("array `{name}`"),
        source,
    };
    let len = bytes.len();
    let ty = TensorType::new(dtype, &shape);
    let tensor = Tensor::from_owner(ty, Arc::new(bytes), 0..len).map_err(bad)?;
    if dtype != DType::F32 || wanted != DType::BF16 {
        return Ok(tensor);
    }
    let mut rounded = Vec::with_capacity(len / 2);
    for piece in pieces(&tensor, 0..tensor.numel()) {
        let ty = TensorType::new(wanted, &[piece.numel()]);
        rounded.extend_from_slice(
            Tensor::from_f64s(ty, &piece.to_f64s())
                .map_err(bad)?
                .bytes(),
        );
    }
    let (ty, len) = (TensorType::new(wanted, &shape), rounded.len());
    Tensor::from_owner(ty, Arc::new(rounded), 0..len).map_err(bad)
}

/// Converts a tensor to a NumPy array. bfloat16 is widened to f4; every other dtype borrows the
/// tensor's memory.
pub fn to_array(tensor: &Tensor) -> NpyArray<'_> {
    let own = |dtype| (dtype, Cow::Borrowed(tensor.bytes()));
    let (dtype, bytes) = match tensor.dtype() {
        DType::F16 => own(NpyDtype::F16),
        DType::F32 => own(NpyDtype::F32),
        DType::F64 => own(NpyDtype::F64),
        DType::I8 => own(NpyDtype::I8),
        DType::I16 => own(NpyDtype::I16),
        DType::I32 => own(NpyDtype::I32),
        DType::I64 => own(NpyDtype::I64),
        DType::U8 => own(NpyDtype::U8),
        DType::U32 => own(NpyDtype::U32),
        DType::Bool => own(NpyDtype::Bool),
        DType::BF16 => {
            let mut wide = Vec::with_capacity(2 * tensor.bytes().len());
            for piece in pieces(tensor, 0..tensor.numel()) {
                let values = piece.to_f64s().into_iter();
                wide.extend(values.flat_map(|x| (x as f32).to_le_bytes()));
            }
            (NpyDtype::F32, Cow::Owned(wide))
        }
    };
    NpyArray::new(dtype, tensor.shape().to_vec(), bytes)
        .expect("invariant: a tensor's bytes fit its shape")
}

/// Prints the first rows along the last axis, one line each.
pub fn print(out: &mut impl Write, tensor: &Tensor) -> std::io::Result<()> {
    let row = tensor.shape().last().map_or(1, |&n| n.max(1));
    let rows = tensor.numel() / row;
    for at in (0..rows).take(MAX_ROWS) {
        write!(out, " ")?;
        for value in values(tensor, at * row..at * row + row.min(MAX_COLUMNS)) {
            let text = match value {
                Value::String(text) => text,
                value => value.to_string(),
            };
            write!(out, " {text:>12}")?;
        }
        if row > MAX_COLUMNS {
            write!(out, "  ... {} more", row - MAX_COLUMNS)?;
        }
        writeln!(out)?;
    }
    if rows > MAX_ROWS {
        let more = counted(rows - MAX_ROWS, "more row", "more rows");
        writeln!(out, "  ... {more}")?;
    }
    Ok(())
}

/// All elements as a JSON list. Serialization converts them piece by piece.
pub struct JsonElements<'a>(pub &'a Tensor);

impl Serialize for JsonElements<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values(self.0, 0..self.0.numel()))
    }
}

/// Elements as JSON. Wide integers keep every digit; floats are printed in the precision of their
/// dtype.
fn values(tensor: &Tensor, range: Range<usize>) -> impl Iterator<Item = Value> {
    pieces(tensor, range).flat_map(|piece| json(&piece))
}

/// The elements of a range, in pieces of at most `PIECE`.
fn pieces(tensor: &Tensor, range: Range<usize>) -> impl Iterator<Item = Tensor> {
    let (dtype, end) = (tensor.dtype(), range.end);
    let size = dtype.size_bytes();
    range.step_by(PIECE).map(move |at| {
        let n = PIECE.min(end - at);
        let bytes = &tensor.bytes()[at * size..(at + n) * size];
        Tensor::from_bytes(TensorType::new(dtype, &[n]), bytes)
            .expect("invariant: the bytes match the element type")
    })
}

fn json(tensor: &Tensor) -> Vec<Value> {
    let float = |x: f64| match x {
        _ if x.is_nan() => Value::from("nan"),
        f64::INFINITY => Value::from("inf"),
        f64::NEG_INFINITY => Value::from("-inf"),
        x => Value::from(x),
    };
    // The shortest decimal form of an f32. serde_json would print the digits of the equal f64.
    let short = |x: f64| match (x as f32).to_string().parse() {
        Ok(x) => float(x),
        Err(_) => float(x),
    };
    match tensor.dtype() {
        DType::F64 => tensor.to_f64s().into_iter().map(float).collect(),
        DType::F32 | DType::F16 | DType::BF16 => tensor.to_f64s().into_iter().map(short).collect(),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::U32 => {
            tensor.to_i64s().into_iter().map(Value::from).collect()
        }
        DType::Bool => {
            let bits = tensor.to_i64s().into_iter();
            bits.map(|x| Value::from(x != 0)).collect()
        }
    }
}
