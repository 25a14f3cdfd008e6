//! Rotary position embedding, on views.

use tercet_ir::ops::RopeStyle;
use tercet_ir::{CompileError, Node, Op, OpKind};

use super::{Family, always, code, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `rope.wgsl`.
    pub struct RopeParams {
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
    }
}

/// Turns pairs of elements.
static ROPE: Kernel<RopeParams> = Kernel::wgsl(
    "rope",
    &[PRELUDE, portable!("rope.wgsl")],
    &[Access::Read, Access::Read, Access::Read, Access::Write],
    &["DTYPE", "COS", "SIN"],
);

/// `Rope`.
pub(crate) static FAMILY: Family = Family {
    name: "rope",
    ops: &[OpKind::Rope],
    kernels: &[&ROPE.def],
    supports: always,
    lower,
};

/// Strides of batch, axis 1, axis 2 and pair of a table `[S, n]` or `[B, S, n]`.
fn table_strides(e: &mut Emit<'_>, table: &View, seq_axis: usize) -> [Num; 4] {
    let own = e.strides(table);
    let mut strides = [Num::ZERO; 4];
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

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Rope(op) = &node.op else {
        unreachable!("invariant: this family has one operator")
    };
    let [x, cos, sin] = [0, 1, 2].map(|i| e.view(node.inputs[i]));
    let y = e.result(0)?;
    let shape = y.layout.shape();
    let own = e.strides(&x);
    let [cos_batch, cos_first, cos_second, cos_pair] = table_strides(e, &cos, op.layout.seq_axis());
    let [sin_batch, sin_first, sin_second, sin_pair] = table_strides(e, &sin, op.layout.seq_axis());
    let params = RopeParams {
        x_offset: e.offset(&x),
        x_batch: own[0],
        x_first: own[1],
        x_second: own[2],
        x_dim: own[3],
        cos_offset: e.offset(&cos),
        cos_batch,
        cos_first,
        cos_second,
        cos_pair,
        sin_offset: e.offset(&sin),
        sin_batch,
        sin_first,
        sin_second,
        sin_pair,
        first: e.num(&shape[1]),
        second: e.num(&shape[2]),
        head_dim: e.num(&shape[3]),
        n_rot: Num::Const(op.n_rot as i64),
        adjacent: matches!(op.style, RopeStyle::GptJ).into(),
        numel: e.numel(shape),
    };
    let words = e.words(y.dtype, shape);
    let grid = e.grid_of(words, 256);
    let consts = [code(x.dtype), code(cos.dtype), code(sin.dtype)];
    let args = [x.slot, cos.slot, sin.slot, y.slot];
    e.dispatch(&ROPE, &consts, &args, &params, grid);
    Ok(())
}
