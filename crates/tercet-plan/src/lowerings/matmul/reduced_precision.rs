//! Reduced-precision matmuls: F32 rows are cast to 16 bits if allowed
//! ([`CompileOptions::matmul_precision`]), so that the matmul runs on cooperative matrices. The
//! kernel that computes the rows (norm or gate) also writes the rounded copy if it can; otherwise a
//! separate kernel rounds them. The matmul then runs like one with 16-bit rows, but has F32
//! results.
//!
//! Matmuls of few rows are memory-bound on their weights. Such matmuls read the F32 rows directly,
//! with prologue and epilogue fused.
//!
//! [`CompileOptions::matmul_precision`]: tercet_ir::CompileOptions::matmul_precision

use tercet_ir::{CompileError, DType, Dim};

use super::kernels::{NARROW_ROWS, NarrowRowsParams};
use super::product::{MatMulOperand, MatMulProblem};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::code;
use tercet_program::SlotId;
use tercet_program::SymInt;

/// The dtype that rows of this matmul may be cast to; `None` unless this enables cooperative
/// matrices.
pub(super) fn dtype_of(e: &LoweringCtx<'_>, p: &MatMulProblem) -> Option<DType> {
    let to = e.facts.reduced_matmul_dtype?;
    let lies = p.a.dtype == DType::F32 && p.a.summed.unit && p.batch.is_empty();
    (lies && e.caps.coop_matmul_dtypes().contains(&to)).then_some(to)
}

/// A matmul with its rows cast to 16 bits first.
pub(super) struct ReducedPrecisionMatMul {
    /// The matmul on the cast rows.
    pub(super) product: MatMulProblem,
    /// The F32 rows to cast; `None` if a 16-bit copy already exists.
    from: Option<MatMulOperand>,
    to: DType,
}

impl ReducedPrecisionMatMul {
    /// Makes a matmul read its rows in this dtype, from an existing copy or from a new slot.
    pub(super) fn new(
        e: &mut LoweringCtx<'_>,
        p: &MatMulProblem,
        to: DType,
    ) -> Result<ReducedPrecisionMatMul, CompileError> {
        let shape = [p.m.clone(), p.k.clone()];
        let is_dense = p.a.offset == SymInt::ZERO && p.a.own_axis.stride == e.num(&p.k);
        let known = e.rounded(p.a.slot, to).filter(|_| is_dense);
        let rows = match known {
            Some(slot) => SlotView {
                slot,
                layout: e.dense_layout(&shape)?,
                dtype: to,
            },
            None => e.temp(to, &shape)?,
        };
        let product = MatMulProblem {
            a: MatMulOperand::new(e, &rows, Some(0), 1, &[]),
            ..p.clone()
        };
        Ok(ReducedPrecisionMatMul {
            product,
            from: known.is_none().then(|| p.a.clone()),
            to,
        })
    }

    /// Emits the cast of the rows, unless another kernel already wrote the 16-bit copy.
    pub(super) fn emit(&self, e: &mut LoweringCtx<'_>) {
        let Some(from) = &self.from else { return };
        let p = &self.product;
        let shape = [p.m.clone(), p.k.clone()];
        let place = [from.offset, from.own_axis.stride];
        narrow(e, [from.slot, p.a.slot], &shape, place, self.to);
    }
}

/// Emits the cast of F32 rows of this shape to dense rows. `from` is their offset and their stride.
fn narrow(
    e: &mut LoweringCtx<'_>,
    args: [SlotId; 2],
    shape: &[Dim; 2],
    [offset, row]: [SymInt; 2],
    to: DType,
) {
    let count = e.numel(shape);
    let params = NarrowRowsParams {
        count,
        row_len: e.num(&shape[1]),
        offset,
        row,
    };
    let words = e.tape().ceil_div(count, 2u32);
    let grid = e.grid_of(words, 256);
    e.dispatch(&NARROW_ROWS, &[code(to)], &args, &params, grid);
}

/// The rows `x [m, k]`, dense and cast to a 16-bit type. A copy that is valid in the current shape
/// branches is reused.
///
/// # Errors
/// The errors of [`LoweringCtx::temp`].
pub(in crate::lowerings) fn round_rows(
    e: &mut LoweringCtx<'_>,
    x: &SlotView,
    to: DType,
) -> Result<SlotView, CompileError> {
    let x = e.dense(x)?;
    if x.dtype == to {
        return Ok(x);
    }
    if let Some(slot) = e.rounded(x.slot, to) {
        return Ok(SlotView {
            slot,
            dtype: to,
            ..x
        });
    }
    let shape = [0, 1].map(|axis| x.layout.shape()[axis].clone());
    let copy = match e.round(&x, to)? {
        Some(copy) => copy,
        None => e.temp(to, &shape)?,
    };
    let row = e.num(&shape[1]);
    narrow(e, [x.slot, copy.slot], &shape, [SymInt::ZERO, row], to);
    Ok(copy)
}
