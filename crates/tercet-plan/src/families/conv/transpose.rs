//! Transposed convolutions of floats.
//!
//! A product of the weights with the operand gives what each element adds through each tap, as columns in
//! F32; each result then adds up those that reach it. Where channels are few, or columns would be too
//! large, each result sums over channels itself. Nothing is added to memory by several invocations.
//!
//! Those without strides are convolutions with turned weights, by a rule.

use tercet_ir::ops::{ConvTranspose, Op};
use tercet_ir::{CompileError, DType, Dim, Graph, Node, OpKind, Support};

use super::kernels::{COL2IM, DIRECT};
use super::windows::{WindowParams, Windows, known, product};
use crate::caps::Caps;
use crate::emit::{Emit, View};
use crate::families::matmul::product_into;
use crate::families::{Family, code, missing};
use crate::num::Num;

/// Transposed convolutions.
pub(crate) static TRANSPOSES: Family = Family {
    name: "conv_transpose",
    ops: &[OpKind::ConvTranspose],
    kernels: &[&DIRECT.def, &COL2IM.def],
    supports,
    lower,
};

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
