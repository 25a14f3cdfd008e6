//! Expert GEMV: a batched GEMV that multiplies each activation row by the expert matrix that the
//! row's index (key) selects.

use tercet_ir::{CompileError, Dim};

use super::gemv;
use super::portable::matmul_args;
use super::product::{MatMulOperand, MatMulProblem, OperandAxis};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::dequant::PackedWeights;
use tercet_program::SlotId;
use tercet_program::SymInt;

/// Rows that experts multiply.
pub(in crate::lowerings) struct ExpertRows {
    /// `[count / repeats, k]`.
    pub(in crate::lowerings) view: SlotView,
    /// Number of adjacent rows that share a row of `view`.
    pub(in crate::lowerings) repeats: usize,
    pub(in crate::lowerings) count: Dim,
}

/// A stack of expert matrices.
pub(in crate::lowerings) struct ExpertStack<'a> {
    /// Floats `[count, k, n]`, or the quantized rows of all matrices, `[count * n, row bytes]`.
    pub(in crate::lowerings) view: &'a SlotView,
    pub(in crate::lowerings) blocks: Option<&'a PackedWeights>,
    /// Distance between consecutive matrices: in elements for floats, in bytes for quantized rows.
    pub(in crate::lowerings) step: SymInt,
    pub(in crate::lowerings) columns: Dim,
}

/// Whether the kernels support activations `x` with matrices of this stack.
pub(in crate::lowerings) fn supports_keyed(
    e: &mut LoweringCtx<'_>,
    x: &ExpertRows,
    stack: &ExpertStack<'_>,
) -> Result<bool, CompileError> {
    let product = product(e, x, stack);
    let some =
        e.bound(&product.k)? > 0 && e.bound(&product.n)? > 0 && e.bound(&product.batch[0])? > 0;
    Ok(some
        && match stack.blocks {
            Some(_) => true,
            None => stack.view.dtype.is_float() && gemv::floats_take_keyed(e, &product)?,
        })
}

/// Emits the GEMV that writes `y` of shape `[rows, n]`. `y` must be dense, and its rows must be F32
/// or consist of whole words.
pub(in crate::lowerings) fn keyed(
    e: &mut LoweringCtx<'_>,
    x: &ExpertRows,
    stack: &ExpertStack<'_>,
    keys: SlotId,
    y: &SlotView,
) -> Result<(), CompileError> {
    let product = product(e, x, stack);
    let given = matmul_args(e, &product, y)?.with_keys(keys, x.repeats);
    match stack.blocks {
        Some(blocks) => {
            let given = given.with_packed_weights(e, blocks)?;
            gemv::packed_keyed(e, &product, &given, blocks)
        }
        None => gemv::floats_keyed(e, &product, &given),
    }
}

/// Expert GEMV as a batched matmul: each activation row is one batch entry.
fn product(e: &mut LoweringCtx<'_>, x: &ExpertRows, stack: &ExpertStack<'_>) -> MatMulProblem {
    let shape = x.view.layout.shape();
    let batch = vec![x.count.clone()];
    let a = MatMulOperand::new(e, &x.view, None, 1, &shape[..1]);
    let mut b = match stack.blocks {
        Some(_) => MatMulOperand::packed(e, stack.view).0,
        None => MatMulOperand::new(
            e,
            stack.view,
            Some(2),
            1,
            &[stack.view.layout.shape()[0].clone()],
        ),
    };
    b.batch = vec![OperandAxis {
        stride: stack.step,
        unit: false,
        multiple: match stack.blocks {
            // Rows consist of whole quantized blocks.
            Some(_) => b.own_axis.multiple,
            None => b.batch.first().map_or(1, |axis| axis.multiple),
        },
    }];
    MatMulProblem {
        batch,
        m: Dim::Known(1),
        n: stack.columns.clone(),
        k: shape[1].clone(),
        a,
        b,
        bias: None,
        activation: None,
        norm: None,
        gate: None,
        residual: None,
        weights: None,
    }
}
