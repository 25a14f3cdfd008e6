//! `TopK`, `Sort`, and the order of rows that `Sample` draws by and updates are scattered by.
//!
//! Elements become keys of one word that compare as whole numbers; pairs of key and index are all
//! different, so that any sort gives the one order. Rows of at most [`CHUNK`] are sorted in a
//! workgroup. Of longer rows the first few are found by taking the first few of each chunk, again and
//! again; more of them by sorting the row in memory. Short rows of words need no sorting: an element counts those before it.

use tercet_ir::ops::Op;
use tercet_ir::{CompileError, DType, Dim, Node, OpKind};

use super::words::{eight, product, words};
use super::{Family, always, code, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::SlotId;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `top_k_keys.wgsl`.
    pub struct KeysParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
    }
    /// The block of `top_k_block.wgsl`.
    pub struct BlockParams {
        rows: U32,
        len: U32,
        row_stride: U32,
        chunks: U32,
        take: U32,
    }
    /// The block of `top_k_step.wgsl`.
    pub struct StepParams {
        pairs: U32,
        step: U32,
        mirrored: U32,
    }
    /// The block of `top_k_finish.wgsl`.
    pub struct FinishParams {
        chunks: U32,
    }
    /// The block of `top_k_ranks.wgsl`.
    pub struct RanksParams {
        shape: U32x8,
        strides: U32x8,
        rows: U32,
        offset: U32,
        along: U32,
        len: U32,
        inner: U32,
        k: U32,
    }
    /// The block of `top_k_take.wgsl`.
    pub struct TakeParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
        along: U32,
        inner: U32,
        k: U32,
        row_stride: U32,
    }
}

const KEY: &str = portable!("top_k_key.wgsl");
const PLACE: &str = portable!("top_k_place.wgsl");

static KEYS: Kernel<KeysParams> = Kernel::wgsl(
    "top_k_keys",
    &[PRELUDE, KEY, PLACE, portable!("top_k_keys.wgsl")],
    &[Access::Read, Access::Write],
    &["DTYPE", "LARGEST", "NAN", "RANK"],
);

static RANKS: Kernel<RanksParams> = Kernel::wgsl(
    "top_k_ranks",
    &[
        PRELUDE,
        KEY,
        PLACE,
        portable!("softmax_value.wgsl"),
        portable!("top_k_ranks.wgsl"),
    ],
    &[Access::Read, Access::Write, Access::Write],
    &[
        "DTYPE", "LARGEST", "NAN", "RANK", "LOG", "LANES", "SOFTMAX", "SHARES",
    ],
);

static BLOCK: Kernel<BlockParams> = Kernel::wgsl(
    "top_k_block",
    &[PRELUDE, portable!("top_k_block.wgsl")],
    &[Access::Read, Access::Read, Access::Write, Access::Write],
    &["FIRST", "SORTED"],
);

static STEP: Kernel<StepParams> = Kernel::wgsl(
    "top_k_step",
    &[PRELUDE, portable!("top_k_step.wgsl")],
    &[Access::Write, Access::Write],
    &[],
);

static FINISH: Kernel<FinishParams> = Kernel::wgsl(
    "top_k_finish",
    &[PRELUDE, portable!("top_k_finish.wgsl")],
    &[Access::Write, Access::Write],
    &[],
);

static TAKE: Kernel<TakeParams> = Kernel::wgsl(
    "top_k_take",
    &[PRELUDE, PLACE, portable!("top_k_take.wgsl")],
    &[Access::Read, Access::Read, Access::Write, Access::Write],
    &["ELEM_BYTES", "RANK"],
);

/// `TopK` and `Sort`.
pub(crate) static TOP_KS: Family = Family {
    name: "top_k",
    ops: &[OpKind::TopK, OpKind::Sort],
    kernels: &[
        &RANKS.def,
        &KEYS.def,
        &BLOCK.def,
        &STEP.def,
        &FINISH.def,
        &TAKE.def,
    ],
    supports: always,
    lower,
};

