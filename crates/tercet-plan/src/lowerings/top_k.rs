//! Lowering of `TopK`, `Sort` and `SearchSorted`, and sorting for `Sample` and the scatter
//! operators.
//!
//! Elements become 32-bit keys that compare as integers. Pairs of key and index are unique, so
//! every sort gives the same order. A workgroup sorts a row of at most [`CHUNK`] elements. For
//! longer rows with small `k`, the top elements of each chunk are selected repeatedly; for larger
//! `k`, the row is sorted in memory. Short rows of 32-bit elements need no sort: the thread of each
//! element counts the elements that come before it in the order.

use tercet_ir::ops::Op;
use tercet_ir::{CompileError, DType, Dim, Node, OpKind};

use super::words::{eight, product, words};
use super::{Lowering, always, code, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::PRELUDE;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `top_k_keys.wgsl`.
    pub struct TopKKeysParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
    }
    /// Parameter block of `top_k_block.wgsl`.
    pub struct TopKBlockParams {
        rows: U32,
        len: U32,
        row_stride: U32,
        chunks: U32,
        take: U32,
    }
    /// Parameter block of `top_k_step.wgsl`.
    pub struct TopKStepParams {
        pairs: U32,
        step: U32,
        mirrored: U32,
    }
    /// Parameter block of `top_k_finish.wgsl`.
    pub struct TopKFinishParams {
        chunks: U32,
    }
    /// Parameter block of `top_k_ranks.wgsl`.
    pub struct TopKRanksParams {
        shape: U32x8,
        strides: U32x8,
        rows: U32,
        offset: U32,
        along: U32,
        len: U32,
        inner: U32,
        k: U32,
    }
    /// Parameter block of `top_k_take.wgsl`.
    pub struct TopKTakeParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
        along: U32,
        inner: U32,
        k: U32,
        row_stride: U32,
    }
    /// Parameter block of [`SEARCH`].
    pub struct SearchSortedParams {
        numel: U32,
        width: U32,
        len: U32,
        step: U32,
    }
}

const KEY: &str = portable!("top_k_key.wgsl");
const PLACE: &str = portable!("top_k_place.wgsl");

