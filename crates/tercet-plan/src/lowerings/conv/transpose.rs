//! Lowering of transposed convolutions of floats.
//!
//! With cooperative matrices and small strides: an implicit GEMM that gathers the inputs of each
//! result. Taps without an input read 0, so only one of `product(strides)` multiplications
//! contributes to the result.
//!
//! Without cooperative matrices, or with large strides, a matmul of weights and input computes the
//! contribution of each input through each tap, as F32 columns. A second kernel then sums all
//! contributions to each result (col2im). With few channels, or if the columns would be too large,
//! one kernel computes each result directly. In all these kernels, one thread computes a result, so
//! no atomics are needed.
//!
//! A rewrite rule turns transposed convolutions with stride 1 into convolutions with flipped
//! weights.

use tercet_ir::ops::{Conv, ConvTranspose, Op};
use tercet_ir::{CompileError, DType, Dim, Graph, Node, OpKind, Support};

use super::ConvProblem;
use super::coop::CoopConv;
use super::kernels::{COL2IM, DIRECT};
use super::windows::{GpuConvWindows, WindowParams, known, product};
use crate::caps::DeviceCaps;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::matmul::product_into;
use crate::lowerings::{Lowering, code, gemm_coop, missing};
use tercet_program::SymInt;

/// Lowering of transposed convolutions.
pub(crate) static TRANSPOSES: Lowering = Lowering {
    name: "conv_transpose",
    ops: &[OpKind::ConvTranspose],
    kernels: &[&DIRECT.def, &COL2IM.def],
    supports,
    lower,
};

/// Maximum product of the strides for the implicit GEMM. Among as many gathered taps as this
/// product, only one is not 0.
const MAX_SPREAD: usize = 4;

/// Minimum number of channels per group for which a matmul and col2im are faster than the direct
/// kernel.
const MIN_CHANNELS_FOR_MATMUL: usize = 8;

