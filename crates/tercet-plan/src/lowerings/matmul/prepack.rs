//! Weights as `gemm_laid_f16.comp` takes them: what a lane of a subgroup has of fragments of cooperative matrices lies
//! together.

use tercet_ir::CompileError;

use crate::emit::{Emit, Order, View};
use crate::families::portable;
use crate::kernel::{Access, Kernel};
use crate::num::Num;

crate::params! {
    /// The block of `matmul/lay_out.wgsl`.
    pub struct LayOutParams {
        words: U32,
        steps: U32,
        offset: U32,
        row: U32,
        column: U32,
    }
}

/// Weights of two bytes to where their fragments expect them.
pub(super) static LAY_OUT: Kernel<LayOutParams> = Kernel::wgsl(
    "lay_out",
    &[portable!("matmul/lay_out.wgsl")],
    &[Access::Read, Access::Write],
    &[],
);

/// Elements of k of a step, and in a word.
const STEP: usize = 32;
const PAIR: usize = 2;
const THREADS: u32 = 256;

/// These constant weights `[k, n]` of known sizes, laid out once before the first run.
pub(super) fn lay_out(e: &mut Emit<'_>, w: &View) -> Result<View, CompileError> {
    let [k, n] = [0, 1].map(|axis| w.layout.shape()[axis].known().unwrap_or(0));
    e.in_order(w, Order::Laid, |e, to| {
        let [row, column] = e.strides(w)[..] else {
            unreachable!("invariant: weights are a matrix")
        };
        let words = Num::Const((k * n / PAIR) as i64);
        let params = LayOutParams {
            words,
            steps: Num::Const((k / STEP) as i64),
            offset: e.offset(w),
            row,
            column,
        };
        let grid = e.grid_of(words, THREADS);
        e.dispatch(&LAY_OUT, &[], &[w.slot, to.slot], &params, grid);
        Ok(())
    })
}
