//! `GatherElements`, `GatherNd` and `OneHot`: elements that indices name, of any dtype and strides.

use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind, Tensor, TensorType};

use super::words::{WORD_OF_BITS, eight};
use super::{Family, always, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::CheckKind;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `gather_elements.wgsl`.
    pub struct ElementsParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
        axis: U32,
        len: U32,
    }
    /// The block of `gather_nd.wgsl`.
    pub struct NdParams {
        shape: U32x8,
        strides: U32x8,
        lens: U32x8,
        steps: U32x8,
        numel: U32,
        offset: U32,
        inner: U32,
    }
    /// The block of `one_hot.wgsl`.
    pub struct OneHotParams {
        numel: U32,
        depth: U32,
        one: U32,
    }
}

/// What every kernel with indices includes.
pub(super) const NAMED: &str = portable!("named.wgsl");

static ELEMENTS: Kernel<ElementsParams> = Kernel::wgsl(
    "gather_elements",
    &[
        PRELUDE,
        WORD_OF_BITS,
        NAMED,
        portable!("gather_elements.wgsl"),
    ],
    &[Access::Read, Access::Read, Access::Write],
    &["ELEM_BYTES", "RANK"],
);

static ND: Kernel<NdParams> = Kernel::wgsl(
    "gather_nd",
    &[PRELUDE, WORD_OF_BITS, NAMED, portable!("gather_nd.wgsl")],
    &[Access::Read, Access::Read, Access::Write],
    &["ELEM_BYTES", "RANK", "COORDINATES"],
);

static ONE_HOT: Kernel<OneHotParams> = Kernel::wgsl(
    "one_hot",
    &[PRELUDE, NAMED, portable!("one_hot.wgsl")],
    &[Access::Read, Access::Write],
    &["ELEM_BYTES"],
);

/// `GatherElements`, `GatherNd` and `OneHot`.
pub(crate) static INDEXED: Family = Family {
    name: "indexed",
    ops: &[OpKind::GatherElements, OpKind::GatherNd, OpKind::OneHot],
    kernels: &[&ELEMENTS.def, &ND.def, &ONE_HOT.def],
    supports: always,
    lower,
};

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let view = |e: &Emit<'_>, at: usize| e.view(node.inputs[at]);
    match &node.op {
        Op::GatherElements(op) => elements(e, &view(e, 0), &view(e, 1), op.axis),
        Op::GatherNd(op) => nd(e, &view(e, 0), &view(e, 1), op.batch_dims),
        Op::OneHot(op) => one_hot(e, &view(e, 0), op.depth),
        _ => unreachable!("invariant: a family lowers its own operators"),
    }
}

/// The indices at most as many as the elements beside them, on every axis but one.
pub(super) fn check_within(e: &mut Emit<'_>, idx: &[Dim], data: &[Dim], axis: usize) {
    for (a, (m, n)) in idx.iter().zip(data).enumerate().filter(|(a, _)| *a != axis) {
        if m == n {
            continue;
        }
        let (m, n) = (e.num(m), e.num(n));
        let reason =
            format!("indices of size {{less}} on axis {a} of size {{more}}; at most its size");
        e.check_at_most(m, n, reason);
    }
}

fn elements(e: &mut Emit<'_>, x: &View, idx: &View, axis: usize) -> Result<(), CompileError> {
    let (shape, len) = (idx.layout.shape(), &x.layout.shape()[axis]);
    check_within(e, shape, x.layout.shape(), axis);
    e.check_data(idx, CheckKind::Index, len)?;
    let dense = e.dense(idx)?;
    let y = e.result(0)?;
    let params = ElementsParams {
        shape: eight(&e.sizes(shape)),
        strides: eight(&e.strides(x)),
        numel: e.numel(shape),
        offset: e.offset(x),
        axis: Num::Const(axis as i64),
        len: e.num(len),
    };
    let words = e.words(y.dtype, shape);
    let grid = e.grid_of(words, 256);
    let consts = [x.dtype.size_bytes() as u32, shape.len() as u32];
    let args = [x.slot, dense.slot, y.slot];
    e.dispatch(&ELEMENTS, &consts, &args, &params, grid);
    Ok(())
}

fn nd(e: &mut Emit<'_>, x: &View, idx: &View, batch: usize) -> Result<(), CompileError> {
    let rows = idx.layout.shape().len() - 1;
    let Some(k) = idx.layout.shape()[rows].known() else {
        unreachable!("invariant: the number of coordinates is known")
    };
    let lens = &x.layout.shape()[batch..batch + k];
    e.check_coordinates(idx, lens)?;
    let dense = e.dense(idx)?;
    let y = e.result(0)?;
    let from = e.strides(x);
    // Batches lead along their axes, the other axes of rows through coordinates only.
    let mut strides = from[..batch].to_vec();
    strides.resize(rows, Num::ZERO);
    strides.extend_from_slice(&from[batch + k..]);
    let params = NdParams {
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

fn one_hot(e: &mut Emit<'_>, idx: &View, depth: usize) -> Result<(), CompileError> {
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

/// The bits of 1 in a dtype, in the low end.
fn one(dtype: DType) -> u32 {
    let tensor = Tensor::from_f64s(TensorType::new(dtype, &[]), &[1.0]);
    let tensor = tensor.unwrap_or_else(|e| unreachable!("invariant: one value is a scalar: {e}"));
    let bytes = tensor.bytes().iter().rev();
    bytes.fold(0, |bits, &b| bits << 8 | u32::from(b))
}
