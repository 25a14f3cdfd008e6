//! Running sums, products and maxima along any axis; few long rows in parts.
//!
//! Parts: a reduction of each, a scan of the results, a scan of each part that goes on from there.
//! Results of 8 and 16 bits are made with 32 and packed, since several rows may share a word.

use tercet_ir::ops::{CumSum, ReduceFn, ScanFn};
use tercet_ir::{CompileError, Dim, Node, Op, OpKind};

use super::reduce::{op_code, stage, wide};
use super::rows::{Rows, lanes, product};
use super::{Family, always, code, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;

crate::params! {
    /// The block of `cumsum.wgsl`.
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
    /// The block of `pack.wgsl`.
    pub struct PackParams {
        numel: U32,
    }
}

/// Running results of rows or of parts of them.
static CUMSUM: Kernel<CumSumParams> = Kernel::wgsl(
    "cumsum",
    &[
        portable!("prelude.wgsl"),
        portable!("strided.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("numbers.wgsl"),
        portable!("row_numbers.wgsl"),
        portable!("scan.wgsl"),
        portable!("cumsum.wgsl"),
    ],
    &[Access::Read, Access::Read, Access::Write],
    &["IN", "OP", "THREADS", "ACROSS", "CARRY"],
);

/// Running results of rows of whole vectors of 32-bit elements.
static VECTORS: Kernel<CumSumParams> = Kernel::wgsl(
    "cumsum_vectors",
    &[
        portable!("prelude.wgsl"),
        portable!("strided.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("numbers.wgsl"),
        portable!("row_numbers.wgsl"),
        portable!("scan.wgsl"),
        portable!("cumsum_vectors.wgsl"),
    ],
    &[Access::Read, Access::Write],
    &["IN", "OP", "THREADS", "ACROSS"],
);

/// Numbers of 32 bits to fewer.
pub(super) static PACK: Kernel<PackParams> = Kernel::wgsl(
    "pack",
    &[portable!("prelude.wgsl"), portable!("pack.wgsl")],
    &[Access::Read, Access::Write],
    &["OUT"],
);

/// Scans.
pub(crate) static SCANS: Family = Family {
    name: "cumsum",
    ops: &[OpKind::CumSum],
    kernels: &[&CUMSUM.def, &VECTORS.def, &PACK.def],
    supports: always,
    lower,
};

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::CumSum(op) = &node.op else {
        unreachable!("invariant: the family's operator only")
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

/// Dense numbers of 32 bits rounded or cut to the dtype of `y`.
pub(super) fn pack(e: &mut Emit<'_>, long: &View, y: &View) {
    let params = PackParams {
        numel: e.numel(y.layout.shape()),
    };
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    e.dispatch(&PACK, &[code(y.dtype)], &[long.slot, y.slot], &params, grid);
}

/// A scan into a dense slot of 32-bit elements.
fn scan(e: &mut Emit<'_>, op: &CumSum, x: &View, y: &View) -> Result<(), CompileError> {
    let inner = product(&x.layout.shape()[op.axis + 1..]);
    let inner = e.num(&inner);
    let mut target = Target {
        inner,
        first: Num::ZERO,
        step: inner,
        exclusive: op.exclusive,
    };
    let mut rows = Rows::of(e, x, &[op.axis])?;
    if op.reverse {
        // Both sides are walked from the end.
        let tape = e.tape();
        let (axis, last) = (rows.kept as usize, tape.sub(rows.len, Num::ONE));
        let to_last = tape.mul(last, rows.strides[axis]);
        rows.offset = tape.add(rows.offset, to_last);
        rows.strides[axis] = tape.mul(rows.strides[axis], Num::Const(-1));
        target.first = tape.mul(last, inner);
        target.step = tape.mul(inner, Num::Const(-1));
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
    let over_parts = Target {
        inner: Num::ONE,
        first: Num::ZERO,
        step: Num::ONE,
        exclusive: true,
    };
    let part_rows = Rows::of(e, &totals, &[1])?;
    dispatch(e, op.f, &totals, &part_rows, &carry, over_parts, None)?;
    dispatch(e, op.f, x, &rows, y, target, Some((&carry, parts)))
}

/// Where results go, and which.
#[derive(Clone, Copy, Debug)]
struct Target {
    inner: Num,
    first: Num,
    step: Num,
    exclusive: bool,
}

fn dispatch(
    e: &mut Emit<'_>,
    f: ScanFn,
    x: &View,
    rows: &Rows,
    y: &View,
    target: Target,
    carry: Option<(&View, usize)>,
) -> Result<(), CompileError> {
    let share = rows.share(rows.bounds.len.div_ceil(2), 1);
    let (has_carry, carry, parts) = match carry {
        Some((view, parts)) => (1, view.slot, Num::Const(parts as i64)),
        None => (0, e.absent()?, Num::ONE),
    };
    // The reduction of parts cuts rows between words.
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
    let straight = target.step == Num::ONE && lanes(x.dtype) == 1 && has_carry == 0;
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
