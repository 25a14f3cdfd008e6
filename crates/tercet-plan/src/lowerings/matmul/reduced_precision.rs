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

use tercet_ir::{CompileError, DType};

use super::kernels::{NARROW_ROWS, NarrowRowsParams};
use super::product::{MatMulOperand, MatMulProblem};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::code;
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
        let count = e.numel(&[p.m.clone(), p.k.clone()]);
        let params = NarrowRowsParams {
            count,
            row_len: e.num(&p.k),
            offset: from.offset,
            row: from.own_axis.stride,
        };
        let words = e.tape().ceil_div(count, 2u32);
        let grid = e.grid_of(words, 256);
        let args = [from.slot, p.a.slot];
        e.dispatch(&NARROW_ROWS, &[code(self.to)], &args, &params, grid);
    }
}
