//! Lowering of rotary position embedding (RoPE) on strided views. If a cache update is the only
//! reader of a RoPE, the RoPE kernel writes directly to the cache (`RopeUpdate` of `fusions`).
//!
//! Next: `rope/append.rs` for queries, keys and values of the same tokens in one step.

pub(crate) mod append;

use tercet_ir::ops::RopeStyle;
use tercet_ir::{CompileError, Node, Op, OpKind};

use super::words::eight;
use super::{Lowering, always, code, dynamic_slice, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::PRELUDE;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `rope.wgsl`.
    pub struct RopeParams {
        sizes: U32x8,
        window: U32x8,
        x_offset: U32,
        x_batch: U32,
        x_first: U32,
        x_second: U32,
        x_dim: U32,
        cos_offset: U32,
        cos_batch: U32,
        cos_first: U32,
        cos_second: U32,
        cos_pair: U32,
        sin_offset: U32,
        sin_batch: U32,
        sin_first: U32,
        sin_second: U32,
        sin_pair: U32,
        first: U32,
        second: U32,
        head_dim: U32,
        n_rot: U32,
        adjacent: U32,
        numel: U32,
        checks: U32,
    }
}

/// Rotates pairs of elements.
static ROPE: TypedKernel<RopeParams> = TypedKernel::wgsl(
    "rope",
    &[
        PRELUDE,
        portable!("rope_turn.wgsl"),
        portable!("rope.wgsl"),
        portable!("rope_whole.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &["DTYPE", "COS", "SIN"],
);

/// Rotates pairs of elements and writes them to a slice of a state.
static UPDATE: TypedKernel<RopeParams> = TypedKernel::wgsl(
    "rope_update",
    &[
        PRELUDE,
        portable!("rope_turn.wgsl"),
        portable!("rope.wgsl"),
        portable!("window.wgsl"),
        portable!("rope_update.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Read,
    ],
    &["DTYPE", "COS", "SIN"],
);

/// Lowering of `Rope`.
pub(crate) static FAMILY: Lowering = Lowering {
    name: "rope",
    ops: &[OpKind::Rope],
    kernels: &[
        &ROPE.def,
        &UPDATE.def,
        &append::APPEND.def,
        &append::APPEND_SCATTER.def,
    ],
    supports: always,
    lower,
};

/// Strides of batch, axis 1, axis 2 and pair in a table `[S, n]` or `[B, S, n]`.
fn table_strides(e: &mut LoweringCtx<'_>, table: &SlotView, seq_axis: usize) -> [SymInt; 4] {
    let own = e.strides(table);
    let mut strides = [SymInt::ZERO; 4];
    match *own.as_slice() {
        [seq, pair] => {
            strides[seq_axis] = seq;
            strides[3] = pair;
        }
        [batch, seq, pair] => {
            strides[0] = batch;
            strides[seq_axis] = seq;
            strides[3] = pair;
        }
        _ => unreachable!("invariant: inference checked the rank of the tables"),
    }
    strides
}

/// A RoPE computation with the views of its operands.
#[derive(Debug)]
struct RopeProblem {
    operands: [SlotView; 3],
    params: RopeParams,
}

/// The RoPE computation that a node describes.
fn turn(e: &mut LoweringCtx<'_>, node: &Node) -> RopeProblem {
    let Op::Rope(op) = &node.op else {
        unreachable!("invariant: this lowering has one operator")
    };
    let operands = [0, 1, 2].map(|i| e.view(node.inputs[i]));
    let [x, cos, sin] = &operands;
    let shape = &node.outputs[0].shape;
    let own = e.strides(x);
    let [cos_batch, cos_first, cos_second, cos_pair] = table_strides(e, cos, op.layout.seq_axis());
    let [sin_batch, sin_first, sin_second, sin_pair] = table_strides(e, sin, op.layout.seq_axis());
    let params = RopeParams {
        sizes: [SymInt::ONE; 8],
        window: [SymInt::ONE; 8],
        x_offset: e.offset(x),
        x_batch: own[0],
        x_first: own[1],
        x_second: own[2],
        x_dim: own[3],
        cos_offset: e.offset(cos),
        cos_batch,
        cos_first,
        cos_second,
        cos_pair,
        sin_offset: e.offset(sin),
        sin_batch,
        sin_first,
        sin_second,
        sin_pair,
        first: e.num(&shape[1]),
        second: e.num(&shape[2]),
        head_dim: e.num(&shape[3]),
        n_rot: SymInt::Const(op.n_rot as i64),
        adjacent: matches!(op.style, RopeStyle::GptJ).into(),
        numel: e.numel(shape),
        checks: SymInt::ZERO,
    };
    RopeProblem { operands, params }
}

impl RopeProblem {
    fn consts(&self) -> [u32; 3] {
        [0, 1, 2].map(|i| code(self.operands[i].dtype))
    }

    fn slots(&self) -> [SlotId; 3] {
        [0, 1, 2].map(|i| self.operands[i].slot)
    }
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let y = e.result(0)?;
    let turn = turn(e, node);
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let [x, cos, sin] = turn.slots();
    let args = [x, cos, sin, y.slot];
    e.dispatch(&ROPE, &turn.consts(), &args, &turn.params, grid);
    Ok(())
}

/// Lowers a state update together with the RoPE whose result it writes.
pub(crate) fn lower_update(
    e: &mut LoweringCtx<'_>,
    rope: &Node,
    update: &Node,
) -> Result<(), CompileError> {
    let starts = dynamic_slice::starts_of_update(e, update)?;
    let y = e.result(0)?;
    let mut turn = turn(e, rope);
    let window = &rope.outputs[0].shape;
    turn.params.sizes = eight(&e.sizes(y.layout.shape()));
    turn.params.window = eight(&e.sizes(window));
    let words = e.words(y.dtype, window);
    let grid = e.grid_of(words, 256);
    let [x, cos, sin] = turn.slots();
    let args = [x, cos, sin, starts.slot, y.slot];
    e.dispatch_guarded(&UPDATE, &turn.consts(), &args, &turn.params, grid);
    Ok(())
}
