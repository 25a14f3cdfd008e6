//! Lowering of running sums, products and maxima along any axis. If there are few long rows, they
//! are split into parts.
//!
//! Rows that are split into parts take three passes: reduce each part, scan the results of the
//! parts, then scan each part with its carry-in. Results of 8 and 16 bits are computed in 32 bits
//! and packed by a separate kernel, because several rows may share a 32-bit word.

use tercet_ir::ops::{CumSum, ReduceFn, ScanFn};
use tercet_ir::{CompileError, Dim, Node, Op, OpKind};

use super::reduce::{op_code, stage, wide};
use super::rows::{RowLayout, lanes, product};
use super::{Lowering, always, code, portable};
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `cumsum.wgsl`.
    pub struct CumSumParams {
        sizes: U32x8,
        strides: U32x8,
        kept: U32,
        offset: U32,
        rows: U32,
        len: U32,
        stride: U32,
        inner: U32,
        first: U32,
        step: U32,
        parts: U32,
        chunk: U32,
        exclusive: U32,
    }
    /// Parameter block of `pack.wgsl`.
    pub struct CumSumPackParams {
        numel: U32,
    }
}

/// Computes running sums, products or maxima of rows or of parts of rows.
static CUMSUM: TypedKernel<CumSumParams> = TypedKernel::wgsl(
    "cumsum",
    &[
        portable!("prelude.wgsl"),
        portable!("strided.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("scalar/base.wgsl"),
        portable!("scalar/floats.wgsl"),
        portable!("scalar/wide.wgsl"),
        portable!("scalar/arithmetic.wgsl"),
        portable!("numbers.wgsl"),
        portable!("row_numbers.wgsl"),
        portable!("scan.wgsl"),
        portable!("cumsum.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &["IN", "OP", "THREADS", "ACROSS", "CARRY"],
);

/// Computes running sums, products or maxima of rows that consist of whole 16-byte vectors of
/// 32-bit elements.
static VECTORS: TypedKernel<CumSumParams> = TypedKernel::wgsl(
    "cumsum_vectors",
    &[
        portable!("prelude.wgsl"),
        portable!("strided.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("scalar/base.wgsl"),
        portable!("scalar/floats.wgsl"),
        portable!("scalar/wide.wgsl"),
        portable!("scalar/arithmetic.wgsl"),
        portable!("numbers.wgsl"),
        portable!("row_numbers.wgsl"),
        portable!("scan.wgsl"),
        portable!("cumsum_vectors.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write],
    &["IN", "OP", "THREADS", "ACROSS"],
);

/// Converts 32-bit numbers to an 8- or 16-bit dtype and packs them into words.
pub(super) static PACK: TypedKernel<CumSumPackParams> = TypedKernel::wgsl(
    "pack",
    &[portable!("prelude.wgsl"), portable!("pack.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["OUT"],
);

/// Lowering of `CumSum`: running sums, products and maxima.
pub(crate) static SCANS: Lowering = Lowering {
    name: "cumsum",
    ops: &[OpKind::CumSum],
    kernels: &[&CUMSUM.def, &VECTORS.def, &PACK.def],
    supports: always,
    lower,
};

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::CumSum(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operator")
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    if lanes(y.dtype) == 1 {
        return scan(e, op, &x, &y);
    }
    let long = e.temp(wide(y.dtype), y.layout.shape())?;
    scan(e, op, &x, &long)?;
    pack(e, &long, &y);
    Ok(())
}

/// Emits the kernel that rounds or truncates dense 32-bit numbers to the dtype of `y`.
pub(super) fn pack(e: &mut LoweringCtx<'_>, long: &SlotView, y: &SlotView) {
    let params = CumSumPackParams {
        numel: e.numel(y.layout.shape()),
    };
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    e.dispatch(&PACK, &[code(y.dtype)], &[long.slot, y.slot], &params, grid);
}

/// Emits the kernels of a scan whose results are dense 32-bit elements.
fn scan(
    e: &mut LoweringCtx<'_>,
    op: &CumSum,
    x: &SlotView,
    y: &SlotView,
) -> Result<(), CompileError> {
    let inner = product(&x.layout.shape()[op.axis + 1..]);
    let inner = e.num(&inner);
    let mut target = ScanOutput {
        inner,
        first: SymInt::ZERO,
        step: inner,
        exclusive: op.exclusive,
    };
    let mut rows = RowLayout::new(e, x, &[op.axis])?;
    if op.reverse {
        // A reverse scan starts at the last element of operand and result, and uses negative
        // strides.
        let tape = e.tape();
        let (axis, last) = (rows.kept as usize, tape.sub(rows.len, SymInt::ONE));
        let to_last = tape.mul(last, rows.strides[axis]);
        rows.offset = tape.add(rows.offset, to_last);
        rows.strides[axis] = tape.mul(rows.strides[axis], SymInt::Const(-1));
        target.first = tape.mul(last, inner);
        target.step = tape.mul(inner, SymInt::Const(-1));
    }
    let share = rows.share(rows.bounds.len.div_ceil(2), 1);
    let parts = rows.parts(rows.bounds.len, share);
    if parts == 1 {
        return dispatch(e, op.f, x, &rows, y, target, None);
    }
    let partial = [rows.row_dim.clone(), Dim::Known(parts)];
    let totals = e.temp(wide(x.dtype), &partial)?;
    stage(e, op.f.reduction(), x, &rows, &totals, parts, None);
    let carry = e.temp(wide(x.dtype), &partial)?;
    let over_parts = ScanOutput {
        inner: SymInt::ONE,
        first: SymInt::ZERO,
        step: SymInt::ONE,
        exclusive: true,
    };
    let part_rows = RowLayout::new(e, &totals, &[1])?;
    dispatch(e, op.f, &totals, &part_rows, &carry, over_parts, None)?;
    dispatch(e, op.f, x, &rows, y, target, Some((&carry, parts)))
}

/// Where the kernel writes the results of a scan, and whether the scan is exclusive.
#[derive(Clone, Copy, Debug)]
struct ScanOutput {
    inner: SymInt,
    first: SymInt,
    step: SymInt,
    exclusive: bool,
}

fn dispatch(
    e: &mut LoweringCtx<'_>,
    f: ScanFn,
    x: &SlotView,
    rows: &RowLayout,
    y: &SlotView,
    target: ScanOutput,
    carry: Option<(&SlotView, usize)>,
) -> Result<(), CompileError> {
    let share = rows.share(rows.bounds.len.div_ceil(2), 1);
    let (has_carry, carry, parts) = match carry {
        Some((view, parts)) => (1, view.slot, SymInt::Const(parts as i64)),
        // The kernel does not read this operand then.
        None => (0, x.slot, SymInt::ONE),
    };
    // The kernel that reduces the parts requires that parts start at word boundaries.
    let per = rows.per_unit(e, x.dtype);
    let words = e.tape().ceil_div(rows.len, per);
    let chunk = e.tape().ceil_div(words, parts);
    let chunk = e.tape().mul(chunk, per.into());
    let params = CumSumParams {
        sizes: rows.sizes,
        strides: rows.strides,
        kept: rows.kept.into(),
        offset: rows.offset,
        rows: rows.rows,
        len: rows.len,
        stride: rows.stride(),
        inner: target.inner,
        first: target.first,
        step: target.step,
        parts,
        chunk,
        exclusive: target.exclusive.into(),
    };
    let f: ReduceFn = f.reduction();
    let straight = target.step == SymInt::ONE && lanes(x.dtype) == 1 && has_carry == 0;
    if straight && let Some(per) = rows.per_vector(e, x.dtype) {
        let share = rows.share(rows.bounds.len / per as usize, 1);
        let groups = e.tape().ceil_div(rows.rows, share.rows());
        let grid = e.flat_grid(groups);
        let consts = [code(x.dtype), op_code(f), share.threads, 0];
        e.dispatch(&VECTORS, &consts, &[x.slot, y.slot], &params, grid);
        return Ok(());
    }
    let consts = [
        code(x.dtype),
        op_code(f),
        share.threads,
        share.across.into(),
        has_carry,
    ];
    let groups = e.tape().ceil_div(rows.rows, share.rows());
    let groups = e.tape().mul(groups, parts);
    let grid = e.flat_grid(groups);
    e.dispatch(&CUMSUM, &consts, &[x.slot, carry, y.slot], &params, grid);
    Ok(())
}
