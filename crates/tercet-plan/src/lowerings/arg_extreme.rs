//! Lowering of argmax and argmin along any axis. If there are few long rows, they are split into
//! parts; the last workgroup or a second dispatch combines the results of the parts.

use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind};

use super::rows::RowLayout;
use super::{Lowering, always, code, portable};
use crate::emit::{LoweringCtx, SlotPlacement, SlotView};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `arg_extreme_key.wgsl`.
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

/// Reduces rows to the index of their extreme element, parts of rows to (key, index) pairs, or the
/// pairs of a row to an index.
static ARG_EXTREME: TypedKernel<ArgExtremeParams> = TypedKernel::wgsl(
    "arg_extreme",
    &[
        portable!("prelude.wgsl"),
        portable!("strided.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("arg_extreme_key.wgsl"),
        portable!("arg_extreme.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write],
    &[
        "IN", "LEAST", "NAN_LOW", "THREADS", "ACROSS", "KEYS", "PAIRS",
    ],
);

/// Reduces parts of rows to (key, index) pairs; the last workgroup of a row reduces its pairs to an
/// index.
static JOINED: TypedKernel<ArgExtremeParams> = TypedKernel::wgsl(
    "arg_extreme_joined",
    &[
        portable!("prelude.wgsl"),
        portable!("strided.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("arg_extreme_key.wgsl"),
        portable!("arg_extreme_joined.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &["IN", "LEAST", "NAN_LOW", "THREADS", "ACROSS"],
);

/// Number of elements that each thread of [`JOINED`] searches.
const JOINED_EACH: usize = 4;

/// Lowering of `ArgMax` and `ArgMin`.
pub(crate) static ARG_EXTREMES: Lowering = Lowering {
    name: "arg_extreme",
    ops: &[OpKind::ArgMax, OpKind::ArgMin],
    kernels: &[&ARG_EXTREME.def, &JOINED.def],
    supports: always,
    lower,
};

/// Whether a dispatch searches whole rows, or is the first or the second of two dispatches that
/// search rows in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArgExtremeStage {
    Single,
    /// The first of two dispatches: searches this number of parts per row.
    First(usize),
    Second,
}

/// Search mode: minimum or maximum, and the treatment of NaN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArgExtremeMode {
    /// True to find the minimum instead of the maximum.
    pub(crate) is_min: bool,
    /// True if a NaN compares as -inf; false if a NaN counts as the extreme element.
    pub(crate) nan_low: bool,
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let (axis, least) = match &node.op {
        Op::ArgMax(op) => (op.axis, false),
        Op::ArgMin(op) => (op.axis, true),
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let rows = RowLayout::new(e, &x, &[axis])?;
    // If there are rows, they must not be empty, so the check requires `min(rows, 1) <= row
    // length`.
    let some = e.tape().min(rows.rows, SymInt::ONE);
    let reason = "an axis of size 0 has no extreme element".to_string();
    e.check_less_equal(some, rows.len, reason);
    let sought = ArgExtremeMode {
        is_min: least,
        nan_low: false,
    };
    emit(e, sought, &x, rows, &y)
}

/// Emits kernels that write the index of the extreme element of each row. Rows must not be empty.
///
/// # Errors
/// The errors of [`LoweringCtx::temp`].
pub(crate) fn emit(
    e: &mut LoweringCtx<'_>,
    sought: ArgExtremeMode,
    x: &SlotView,
    rows: RowLayout,
    y: &SlotView,
) -> Result<(), CompileError> {
    let share = rows.share(rows.bounds.len, 1);
    let parts = rows.parts(rows.bounds.len, share);
    if parts == 1 {
        dispatch(e, sought, x, &rows, y, ArgExtremeStage::Single);
        return Ok(());
    }
    if e.caps.ordered_storage && share.rows() == 1 {
        return emit_combine(e, sought, x, &rows, y);
    }
    let pairs = e.temp(DType::U32, &[rows.row_dim.clone(), Dim::Known(2 * parts)])?;
    dispatch(e, sought, x, &rows, &pairs, ArgExtremeStage::First(parts));
    let mut rows = RowLayout::new(e, &pairs, &[1])?;
    rows.len = SymInt::Const(parts as i64);
    rows.bounds.len = parts;
    dispatch(e, sought, &pairs, &rows, y, ArgExtremeStage::Second);
    Ok(())
}

/// Emits one dispatch that searches parts of rows and combines their results.
fn emit_combine(
    e: &mut LoweringCtx<'_>,
    sought: ArgExtremeMode,
    x: &SlotView,
    rows: &RowLayout,
    y: &SlotView,
) -> Result<(), CompileError> {
    let share = rows.share(rows.bounds.len, 1);
    let each = share.threads as usize * JOINED_EACH;
    let at_once = (4 * e.caps.units()).div_ceil(rows.bounds.rows.max(1));
    let parts = rows.bounds.len.div_ceil(each).min(at_once).max(2);
    let pairs = e.temp(DType::U32, &[rows.row_dim.clone(), Dim::Known(2 * parts)])?;
    let counts = e.allocate(
        DType::U32,
        std::slice::from_ref(&rows.row_dim),
        SlotPlacement::Counters,
    )?;
    let parts = SymInt::Const(parts as i64);
    let params = params(e, rows, parts);
    let consts = [
        code(x.dtype),
        sought.is_min.into(),
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

fn params(e: &mut LoweringCtx<'_>, rows: &RowLayout, parts: SymInt) -> ArgExtremeParams {
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

fn dispatch(
    e: &mut LoweringCtx<'_>,
    sought: ArgExtremeMode,
    x: &SlotView,
    rows: &RowLayout,
    y: &SlotView,
    stage: ArgExtremeStage,
) {
    let share = rows.share(rows.bounds.len, 1);
    let parts = match stage {
        ArgExtremeStage::First(parts) => SymInt::Const(parts as i64),
        ArgExtremeStage::Single | ArgExtremeStage::Second => SymInt::ONE,
    };
    let params = params(e, rows, parts);
    let consts = [
        code(x.dtype),
        sought.is_min.into(),
        sought.nan_low.into(),
        share.threads,
        share.across.into(),
        matches!(stage, ArgExtremeStage::First(_)).into(),
        u32::from(stage == ArgExtremeStage::Second),
    ];
    let groups = e.tape().ceil_div(rows.rows, share.rows());
    let groups = e.tape().mul(groups, parts);
    let grid = e.flat_grid(groups);
    e.dispatch(&ARG_EXTREME, &consts, &[x.slot, y.slot], &params, grid);
}
