//! `ScatterElements`, `ScatterNd` and `ScatterAdd`: updates that indices name, in a fixed order.
//!
//! Every update gets a key, the number of the slice it goes to. Keys are sorted with the updates' places,
//! so that each element of the result finds its updates side by side and in their order, and one
//! invocation combines them. There are no atomics: the result is the same in every run.

use tercet_ir::ops::ReduceFn;
use tercet_ir::{CompileError, Dim, Node, Op, OpKind};

use super::indexed::{NAMED, check_within};
use super::reduce::op_code;
use super::top_k::{Ordered, in_order};
use super::words::{are_whole, eight, in_units, lanes, words};
use super::{Family, always, code, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::{CheckKind, SlotId};
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `scatter_elements_keys.wgsl`.
    pub struct ElementsKeysParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        axis: U32,
        len: U32,
    }
    /// The block of `scatter_nd_keys.wgsl`.
    pub struct NdKeysParams {
        lens: U32x8,
        rows: U32,
    }
    /// The block of `scatter_starts.wgsl`.
    pub struct StartsParams {
        count: U32,
        updates: U32,
    }
    /// The block of `scatter.wgsl`.
    pub struct ScatterParams {
        numel: U32,
        inner: U32,
        updates: U32,
    }
}

crate::params! {
    /// The block of `scatter_in_place.wgsl`.
    pub struct InPlaceParams {
        rows: U32,
        inner: U32,
        blocks: U32,
        checks: U32,
    }
}

/// Units that a workgroup of `scatter_in_place.wgsl` writes.
const BLOCK: u32 = 1024;

static IN_PLACE: Kernel<InPlaceParams> = Kernel::wgsl(
    "scatter_in_place",
    &[PRELUDE, portable!("scatter_in_place.wgsl")],
    &[Access::Read, Access::Read, Access::Write, Access::Read],
    &["ELEM_BYTES"],
);

static ELEMENTS_KEYS: Kernel<ElementsKeysParams> = Kernel::wgsl(
    "scatter_elements_keys",
    &[PRELUDE, NAMED, portable!("scatter_elements_keys.wgsl")],
    &[Access::Read, Access::Write],
    &["RANK"],
);

static ND_KEYS: Kernel<NdKeysParams> = Kernel::wgsl(
    "scatter_nd_keys",
    &[PRELUDE, NAMED, portable!("scatter_nd_keys.wgsl")],
    &[Access::Read, Access::Write],
    &["COORDINATES"],
);

const RANK: &str = portable!("scatter_rank.wgsl");

static STARTS: Kernel<StartsParams> = Kernel::wgsl(
    "scatter_starts",
    &[PRELUDE, RANK, portable!("scatter_starts.wgsl")],
    &[Access::Read, Access::Write],
    &[],
);

