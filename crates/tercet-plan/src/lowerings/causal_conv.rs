//! Lowering of `CausalConv`: one thread per channel of a time step, or per two channels that share
//! a 32-bit word. Unless the carried rows (the last steps, which the next run needs) are updated in
//! place, further threads compute them. Time steps are read with their strides, so they may be
//! slices of a projection.

use tercet_ir::{CompileError, DType, Graph, Node, Op, OpKind, Support};

use super::state_scan::F32Result;
use super::{Lowering, code, missing, portable};
use crate::caps::DeviceCaps;
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `causal_conv.wgsl`.
    pub struct CausalConvParams {
        steps: U32,
        before: U32,
        units: U32,
        count: U32,
        x_at: U32,
        x_row: U32,
        x_step: U32,
        rows: U32,
        checks: U32,
    }
}

/// Arguments: input rows, filter taps, bias, carried rows of the previous run, results, new carried
/// rows, fault records.
static CAUSAL_CONV: TypedKernel<CausalConvParams> = TypedKernel::wgsl(
    "causal_conv",
    &[
        portable!("prelude.wgsl"),
        portable!("halves.wgsl"),
        portable!("causal_conv.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Read,
    ],
    &["DTYPE", "OUT", "TAPS", "WIDTH", "SILU", "INITIAL", "CARRY"],
);

/// Lowering of depthwise causal convolutions.
pub(crate) static CAUSAL_CONVS: Lowering = Lowering {
    name: "causal_conv",
    ops: &[OpKind::CausalConv],
    kernels: &[&CAUSAL_CONV.def],
    supports,
    lower,
};

/// Value of the shader constant `INITIAL` if the new carried rows overwrite the old ones in place.
const IN_PLACE: u32 = 2;

/// Maximum number of filter taps of this kernel; beyond it, a decomposition into matmuls is as
/// fast.
const MAX_TAPS: usize = 32;

fn supports(graph: &Graph, node: &Node, _: &DeviceCaps) -> Support {
    match graph.ty(node.inputs[1]).shape[0].known() {
        Some(..=MAX_TAPS) => Support::Native,
        Some(_) | None => missing("more than 32 taps"),
    }
}

/// Returns the view if the channels of each time step are contiguous, otherwise a dense copy.
fn by_steps(e: &mut LoweringCtx<'_>, view: &SlotView) -> Result<SlotView, CompileError> {
    let stride = &view.layout.strides()[2];
    match stride.dim().known() == Some(1) && stride.factor() == 1 {
        true => Ok(view.clone()),
        false => e.dense(view),
    }
}

/// Number of threads per batch entry and channel word: one per time step and one per carried row.
/// With an in-place update, one thread computes all carried rows and the steps that read them; each
/// further step has its own thread.
fn rows(e: &mut LoweringCtx<'_>, steps: SymInt, before: usize, in_place: bool) -> SymInt {
    let before = before as i64;
    match in_place {
        true => {
            let beyond = e.tape().max(steps, SymInt::Const(before));
            e.tape().sub(beyond, SymInt::Const(before - 1))
        }
        false => e.tape().add(steps, SymInt::Const(before)),
    }
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::CausalConv(op) = &node.op else {
        unreachable!("invariant: {:?} belongs to this lowering", node.op.kind())
    };
    let x = e.view(node.inputs[0]);
    let x = by_steps(e, &x)?;
    let mut others = Vec::with_capacity(3);
    for v in &node.inputs[1..] {
        let view = e.view(*v);
        others.push(e.dense(&view)?);
    }
    let [w, bias, given @ ..] = &others[..] else {
        unreachable!("invariant: inference checked the number of operands")
    };
    let (Some(taps), Some(channels)) = (w.layout.shape()[0].known(), w.layout.shape()[1].known())
    else {
        unreachable!("invariant: inference rejects unknown sizes")
    };
    let whole = channels.is_multiple_of(2);
    if !whole && x.dtype != DType::F32 {
        // A separate dispatch packs the carried rows to 16 bits. This dispatch does not check
        // whether a data check failed, so it must not overwrite the state in place.
        e.update_apart();
    }
    let y = F32Result::unless(e, 0, whole)?;
    let last = match op.carry {
        true => Some(F32Result::unless(e, 1, whole)?),
        false => None,
    };
    let last_slot = match &last {
        Some(last) => last.view.slot,
        None => e.placeholder_slot()?,
    };
    let width = if y.view.dtype == DType::F32 { 1 } else { 2 };
    let before = if op.carry { taps - 1 } else { 0 };
    let (batch, steps) = (&x.layout.shape()[0], &x.layout.shape()[1]);
    let (batch, steps) = (e.num(batch), e.num(steps));
    let units = SymInt::Const((channels / width) as i64);
    // For an in-place update, the kernel reads the old carried rows through the binding to which it
    // writes the new ones.
    let first = given.first().map(|state| state.slot);
    let in_place = op.carry && first == Some(last_slot);
    let rows = rows(e, steps, before, in_place);
    let all = e.tape().mul(batch, rows);
    let count = e.tape().mul(all, units);
    let strides = e.strides(&x);
    let params = CausalConvParams {
        steps,
        before: SymInt::Const(before as i64),
        units,
        count,
        x_at: e.offset(&x),
        x_row: strides[0],
        x_step: strides[1],
        rows,
        checks: SymInt::ZERO,
    };
    let consts = [
        code(x.dtype),
        code(y.view.dtype),
        taps as u32,
        width as u32,
        op.silu.into(),
        match (in_place, first) {
            (true, _) => IN_PLACE,
            (false, first) => first.is_some().into(),
        },
        op.carry.into(),
    ];
    let first = first.filter(|_| !in_place).unwrap_or(x.slot);
    let args = [x.slot, w.slot, bias.slot, first, y.view.slot, last_slot];
    let grid = e.grid_of(count, 128);
    e.dispatch_guarded(&CAUSAL_CONV, &consts, &args, &params, grid);
    y.finish(e);
    if let Some(last) = last {
        last.finish(e);
    }
    Ok(())
}
