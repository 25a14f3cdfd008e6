//! Lowering of `ScatterElements`, `ScatterNd` and `ScatterAdd`: indexed updates in a fixed order.
//!
//! Each update gets a key: the index of its target slice. Keys are sorted together with the
//! positions of the updates. The updates of each result element are then adjacent and in order, and
//! one thread combines them. There are no atomics, so results are deterministic.

use tercet_ir::ops::ReduceFn;
use tercet_ir::{CompileError, Dim, Node, Op, OpKind};

use super::indexed::{NAMED, check_within};
use super::reduce::op_code;
use super::top_k::{SortedRows, in_order};
use super::words::{are_whole, eight, in_units, lanes, words};
use super::{Lowering, always, bits_code, code, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::PRELUDE;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};
use tercet_program::{CheckKind, SlotId};

crate::params! {
    /// Parameter block of `scatter_elements_keys.wgsl`.
    pub struct ScatterElementsKeysParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        axis: U32,
        len: U32,
    }
    /// Parameter block of `scatter_nd_keys.wgsl`.
    pub struct ScatterNdKeysParams {
        lens: U32x8,
        rows: U32,
    }
    /// Parameter block of `scatter_starts.wgsl`.
    pub struct ScatterStartsParams {
        count: U32,
        updates: U32,
    }
    /// Parameter block of `scatter.wgsl`.
    pub struct ScatterParams {
        numel: U32,
        inner: U32,
        updates: U32,
    }
}

crate::params! {
    /// Parameter block of `scatter_in_place.wgsl`.
    pub struct ScatterInPlaceParams {
        rows: U32,
        inner: U32,
        blocks: U32,
        checks: U32,
    }
}

/// Number of units that a workgroup of `scatter_in_place.wgsl` writes.
const BLOCK: u32 = 1024;

