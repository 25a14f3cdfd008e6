//! Lowering of `GroupNorm` and `LayerNorm2d`: norms of `[N, C, ..]` tensors with one weight per
//! channel.
//!
//! A first kernel computes mean and scale of each normalized row, for any strides. A second kernel
//! normalizes the elements of whole 32-bit words, which may belong to several rows. Batch norm
//! needs no lowering, because a rewrite rule turns it into a map.

use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind};

use super::rows::{RowLayout, product};
use super::softmax::cache;
use super::{Lowering, always, code, portable};
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `channel_norm_stats.wgsl`.
    pub struct ChannelNormStatsParams {
        sizes: U32x8,
        strides: U32x8,
        kept: U32,
        offset: U32,
        rows: U32,
        len: U32,
        stride: U32,
        eps: F32,
    }
    /// Parameter block of `channel_norm_apply.wgsl`.
    pub struct ChannelNormApplyParams {
        numel: U32,
        offset: U32,
        along_batches: U32,
        along_channels: U32,
        along_places: U32,
        channels: U32,
        places: U32,
        each: U32,
    }
}

static STATS: TypedKernel<ChannelNormStatsParams> = TypedKernel::wgsl(
    "channel_norm_stats",
    &[
        portable!("prelude.wgsl"),
        portable!("strided.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("row_floats.wgsl"),
        portable!("norm_scale.wgsl"),
        portable!("norm_value.wgsl"),
        portable!("norm_about.wgsl"),
        portable!("norm_row.wgsl"),
        portable!("channel_norm_stats.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write],
    &["DTYPE", "PER", "THREADS", "ACROSS", "CACHE", "RMS"],
);

static APPLY: TypedKernel<ChannelNormApplyParams> = TypedKernel::wgsl(
    "channel_norm_apply",
    &[
        portable!("prelude.wgsl"),
        portable!("norm_value.wgsl"),
        portable!("channel_norm_apply.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &["DTYPE", "RMS", "BETA", "BY_PLACE"],
);

/// Lowering of `GroupNorm` and `LayerNorm2d`.
pub(crate) static CHANNEL_NORMS: Lowering = Lowering {
    name: "channel_norm",
    ops: &[OpKind::GroupNorm, OpKind::LayerNorm2d],
    kernels: &[&STATS.def, &APPLY.def],
    supports: always,
    lower,
};

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let x = e.view(node.inputs[0]);
    let shape = x.layout.shape();
    let (batches, channels) = (shape[0].clone(), shape[1].clone());
    let places = product(&shape[2..]);
    let x = reshaped(e, &x, &[batches.clone(), channels.clone(), places])?;
    let (eps, each, rows_of, along) = match &node.op {
        Op::GroupNorm(op) => {
            let Some(each) = channels.known().map(|c| c / op.groups) else {
                unreachable!("invariant: the number of channels is known")
            };
            let len = product(&[Dim::Known(each), x.layout.shape()[2].clone()]);
            let rows = [batches, Dim::Known(op.groups), len];
            (op.eps, each, reshaped(e, &x, &rows)?, 2)
        }
        Op::LayerNorm2d(op) => (op.eps, 1, x.clone(), 1),
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    };
    let rows = RowLayout::new(e, &rows_of, &[along])?;
    let stats = stats(e, &rows_of, &rows, eps.0 as f32)?;
    apply(e, node, &x, &stats, each, along == 1)
}

/// Reshapes a view; makes a dense copy first if the strides do not allow the reshape.
fn reshaped(
    e: &mut LoweringCtx<'_>,
    view: &SlotView,
    shape: &[Dim],
) -> Result<SlotView, CompileError> {
    let view = match view.layout.reshape(shape) {
        Some(_) => view.clone(),
        None => e.dense(view)?,
    };
    let Some(layout) = view.layout.reshape(shape) else {
        unreachable!("invariant: a dense view can be reshaped to any shape of its size")
    };
    Ok(SlotView { layout, ..view })
}

/// Emits the kernel that computes mean and scale of each row.
fn stats(
    e: &mut LoweringCtx<'_>,
    x: &SlotView,
    rows: &RowLayout,
    eps: f32,
) -> Result<SlotView, CompileError> {
    let stats = e.temp(DType::F32, &[rows.row_dim.clone(), Dim::Known(4)])?;
    let per = rows.per_word(x.dtype);
    let units = rows.bounds.len / per as usize;
    let share = rows.share(units, 1);
    let params = ChannelNormStatsParams {
        sizes: rows.sizes,
        strides: rows.strides,
        kept: rows.kept.into(),
        offset: rows.offset,
        rows: rows.rows,
        len: rows.len,
        stride: rows.stride(),
        eps,
    };
    let consts = [
        code(x.dtype),
        per,
        share.threads,
        share.across.into(),
        cache(units, share.threads),
        0,
    ];
    let groups = e.tape().ceil_div(rows.rows, share.rows());
    let grid = e.flat_grid(groups);
    e.dispatch(&STATS, &consts, &[x.slot, stats.slot], &params, grid);
    Ok(stats)
}

fn apply(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    x: &SlotView,
    stats: &SlotView,
    each: usize,
    by_place: bool,
) -> Result<(), CompileError> {
    let gamma = e.view(node.inputs[1]);
    let gamma = e.dense(&gamma)?;
    let (has_beta, beta) = match node.inputs.get(2) {
        Some(&beta) => {
            let beta = e.view(beta);
            (1, e.dense(&beta)?.slot)
        }
        None => (0, e.placeholder_slot()?),
    };
    let y = e.result(0)?;
    let (sizes, strides) = (e.sizes(x.layout.shape()), e.strides(x));
    let params = ChannelNormApplyParams {
        numel: e.numel(y.layout.shape()),
        offset: e.offset(x),
        along_batches: strides[0],
        along_channels: strides[1],
        along_places: strides[2],
        channels: sizes[1],
        places: sizes[2],
        each: SymInt::Const(each.max(1) as i64),
    };
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let consts = [code(y.dtype), 0, has_beta, by_place.into()];
    let args = [x.slot, gamma.slot, beta, stats.slot, y.slot];
    e.dispatch(&APPLY, &consts, &args, &params, grid);
    Ok(())
}
