//! BF16 support for attention on split-F16: operands are converted to F32 first, and results are
//! rounded afterwards.

use tercet_ir::{CompileError, DType};

use super::kernels::{AttentionPackParams, PACK, WIDEN};
use crate::emit::{CopyOrder, LoweringCtx, SlotView};
use crate::lowerings::code;

/// Whether several nodes share the F32 copy of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpcastPolicy {
    /// Each node makes its own copy.
    PerNode,
    /// Nodes share one cached copy, such as the gradient nodes of queries and of keys.
    Shared,
}

/// Converts BF16 to F32.
pub(super) fn widen(
    e: &mut LoweringCtx<'_>,
    view: &SlotView,
    how: UpcastPolicy,
) -> Result<SlotView, CompileError> {
    match how {
        UpcastPolicy::PerNode => emit(e, view),
        UpcastPolicy::Shared => e.once(view, CopyOrder::Upcast, |e| emit(e, view)),
    }
}

fn emit(e: &mut LoweringCtx<'_>, view: &SlotView) -> Result<SlotView, CompileError> {
    let from = e.dense(view)?;
    let shape = from.layout.shape().to_vec();
    let to = e.temp(DType::F32, &shape)?;
    let numel = e.numel(&shape);
    let words = e.words(DType::BF16, &shape);
    let grid = e.grid_of(words, 256);
    e.dispatch(
        &WIDEN,
        &[],
        &[from.slot, to.slot],
        &AttentionPackParams { numel },
        grid,
    );
    Ok(to)
}

/// The slot that attention kernels write: the result slot if the result is F32, otherwise a
/// temporary F32 slot.
pub(super) fn result(e: &mut LoweringCtx<'_>, result: &SlotView) -> Result<SlotView, CompileError> {
    match result.dtype {
        DType::F32 => Ok(result.clone()),
        _ => e.temp(DType::F32, result.layout.shape()),
    }
}

/// Rounds a temporary F32 result to the dtype of `result`; does nothing if the kernels wrote
/// `result` directly.
pub(super) fn round(e: &mut LoweringCtx<'_>, from: &SlotView, result: &SlotView) {
    if from.slot == result.slot {
        return;
    }
    let shape = result.layout.shape();
    let numel = e.numel(shape);
    let words = e.words(result.dtype, shape);
    let grid = e.grid_of(words, 256);
    let args = [from.slot, result.slot];
    e.dispatch(
        &PACK,
        &[code(result.dtype)],
        &args,
        &AttentionPackParams { numel },
        grid,
    );
}
