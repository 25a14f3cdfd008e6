//! Lowering of `GatherElements`, `GatherNd` and `OneHot`: elements selected by index, for any dtype
//! and strides.

use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind, Tensor, TensorType};

use super::words::{WORD_OF_BITS, eight};
use super::{Lowering, always, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::PRELUDE;
use tercet_program::CheckKind;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `gather_elements.wgsl`.
    pub struct GatherElementsParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
        axis: U32,
        len: U32,
    }
    /// Parameter block of `gather_nd.wgsl`.
    pub struct GatherNdParams {
        shape: U32x8,
        strides: U32x8,
        lens: U32x8,
        steps: U32x8,
        numel: U32,
        offset: U32,
        inner: U32,
    }
    /// Parameter block of `one_hot.wgsl`.
    pub struct OneHotParams {
        numel: U32,
        depth: U32,
        one: U32,
    }
}

/// WGSL fragment that every kernel with indices includes.
pub(super) const NAMED: &str = portable!("named.wgsl");

static ELEMENTS: TypedKernel<GatherElementsParams> = TypedKernel::wgsl(
    "gather_elements",
    &[
        PRELUDE,
        WORD_OF_BITS,
        NAMED,
        portable!("gather_elements.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &["ELEM_BYTES", "RANK"],
);

static ND: TypedKernel<GatherNdParams> = TypedKernel::wgsl(
    "gather_nd",
    &[PRELUDE, WORD_OF_BITS, NAMED, portable!("gather_nd.wgsl")],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &["ELEM_BYTES", "RANK", "COORDINATES"],
);

static ONE_HOT: TypedKernel<OneHotParams> = TypedKernel::wgsl(
    "one_hot",
    &[PRELUDE, NAMED, portable!("one_hot.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["ELEM_BYTES"],
);

/// Lowering of `GatherElements`, `GatherNd` and `OneHot`.
pub(crate) static INDEXED: Lowering = Lowering {
    name: "indexed",
    ops: &[OpKind::GatherElements, OpKind::GatherNd, OpKind::OneHot],
    kernels: &[&ELEMENTS.def, &ND.def, &ONE_HOT.def],
    supports: always,
    lower,
};

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let view = |e: &LoweringCtx<'_>, at: usize| e.view(node.inputs[at]);
    match &node.op {
        Op::GatherElements(op) => elements(e, &view(e, 0), &view(e, 1), op.axis),
        Op::GatherNd(op) => nd(e, &view(e, 0), &view(e, 1), op.batch_dims),
        Op::OneHot(op) => one_hot(e, &view(e, 0), op.depth),
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    }
}

/// Checks that, on every axis except `axis`, the index tensor is at most as large as the data.
pub(super) fn check_within(e: &mut LoweringCtx<'_>, idx: &[Dim], data: &[Dim], axis: usize) {
    for (a, (m, n)) in idx.iter().zip(data).enumerate().filter(|(a, _)| *a != axis) {
        if m == n {
            continue;
        }
        let (m, n) = (e.num(m), e.num(n));
        let reason =
            format!("indices of size {{less}} on axis {a} of size {{more}}; at most its size");
        e.check_less_equal(m, n, reason);
    }
}

fn elements(
    e: &mut LoweringCtx<'_>,
    x: &SlotView,
    idx: &SlotView,
    axis: usize,
) -> Result<(), CompileError> {
    let (shape, len) = (idx.layout.shape(), &x.layout.shape()[axis]);
    check_within(e, shape, x.layout.shape(), axis);
    e.check_data(idx, CheckKind::Index, len)?;
    let dense = e.dense(idx)?;
    let y = e.result(0)?;
    let params = GatherElementsParams {
        shape: eight(&e.sizes(shape)),
        strides: eight(&e.strides(x)),
        numel: e.numel(shape),
        offset: e.offset(x),
        axis: SymInt::Const(axis as i64),
        len: e.num(len),
    };
    let words = e.words(y.dtype, shape);
    let grid = e.grid_of(words, 256);
    let consts = [x.dtype.size_bytes() as u32, shape.len() as u32];
    let args = [x.slot, dense.slot, y.slot];
    e.dispatch(&ELEMENTS, &consts, &args, &params, grid);
    Ok(())
}

fn nd(
    e: &mut LoweringCtx<'_>,
    x: &SlotView,
    idx: &SlotView,
    batch: usize,
) -> Result<(), CompileError> {
    let rows = idx.layout.shape().len() - 1;
    let Some(k) = idx.layout.shape()[rows].known() else {
        unreachable!("invariant: the number of coordinates is known")
    };
    let lens = &x.layout.shape()[batch..batch + k];
    e.check_coordinates(idx, lens)?;
    let dense = e.dense(idx)?;
    let y = e.result(0)?;
    let from = e.strides(x);
    // A result's position along a batch axis also selects the data. Along the other axes of the
    // index tensor, the position only selects a coordinate tuple, so the data stride is 0.
    let mut strides = from[..batch].to_vec();
    strides.resize(rows, SymInt::ZERO);
    strides.extend_from_slice(&from[batch + k..]);
    let params = GatherNdParams {
        shape: eight(&e.sizes(y.layout.shape())),
        strides: eight(&strides),
        lens: eight(&e.sizes(lens)),
        steps: eight(&from[batch..batch + k]),
        numel: e.numel(y.layout.shape()),
        offset: e.offset(x),
        inner: e.numel(&x.layout.shape()[batch + k..]),
    };
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let consts = [x.dtype.size_bytes() as u32, strides.len() as u32, k as u32];
    e.dispatch(&ND, &consts, &[x.slot, dense.slot, y.slot], &params, grid);
    Ok(())
}

fn one_hot(e: &mut LoweringCtx<'_>, idx: &SlotView, depth: usize) -> Result<(), CompileError> {
    let depth = Dim::Known(depth);
    e.check_data(idx, CheckKind::Index, &depth)?;
    let dense = e.dense(idx)?;
    let y = e.result(0)?;
    let params = OneHotParams {
        numel: e.numel(y.layout.shape()),
        depth: e.num(&depth),
        one: one(y.dtype).into(),
    };
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let consts = [y.dtype.size_bytes() as u32];
    e.dispatch(&ONE_HOT, &consts, &[dense.slot, y.slot], &params, grid);
    Ok(())
}

/// The bit pattern of 1 in a dtype, in the low bits.
fn one(dtype: DType) -> u32 {
    let tensor = Tensor::from_f64s(TensorType::new(dtype, &[]), &[1.0]);
    let tensor = tensor.unwrap_or_else(|e| unreachable!("invariant: one value is a scalar: {e}"));
    let bytes = tensor.bytes().iter().rev();
    bytes.fold(0, |bits, &b| bits << 8 | u32::from(b))
}