static SCATTER: Kernel<ScatterParams> = Kernel::wgsl(
    "scatter",
    &[
        PRELUDE,
        portable!("numbers.wgsl"),
        RANK,
        portable!("scatter.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
    ],
    &["IN", "OP", "REDUCE", "DATA", "STARTS"],
);

/// `ScatterElements`, `ScatterNd` and `ScatterAdd`.
pub(crate) static SCATTERS: Family = Family {
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

/// Updates with their keys: slices of `inner` elements.
struct Keyed<'a> {
    keys: View,
    /// The axes of indices that number the updates.
    rows: &'a [Dim],
    inner: &'a [Dim],
    updates: View,
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let graph = e.graph;
    let shape = |at: usize| &graph.ty(node.inputs[at]).shape[..];
    let view = |e: &Emit<'_>, at: usize| e.view(node.inputs[at]);
    match &node.op {
        Op::ScatterElements(op) => {
            let (data, idx, updates) = (view(e, 0), view(e, 1), view(e, 2));
            check_within(e, shape(1), shape(0), op.axis);
            let keyed = Keyed {
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
            let keyed = Keyed {
                keys: nd_keys(e, lens, &idx, rows)?,
                rows,
                inner,
                updates,
            };
            match e.updated(0).is_some() {
                true => in_place(e, &keyed),
                false => scatter(e, Some(&data), &keyed, op.reduce.reduction()),
            }
        }
        Op::ScatterAdd(op) => {
            let (updates, idx) = (view(e, 0), view(e, 1));
            let keyed = Keyed {
                keys: nd_keys(e, std::slice::from_ref(&op.rows), &idx, shape(1))?,
                rows: shape(1),
                inner: &shape(0)[1..],
                updates,
            };
            scatter(e, None, &keyed, Some(ReduceFn::Sum))
        }
        _ => unreachable!("invariant: a family lowers its own operators"),
    }
}

/// The most elements of a shape.
pub(super) fn most(e: &Emit<'_>, shape: &[Dim]) -> Result<usize, CompileError> {
    let mut dims = shape.iter();
    dims.try_fold(1usize, |n, d| Ok(n.saturating_mul(e.bound(d)?)))
}

fn elements_keys(
    e: &mut Emit<'_>,
    data: &[Dim],
    idx: &View,
    axis: usize,
) -> Result<View, CompileError> {
    e.check_data(idx, CheckKind::Index, &data[axis])?;
    let shape = idx.layout.shape().to_vec();
    let idx = e.dense(idx)?;
    let most = most(e, &shape)?;
    let keys = words(e, most)?;
    let strides: Vec<Num> = (0..data.len()).map(|a| e.numel(&data[a + 1..])).collect();
    let numel = e.numel(&shape);
    let params = ElementsKeysParams {
        shape: eight(&e.sizes(&shape)),
        strides: eight(&strides),
        numel,
        axis: Num::Const(axis as i64),
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

/// The number of the slice that each row of coordinates leads to, among axes of the sizes `lens`.
pub(super) fn nd_keys(
    e: &mut Emit<'_>,
    lens: &[Dim],
    idx: &View,
    rows: &[Dim],
) -> Result<View, CompileError> {
    e.check_coordinates(idx, lens)?;
    let are_keys = lens.len() == 1 && e.is_within(idx, &lens[0]);
    let idx = e.dense(idx)?;
    if are_keys {
        return Ok(idx);
    }
    let most = most(e, rows)?;
    let keys = words(e, most)?;
    let count = e.numel(rows);
    let params = NdKeysParams {
        lens: eight(&e.sizes(lens)),
        rows: count,
    };
    let grid = e.grid_of(count, 256);
    let consts = [lens.len() as u32];
    e.dispatch(&ND_KEYS, &consts, &[idx.slot, keys.slot], &params, grid);
    Ok(keys)
}

/// For each slice and one more the first rank that is not before it, where slices have so many elements that each of them
/// would look for it too often.
fn starts(
    e: &mut Emit<'_>,
    sorted: &Ordered,
    keyed: &Keyed<'_>,
    slices: &[Dim],
    updates: Num,
) -> Result<Option<SlotId>, CompileError> {
    /// Elements of a slice from which a kernel of its own is worth its dispatch.
    const MANY: usize = 32;
    if most(e, keyed.inner)? < MANY {
        return Ok(None);
    }
    let bound = most(e, slices)?.saturating_add(1);
    let starts = words(e, bound)?;
    let slices = e.numel(slices);
    let count = e.tape().add(slices, Num::ONE);
    let params = StartsParams { count, updates };
    let grid = e.grid_of(count, 256);
    e.dispatch(&STARTS, &[], &[sorted.keys, starts.slot], &params, grid);
    Ok(Some(starts.slot))
}

/// The last update of each slice, where the state lies that they change.
fn in_place(e: &mut Emit<'_>, keyed: &Keyed<'_>) -> Result<(), CompileError> {
    let y = e.result(0)?;
    let updates = e.dense(&keyed.updates)?;
    let (rows, inner) = (e.numel(keyed.rows), e.numel(keyed.inner));
    let per = lanes(y.dtype);
    let (bytes, inner) = match are_whole(per, &[inner]) {
        true => (4, in_units(per, inner)),
        false => (y.dtype.size_bytes() as u32, inner),
    };
    let blocks = e.tape().ceil_div(inner, BLOCK);
    let params = InPlaceParams {
        rows,
        inner,
        blocks,
        checks: Num::ZERO,
    };
    let groups = match bytes {
        4 => e.tape().mul(rows, blocks),
        _ => Num::ONE,
    };
    let grid = e.flat_grid(groups);
    let args = [updates.slot, keyed.keys.slot, y.slot];
    e.dispatch_guarded(&IN_PLACE, &[bytes], &args, &params, grid);
    Ok(())
}

/// The updates in the order of their keys, then each element of the result with its own.
fn scatter(
    e: &mut Emit<'_>,
    data: Option<&View>,
    keyed: &Keyed<'_>,
    reduce: Option<ReduceFn>,
) -> Result<(), CompileError> {
    let count = e.numel(keyed.rows);
    let most = most(e, keyed.rows)?;
    let sorted = in_order(e, keyed.keys.slot, count, most)?;
    let updates = e.dense(&keyed.updates)?;
    let data_slot = match data {
        Some(data) => e.dense(data)?.slot,
        None => e.absent()?,
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
        code(y.dtype),
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
