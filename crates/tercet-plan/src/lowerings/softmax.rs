//! Lowering of softmax and log-softmax along any axis.
//!
//! If rows consist of whole 32-bit words, a single kernel computes the softmax. If a word of a
//! narrow dtype holds elements of several rows, one kernel computes row statistics and a second one
//! writes words.

use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind};

use super::rows::{RowLayout, product, register_vectors};
use super::{Lowering, always, code, portable};
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `softmax.wgsl` and `softmax_apply.wgsl`.
    pub struct SoftmaxParams {
        sizes: U32x8,
        strides: U32x8,
        kept: U32,
        offset: U32,
        rows: U32,
        len: U32,
        stride: U32,
        inner: U32,
    }
}

/// Computes softmax, or only the statistics of each row.
static SOFTMAX: TypedKernel<SoftmaxParams> = TypedKernel::wgsl(
    "softmax",
    &[
        portable!("prelude.wgsl"),
        portable!("scalar/base.wgsl"),
        portable!("scalar/log.wgsl"),
        portable!("strided.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("row_floats.wgsl"),
        portable!("softmax_value.wgsl"),
        portable!("softmax_row.wgsl"),
        portable!("softmax.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write],
    &["DTYPE", "PER", "THREADS", "ACROSS", "CACHE", "LOG", "STATS"],
);

/// Computes softmax of rows that consist of whole vectors.
static VECTORS: TypedKernel<SoftmaxParams> = TypedKernel::wgsl(
    "softmax_vectors",
    &[
        portable!("prelude.wgsl"),
        portable!("scalar/base.wgsl"),
        portable!("scalar/log.wgsl"),
        portable!("strided.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("row_floats.wgsl"),
        portable!("halves.wgsl"),
        portable!("row_vectors.wgsl"),
        portable!("softmax_value.wgsl"),
        portable!("softmax_row.wgsl"),
        portable!("softmax_vectors.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write],
    &["DTYPE", "VECTORS", "THREADS", "ACROSS", "LOG"],
);

/// Computes softmax from precomputed row statistics.
static APPLY: TypedKernel<SoftmaxParams> = TypedKernel::wgsl(
    "softmax_apply",
    &[
        portable!("prelude.wgsl"),
        portable!("strided.wgsl"),
        portable!("softmax_value.wgsl"),
        portable!("softmax_apply.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &["DTYPE", "LOG"],
);

/// Lowering of softmax and log-softmax.
pub(crate) static SOFTMAXES: Lowering = Lowering {
    name: "softmax",
    ops: &[OpKind::Softmax, OpKind::LogSoftmax],
    kernels: &[&SOFTMAX.def, &VECTORS.def, &APPLY.def],
    supports: always,
    lower,
};

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let (axis, log) = match &node.op {
        Op::Softmax(op) => (op.axis, false),
        Op::LogSoftmax(op) => (op.axis, true),
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let rows = RowLayout::new(e, &x, &[axis])?;
    let inner = product(&x.layout.shape()[axis + 1..]);
    let params = SoftmaxParams {
        sizes: rows.sizes,
        strides: rows.strides,
        kept: rows.kept.into(),
        offset: rows.offset,
        rows: rows.rows,
        len: rows.len,
        stride: rows.stride(),
        inner: e.num(&inner),
    };
    let log = u32::from(log);
    if inner.is_one() && in_vectors(e, &x, &y, &rows, log, &params) {
        return Ok(());
    }
    let per = match inner.is_one() {
        true => rows.per_word(x.dtype),
        false => 1,
    };
    if per > 1 || x.dtype == DType::F32 {
        dispatch(e, &x, &y, &rows, per, log, false, &params);
        return Ok(());
    }
    let stats = e.temp(DType::F32, &[rows.row_dim.clone(), Dim::Known(2)])?;
    dispatch(e, &x, &stats, &rows, 1, log, true, &params);
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let args = [x.slot, stats.slot, y.slot];
    e.dispatch(&APPLY, &[code(x.dtype), log], &args, &params, grid);
    Ok(())
}

/// Emits the kernel for rows of whole vectors that fit into registers, if it applies; returns
/// whether it did.
fn in_vectors(
    e: &mut LoweringCtx<'_>,
    x: &SlotView,
    y: &SlotView,
    rows: &RowLayout,
    log: u32,
    params: &SoftmaxParams,
) -> bool {
    let Some(per) = rows.per_vector(e, x.dtype) else {
        return false;
    };
    let units = rows.bounds.len / per as usize;
    let share = rows.share(units, 1);
    let Some(vectors) = register_vectors(units, share.threads) else {
        return false;
    };
    let groups = e.tape().ceil_div(rows.rows, share.rows());
    let grid = e.flat_grid(groups);
    let consts = [code(x.dtype), vectors, share.threads, 0, log];
    e.dispatch(&VECTORS, &consts, &[x.slot, y.slot], params, grid);
    true
}

#[allow(clippy::too_many_arguments, reason = "each is one word of the kernel")]
fn dispatch(
    e: &mut LoweringCtx<'_>,
    x: &SlotView,
    to: &SlotView,
    rows: &RowLayout,
    per: u32,
    log: u32,
    stats: bool,
    params: &SoftmaxParams,
) {
    let units = rows.bounds.len / per as usize;
    let share = rows.share(units, 1);
    let consts = [
        code(x.dtype),
        per,
        share.threads,
        share.across.into(),
        cache(units, share.threads),
        log,
        stats.into(),
    ];
    let groups = e.tape().ceil_div(rows.rows, share.rows());
    let grid = e.flat_grid(groups);
    e.dispatch(&SOFTMAX, &consts, &[x.slot, to.slot], params, grid);
}

/// Number of a row's elements, words or vectors that a thread holds in registers: 4 or 16; 0 for
/// longer rows.
pub(crate) fn cache(units: usize, threads: u32) -> u32 {
    match units.div_ceil(threads as usize) {
        0..=4 => 4,
        5..=16 => 16,
        _ => 0,
    }
}
