//! Exports operators that move elements: shapes, slices, gathers, scatters, dynamic windows and
//! sorting.

use tercet_ir::ops::{Pad, PadMode, ScatterReduce, Slice, Sort, TopK};
use tercet_ir::{DType, Dim, Shape, Tensor};

use super::node::ExportNode;
use super::proto::{OnnxAttrValue, code, tensor_proto};
use super::writer::{ExportNodeError, ExportNodeResult};

type ExportMovementResult = Result<String, ExportNodeError>;

fn ints(values: &[usize]) -> Vec<i64> {
    values.iter().map(|v| *v as i64).collect()
}

/// Exports a reshape. The attribute `allowzero` makes a size of 0 mean 0 instead of a copied size.
pub(super) fn reshape(at: &mut ExportNode<'_>, shape: &Shape) -> ExportMovementResult {
    let shape = at.w.shape(shape)?;
    let x = at.x(0).to_string();
    let attrs = vec![("allowzero", OnnxAttrValue::Int(1))];
    Ok(at.w.add("Reshape", &[&x, &shape], attrs))
}

pub(super) fn transpose(at: &mut ExportNode<'_>, perm: &[usize]) -> String {
    at.plain("Transpose", vec![("perm", OnnxAttrValue::Ints(ints(perm)))])
}

pub(super) fn slice(at: &mut ExportNode<'_>, o: &Slice) -> String {
    let axes: Vec<i64> = (0..o.starts.len() as i64).collect();
    let lists = [&o.starts, &o.ends, &axes, &o.steps].map(|values| at.w.list(values));
    let x = at.x(0).to_string();
    let [starts, ends, axes, steps] = &lists;
    at.w.add("Slice", &[&x, starts, ends, axes, steps], Vec::new())
}

pub(super) fn concat(at: &mut ExportNode<'_>, axis: usize) -> String {
    at.plain("Concat", vec![("axis", OnnxAttrValue::Int(axis as i64))])
}

pub(super) fn expand(at: &mut ExportNode<'_>, shape: &Shape) -> ExportMovementResult {
    let shape = at.w.shape(shape)?;
    let x = at.x(0).to_string();
    Ok(at.w.add("Expand", &[&x, &shape], Vec::new()))
}

pub(super) fn pad(at: &mut ExportNode<'_>, o: &Pad) -> String {
    let pads: Vec<i64> = ints(&o.before).into_iter().chain(ints(&o.after)).collect();
    let pads = at.w.list(&pads);
    let value = at.w.number(at.ty(0).dtype, o.value.0);
    let x = at.x(0).to_string();
    let mode = OnnxAttrValue::Text(o.mode.name());
    let operands: &[&str] = match o.mode {
        PadMode::Constant => &[&x, &pads, &value],
        PadMode::Reflect | PadMode::Edge | PadMode::Wrap => &[&x, &pads],
    };
    at.w.add("Pad", operands, vec![("mode", mode)])
}

pub(super) fn tile(at: &mut ExportNode<'_>, reps: &[usize]) -> String {
    let reps = at.w.list(&ints(reps));
    let x = at.x(0).to_string();
    at.w.add("Tile", &[&x, &reps], Vec::new())
}

pub(super) fn trilu(at: &mut ExportNode<'_>, upper: bool, k: i64) -> String {
    let k = at.w.integer(DType::I64, k);
    let x = at.x(0).to_string();
    let upper = vec![("upper", OnnxAttrValue::Int(i64::from(upper)))];
    at.w.add("Trilu", &[&x, &k], upper)
}

/// The index operand with a dtype that ONNX accepts: I32 or I64.
fn index(at: &mut ExportNode<'_>, operand: usize) -> String {
    match at.ty(operand).dtype {
        DType::I32 | DType::I64 => at.x(operand).to_string(),
        _ => at.cast_to(operand, DType::I64),
    }
}

pub(super) fn gather(at: &mut ExportNode<'_>, axis: usize) -> String {
    at.names[1] = index(at, 1);
    at.plain("Gather", vec![("axis", OnnxAttrValue::Int(axis as i64))])
}

pub(super) fn gather_elements(at: &mut ExportNode<'_>, axis: usize) -> String {
    at.names[1] = index(at, 1);
    at.plain(
        "GatherElements",
        vec![("axis", OnnxAttrValue::Int(axis as i64))],
    )
}

pub(super) fn gather_nd(at: &mut ExportNode<'_>, batch_dims: usize) -> ExportMovementResult {
    if at.ty(0).rank() == 0 {
        return ExportNodeError::because("ONNX cannot gather from scalars");
    }
    at.names[1] = at.cast_to(1, DType::I64);
    let batch = vec![("batch_dims", OnnxAttrValue::Int(batch_dims as i64))];
    Ok(at.plain("GatherND", batch))
}