/// The pairs that a workgroup sorts: `CHUNK` of the shaders.
const CHUNK: usize = 1024;

/// The longest row whose elements count those before them: invocations of a workgroup of `top_k_ranks.wgsl`.
const SHORT: usize = 256;
/// The fewest of them that a row has.
const LEAST_LANES: usize = 8;

/// The greatest number that taking of each chunk is used for: it at least halves what is left.
const FEW: usize = CHUNK / 2;

/// Where NaN stands among the elements of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NanPlace {
    /// Before everything.
    First,
    /// Where `-inf` does.
    Low,
    /// After everything.
    Last,
}

/// What order elements are put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extreme {
    /// The greatest first, else the least.
    pub(super) is_largest: bool,
    pub(super) nan: NanPlace,
}

impl Extreme {
    /// The constants of `top_k_key.wgsl`.
    fn consts(self, dtype: DType) -> [u32; 3] {
        [code(dtype), self.is_largest.into(), self.nan as u32]
    }
}

/// How many of a row are needed: at each run, and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needed {
    pub(super) count: Num,
    pub(super) bound: usize,
}

/// Rows of keys and indices, the first ones in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ordered {
    pub(super) keys: SlotId,
    pub(super) indices: SlotId,
    /// From one row to the next.
    pub(super) stride: Num,
}

/// Pairs on their way: `len` in each row.
struct Pairs {
    rows: Num,
    rows_bound: usize,
    len: Num,
    len_bound: usize,
    keys: SlotId,
    indices: SlotId,
}

/// The most extreme elements of each row along an axis, in order, ties by index.
pub(super) fn ordered(
    e: &mut Emit<'_>,
    x: &View,
    axis: usize,
    needed: Needed,
    extreme: Extreme,
) -> Result<Ordered, CompileError> {
    let pairs = keys(e, x, axis, extreme)?;
    match pairs.len_bound <= CHUNK || needed.bound <= FEW {
        true => select(e, pairs, needed),
        false => sort(e, pairs),
    }
}

/// Words in order, equal ones by their places, of one row of `count`.
pub(super) fn in_order(
    e: &mut Emit<'_>,
    keys: SlotId,
    count: Num,
    bound: usize,
) -> Result<Ordered, CompileError> {
    let pairs = Pairs {
        rows: Num::ONE,
        rows_bound: 1,
        len: count,
        len_bound: bound,
        keys,
        indices: keys,
    };
    let all = Needed { count, bound };
    match bound <= CHUNK {
        true => select(e, pairs, all),
        false => sort(e, pairs),
    }
}

/// The axes but one, in order.
fn others<T: Clone>(list: &[T], axis: usize) -> Vec<T> {
    [&list[..axis], &list[axis + 1..]].concat()
}

/// The keys of rows one after the other.
fn keys(e: &mut Emit<'_>, x: &View, axis: usize, extreme: Extreme) -> Result<Pairs, CompileError> {
    let shape = x.layout.shape();
    let last = |list: &[Num]| {
        let mut moved = others(list, axis);
        moved.push(list[axis]);
        moved
    };
    let (sizes, strides) = (last(&e.sizes(shape)), last(&e.strides(x)));
    let mut rows_bound = 1usize;
    for dim in others(shape, axis) {
        rows_bound = rows_bound.saturating_mul(e.bound(&dim)?);
    }
    let len_bound = e.bound(&shape[axis])?;
    let keys = words(e, rows_bound.saturating_mul(len_bound))?;
    let numel = product(e, &sizes);
    let params = KeysParams {
        shape: eight(&sizes),
        strides: eight(&strides),
        numel,
        offset: e.offset(x),
    };
    let [dtype, is_largest, nan] = extreme.consts(x.dtype);
    let consts = [dtype, is_largest, nan, shape.len() as u32];
    let grid = e.grid_of(numel, 256);
    e.dispatch(&KEYS, &consts, &[x.slot, keys.slot], &params, grid);
    let rank = sizes.len();
    Ok(Pairs {
        rows: product(e, &sizes[..rank - 1]),
        rows_bound,
        len: sizes[rank - 1],
        len_bound,
        keys: keys.slot,
        // Indices are places at first: none are read.
        indices: keys.slot,
    })
}

