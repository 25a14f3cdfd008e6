//! BF16 where attention is made of pairs of F16: operands are widened to F32 before, results rounded after.

use tercet_ir::{CompileError, DType};

use super::kernels::{PACK, PackParams, WIDEN};
use crate::emit::{Emit, Order, View};
use crate::families::code;

/// How often an operand is widened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Widened {
    /// For one node.
    Anew,
    /// Once for the gradients of queries and for those of keys.
    Once,
}

/// BF16 as F32.
pub(super) fn widen(e: &mut Emit<'_>, view: &View, how: Widened) -> Result<View, CompileError> {
    match how {
        Widened::Anew => emit(e, view),
        Widened::Once => e.once(view, Order::Wide, |e| emit(e, view)),
    }
}

fn emit(e: &mut Emit<'_>, view: &View) -> Result<View, CompileError> {
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
        &PackParams { numel },
        grid,
    );
    Ok(to)
}

/// Where the kernels write a result: itself, or F32 that becomes it.
pub(super) fn result(e: &mut Emit<'_>, result: &View) -> Result<View, CompileError> {
    match result.dtype {
        DType::F32 => Ok(result.clone()),
        _ => e.temp(DType::F32, result.layout.shape()),
    }
}

/// Rounds what was written for a result, where that is another.
pub(super) fn round(e: &mut Emit<'_>, from: &View, result: &View) {
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
        &PackParams { numel },
        grid,
    );
}
