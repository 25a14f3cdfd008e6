//! Matrix products: `MatMul`, `Linear` and `DequantMatMul`. `DotGeneral` is decomposed to `MatMul`.
//!
//! A node becomes a [`Product`]: operands as views with a stride for each axis, so that transposes,
//! slices and broadcasts cost no copy. Which kernels run is decided at the bounds of its sizes; where
//! the number of rows is symbolic, a kernel for one row, one for up to eight and a tiled one are the arms
//! of a choice.
//!
//! Tiles of 16-bit floats run on cooperative matrices where the device has them.
//!
//! Next: `matmul/product.rs` for operands, `matmul/portable.rs` for the choice, `matmul/gemv.rs` for
//! few rows, `matmul/gemm.rs` for many, `matmul/kernels.rs`.

mod coop;
mod gemm;
mod gemm_decoded;
mod gemm_vectors;
mod gemv;
mod gemv_floats;
mod gemv_packed;
mod kernels;
pub(super) mod keyed;
mod narrowed;
mod normed;
mod pairs;
mod portable;
mod prepack;
pub(super) mod product;
mod skinny;
mod skinny_laid;
mod skinny_streamed;
#[cfg(test)]
mod tests;

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Graph, Node, Op, OpKind, Scheme, Support};

pub(crate) use self::normed::Normed;

use self::product::{BoundEpilogue, Product, Side, activation_code};
use super::dequant::Blocks;
use super::{Family, missing, norm};
use crate::caps::{Caps, CoopType};
use crate::emit::{Emit, View};
use crate::fusions::{Epilogue, FusedProduct, RowNorm};

/// Products of numbers.
pub(crate) static MATMUL: Family = Family {
    name: "matmul",
    ops: &[OpKind::MatMul, OpKind::Linear],
    kernels: kernels::OF_NUMBERS,
    supports,
    lower,
};

/// Products with packed weights.
pub(crate) static DEQUANT_MATMUL: Family = Family {
    name: "dequant_matmul",
    ops: &[OpKind::DequantMatMul],
    kernels: kernels::OF_BLOCKS,
    supports: super::always,
    lower: lower_dequant,
};

fn activation_of(op: &Op) -> Option<UnaryFn> {
    match op {
        Op::Linear(o) => o.activation,
        _ => None,
    }
}

/// Every product, but for functions of its sums that are better an operator of their own.
fn supports(_: &Graph, node: &Node, _: &Caps) -> Support {
    let float = node.outputs[0].dtype.is_float();
    match activation_of(&node.op) {
        None | Some(UnaryFn::Relu) => Support::Native,
        f if float && activation_code(f).is_some() => Support::Native,
        Some(_) => missing("the kernels do not apply this activation"),
    }
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let y = e.result(0)?;
    numbers(e, node, None, None, &y)
}

/// Emits `y = a b` of floats, as `MatMul` means it, for families that make the operands themselves; `y`
/// is dense and may be F32 where the operands are narrower.
pub(crate) fn product_into(
    e: &mut Emit<'_>,
    a: &View,
    b: &View,
    y: &View,
) -> Result<(), CompileError> {
    let a = &with_rows_together(e, a, b, y)?;
    let product = Product::of(e, a, b, None, None)?;
    portable::floats(e, &product, y)
}

/// The same with a bias for each column and a function of the sums.
pub(crate) fn linear_into(
    e: &mut Emit<'_>,
    [a, b, y]: [&View; 3],
    bias: Option<View>,
    activation: Option<UnaryFn>,
) -> Result<(), CompileError> {
    let product = Product::of(e, a, b, bias, activation)?;
    portable::floats(e, &product, y)
}

/// The left operand of floats with the elements of a row beside each other, by a copy where columns are many enough to
/// pay for it: gradients of weights multiply with a transpose.
fn with_rows_together(
    e: &mut Emit<'_>,
    a: &View,
    b: &View,
    y: &View,
) -> Result<View, CompileError> {
    /// Columns from which tiles without matrices gain more than the copy takes, and rows of a tile. On matrices those of a
    /// fragment are enough.
    const MANY: usize = 128;
    const ROWS: usize = 16;
    let is_one = |view: &View, axis: usize| {
        let stride = &view.layout.strides()[axis];
        stride.factor() == 1 && stride.dim().is_one()
    };
    let (rank, shape) = (a.layout.shape().len(), b.layout.shape());
    let turned = rank >= 2 && !is_one(a, rank - 1) && is_one(a, rank - 2);
    if !a.dtype.is_float() || !turned || shape.len() < 2 {
        return Ok(a.clone());
    }
    let (m, n) = (&a.layout.shape()[rank - 2], &shape[shape.len() - 1]);
    let of_matrices = e.caps.coop.iter().filter(|s| match s.ty {
        CoopType::F16 => a.dtype == DType::F16,
        CoopType::BF16 => a.dtype == DType::BF16,
    });
    let many = of_matrices.map(|s| s.n as usize).min().unwrap_or(MANY);
    // Pairs of F16 are written anew in any case.
    let takes_pairs = rank == 2 && {
        let product = Product::of(e, a, b, None, None)?;
        gemm::are_pairs(e, &product, y)?
    };
    match e.bound(m)? >= ROWS && e.bound(n)? >= many && !takes_pairs {
        true => e.dense(a),
        false => Ok(a.clone()),
    }
}