fn supports(_: &Graph, node: &Node, _: &DeviceCaps) -> Support {
    let Op::ConvTranspose(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    let is_spread = op.stride.iter().any(|n| *n > 1);
    match (node.outputs[0].dtype.is_float(), is_spread) {
        (true, true) => Support::Native,
        (true, false) => {
            missing("with stride 1 it is rewritten to a convolution with flipped weights")
        }
        (false, _) => missing("integer convolutions are decomposed to im2col and a matmul"),
    }
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::ConvTranspose(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    let x = e.view(node.inputs[0]);
    let w = e.view(node.inputs[1]);
    let w = e.dense(&w)?;
    let bias = node.inputs.get(2).map(|v| e.view(*v));
    let y = e.result(0)?;
    let kernel: Vec<usize> = w.layout.shape()[2..].iter().map(known).collect();
    let out = y.layout.shape()[2..].to_vec();
    let windows = GpuConvWindows::new(&op.window(), &kernel, out);
    let own = x.layout.shape()[1].div_exact(&Dim::Known(op.groups));
    let own = own.unwrap_or_else(|| unreachable!("invariant: groups divide channels"));
    if op.stride.iter().product::<usize>() <= MAX_SPREAD
        && emit_implicit_gemm(e, op, [&x, &w, &y], bias.as_ref())?
    {
        return Ok(());
    }
    let mut params = windows.params(e, &x);
    params.groups = SymInt::Const(op.groups as i64);
    params.m = e.num(&w.layout.shape()[1]);
    params.channels = e.num(&own);
    let bias_slot = match &bias {
        Some(view) => {
            params.bias_offset = e.offset(view);
            params.bias_stride = e.strides(view)[0];
            view.slot
        }
        // A dummy slot for the absent bias, which the kernel never reads.
        None => e.temp(DType::U32, &[Dim::Known(1)])?.slot,
    };
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 128);
    let mut consts = vec![u32::from(bias.is_some()), 0, code(x.dtype), code(y.dtype)];
    consts.extend(windows.consts());
    match columns(e, op, &own, &x, &w)? {
        Some(columns) => {
            let args = [columns.slot, bias_slot, y.slot];
            e.dispatch::<WindowParams>(&COL2IM, &consts, &args, &params, grid);
        }
        None => {
            let args = [x.slot, w.slot, bias_slot, y.slot];
            e.dispatch::<WindowParams>(&DIRECT, &consts, &args, &params, grid);
        }
    }
    Ok(())
}

/// Emits an implicit GEMM on cooperative matrices. Returns false without emitting anything if the
/// device lacks cooperative matrices or if the kernel does not support the sizes.
fn emit_implicit_gemm(
    e: &mut LoweringCtx<'_>,
    op: &ConvTranspose,
    [x, w, y]: [&SlotView; 3],
    bias: Option<&SlotView>,
) -> Result<bool, CompileError> {
    if gemm_coop::type_of(x.dtype).is_none_or(|ty| e.caps.coop.iter().all(|c| c.ty != ty)) {
        return Ok(false);
    }
    let shape = w.layout.shape().to_vec();
    let groups = Dim::Known(op.groups);
    let (Some(own), kernel) = (shape[0].div_exact(&groups), &shape[2..]) else {
        return Ok(false);
    };
    let taps: Vec<usize> = kernel.iter().map(known).collect();
    let apart = [&[groups, own.clone(), shape[1].clone()], kernel].concat();
    let Some(apart) = w.layout.reshape(&apart) else {
        unreachable!("invariant: dense views reshape")
    };
    let turn: Vec<usize> = [0, 2, 1].into_iter().chain(3..3 + taps.len()).collect();
    let turned = SlotView {
        layout: apart.transpose(&turn),
        ..w.clone()
    };
    let conv = Conv::new(op.window(), op.groups, None);
    let mut given = ConvProblem {
        op: &conv,
        windows: GpuConvWindows::new(&op.window(), &taps, y.layout.shape()[2..].to_vec()),
        x: x.clone(),
        k: product(&[std::slice::from_ref(&own), kernel].concat()),
        m: shape[1].clone(),
        out_channels_dim: own.clone(),
        w: turned,
        bias: bias.cloned(),
        y: y.clone(),
        is_spread: true,
    };
    let Some(coop) = CoopConv::new(e, &given)? else {
        return Ok(false);
    };
    let turned = e.dense(&given.w)?;
    let rows = [&[y.layout.shape()[1].clone(), own], kernel].concat();
    let layout = turned.layout.reshape(&rows);
    given.w = SlotView {
        layout: layout.unwrap_or_else(|| unreachable!("invariant: dense views reshape")),
        ..turned
    };
    coop.dispatch(e, &given)?;
    Ok(true)
}

/// Emits the matmul that computes the contributions of each input through each tap: F32 columns
/// `[N, groups, O / groups * taps, elements]`. `None` if the direct kernel is faster.
fn columns(
    e: &mut LoweringCtx<'_>,
    op: &ConvTranspose,
    own: &Dim,
    x: &SlotView,
    w: &SlotView,
) -> Result<Option<SlotView>, CompileError> {
    let shape = x.layout.shape().to_vec();
    let groups = Dim::Known(op.groups);
    let rows = product(&w.layout.shape()[1..]);
    let elements = product(&shape[2..]);
    let dims = [
        shape[0].clone(),
        groups.clone(),
        rows.clone(),
        elements.clone(),
    ];
    let mut bytes = 4usize;
    for dim in &dims {
        bytes = bytes.saturating_mul(e.bound(dim)?);
    }
    let fits = bytes as u64 <= e.caps.max_binding_bytes / 2;
    if e.bound(own)? < MIN_CHANNELS_FOR_MATMUL || !fits {
        return Ok(None);
    }
    let x = e.dense(x)?;
    let (Some(weights), Some(matrix)) = (
        w.layout.reshape(&[groups.clone(), own.clone(), rows]),
        x.layout
            .reshape(&[shape[0].clone(), groups, own.clone(), elements]),
    ) else {
        unreachable!("invariant: dense views reshape")
    };
    let weights = SlotView {
        layout: weights.transpose(&[0, 2, 1]),
        ..w.clone()
    };
    let matrix = SlotView {
        layout: matrix,
        ..x
    };
    // The matmul needs dense weights; constant weights are copied only once, before the first run.
    let weights = e.dense(&weights)?;
    let columns = e.temp(DType::F32, &dims)?;
    product_into(e, &weights, &matrix, &columns)?;
    Ok(Some(columns))
}