fn reduction(reduce: ScatterReduce) -> (&'static str, OnnxAttrValue) {
    ("reduction", OnnxAttrValue::Text(reduce.name()))
}

pub(super) fn scatter_elements(
    at: &mut ExportNode<'_>,
    axis: usize,
    reduce: ScatterReduce,
) -> String {
    at.names[1] = index(at, 1);
    let axis = ("axis", OnnxAttrValue::Int(axis as i64));
    at.plain("ScatterElements", vec![axis, reduction(reduce)])
}

pub(super) fn scatter_nd(at: &mut ExportNode<'_>, reduce: ScatterReduce) -> String {
    at.names[1] = at.cast_to(1, DType::I64);
    at.plain("ScatterND", vec![reduction(reduce)])
}

/// Exports `scatter_add` as a `ScatterND` that adds the rows to a tensor of zeros.
pub(super) fn scatter_add(at: &mut ExportNode<'_>, _rows: &Dim) -> ExportMovementResult {
    let ty = at.result(0);
    let shape = at.w.shape(&ty.shape)?;
    let zeros = filled(at, &shape, ty.dtype, 0);
    let index = at.cast_to(1, DType::I64);
    let last = at.w.list(&[-1]);
    let index = at.w.add("Unsqueeze", &[&index, &last], Vec::new());
    let updates = at.x(0).to_string();
    let attrs = vec![reduction(ScatterReduce::Add)];
    Ok(at.w.add("ScatterND", &[&zeros, &index, &updates], attrs))
}

/// A tensor filled with one value.
fn filled(at: &mut ExportNode<'_>, shape: &str, dtype: DType, value: i64) -> String {
    let ty = tercet_ir::TensorType::new(dtype, &[1]);
    let value = Tensor::from_i64s(ty, &[value]).expect("invariant: one element fits");
    let value = OnnxAttrValue::Tensor(tensor_proto("value", &value));
    at.w.add("ConstantOfShape", &[shape], vec![("value", value)])
}

pub(super) fn one_hot(at: &mut ExportNode<'_>, depth: usize, to: DType) -> ExportMovementResult {
    if depth == 0 {
        return ExportNodeError::because("ONNX has no depth of 0");
    }
    let index = index(at, 0);
    let depth = at.w.integer(DType::I64, depth as i64);
    let ty = tercet_ir::TensorType::new(to, &[2]);
    let values = Tensor::from_i64s(ty, &[0, 1]).expect("invariant: two elements fit");
    let values = at.w.constant(&values);
    Ok(at.w.add("OneHot", &[&index, &depth, &values], Vec::new()))
}

/// The start of a dynamic window: negative starts count from the end, then the start is clamped to
/// fit.
fn window(at: &mut ExportNode<'_>, starts: usize, sizes: &[Dim]) -> ExportMovementResult {
    let whole = at.w.shape(&at.ty(0).shape)?;
    let sizes = at.w.shape(sizes)?;
    let given = at.cast_to(starts, DType::I64);
    let w = &mut *at.w;
    let zero = w.integer(DType::I64, 0);
    let is_negative = w.add("Less", &[&given, &zero], Vec::new());
    let from_end = w.add("Add", &[&given, &whole], Vec::new());
    let start = w.add("Where", &[&is_negative, &from_end, &given], Vec::new());
    let room = w.add("Sub", &[&whole, &sizes], Vec::new());
    let start = w.add("Min", &[&start, &room], Vec::new());
    Ok(w.add("Max", &[&start, &zero], Vec::new()))
}

/// An element of an I64 list, as a scalar.
fn element(at: &mut ExportNode<'_>, list: &str, index: usize) -> String {
    let index = at.w.integer(DType::I64, index as i64);
    at.w.add(
        "Gather",
        &[list, &index],
        vec![("axis", OnnxAttrValue::Int(0))],
    )
}

/// The numbers `0, 1, ..` below a size.
fn counted(at: &mut ExportNode<'_>, size: &Dim) -> ExportMovementResult {
    let end = at.w.size(size)?;
    let end = element(at, &end, 0);
    let [zero, one] = [0, 1].map(|v| at.w.integer(DType::I64, v));
    Ok(at.w.add("Range", &[&zero, &end, &one], Vec::new()))
}

