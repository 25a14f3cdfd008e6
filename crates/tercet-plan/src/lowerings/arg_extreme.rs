//! The index of the greatest or least element along any axis; few long rows in parts, which the last workgroup or a second
//! dispatch puts together.

use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind};

use super::rows::Rows;
use super::{Family, always, code, portable};
use crate::emit::{Emit, Home, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;

crate::params! {
    /// The block of `arg_extreme_key.wgsl`.
    pub struct ArgExtremeParams {
        sizes: U32x8,
        strides: U32x8,
        kept: U32,
        offset: U32,
        rows: U32,
        len: U32,
        stride: U32,
        parts: U32,
        chunk: U32,
    }
}

/// Rows to indices, or parts of rows to (key, index), or those to indices.
static ARG_EXTREME: Kernel<ArgExtremeParams> = Kernel::wgsl(
    "arg_extreme",
    &[
        portable!("prelude.wgsl"),
        portable!("strided.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("arg_extreme_key.wgsl"),
        portable!("arg_extreme.wgsl"),
    ],
    &[Access::Read, Access::Write],
    &[
        "IN", "LEAST", "NAN_LOW", "THREADS", "ACROSS", "KEYS", "PAIRS",
    ],
);

/// Parts of rows to indices.
static JOINED: Kernel<ArgExtremeParams> = Kernel::wgsl(
    "arg_extreme_joined",
    &[
        portable!("prelude.wgsl"),
        portable!("strided.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("arg_extreme_key.wgsl"),
        portable!("arg_extreme_joined.wgsl"),
    ],
    &[Access::Read, Access::Write, Access::Write, Access::Write],
    &["IN", "LEAST", "NAN_LOW", "THREADS", "ACROSS"],
);

/// Elements of an invocation of [`JOINED`].
const JOINED_EACH: usize = 4;

/// Indices of extremes.
pub(crate) static ARG_EXTREMES: Family = Family {
    name: "arg_extreme",
    ops: &[OpKind::ArgMax, OpKind::ArgMin],
    kernels: &[&ARG_EXTREME.def, &JOINED.def],
    supports: always,
    lower,
};

/// Which dispatch of a search this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Only,
    /// Of two: into this many parts a row.
    First(usize),
    Second,
}

/// What is sought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sought {
    /// The least element instead of the greatest.
    pub(crate) least: bool,
    /// NaN counts as -inf instead of being the most extreme.
    pub(crate) nan_low: bool,
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let (axis, least) = match &node.op {
        Op::ArgMax(op) => (op.axis, false),
        Op::ArgMin(op) => (op.axis, true),
        _ => unreachable!("invariant: the family's operators only"),
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let rows = Rows::of(e, &x, &[axis])?;
    // Rows, if there are any, have an element.
    let some = e.tape().min(rows.rows, Num::ONE);
    let reason = "an axis of size 0 has no extreme element".to_string();
    e.check_at_most(some, rows.len, reason);
    let sought = Sought {
        least,
        nan_low: false,
    };
    emit(e, sought, &x, rows, &y)
}

/// Writes the index of an extreme element of each row, all of which have some.
///
/// # Errors
/// As [`Emit::temp`].
pub(crate) fn emit(
    e: &mut Emit<'_>,
    sought: Sought,
    x: &View,
    rows: Rows,
    y: &View,
) -> Result<(), CompileError> {
    let share = rows.share(rows.bounds.len, 1);
    let parts = rows.parts(rows.bounds.len, share);
    if parts == 1 {
        dispatch(e, sought, x, &rows, y, Stage::Only);
        return Ok(());
    }
    if e.caps.ordered_storage && share.rows() == 1 {
        return joined(e, sought, x, &rows, y);
    }
    let pairs = e.temp(DType::U32, &[rows.row_dim.clone(), Dim::Known(2 * parts)])?;
    dispatch(e, sought, x, &rows, &pairs, Stage::First(parts));
    let mut rows = Rows::of(e, &pairs, &[1])?;
    rows.len = Num::Const(parts as i64);
    rows.bounds.len = parts;
    dispatch(e, sought, &pairs, &rows, y, Stage::Second);
    Ok(())
}

/// All parts in one dispatch.
fn joined(
    e: &mut Emit<'_>,
    sought: Sought,
    x: &View,
    rows: &Rows,
    y: &View,
) -> Result<(), CompileError> {
    let share = rows.share(rows.bounds.len, 1);
    let each = share.threads as usize * JOINED_EACH;
    let at_once = (4 * e.caps.units()).div_ceil(rows.bounds.rows.max(1));
    let parts = rows.bounds.len.div_ceil(each).min(at_once).max(2);
    let pairs = e.temp(DType::U32, &[rows.row_dim.clone(), Dim::Known(2 * parts)])?;
    let counts = e.place(
        DType::U32,
        std::slice::from_ref(&rows.row_dim),
        Home::Counters,
    )?;
    let parts = Num::Const(parts as i64);
    let params = params(e, rows, parts);
    let consts = [
        code(x.dtype),
        sought.least.into(),
        sought.nan_low.into(),
        share.threads,
        share.across.into(),
    ];
    let groups = e.tape().mul(rows.rows, parts);
    let grid = e.flat_grid(groups);
    let args = [x.slot, y.slot, pairs.slot, counts.slot];
    e.dispatch(&JOINED, &consts, &args, &params, grid);
    Ok(())
}

fn params(e: &mut Emit<'_>, rows: &Rows, parts: Num) -> ArgExtremeParams {
    ArgExtremeParams {
        sizes: rows.sizes,
        strides: rows.strides,
        kept: rows.kept.into(),
        offset: rows.offset,
        rows: rows.rows,
        len: rows.len,
        stride: rows.stride(),
        parts,
        chunk: e.tape().ceil_div(rows.len, parts),
    }
}

fn dispatch(e: &mut Emit<'_>, sought: Sought, x: &View, rows: &Rows, y: &View, stage: Stage) {
    let share = rows.share(rows.bounds.len, 1);
    let parts = match stage {
        Stage::First(parts) => Num::Const(parts as i64),
        Stage::Only | Stage::Second => Num::ONE,
    };
    let params = params(e, rows, parts);
    let consts = [
        code(x.dtype),
        sought.least.into(),
        sought.nan_low.into(),
        share.threads,
        share.across.into(),
        matches!(stage, Stage::First(_)).into(),
        u32::from(stage == Stage::Second),
    ];
    let groups = e.tape().ceil_div(rows.rows, share.rows());
    let groups = e.tape().mul(groups, parts);
    let grid = e.flat_grid(groups);
    e.dispatch(&ARG_EXTREME, &consts, &[x.slot, y.slot], &params, grid);
}
