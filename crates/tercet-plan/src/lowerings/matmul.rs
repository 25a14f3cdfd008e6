//! Lowering of matmuls: `MatMul`, `Linear` and `DequantMatMul`. `DotGeneral` is decomposed to
//! `MatMul`.
//!
//! A node becomes a [`MatMulProblem`]: operands are views with a stride per axis, so that
//! transposes, slices and broadcasts need no copy. The upper bounds of the sizes determine which
//! kernels are selected. If the number of rows is symbolic, a shape switch contains a kernel for
//! one row, one for up to eight rows, and a tiled one.
//!
//! Tiled matmuls of 16-bit floats use cooperative matrices if the device supports them.
//!
//! Next: `matmul/product.rs` for operands, `matmul/portable.rs` for kernel selection,
//! `matmul/gemv.rs` for few rows, `matmul/gemm.rs` for many rows, `matmul/kernels.rs`.

mod coop;
pub(super) mod expert_gemv;
mod gemm;
mod gemm_dequant;
mod gemm_vectors;
mod gemv;
mod gemv_floats;
mod gemv_packed;
mod kernels;
mod normed;
mod portable;
mod prepack;
pub(super) mod product;
mod reduced_precision;
pub(crate) mod skinny;
pub(crate) mod skinny_prepacked_a;
pub(crate) mod skinny_shared_mem;
mod split_f16;
mod wgsl_matrices;

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Graph, Node, Op, OpKind, Scheme, Support, VariantFamily};

pub(crate) use self::normed::NormGemv;
pub(super) use self::reduced_precision::round_rows;
pub(crate) use self::skinny_prepacked_a::PrepackedRows;

use self::product::{BoundEpilogue, MatMulOperand, MatMulProblem, activation_code};
use super::dequant::PackedWeights;
use super::{Lowering, missing, norm};
use crate::caps::{CoopType, DeviceCaps, WgslCoopType};
use crate::emit::{LoweringCtx, SlotView};
use crate::fusions::{FusedEpilogue, FusedMatMul, NormPrologue};

/// The families of matmuls with the names of their variants.
pub(super) fn variant_families() -> [VariantFamily; 2] {
    [gemv::family(), gemm::family()]
}

/// Lowering of matmuls with unquantized operands.
pub(crate) static MATMUL: Lowering = Lowering {
    name: "matmul",
    ops: &[OpKind::MatMul, OpKind::Linear],
    kernels: kernels::OF_NUMBERS,
    supports,
    lower,
};

