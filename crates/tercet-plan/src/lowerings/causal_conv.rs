//! `CausalConv`: one invocation a channel of a step, or two channels where they share a word; as many more invocations
//! for what is carried, unless that takes the place of what was there before. Steps lie where they are, parts of a projection among them.

use tercet_ir::{CompileError, DType, Graph, Node, Op, OpKind, Support};

use super::state_scan::Wide;
use super::{Family, code, missing, portable};
use crate::caps::Caps;
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;

crate::params! {
    /// The block of `causal_conv.wgsl`.
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

/// Rows, factors, bias, the rows before, results, the last rows; the records of checks.
static CAUSAL_CONV: Kernel<CausalConvParams> = Kernel::wgsl(
    "causal_conv",
    &[
        portable!("prelude.wgsl"),
        portable!("halves.wgsl"),
        portable!("causal_conv.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
        Access::Read,
    ],
    &["DTYPE", "OUT", "TAPS", "WIDTH", "SILU", "INITIAL", "CARRY"],
);

/// Causal convolutions of channels.
pub(crate) static CAUSAL_CONVS: Family = Family {
    name: "causal_conv",
    ops: &[OpKind::CausalConv],
    kernels: &[&CAUSAL_CONV.def],
    supports,
    lower,
};

/// INITIAL where the last rows take the place of the first.
const IN_PLACE: u32 = 2;

/// Beyond, products of rows are no worse.
const MOST_TAPS: usize = 32;

fn supports(graph: &Graph, node: &Node, _: &Caps) -> Support {
    match graph.ty(node.inputs[1]).shape[0].known() {
        Some(..=MOST_TAPS) => Support::Native,
        Some(_) | None => missing("it has more than 32 taps"),
    }
}

/// The view, copied unless the channels of a step are neighbours.
fn by_steps(e: &mut Emit<'_>, view: &View) -> Result<View, CompileError> {
    let stride = &view.layout.strides()[2];
    match stride.dim().known() == Some(1) && stride.factor() == 1 {
        true => Ok(view.clone()),
        false => e.dense(view),
    }
}

/// What an invocation makes for each unit of an entry: steps and carried rows, or one that makes all carried ones and the steps
/// that see them, and the steps beyond.
fn rows(e: &mut Emit<'_>, steps: Num, before: usize, in_place: bool) -> Num {
    let before = before as i64;
    match in_place {
        true => {
            let beyond = e.tape().max(steps, Num::Const(before));
            e.tape().sub(beyond, Num::Const(before - 1))
        }
        false => e.tape().add(steps, Num::Const(before)),
    }
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::CausalConv(op) = &node.op else {
        unreachable!("invariant: {:?} is of this family", node.op.kind())
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
        unreachable!("invariant: inference refuses sizes that are not known")
    };
    let whole = channels.is_multiple_of(2);
    if !whole && x.dtype != DType::F32 {
        // Rounding what was carried is another step, which does not ask whether the run failed.
        e.update_apart();
    }
    let y = Wide::unless(e, 0, whole)?;
    let last = match op.carry {
        true => Some(Wide::unless(e, 1, whole)?),
        false => None,
    };
    let last_slot = match &last {
        Some(last) => last.view.slot,
        None => e.absent()?,
    };
    let width = if y.view.dtype == DType::F32 { 1 } else { 2 };
    let before = if op.carry { taps - 1 } else { 0 };
    let (batch, steps) = (&x.layout.shape()[0], &x.layout.shape()[1]);
    let (batch, steps) = (e.num(batch), e.num(steps));
    let units = Num::Const((channels / width) as i64);
    // The last rows take the place of the first: kernels read these where they write, not by another binding.
    let first = given.first().map(|state| state.slot);
    let in_place = op.carry && first == Some(last_slot);
    let rows = rows(e, steps, before, in_place);
    let all = e.tape().mul(batch, rows);
    let count = e.tape().mul(all, units);
    let strides = e.strides(&x);
    let params = CausalConvParams {
        steps,
        before: Num::Const(before as i64),
        units,
        count,
        x_at: e.offset(&x),
        x_row: strides[0],
        x_step: strides[1],
        rows,
        checks: Num::ZERO,
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