static KEYS: TypedKernel<TopKKeysParams> = TypedKernel::wgsl(
    "top_k_keys",
    &[PRELUDE, KEY, PLACE, portable!("top_k_keys.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["DTYPE", "LARGEST", "NAN", "RANK"],
);

static RANKS: TypedKernel<TopKRanksParams> = TypedKernel::wgsl(
    "top_k_ranks",
    &[
        PRELUDE,
        KEY,
        PLACE,
        portable!("softmax_value.wgsl"),
        portable!("top_k_ranks.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write, ArgAccess::Write],
    &[
        "DTYPE", "LARGEST", "NAN", "RANK", "LOG", "LANES", "SOFTMAX", "SHARES",
    ],
);

static BLOCK: TypedKernel<TopKBlockParams> = TypedKernel::wgsl(
    "top_k_block",
    &[PRELUDE, portable!("top_k_block.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &["FIRST", "SORTED"],
);

static STEP: TypedKernel<TopKStepParams> = TypedKernel::wgsl(
    "top_k_step",
    &[PRELUDE, portable!("top_k_step.wgsl")],
    &[ArgAccess::Write, ArgAccess::Write],
    &[],
);

static FINISH: TypedKernel<TopKFinishParams> = TypedKernel::wgsl(
    "top_k_finish",
    &[PRELUDE, portable!("top_k_finish.wgsl")],
    &[ArgAccess::Write, ArgAccess::Write],
    &[],
);

static TAKE: TypedKernel<TopKTakeParams> = TypedKernel::wgsl(
    "top_k_take",
    &[PRELUDE, PLACE, portable!("top_k_take.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &["ELEM_BYTES", "RANK"],
);

/// SearchSorted by binary search, one thread per value: `width` values in a row share the `len`
/// elements that start `step` after those of the row before. Elements compare by keys as in
/// `top_k_key.wgsl`, with NaN last; I16 has no code there.
const SEARCH_SORTED: &str = "
struct Params {
    numel: u32,
    width: u32,
    len: u32,
    step: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> sorted: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

override IN: u32 = 0u;
override RIGHT: u32 = 0u;
const I16: u32 = 8u;

fn word_at(i: u32) -> u32 {
    return select(word_of(i, IN), i / 2u, IN == I16);
}

// Integer key of element `i`, which is in `word`: equal elements have equal keys.
fn search_key(word: u32, i: u32) -> u32 {
    if IN == I16 {
        return bits_of(word, i % 2u, 2u) ^ 0x8000u;
    }
    let lane = lane_of(i, IN);
    if IN <= BF16 {
        let value = float_of(word, lane, IN);
        if is_nan(value) {
            return 0xffffffffu;
        }
        let bits = select(bitcast<u32>(value), 0u, magnitude(value) == 0u);
        return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
    }
    if IN == I32 || IN == I8 {
        return bitcast<u32>(int_of(word, lane, IN)) ^ 0x80000000u;
    }
    return uint_of(word, lane, IN);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat_group(group, groups) * 256u + local;
    if i >= p.numel {
        return;
    }
    let start = i / p.width * p.step;
    let value = search_key(values[word_at(i)], i);
    var low = 0u;
    var high = p.len;
    while low < high {
        let middle = low + (high - low) / 2u;
        let at = start + middle;
        let key = search_key(sorted[word_at(at)], at);
        if key < value || (RIGHT == 1u && key == value) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    y[i] = low;
}
";

/// `I16` of [`SEARCH_SORTED`].
const CODE_OF_I16: u32 = 8;

static SEARCH: TypedKernel<SearchSortedParams> = TypedKernel::wgsl(
    "search_sorted",
    &[PRELUDE, SEARCH_SORTED],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &["IN", "RIGHT"],
);

/// Lowering of `TopK`, `Sort` and `SearchSorted`.
pub(crate) static TOP_KS: Lowering = Lowering {
    name: "top_k",
    ops: &[OpKind::TopK, OpKind::Sort, OpKind::SearchSorted],
    kernels: &[
        &RANKS.def,
        &KEYS.def,
        &BLOCK.def,
        &STEP.def,
        &FINISH.def,
        &TAKE.def,
        &SEARCH.def,
    ],
    supports: always,
    lower,
};

/// Number of pairs that a workgroup sorts; equals `CHUNK` of the shaders.
const CHUNK: usize = 1024;

/// Maximum row length for ranking by counting, which is the workgroup size of `top_k_ranks.wgsl`.
const MAX_RANK_ROW: usize = 256;
/// Minimum number of threads per row for ranking by counting.
const MIN_LANES: usize = 8;

/// Maximum `k` for selection per chunk; each pass then at least halves the candidates.
const MAX_CHUNKED_K: usize = CHUNK / 2;

/// Where NaN elements come in the sorted order of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NanOrder {
    /// NaN comes before all other elements.
    First,
    /// NaN has the same position in the order as `-inf`.
    Low,
    /// NaN comes after all other elements.
    Last,
}

/// Sort order of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SortDirection {
    /// Descending order if true, otherwise ascending.
    pub(super) is_largest: bool,
    pub(super) nan: NanOrder,
}

impl SortDirection {
    /// Values of the kernel constants of `top_k_key.wgsl`, which defines the order.
    fn consts(self, dtype: DType) -> [u32; 3] {
        [code(dtype), self.is_largest.into(), self.nan as u32]
    }
}

/// Number of elements required per row (k): in this run, and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TopKCount {
    pub(super) count: SymInt,
    pub(super) bound: usize,
}

/// Rows of key and index pairs; the first elements of each row are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SortedRows {
    pub(super) keys: SlotId,
    pub(super) indices: SlotId,
    /// Distance between consecutive rows, in elements.
    pub(super) stride: SymInt,
}

/// Rows of unsorted key and index pairs; each row has `len` candidates.
struct KeyIndexPairs {
    rows: SymInt,
    rows_bound: usize,
    len: SymInt,
    len_bound: usize,
    keys: SlotId,
    indices: SlotId,
}

/// The first elements of each row along an axis in sorted order; ties are ordered by index.
pub(super) fn ordered(
    e: &mut LoweringCtx<'_>,
    x: &SlotView,
    axis: usize,
    needed: TopKCount,
    extreme: SortDirection,
) -> Result<SortedRows, CompileError> {
    let pairs = keys(e, x, axis, extreme)?;
    match pairs.len_bound <= CHUNK || needed.bound <= MAX_CHUNKED_K {
        true => select(e, pairs, needed),
        false => sort(e, pairs),
    }
}

/// Sorts one row of `count` words; equal words are ordered by position.
pub(super) fn in_order(
    e: &mut LoweringCtx<'_>,
    keys: SlotId,
    count: SymInt,
    bound: usize,
) -> Result<SortedRows, CompileError> {
    let pairs = KeyIndexPairs {
        rows: SymInt::ONE,
        rows_bound: 1,
        len: count,
        len_bound: bound,
        keys,
        indices: keys,
    };
    let all = TopKCount { count, bound };
    match bound <= CHUNK {
        true => select(e, pairs, all),
        false => sort(e, pairs),
    }
}

/// The entries of `list` for all axes except `axis`, in order.
fn others<T: Clone>(list: &[T], axis: usize) -> Vec<T> {
    [&list[..axis], &list[axis + 1..]].concat()
}

/// Emits the kernel that writes the sort keys of all rows, one row after the other.
fn keys(
    e: &mut LoweringCtx<'_>,
    x: &SlotView,
    axis: usize,
    extreme: SortDirection,
) -> Result<KeyIndexPairs, CompileError> {
    let shape = x.layout.shape();
    let last = |list: &[SymInt]| {
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
    let params = TopKKeysParams {
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
    Ok(KeyIndexPairs {
        rows: product(e, &sizes[..rank - 1]),
        rows_bound,
        len: sizes[rank - 1],
        len_bound,
        keys: keys.slot,
        // The first pass uses positions as indices and does not read this slot.
        indices: keys.slot,
    })
}

/// Selects the first `take` elements of each of `chunks` chunks of a row.
fn block(
    e: &mut LoweringCtx<'_>,
    from: &KeyIndexPairs,
    chunks: (SymInt, usize),
    take: TopKCount,
) -> Result<KeyIndexPairs, CompileError> {
    let len_bound = chunks.1.saturating_mul(take.bound);
    let count = from.rows_bound.saturating_mul(len_bound);
    let (keys, indices) = (words(e, count)?, words(e, count)?);
    let params = TopKBlockParams {
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
    // If a row is shorter than a chunk, the kernel sorts only the row length, rounded up to a power
    // of two.
    let sorted = from.len_bound.next_power_of_two().clamp(2, CHUNK) as u32;
    e.dispatch(&BLOCK, &[is_first.into(), sorted], &args, &params, grid);
    Ok(KeyIndexPairs {
        len: e.tape().mul(chunks.0, take.count),
        len_bound,
        keys: keys.slot,
        indices: indices.slot,
        ..*from
    })
}

/// Selects the first elements of each chunk in sorted order, repeatedly, until one chunk remains.
fn select(
    e: &mut LoweringCtx<'_>,
    mut pairs: KeyIndexPairs,
    needed: TopKCount,
) -> Result<SortedRows, CompileError> {
    loop {
        let chunks_bound = pairs.len_bound.div_ceil(CHUNK).max(1);
        let chunks = match chunks_bound {
            1 => SymInt::ONE,
            _ => e.tape().ceil_div(pairs.len, CHUNK as u32),
        };
        pairs = block(e, &pairs, (chunks, chunks_bound), needed)?;
        if chunks_bound == 1 {
            return Ok(SortedRows {
                keys: pairs.keys,
                indices: pairs.indices,
                stride: pairs.len,
            });
        }
    }
}

/// Sorts whole rows, padded to a power of two: sorts chunks, then merges runs bitonically with
/// doubling length.
fn sort(e: &mut LoweringCtx<'_>, pairs: KeyIndexPairs) -> Result<SortedRows, CompileError> {
    let len = pairs.len_bound.next_power_of_two();
    let all = TopKCount {
        count: SymInt::Const(CHUNK as i64),
        bound: CHUNK,
    };
    let chunks = len / CHUNK;
    let pairs = block(e, &pairs, (SymInt::Const(chunks as i64), chunks), all)?;
    let args = [pairs.keys, pairs.indices];
    let half = e.tape().mul(pairs.rows, SymInt::Const(len as i64 / 2));
    let all_chunks = e.tape().mul(pairs.rows, SymInt::Const(chunks as i64));
    let mut run = 2 * CHUNK;
    while run <= len {
        let mut distance = run / 2;
        while distance >= CHUNK {
            let params = TopKStepParams {
                pairs: half,
                step: SymInt::Const(distance as i64),
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
            &TopKFinishParams { chunks: all_chunks },
            grid,
        );
        run *= 2;
    }
    Ok(SortedRows {
        keys: pairs.keys,
        indices: pairs.indices,
        stride: SymInt::Const(len as i64),
    })
}

/// Whether rows of this length are ranked by counting.
pub(crate) fn fits_rank_kernel(len: usize) -> bool {
    len <= MAX_RANK_ROW
}

/// Emits the first elements of short F32 rows `x` in sorted order. Depending on `of`, the elements
/// are taken from the softmax of `x`, and normalized to sum 1 (mixture-of-experts router).
pub(crate) fn lower_choice(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    x: &SlotView,
    of: [bool; 2],
) -> Result<(), CompileError> {
    lower_of(e, node, x, of)
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    if let Op::SearchSorted(op) = &node.op {
        return lower_search(e, node, op.right);
    }
    let x = e.view(node.inputs[0]);
    lower_of(e, node, &x, [false; 2])
}

fn lower_search(e: &mut LoweringCtx<'_>, node: &Node, right: bool) -> Result<(), CompileError> {
    let [sorted, values] = [node.inputs[0], node.inputs[1]].map(|v| e.view(v));
    let (sorted, values) = (e.dense(&sorted)?, e.dense(&values)?);
    let y = e.result(0)?;
    let numel = e.numel(values.layout.shape());
    let (shape, of_values) = (sorted.layout.shape(), values.layout.shape());
    let len = e.num(&shape[shape.len() - 1]);
    // A single row serves all values.
    let (width, step) = match (shape, of_values) {
        ([_, _, ..], [.., width]) => (e.num(width), len),
        _ => (numel, SymInt::ZERO),
    };
    let dtype = match sorted.dtype {
        DType::I16 => CODE_OF_I16,
        dtype => code(dtype),
    };
    let params = SearchSortedParams {
        numel,
        width,
        len,
        step,
    };
    let grid = e.grid_of(numel, 256);
    let args = [sorted.slot, values.slot, y.slot];
    e.dispatch(&SEARCH, &[dtype, right.into()], &args, &params, grid);
    Ok(())
}

/// Lowers a top-k of `x`, or the router of [`lower_choice`].
fn lower_of(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    x: &SlotView,
    of: [bool; 2],
) -> Result<(), CompileError> {
    match &node.op {
        Op::TopK(op) => {
            let (k, along) = (
                SymInt::Const(op.k as i64),
                e.num(&x.layout.shape()[op.axis]),
            );
            let reason = "top {less} of an axis of size {more}; at most its size";
            e.check_less_equal(k, along, reason.to_string());
            let needed = TopKCount {
                count: k,
                bound: op.k,
            };
            let extreme = SortDirection {
                is_largest: op.largest,
                nan: NanOrder::First,
            };
            emit_results(e, x, op.axis, needed, extreme, of)
        }
        Op::Sort(op) => {
            let along = x.layout.shape()[op.axis].clone();
            let needed = TopKCount {
                count: e.num(&along),
                bound: e.bound(&along)?,
            };
            let extreme = SortDirection {
                is_largest: op.descending,
                nan: match op.descending {
                    true => NanOrder::First,
                    false => NanOrder::Last,
                },
            };
            emit_results(e, x, op.axis, needed, extreme, of)
        }
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    }
}

/// Writes values and indices of the first elements of each row. Only ranking by counting of short
/// F32 rows supports `of`, which [`lower_choice`] sets.
fn emit_results(
    e: &mut LoweringCtx<'_>,
    x: &SlotView,
    axis: usize,
    needed: TopKCount,
    extreme: SortDirection,
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
    if fits_rank_kernel(len_bound) && x.dtype.size_bytes() == 4 {
        let rows = product(e, &sizes);
        let params = TopKRanksParams {
            shape: eight(&sizes),
            strides: eight(&others(&strides, axis)),
            rows,
            offset: e.offset(x),
            along: strides[axis],
            len: e.num(&shape[axis]),
            inner: e.numel(&shape[axis + 1..]),
            k: needed.count,
        };
        let lanes = len_bound.next_power_of_two().max(MIN_LANES) as u32;
        let [dtype, is_largest, nan] = extreme.consts(x.dtype);
        let rank = sizes.len() as u32;
        let [of_softmax, shares] = of.map(u32::from);
        let consts = [dtype, is_largest, nan, rank, 0, lanes, of_softmax, shares];
        let groups = e.tape().ceil_div(rows, MAX_RANK_ROW as u32 / lanes);
        let grid = e.flat_grid(groups);
        let args = [x.slot, values.slot, indices.slot];
        e.dispatch(&RANKS, &consts, &args, &params, grid);
        e.are_within(indices.slot, &shape[axis]);
        return Ok(());
    }
    let sorted = ordered(e, x, axis, needed, extreme)?;
    let numel = e.numel(values.layout.shape());
    let params = TopKTakeParams {
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
