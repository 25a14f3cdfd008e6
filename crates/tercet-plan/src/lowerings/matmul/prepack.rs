//! Weight prepacking for `gemm_laid_f16.comp`: the matrix fragment elements that each subgroup lane
//! loads become contiguous.

use tercet_ir::CompileError;

use crate::emit::{CopyOrder, LoweringCtx, SlotView};
use crate::lowerings::portable;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `matmul/lay_out.wgsl`.
    pub struct PrepackParams {
        words: U32,
        steps: U32,
        offset: U32,
        row: U32,
        column: U32,
    }
}

/// Kernel that copies 16-bit weights to the order in which subgroup lanes hold fragment elements.
pub(super) static LAY_OUT: TypedKernel<PrepackParams> = TypedKernel::wgsl(
    "lay_out",
    &[portable!("matmul/lay_out.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &[],
);

/// Number of elements along k per GEMM step (`STEP`) and per 32-bit word (`PAIR`).
const STEP: usize = 32;
const PAIR: usize = 2;
const THREADS: u32 = 256;

/// Prepacks constant weights `[k, n]` of known size, once before the first run.
pub(super) fn prepack(e: &mut LoweringCtx<'_>, w: &SlotView) -> Result<SlotView, CompileError> {
    let [k, n] = [0, 1].map(|axis| w.layout.shape()[axis].known().unwrap_or(0));
    e.in_order(w, CopyOrder::Prepacked, |e, to| {
        let [row, column] = e.strides(w)[..] else {
            unreachable!("invariant: weights are a matrix")
        };
        let words = SymInt::Const((k * n / PAIR) as i64);
        let params = PrepackParams {
            words,
            steps: SymInt::Const((k / STEP) as i64),
            offset: e.offset(w),
            row,
            column,
        };
        let grid = e.grid_of(words, THREADS);
        e.dispatch(&LAY_OUT, &[], &[w.slot, to.slot], &params, grid);
        Ok(())
    })
}
