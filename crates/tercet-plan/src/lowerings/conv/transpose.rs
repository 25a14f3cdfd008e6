//! Transposed convolutions of floats.
//!
//! On matrices, with small strides, a product that gathers the elements that reach a result as convolutions gather windows: taps
//! that do not reach it are 0, so that a part of one in all strides counts.
//!
//! Else a product of the weights with the operand gives what each element adds through each tap, as columns in
//! F32; each result then adds up those that reach it. Where channels are few, or columns would be too
//! large, each result sums over channels itself. Nothing is added to memory by several invocations.
//!
//! Those without strides are convolutions with turned weights, by a rule.

use tercet_ir::ops::{Conv, ConvTranspose, Op};
use tercet_ir::{CompileError, DType, Dim, Graph, Node, OpKind, Support};

use super::Given;
use super::coop::Coop;
use super::kernels::{COL2IM, DIRECT};
use super::windows::{WindowParams, Windows, known, product};
use crate::caps::Caps;
use crate::emit::{Emit, View};
use crate::families::matmul::product_into;
use crate::families::{Family, code, gemm_coop, missing};
use crate::num::Num;

/// Transposed convolutions.
pub(crate) static TRANSPOSES: Family = Family {
    name: "conv_transpose",
    ops: &[OpKind::ConvTranspose],
    kernels: &[&DIRECT.def, &COL2IM.def],
    supports,
    lower,
};

/// Results of which one has all taps of a window, along all axes: what is gathered for others is 0.
const MOST_SPREAD: usize = 4;

/// Channels of a group below which a product is not worth its columns.
const FEW_CHANNELS: usize = 8;

fn supports(_: &Graph, node: &Node, _: &Caps) -> Support {
    let Op::ConvTranspose(op) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    let is_spread = op.stride.iter().any(|n| *n > 1);
    match (node.outputs[0].dtype.is_float(), is_spread) {
        (true, true) => Support::Native,
        (true, false) => missing("without strides it is a convolution with turned weights"),
        (false, _) => missing("integers are convolved as columns and a product"),
    }
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::ConvTranspose(op) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    let x = e.view(node.inputs[0]);
    let w = e.view(node.inputs[1]);
    let w = e.dense(&w)?;
    let bias = node.inputs.get(2).map(|v| e.view(*v));
    let y = e.result(0)?;
    let kernel: Vec<usize> = w.layout.shape()[2..].iter().map(known).collect();
    let out = y.layout.shape()[2..].to_vec();
    let windows = Windows::of(&op.window(), &kernel, out);
    let own = x.layout.shape()[1].div_exact(&Dim::Known(op.groups));
    let own = own.unwrap_or_else(|| unreachable!("invariant: groups divide channels"));
    if op.stride.iter().product::<usize>() <= MOST_SPREAD
        && on_matrices(e, op, [&x, &w, &y], bias.as_ref())?
    {
        return Ok(());
    }
    let mut params = windows.params(e, &x);
    params.groups = Num::Const(op.groups as i64);
    params.m = e.num(&w.layout.shape()[1]);
    params.channels = e.num(&own);
    let bias_slot = match &bias {
        Some(view) => {
            params.bias_offset = e.offset(view);
            params.bias_stride = e.strides(view)[0];
            view.slot
        }
        // Never read.
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

/// Emits it as a product on matrices that gathers; false where the device has none, or they do not take it.
fn on_matrices(
    e: &mut Emit<'_>,
    op: &ConvTranspose,
    [x, w, y]: [&View; 3],
    bias: Option<&View>,
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
    let turned = View {
        layout: apart.transpose(&turn),
        ..w.clone()
    };
    let conv = Conv::of(op.window(), op.groups, None);
    let mut given = Given {
        op: &conv,
        windows: Windows::of(&op.window(), &taps, y.layout.shape()[2..].to_vec()),
        x: x.clone(),
        k: product(&[std::slice::from_ref(&own), kernel].concat()),
        m: shape[1].clone(),
        own: own.clone(),
        w: turned,
        bias: bias.cloned(),
        y: y.clone(),
        is_spread: true,
    };
    let Some(coop) = Coop::of(e, &given)? else {
        return Ok(false);
    };
    let turned = e.dense(&given.w)?;
    let rows = [&[y.layout.shape()[1].clone(), own], kernel].concat();
    let layout = turned.layout.reshape(&rows);
    given.w = View {
        layout: layout.unwrap_or_else(|| unreachable!("invariant: dense views reshape")),
        ..turned
    };
    coop.dispatch(e, &given)?;
    Ok(true)
}

/// What each element adds through each tap: `[N, groups, O / groups taps, elements]` in F32; none where
/// that is not worth it.
fn columns(
    e: &mut Emit<'_>,
    op: &ConvTranspose,
    own: &Dim,
    x: &View,
    w: &View,
) -> Result<Option<View>, CompileError> {
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
    if e.bound(own)? < FEW_CHANNELS || !fits {
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
    let weights = View {
        layout: weights.transpose(&[0, 2, 1]),
        ..w.clone()
    };
    let matrix = View {
        layout: matrix,
        ..x
    };
    // Rows of neighbours; once, where weights are constant.
    let weights = e.dense(&weights)?;
    let columns = e.temp(DType::F32, &dims)?;
    product_into(e, &weights, &matrix, &columns)?;
    Ok(Some(columns))
}
