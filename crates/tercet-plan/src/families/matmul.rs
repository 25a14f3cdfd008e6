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
//! few rows, `matmul/kernels.rs`.

mod columns;
mod coop;
mod few;
mod few_streamed;
mod gemv;
mod half;
mod held;
mod kernels;
mod laid;
mod portable;
pub(super) mod product;
mod quads;
#[cfg(test)]
mod tests;

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Graph, Node, Op, OpKind, Scheme, Support};

use self::product::{Product, Side, Tail, activation_code};
use super::dequant::Blocks;
use super::{Family, missing};
use crate::caps::Caps;
use crate::emit::{Emit, View};
use crate::fusions::{After, RowNorm};

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
    numbers(e, node, None, &y)
}

/// Emits `y = a b` of floats, as `MatMul` means it, for families that make the operands themselves; `y`
/// is dense and may be F32 where the operands are narrower.
pub(crate) fn product_into(
    e: &mut Emit<'_>,
    a: &View,
    b: &View,
    y: &View,
) -> Result<(), CompileError> {
    let product = Product::of(e, a, b, None, None)?;
    portable::floats(e, &product, y)
}

fn lower_dequant(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let y = e.result(0)?;
    blocks(e, node, None, &y)
}

/// Lowers a product with what follows it, whose result is `y`.
pub(crate) fn lower_with(
    e: &mut Emit<'_>,
    node: &Node,
    after: &After,
    y: &View,
) -> Result<(), CompileError> {
    let tail = Some(match after {
        After::Gate(gate) => Tail::Gate(gate.clone()),
        After::Sum { with, .. } => Tail::Sum(e.view(*with)),
    });
    match &node.op {
        Op::DequantMatMul(_) => blocks(e, node, tail, y),
        _ => numbers(e, node, tail, y),
    }
}

/// The rows of a product, and the norm that they are the operand of.
fn rows(e: &Emit<'_>, node: &Node) -> (View, Option<RowNorm>) {
    match e.norms.get(&node.inputs[0]) {
        Some(norm) => (norm.x.clone(), Some(norm.clone())),
        None => (e.view(node.inputs[0]), None),
    }
}

fn numbers(
    e: &mut Emit<'_>,
    node: &Node,
    tail: Option<Tail>,
    y: &View,
) -> Result<(), CompileError> {
    let (a, norm) = rows(e, node);
    let b = e.view(node.inputs[1]);
    let bias = node.inputs.get(2).map(|v| e.view(*v));
    let activation = activation_of(&node.op);
    let product = Product::of(e, &a, &b, bias, activation)?.with(e, norm, tail)?;
    match y.dtype.is_float() {
        true => portable::floats(e, &product, y),
        false => portable::ints(e, &product, y),
    }
}

fn blocks(e: &mut Emit<'_>, node: &Node, tail: Option<Tail>, y: &View) -> Result<(), CompileError> {
    let (x, norm) = rows(e, node);
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