fn lower_dequant(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let y = e.result(0)?;
    blocks(e, node, None, None, &y)
}

/// True if kernels of products apply this function to half of their columns and multiply it with the other half.
pub(crate) fn has_gate(f: UnaryFn) -> bool {
    activation_code(Some(f)).is_some()
}

/// Lowers a product with what it takes in; `last` is the node at hand, whose results come out.
pub(crate) fn lower_fused(
    e: &mut Emit<'_>,
    last: &Node,
    fused: &FusedProduct,
) -> Result<(), CompileError> {
    let port = match fused.epilogue {
        Some(Epilogue::Sum { port, .. }) => usize::from(port),
        Some(Epilogue::Gate(_)) | None => 0,
    };
    let y = e.result(port)?;
    // A norm of the sum goes into products that do not look at its place.
    (0..last.outputs.len()).for_each(|port| e.forward(port, y.clone()));
    e.with_op(fused.product, |e| {
        let norm = fused.norm.map(|of| norm::prologue(e, of)).transpose()?;
        let tail = fused.epilogue.as_ref().map(|epilogue| match epilogue {
            Epilogue::Gate(gate) => BoundEpilogue::Gate(gate.clone()),
            Epilogue::Sum { with, .. } => BoundEpilogue::Sum(e.view(*with)),
        });
        let node = e.graph.node(fused.product);
        match &node.op {
            Op::DequantMatMul(_) => blocks(e, node, norm, tail, &y),
            _ => numbers(e, node, norm, tail, &y),
        }
    })
}

/// The rows of a product, before the norm where there is one.
fn rows(e: &Emit<'_>, node: &Node, norm: Option<&RowNorm>) -> View {
    match norm {
        Some(norm) => norm.x.clone(),
        None => e.view(node.inputs[0]),
    }
}

fn numbers(
    e: &mut Emit<'_>,
    node: &Node,
    norm: Option<RowNorm>,
    tail: Option<BoundEpilogue>,
    y: &View,
) -> Result<(), CompileError> {
    let a = rows(e, node, norm.as_ref());
    let b = e.view(node.inputs[1]);
    let a = with_rows_together(e, &a, &b, y)?;
    let bias = node.inputs.get(2).map(|v| e.view(*v));
    let activation = activation_of(&node.op);
    let product = Product::of(e, &a, &b, bias, activation)?.with(e, norm, tail)?;
    match y.dtype.is_float() {
        true => portable::floats(e, &product, y),
        false => portable::ints(e, &product, y),
    }
}

fn blocks(
    e: &mut Emit<'_>,
    node: &Node,
    norm: Option<RowNorm>,
    tail: Option<BoundEpilogue>,
    y: &View,
) -> Result<(), CompileError> {
    let x = rows(e, node, norm.as_ref());
    let w = e.view(node.inputs[1]);
    match scheme_of(&node.op) {
        Some(scheme) if scheme.storage() == DType::U8 => {
            let w = Blocks::of(e, node.inputs[1], scheme)?;
            let product = Product::rows_times(e, &x, |e| Side::packed(e, &w.view))?;
            let product = product.with(e, norm, tail)?;
            portable::packed(e, &product, &w, y)
        }
        // Plain floats: a product with the transpose, of two dtypes.
        Some(_) | None => {
            let w = View {
                layout: w.layout.transpose(&[1, 0]),
                ..w
            };
            let product = Product::of(e, &x, &w, None, None)?.with(e, norm, tail)?;
            portable::floats(e, &product, y)
        }
    }
}

fn scheme_of(op: &Op) -> Option<Scheme> {
    match op {
        Op::DequantMatMul(o) => Some(o.scheme),
        _ => None,
    }
}