/// The first `take` of each of `chunks` chunks of a row.
fn block(
    e: &mut Emit<'_>,
    from: &Pairs,
    chunks: (Num, usize),
    take: Needed,
) -> Result<Pairs, CompileError> {
    let len_bound = chunks.1.saturating_mul(take.bound);
    let count = from.rows_bound.saturating_mul(len_bound);
    let (keys, indices) = (words(e, count)?, words(e, count)?);
    let params = BlockParams {
        rows: from.rows,
        len: from.len,
        row_stride: from.len,
        chunks: chunks.0,
        take: take.count,
    };
    let is_first = from.keys == from.indices;
    let groups = e.tape().mul(from.rows, chunks.0);
    let grid = e.flat_grid(groups);
    let args = [from.keys, from.indices, keys.slot, indices.slot];
    // Of one chunk nothing beyond the row is sorted.
    let sorted = from.len_bound.next_power_of_two().clamp(2, CHUNK) as u32;
    e.dispatch(&BLOCK, &[is_first.into(), sorted], &args, &params, grid);
    Ok(Pairs {
        len: e.tape().mul(chunks.0, take.count),
        len_bound,
        keys: keys.slot,
        indices: indices.slot,
        ..*from
    })
}

/// The first few by chunks, until one chunk is left.
fn select(e: &mut Emit<'_>, mut pairs: Pairs, needed: Needed) -> Result<Ordered, CompileError> {
    loop {
        let chunks_bound = pairs.len_bound.div_ceil(CHUNK).max(1);
        let chunks = match chunks_bound {
            1 => Num::ONE,
            _ => e.tape().ceil_div(pairs.len, CHUNK as u32),
        };
        pairs = block(e, &pairs, (chunks, chunks_bound), needed)?;
        if chunks_bound == 1 {
            return Ok(Ordered {
                keys: pairs.keys,
                indices: pairs.indices,
                stride: pairs.len,
            });
        }
    }
}

/// Whole rows, filled up to a power of two: sorted chunks, then bitonic merges of runs that double.
fn sort(e: &mut Emit<'_>, pairs: Pairs) -> Result<Ordered, CompileError> {
    let len = pairs.len_bound.next_power_of_two();
    let all = Needed {
        count: Num::Const(CHUNK as i64),
        bound: CHUNK,
    };
    let chunks = len / CHUNK;
    let pairs = block(e, &pairs, (Num::Const(chunks as i64), chunks), all)?;
    let args = [pairs.keys, pairs.indices];
    let half = e.tape().mul(pairs.rows, Num::Const(len as i64 / 2));
    let all_chunks = e.tape().mul(pairs.rows, Num::Const(chunks as i64));
    let mut run = 2 * CHUNK;
    while run <= len {
        let mut distance = run / 2;
        while distance >= CHUNK {
            let params = StepParams {
                pairs: half,
                step: Num::Const(distance as i64),
                mirrored: (distance == run / 2).into(),
            };
            let grid = e.grid_of(half, 256);
            e.dispatch(&STEP, &[], &args, &params, grid);
            distance /= 2;
        }
        let grid = e.flat_grid(all_chunks);
        e.dispatch(
            &FINISH,
            &[],
            &args,
            &FinishParams { chunks: all_chunks },
            grid,
        );
        run *= 2;
    }
    Ok(Ordered {
        keys: pairs.keys,
        indices: pairs.indices,
        stride: Num::Const(len as i64),
    })
}

/// Whether elements of rows of this length count those before them.
pub(crate) fn is_short(len: usize) -> bool {
    len <= SHORT
}

/// The first elements in order of short F32 rows `x`: of their softmax, and as shares of their sum, if `of` says so.
pub(crate) fn lower_choice(
    e: &mut Emit<'_>,
    node: &Node,
    x: &View,
    of: [bool; 2],
) -> Result<(), CompileError> {
    lower_of(e, node, x, of)
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let x = e.view(node.inputs[0]);
    lower_of(e, node, &x, [false; 2])
}

