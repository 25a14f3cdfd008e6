//! Lowering of sums, means, products and extremes over any axes. A few long rows are reduced in two
//! stages.

use tercet_ir::ops::ReduceFn;
use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind};

use super::rows::{RowLayout, lanes};
use super::{Lowering, always, code, portable};
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `reduce.wgsl`.
    pub struct ReduceParams {
        sizes: U32x8,
        strides: U32x8,
        kept: U32,
        along: U32,
        offset: U32,
        rows: U32,
        len: U32,
        parts: U32,
        chunk: U32,
        mean: U32,
        count: U32,
    }
}

/// Reduces each row, or each part of a row, to one number.
static REDUCE: TypedKernel<ReduceParams> = TypedKernel::wgsl(
    "reduce",
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
        portable!("reduce_units.wgsl"),
        portable!("reduce.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write],
    &["IN", "OUT", "OP", "PER", "THREADS", "ACROSS"],
);

/// Like [`REDUCE`], for rows that consist of whole vectors.
static VECTORS: TypedKernel<ReduceParams> = TypedKernel::wgsl(
    "reduce_vectors",
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
        portable!("reduce_vectors.wgsl"),
        portable!("reduce.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write],
    &["IN", "OUT", "OP", "PER", "THREADS", "ACROSS"],
);

/// Lowering of reductions.
pub(crate) static REDUCES: Lowering = Lowering {
    name: "reduce",
    ops: &[OpKind::Reduce],
    kernels: &[&REDUCE.def, &VECTORS.def],
    supports: always,
    lower,
};

/// Accumulator dtype of a reduction over elements of `dtype`.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::U32 | DType::U8 | DType::Bool => DType::U32,
        DType::I32 | DType::I16 | DType::I8 | DType::I64 => DType::I32,
        DType::F32 | DType::F16 | DType::BF16 | DType::F64 => DType::F32,
    }
}

/// Number that selects a reduction function in the shaders. A mean has the number of a sum, because
/// the last stage divides it.
pub(crate) fn op_code(f: ReduceFn) -> u32 {
    match f {
        ReduceFn::Sum | ReduceFn::Mean => 0,
        ReduceFn::Prod => 1,
        ReduceFn::Max => 2,
        ReduceFn::Min => 3,
    }
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Reduce(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operator")
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let rows = RowLayout::new(e, &x, &op.axes)?;
    let last = ReduceFinish {
        mean: op.f == ReduceFn::Mean,
        count: rows.len,
    };
    let units = rows.bounds.len / rows.per_unit(e, x.dtype) as usize;
    let parts = rows.parts(units, rows.share(units, 1));
    if parts == 1 {
        stage(e, op.f, &x, &rows, &y, 1, Some(last));
        return Ok(());
    }
    let partial = [rows.row_dim.clone(), Dim::Known(parts)];
    let partial = e.temp(wide(x.dtype), &partial)?;
    stage(e, op.f, &x, &rows, &partial, parts, None);
    let rows = RowLayout::new(e, &partial, &[1])?;
    stage(e, op.f, &partial, &rows, &y, 1, Some(last));
    Ok(())
}

/// Final operation of the last reduction stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReduceFinish {
    /// Divide the sum by the element count.
    mean: bool,
    count: SymInt,
}

impl ReduceFinish {
    /// The final operation of a sum, or if `mean`, of a mean over `count` elements.
    pub(crate) fn new(mean: bool, count: SymInt) -> ReduceFinish {
        ReduceFinish { mean, count }
    }
}

/// Reduces each of `parts` parts of each row into one element of `to`.
pub(crate) fn stage(
    e: &mut LoweringCtx<'_>,
    f: ReduceFn,
    x: &SlotView,
    rows: &RowLayout,
    to: &SlotView,
    parts: usize,
    last: Option<ReduceFinish>,
) {
    let per = rows.per_unit(e, x.dtype);
    let kernel = match rows.per_vector(e, x.dtype) {
        Some(_) => &VECTORS,
        None => &REDUCE,
    };
    let share = rows.share(rows.bounds.len / per as usize, lanes(to.dtype));
    let units = e.tape().div(rows.len, per);
    let parts = SymInt::Const(parts as i64);
    let params = ReduceParams {
        sizes: rows.sizes,
        strides: rows.strides,
        kept: rows.kept.into(),
        along: rows.along.into(),
        offset: rows.offset,
        rows: rows.rows,
        len: rows.len,
        parts,
        chunk: e.tape().ceil_div(units, parts),
        mean: last.is_some_and(|l| l.mean).into(),
        count: last.map_or(SymInt::ZERO, |l| l.count),
    };
    let consts = [
        code(x.dtype),
        code(to.dtype),
        op_code(f),
        per,
        share.threads,
        share.across.into(),
    ];
    let groups = e.tape().ceil_div(rows.rows, share.rows());
    let groups = e.tape().mul(groups, parts);
    let grid = e.flat_grid(groups);
    e.dispatch(kernel, &consts, &[x.slot, to.slot], &params, grid);
}