/// Exports a dynamic slice as gathers along each axis that the window does not fill. Many tools
/// require constant ends of a `Slice`.
pub(super) fn dynamic_slice(at: &mut ExportNode<'_>, sizes: &Shape) -> ExportMovementResult {
    let mut x = at.x(0).to_string();
    let whole = &at.ty(0).shape;
    if whole == sizes {
        return Ok(x);
    }
    let start = window(at, 1, sizes)?;
    for (axis, (size, n)) in sizes.iter().zip(whole.iter()).enumerate() {
        if size == n {
            continue;
        }
        let first = element(at, &start, axis);
        let places = counted(at, size)?;
        let places = at.w.add("Add", &[&places, &first], Vec::new());
        let axis = vec![("axis", OnnxAttrValue::Int(axis as i64))];
        x = at.w.add("Gather", &[&x, &places], axis);
    }
    Ok(x)
}

/// Gathers the update to the size of the operand, and selects the operand outside of the window.
pub(super) fn dynamic_update_slice(at: &mut ExportNode<'_>) -> ExportMovementResult {
    let (whole, own) = (&at.ty(0).shape, &at.ty(1).shape);
    let [x, mut moved] = [0, 1].map(|operand| at.x(operand).to_string());
    if whole == own {
        return Ok(moved);
    }
    if own.iter().any(|size| size.known() == Some(0)) {
        return Ok(x);
    }
    let start = window(at, 2, own)?;
    let mut inside: Option<String> = None;
    for (axis, (size, n)) in own.iter().zip(whole.iter()).enumerate() {
        if size == n {
            continue;
        }
        let first = element(at, &start, axis);
        let places = counted(at, n)?;
        let places = at.w.add("Sub", &[&places, &first], Vec::new());
        let end = at.w.size(size)?;
        let end = element(at, &end, 0);
        let w = &mut *at.w;
        let [zero, one] = [0, 1].map(|v| w.integer(DType::I64, v));
        let after = w.add("GreaterOrEqual", &[&places, &zero], Vec::new());
        let before = w.add("Less", &[&places, &end], Vec::new());
        let mut within = w.add("And", &[&after, &before], Vec::new());
        let last = w.add("Sub", &[&end, &one], Vec::new());
        let places = w.add("Max", &[&places, &zero], Vec::new());
        let places = w.add("Min", &[&places, &last], Vec::new());
        let along = vec![("axis", OnnxAttrValue::Int(axis as i64))];
        moved = w.add("Gather", &[&moved, &places], along);
        let later: Vec<i64> = (1..(whole.rank() - axis) as i64).collect();
        if !later.is_empty() {
            let later = w.list(&later);
            within = w.add("Unsqueeze", &[&within, &later], Vec::new());
        }
        inside = Some(match inside {
            Some(others) => w.add("And", &[&others, &within], Vec::new()),
            None => within,
        });
    }
    match inside {
        Some(inside) => Ok(at.w.add("Where", &[&inside, &moved, &x], Vec::new())),
        None => Ok(moved),
    }
}

/// The operand, with `bool` as U8, which has the same order.
fn ordered(at: &mut ExportNode<'_>) -> String {
    match at.ty(0).dtype {
        DType::Bool => at.cast_to(0, DType::U8),
        _ => at.x(0).to_string(),
    }
}

pub(super) fn top_k(at: &mut ExportNode<'_>, o: &TopK) -> ExportNodeResult {
    let k = at.w.list(&[o.k as i64]);
    sorted(at, &k, o.axis, o.largest)
}

pub(super) fn sort(at: &mut ExportNode<'_>, o: &Sort) -> ExportNodeResult {
    let k = at.w.size(&at.ty(0).shape[o.axis])?;
    sorted(at, &k, o.axis, o.descending)
}

fn sorted(at: &mut ExportNode<'_>, k: &str, axis: usize, largest: bool) -> ExportNodeResult {
    let x = ordered(at);
    let attrs = vec![
        ("axis", OnnxAttrValue::Int(axis as i64)),
        ("largest", OnnxAttrValue::Int(i64::from(largest))),
    ];
    let found = at.w.add_all("TopK", &[&x, k], 2, attrs);
    let values = match at.ty(0).dtype {
        DType::Bool => at.w.cast(&found[0], code(DType::Bool)),
        _ => found[0].clone(),
    };
    let indices = at.w.cast(&found[1], code(DType::I32));
    Ok(vec![values, indices])
}

pub(super) fn arg(at: &mut ExportNode<'_>, op: &str, axis: usize, keep_dim: bool) -> String {
    let x = ordered(at);
    let attrs = vec![
        ("axis", OnnxAttrValue::Int(axis as i64)),
        ("keepdims", OnnxAttrValue::Int(i64::from(keep_dim))),
    ];
    let y = at.w.add(op, &[&x], attrs);
    at.w.cast(&y, code(at.result(0).dtype))
}

/// The index of the maximum logit of each row.
pub(super) fn greatest(at: &mut ExportNode<'_>) -> String {
    let last = at.ty(0).rank() - 1;
    arg(at, "ArgMax", last, false)
}