/// The first elements of `x`, or what [`lower_choice`] makes of them.
fn lower_of(e: &mut Emit<'_>, node: &Node, x: &View, of: [bool; 2]) -> Result<(), CompileError> {
    match &node.op {
        Op::TopK(op) => {
            let (k, along) = (Num::Const(op.k as i64), e.num(&x.layout.shape()[op.axis]));
            let reason = "top {less} of an axis of size {more}; at most its size";
            e.check_at_most(k, along, reason.to_string());
            let needed = Needed {
                count: k,
                bound: op.k,
            };
            let extreme = Extreme {
                is_largest: op.largest,
                nan: NanPlace::First,
            };
            take(e, x, op.axis, needed, extreme, of)
        }
        Op::Sort(op) => {
            let along = x.layout.shape()[op.axis].clone();
            let needed = Needed {
                count: e.num(&along),
                bound: e.bound(&along)?,
            };
            let extreme = Extreme {
                is_largest: op.descending,
                nan: match op.descending {
                    true => NanPlace::First,
                    false => NanPlace::Last,
                },
            };
            take(e, x, op.axis, needed, extreme, of)
        }
        _ => unreachable!("invariant: a family lowers its own operators"),
    }
}

/// The values and indices of the first elements of each row; [`lower_choice`] has `of`, which short rows of F32 know alone.
fn take(
    e: &mut Emit<'_>,
    x: &View,
    axis: usize,
    needed: Needed,
    extreme: Extreme,
    of: [bool; 2],
) -> Result<(), CompileError> {
    let shape: &[Dim] = x.layout.shape();
    let (values, indices) = (e.result(0)?, e.result(1)?);
    if needed.bound == 0 {
        return Ok(());
    }
    let strides = e.strides(x);
    let sizes = others(&e.sizes(shape), axis);
    let len_bound = e.bound(&shape[axis])?;
    if is_short(len_bound) && x.dtype.size_bytes() == 4 {
        let rows = product(e, &sizes);
        let params = RanksParams {
            shape: eight(&sizes),
            strides: eight(&others(&strides, axis)),
            rows,
            offset: e.offset(x),
            along: strides[axis],
            len: e.num(&shape[axis]),
            inner: e.numel(&shape[axis + 1..]),
            k: needed.count,
        };
        let lanes = len_bound.next_power_of_two().max(LEAST_LANES) as u32;
        let [dtype, is_largest, nan] = extreme.consts(x.dtype);
        let rank = sizes.len() as u32;
        let [of_softmax, shares] = of.map(u32::from);
        let consts = [dtype, is_largest, nan, rank, 0, lanes, of_softmax, shares];
        let groups = e.tape().ceil_div(rows, SHORT as u32 / lanes);
        let grid = e.flat_grid(groups);
        let args = [x.slot, values.slot, indices.slot];
        e.dispatch(&RANKS, &consts, &args, &params, grid);
        e.are_within(indices.slot, &shape[axis]);
        return Ok(());
    }
    let sorted = ordered(e, x, axis, needed, extreme)?;
    let numel = e.numel(values.layout.shape());
    let params = TakeParams {
        shape: eight(&sizes),
        strides: eight(&others(&strides, axis)),
        numel,
        offset: e.offset(x),
        along: strides[axis],
        inner: e.numel(&shape[axis + 1..]),
        k: needed.count,
        row_stride: sorted.stride,
    };
    let words = e.words(values.dtype, values.layout.shape());
    let grid = e.grid_of(words, 256);
    let consts = [x.dtype.size_bytes() as u32, sizes.len() as u32];
    let args = [x.slot, sorted.indices, values.slot, indices.slot];
    e.dispatch(&TAKE, &consts, &args, &params, grid);
    e.are_within(indices.slot, &shape[axis]);
    Ok(())
}