/// Lowering of matmuls with quantized weights.
pub(crate) static DEQUANT_MATMUL: Lowering = Lowering {
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

/// Supports every matmul, except with an activation that the kernels do not implement; that becomes
/// a separate operator.
fn supports(_: &Graph, node: &Node, _: &DeviceCaps) -> Support {
    let float = node.outputs[0].dtype.is_float();
    match activation_of(&node.op) {
        None | Some(UnaryFn::Relu) => Support::Native,
        f if float && activation_code(f).is_some() => Support::Native,
        Some(_) => missing("the kernels do not support this activation"),
    }
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let y = e.result(0)?;
    numbers(e, node, None, None, &y)
}

/// Emits the float matmul `y = a b` (as `MatMul` defines it) for other lowerings, which pass views
/// of the operands. `y` is dense and may be F32 for narrower operands.
pub(crate) fn product_into(
    e: &mut LoweringCtx<'_>,
    a: &SlotView,
    b: &SlotView,
    y: &SlotView,
) -> Result<(), CompileError> {
    let a = &with_rows_together(e, a, b, y)?;
    let product = MatMulProblem::new(e, a, b, None, None)?;
    portable::floats(e, &product, y)
}

/// Emits a float matmul with a bias per column and an activation.
pub(crate) fn linear_into(
    e: &mut LoweringCtx<'_>,
    [a, b, y]: [&SlotView; 3],
    bias: Option<SlotView>,
    activation: Option<UnaryFn>,
) -> Result<(), CompileError> {
    let product = MatMulProblem::new(e, a, b, bias, activation)?;
    portable::floats(e, &product, y)
}

/// Returns the left operand of a matmul with contiguous rows. A transposed operand, as in weight
/// gradients, is copied if there are enough columns to amortize the copy.
fn with_rows_together(
    e: &mut LoweringCtx<'_>,
    a: &SlotView,
    b: &SlotView,
    y: &SlotView,
) -> Result<SlotView, CompileError> {
    /// Without cooperative matrices, the copy pays off if the result has at least this number of
    /// columns and at least `ROWS` rows. With cooperative matrices, it pays off from the number of
    /// columns of one matrix fragment on.
    const MIN_COLUMNS_FOR_COPY: usize = 128;
    const ROWS: usize = 16;
    let is_one = |view: &SlotView, axis: usize| {
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
    let of_wgsl = e.caps.coop_wgsl.iter().filter(|s| match s.ty {
        WgslCoopType::F16 => a.dtype == DType::F16,
        WgslCoopType::F32 => a.dtype == DType::F32,
    });
    let many = of_matrices
        .map(|s| s.n as usize)
        .chain(of_wgsl.map(|s| s.side as usize))
        .min()
        .unwrap_or(MIN_COLUMNS_FOR_COPY);
    // Split-F16 GEMM (two F16 numbers per F32 number) copies the operand in any case.
    let takes_pairs = rank == 2 && {
        let product = MatMulProblem::new(e, a, b, None, None)?;
        gemm::are_pairs(e, &product, y)?
    };
    match e.bound(m)? >= ROWS && e.bound(n)? >= many && !takes_pairs {
        true => e.dense(a),
        false => Ok(a.clone()),
    }
}

fn lower_dequant(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let y = e.result(0)?;
    blocks(e, node, None, None, &y)
}

/// True if matmul kernels can apply this activation to half of their columns and multiply it with
/// the other half (gating).
pub(crate) fn has_gate(f: UnaryFn) -> bool {
    activation_code(Some(f)).is_some()
}

/// Lowers a matmul with its fused prologue and epilogue. `last` is the last of the fused nodes,
/// whose results this call sets.
pub(crate) fn lower_fused(
    e: &mut LoweringCtx<'_>,
    last: &Node,
    fused: &FusedMatMul,
) -> Result<(), CompileError> {
    let port = match fused.epilogue {
        Some(FusedEpilogue::Sum { port, .. }) => usize::from(port),
        Some(FusedEpilogue::Gate(_)) | None => 0,
    };
    let y = e.result(port)?;
    // If `last` is a norm, the later matmuls that read it compute the norm as their prologue and do
    // not read this view.
    (0..last.outputs.len()).for_each(|port| e.forward(port, y.clone()));
    e.with_op(fused.product, |e| {
        let norm = fused.norm.map(|of| norm::prologue(e, of)).transpose()?;
        let tail = fused.epilogue.as_ref().map(|epilogue| match epilogue {
            FusedEpilogue::Gate(gate) => BoundEpilogue::Gate(gate.clone()),
            FusedEpilogue::Sum { with, .. } => BoundEpilogue::Sum(e.view(*with)),
        });
        let node = e.graph.node(fused.product);
        match &node.op {
            Op::DequantMatMul(_) => blocks(e, node, norm, tail, &y),
            _ => numbers(e, node, norm, tail, &y),
        }
    })
}

/// View of the activation rows of a matmul; with a fused norm, of the rows before the norm.
fn rows(e: &LoweringCtx<'_>, node: &Node, norm: Option<&NormPrologue>) -> SlotView {
    match norm {
        Some(norm) => norm.x.clone(),
        None => e.view(node.inputs[0]),
    }
}

fn numbers(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    norm: Option<NormPrologue>,
    tail: Option<BoundEpilogue>,
    y: &SlotView,
) -> Result<(), CompileError> {
    let a = rows(e, node, norm.as_ref());
    let b = e.view(node.inputs[1]);
    let a = with_rows_together(e, &a, &b, y)?;
    let bias = node.inputs.get(2).map(|v| e.view(*v));
    let activation = activation_of(&node.op);
    let product = MatMulProblem::new(e, &a, &b, bias, activation)?.with(e, norm, tail)?;
    match y.dtype.is_float() {
        true => portable::floats(e, &product, y),
        false => portable::ints(e, &product, y),
    }
}

fn blocks(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    norm: Option<NormPrologue>,
    tail: Option<BoundEpilogue>,
    y: &SlotView,
) -> Result<(), CompileError> {
    let x = rows(e, node, norm.as_ref());
    let w = e.view(node.inputs[1]);
    match scheme_of(&node.op) {
        Some(scheme) if scheme.storage() == DType::U8 => {
            let w = PackedWeights::new(e, node.inputs[1], scheme)?;
            let product = MatMulProblem::rows_times(e, &x, |e| MatMulOperand::packed(e, &w.view))?;
            let product = product.with(e, norm, tail)?;
            portable::packed(e, &product, &w, y)
        }
        // Unquantized weights `[n, k]` are transposed, and may have another dtype than the rows.
        Some(_) | None => {
            let w = SlotView {
                layout: w.layout.transpose(&[1, 0]),
                ..w
            };
            let product = MatMulProblem::new(e, &x, &w, None, None)?.with(e, norm, tail)?;
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