static IN_PLACE: TypedKernel<ScatterInPlaceParams> = TypedKernel::wgsl(
    "scatter_in_place",
    &[PRELUDE, portable!("scatter_in_place.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Read,
    ],
    &["ELEM_BYTES"],
);

static ELEMENTS_KEYS: TypedKernel<ScatterElementsKeysParams> = TypedKernel::wgsl(
    "scatter_elements_keys",
    &[PRELUDE, NAMED, portable!("scatter_elements_keys.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["RANK"],
);

static ND_KEYS: TypedKernel<ScatterNdKeysParams> = TypedKernel::wgsl(
    "scatter_nd_keys",
    &[PRELUDE, NAMED, portable!("scatter_nd_keys.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["COORDINATES", "LAST"],
);

const RANK: &str = portable!("scatter_rank.wgsl");

static STARTS: TypedKernel<ScatterStartsParams> = TypedKernel::wgsl(
    "scatter_starts",
    &[PRELUDE, RANK, portable!("scatter_starts.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &[],
);

static SCATTER: TypedKernel<ScatterParams> = TypedKernel::wgsl(
    "scatter",
    &[
        PRELUDE,
        portable!("scalar/base.wgsl"),
        portable!("scalar/floats.wgsl"),
        portable!("scalar/wide.wgsl"),
        portable!("scalar/arithmetic.wgsl"),
        portable!("numbers.wgsl"),
        RANK,
        portable!("scatter.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &["IN", "OP", "REDUCE", "DATA", "STARTS"],
);

/// Lowering of `ScatterElements`, `ScatterNd` and `ScatterAdd`.
pub(crate) static SCATTERS: Lowering = Lowering {
    name: "scatter",
    ops: &[
        OpKind::ScatterElements,
        OpKind::ScatterNd,
        OpKind::ScatterAdd,
    ],
    kernels: &[
        &ELEMENTS_KEYS.def,
        &ND_KEYS.def,
        &STARTS.def,
        &SCATTER.def,
        &IN_PLACE.def,
    ],
    supports: always,
    lower,
};

/// Updates with their keys; each update is a slice of `inner` elements.
struct KeyedUpdates<'a> {
    keys: SlotView,
    /// Sizes of the axes of the index tensor that enumerate the updates.
    rows: &'a [Dim],
    inner: &'a [Dim],
    updates: SlotView,
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let graph = e.graph;
    let shape = |at: usize| &graph.ty(node.inputs[at]).shape[..];
    let view = |e: &LoweringCtx<'_>, at: usize| e.view(node.inputs[at]);
    match &node.op {
        Op::ScatterElements(op) => {
            let (data, idx, updates) = (view(e, 0), view(e, 1), view(e, 2));
            check_within(e, shape(1), shape(0), op.axis);
            let keyed = KeyedUpdates {
                keys: elements_keys(e, shape(0), &idx, op.axis)?,
                rows: shape(1),
                inner: &[],
                updates,
            };
            scatter(e, Some(&data), &keyed, op.reduce.reduction())
        }
        Op::ScatterNd(op) => {
            let (data, idx, updates) = (view(e, 0), view(e, 1), view(e, 2));
            let (rows, k) = shape(1).split_at(shape(1).len() - 1);
            let (lens, inner) = shape(0).split_at(k[0].known().unwrap_or(0));
            let is_in_place = e.updated(0).is_some();
            let keyed = KeyedUpdates {
                keys: match is_in_place {
                    true => last_nd_keys(e, lens, &idx, rows)?,
                    false => nd_keys(e, lens, &idx, rows)?,
                },
                rows,
                inner,
                updates,
            };
            match is_in_place {
                true => in_place(e, &keyed),
                false => scatter(e, Some(&data), &keyed, op.reduce.reduction()),
            }
        }
        Op::ScatterAdd(op) => {
            let (updates, idx) = (view(e, 0), view(e, 1));
            let keyed = KeyedUpdates {
                keys: nd_keys(e, std::slice::from_ref(&op.rows), &idx, shape(1))?,
                rows: shape(1),
                inner: &shape(0)[1..],
                updates,
            };
            scatter(e, None, &keyed, Some(ReduceFn::Sum))
        }
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    }
}

/// Number of elements of a shape if all symbols have their upper bounds.
pub(super) fn max_elements(e: &LoweringCtx<'_>, shape: &[Dim]) -> Result<usize, CompileError> {
    let mut dims = shape.iter();
    dims.try_fold(1usize, |n, d| Ok(n.saturating_mul(e.bound(d)?)))
}

fn elements_keys(
    e: &mut LoweringCtx<'_>,
    data: &[Dim],
    idx: &SlotView,
    axis: usize,
) -> Result<SlotView, CompileError> {
    e.check_data(idx, CheckKind::Index, &data[axis])?;
    let shape = idx.layout.shape().to_vec();
    let idx = e.dense(idx)?;
    let most = max_elements(e, &shape)?;
    let keys = words(e, most)?;
    let strides: Vec<SymInt> = (0..data.len()).map(|a| e.numel(&data[a + 1..])).collect();
    let numel = e.numel(&shape);
    let params = ScatterElementsKeysParams {
        shape: eight(&e.sizes(&shape)),
        strides: eight(&strides),
        numel,
        axis: SymInt::Const(axis as i64),
        len: e.num(&data[axis]),
    };
    let grid = e.grid_of(numel, 256);
    let consts = [shape.len() as u32];
    e.dispatch(
        &ELEMENTS_KEYS,
        &consts,
        &[idx.slot, keys.slot],
        &params,
        grid,
    );
    Ok(keys)
}

/// Keys of the slices that an in-place update writes.
pub(super) fn keys_of_update(
    e: &mut LoweringCtx<'_>,
    node: &Node,
) -> Result<SlotView, CompileError> {
    let graph = e.graph;
    let shape = |at: usize| &graph.ty(node.inputs[at]).shape[..];
    let (rows, k) = shape(1).split_at(shape(1).len() - 1);
    let (lens, _) = shape(0).split_at(k[0].known().unwrap_or(0));
    let idx = e.view(node.inputs[1]);
    last_nd_keys(e, lens, &idx, rows)
}

/// Linear index of the slice that each coordinate tuple selects, for axes of sizes `lens`.
pub(super) fn nd_keys(
    e: &mut LoweringCtx<'_>,
    lens: &[Dim],
    idx: &SlotView,
    rows: &[Dim],
) -> Result<SlotView, CompileError> {
    e.check_coordinates(idx, lens)?;
    let are_keys = lens.len() == 1 && e.is_within(idx, &lens[0]);
    let idx = e.dense(idx)?;
    match are_keys {
        true => Ok(idx),
        false => dispatch_nd_keys(e, lens, &idx, rows, false),
    }
}

/// Like [`nd_keys`], but with the key `0xffffffff` for tuples that select the same slice as a later
/// one. Scatters with equal inputs, such as those of all layers' KV caches, share the keys.
pub(super) fn last_nd_keys(
    e: &mut LoweringCtx<'_>,
    lens: &[Dim],
    idx: &SlotView,
    rows: &[Dim],
) -> Result<SlotView, CompileError> {
    e.check_coordinates(idx, lens)?;
    let of = (idx.clone(), e.sizes(lens).to_vec());
    if let Some(known) = e.shared_keys(&of) {
        return Ok(known);
    }
    let dense = e.dense(idx)?;
    let keys = dispatch_nd_keys(e, lens, &dense, rows, true)?;
    e.share_keys(of, &keys);
    Ok(keys)
}

fn dispatch_nd_keys(
    e: &mut LoweringCtx<'_>,
    lens: &[Dim],
    idx: &SlotView,
    rows: &[Dim],
    last: bool,
) -> Result<SlotView, CompileError> {
    let most = max_elements(e, rows)?;
    let keys = words(e, most)?;
    let count = e.numel(rows);
    let params = ScatterNdKeysParams {
        lens: eight(&e.sizes(lens)),
        rows: count,
    };
    let grid = e.grid_of(count, 256);
    let consts = [lens.len() as u32, u32::from(last)];
    e.dispatch(&ND_KEYS, &consts, &[idx.slot, keys.slot], &params, grid);
    Ok(keys)
}

/// Emits the kernel that finds the first update of each slice, as an index into the sorted updates;
/// one more entry marks the end. The kernel is emitted only for long slices; for short slices, each
/// element's thread searches the sorted updates itself.
fn starts(
    e: &mut LoweringCtx<'_>,
    sorted: &SortedRows,
    keyed: &KeyedUpdates<'_>,
    slices: &[Dim],
    updates: SymInt,
) -> Result<Option<SlotId>, CompileError> {
    /// Minimum number of elements per slice for which the separate kernel pays off.
    const MIN_SLICE_FOR_KERNEL: usize = 32;
    if max_elements(e, keyed.inner)? < MIN_SLICE_FOR_KERNEL {
        return Ok(None);
    }
    let bound = max_elements(e, slices)?.saturating_add(1);
    let starts = words(e, bound)?;
    let slices = e.numel(slices);
    let count = e.tape().add(slices, SymInt::ONE);
    let params = ScatterStartsParams { count, updates };
    let grid = e.grid_of(count, 256);
    e.dispatch(&STARTS, &[], &[sorted.keys, starts.slot], &params, grid);
    Ok(Some(starts.slot))
}

/// Writes the last update of each slice in place, into the state to update.
fn in_place(e: &mut LoweringCtx<'_>, keyed: &KeyedUpdates<'_>) -> Result<(), CompileError> {
    let y = e.result(0)?;
    let updates = e.dense(&keyed.updates)?;
    let (rows, inner) = (e.numel(keyed.rows), e.numel(keyed.inner));
    let per = lanes(y.dtype);
    let (bytes, inner) = match are_whole(per, &[inner]) {
        true => (4, in_units(per, inner)),
        false => (y.dtype.size_bytes() as u32, inner),
    };
    let blocks = e.tape().ceil_div(inner, BLOCK);
    let params = ScatterInPlaceParams {
        rows,
        inner,
        blocks,
        checks: SymInt::ZERO,
    };
    let groups = match bytes {
        4 => e.tape().mul(rows, blocks),
        _ => SymInt::ONE,
    };
    let grid = e.flat_grid(groups);
    let args = [updates.slot, keyed.keys.slot, y.slot];
    e.dispatch_guarded(&IN_PLACE, &[bytes], &args, &params, grid);
    Ok(())
}

/// Sorts the updates by key, then computes each result element from its updates.
fn scatter(
    e: &mut LoweringCtx<'_>,
    data: Option<&SlotView>,
    keyed: &KeyedUpdates<'_>,
    reduce: Option<ReduceFn>,
) -> Result<(), CompileError> {
    let count = e.numel(keyed.rows);
    let most = max_elements(e, keyed.rows)?;
    let sorted = in_order(e, keyed.keys.slot, count, most)?;
    let updates = e.dense(&keyed.updates)?;
    let data_slot = match data {
        Some(data) => e.dense(data)?.slot,
        None => e.placeholder_slot()?,
    };
    let y = e.result(0)?;
    let shape = y.layout.shape();
    let slices = &shape[..shape.len() - keyed.inner.len()];
    let starts = starts(e, &sorted, keyed, slices, count)?;
    let params = ScatterParams {
        numel: e.numel(y.layout.shape()),
        inner: e.numel(keyed.inner),
        updates: count,
    };
    let consts = [
        match reduce {
            Some(_) => code(y.dtype),
            None => bits_code(y.dtype),
        },
        reduce.map_or(0, op_code),
        reduce.is_some().into(),
        data.is_some().into(),
        starts.is_some().into(),
    ];
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let ranks = starts.unwrap_or(sorted.keys);
    let args = [data_slot, ranks, sorted.indices, updates.slot, y.slot];
    e.dispatch(&SCATTER, &consts, &args, &params, grid);
    Ok(())
}
