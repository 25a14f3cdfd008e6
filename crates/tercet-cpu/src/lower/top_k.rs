//! `TopK`: each element of a line becomes a sort key in scratch memory. The lowest `k` keys are
//! selected and sorted. The low bits of a key are the index, so equal elements keep their order.
//!
//! The keys of elements of up to 4 bytes are words of 64 bits, those of wider elements of 128 bits.
//! For small `k`, one pass inserts the few keys below the greatest kept one into a sorted list.

use bytemuck::{Pod, cast_slice_mut};
use tercet_ir::{DType, EvalError, Graph, Node, Op, OpKind};

use crate::args::KernelArgs;
use crate::kernels::KernelThreads;
use crate::kernels::parallel::{DisjointChunks, for_each_part};
use crate::lower::elem::{AxisBlocks, for_element};
use crate::lower::rank::SortKey;
use crate::lower::reference_eval::evaluate;
use crate::lower::{CpuKernel, LoweredNode, always, kernel};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel("top_k", OpKind::TopK, always, lower)];

/// Bytes of a sort key with its index.
pub(crate) fn key_bytes(dtype: DType) -> usize {
    match NARROW.contains(&dtype) {
        true => size_of::<u64>(),
        false => size_of::<u128>(),
    }
}

/// Dtypes whose keys fit in 32 bits.
const NARROW: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::U32,
    DType::I16,
    DType::I8,
    DType::U8,
    DType::Bool,
];

/// Sort order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TopKOrder {
    /// NaN first, then descending.
    Greatest,
    /// NaN first, then ascending.
    Least,
    /// Ascending; NaN last.
    Ascending,
}

impl TopKOrder {
    /// Sort key; lower keys come first. The keys of elements of up to 4 bytes have 32 bits.
    #[inline(always)]
    fn rank<T: SortKey>(self, x: T) -> u64 {
        match self {
            TopKOrder::Greatest => x.rank(true),
            TopKOrder::Least => x.rank(false),
            TopKOrder::Ascending if size_of::<T>() > 4 => !x.rank(true),
            TopKOrder::Ascending => u64::from(!(x.rank(true) as u32)),
        }
    }
}

/// Parameters of the kernel: axis, number of elements `k`, and whether the largest elements come
/// first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopKParams {
    pub(crate) k: usize,
    pub(crate) axis: usize,
    pub(crate) order: TopKOrder,
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::TopK(top) = &node.op else {
        unreachable!("invariant: the kernel table maps only `TopK` to this row")
    };
    let top = TopKParams {
        k: top.k,
        axis: top.axis,
        order: match top.largest {
            true => TopKOrder::Greatest,
            false => TopKOrder::Least,
        },
    };
    let op = node.op.clone();
    let dtype = graph.ty(node.inputs[0]).dtype;
    let run = for_element!(dtype, run);
    let axis = top.axis;
    LoweredNode {
        fallible: true,
        scratch: Some(Box::new(move |layouts, threads| {
            layouts[0].shape()[axis] * key_bytes(dtype) * threads.max(1)
        })),
        work: |layouts| layouts[0].numel() * 8,
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            match args.ins[0].shape()[top.axis] < top.k {
                true => evaluate(&op, args),
                false => run(top, args),
            }
        })
    }
}

pub(crate) fn run<T: SortKey>(top: TopKParams, args: &mut KernelArgs<'_>) -> Result<(), EvalError> {
    match size_of::<T>() > 4 {
        true => run_by::<T, u128>(top, args),
        false => run_by::<T, u64>(top, args),
    }
}

/// Sort key with the index of its element in the low bits.
trait IndexedKey: Pod + Ord + Send {
    /// The key without the index.
    type Rank: Copy + Ord;
    const LAST: Self::Rank;
    fn rank(rank: u64) -> Self::Rank;
    fn new(rank: Self::Rank, index: usize) -> Self;
    fn index(self) -> usize;
}

impl IndexedKey for u64 {
    type Rank = u32;
    const LAST: u32 = u32::MAX;
    #[inline(always)]
    fn rank(rank: u64) -> u32 {
        rank as u32
    }
    #[inline(always)]
    fn new(rank: u32, index: usize) -> u64 {
        u64::from(rank) << 32 | index as u64
    }
    fn index(self) -> usize {
        self as u32 as usize
    }
}

impl IndexedKey for u128 {
    type Rank = u64;
    const LAST: u64 = u64::MAX;
    #[inline(always)]
    fn rank(rank: u64) -> u64 {
        rank
    }
    #[inline(always)]
    fn new(rank: u64, index: usize) -> u128 {
        u128::from(rank) << 64 | index as u128
    }
    fn index(self) -> usize {
        self as u64 as usize
    }
}

fn run_by<T: SortKey, K: IndexedKey>(
    top: TopKParams,
    args: &mut KernelArgs<'_>,
) -> Result<(), EvalError> {
    let view = AxisBlocks::new(args.ins[0].shape(), top.axis);
    let [values, indices] = args.outs.as_mut_slice() else {
        unreachable!("invariant: the operator has two results")
    };
    if values.layout.numel() == 0 {
        return Ok(());
    }
    let x: &[T] = args.ins[0].dense();
    let (values, indices) = (values.as_mut::<T>(), indices.as_mut::<i32>());
    let keys: &mut [K] = keys_of(args.scratch);
    let workers = match args.parallel {
        true => (keys.len() / view.len).min(view.outer),
        false => 1,
    };
    let blocks = view.outer.div_ceil(workers);
    let (from, to) = (blocks * view.len * view.inner, blocks * top.k * view.inner);
    let run = |x: &[T], values: &mut [T], indices: &mut [i32], keys: &mut [K]| {
        let results = values.chunks_exact_mut(top.k * view.inner);
        let results = results.zip(indices.chunks_exact_mut(top.k * view.inner));
        for (x, (values, indices)) in x.chunks_exact(view.len * view.inner).zip(results) {
            lines(top, view.inner, x, values, indices, keys);
        }
    };
    if workers == 1 {
        run(x, values, indices, &mut keys[..view.len]);
        return Ok(());
    }
    let results = (
        DisjointChunks::new(values, to),
        DisjointChunks::new(indices, to),
    );
    let work = (results, DisjointChunks::new(keys, view.len));
    for_each_part(KernelThreads::Pool, work, |i, ((values, indices), keys)| {
        let x = &x[i * from..x.len().min((i + 1) * from)];
        run(x, values, indices, keys);
    });
    Ok(())
}

/// True if one pass with a sorted list of `k` keys is faster than a selection. A longer list moves
/// more keys for each insertion, so it pays in longer lines only.
fn is_listed(k: usize, len: usize) -> bool {
    match k {
        0 => false,
        1..=64 => k * 8 <= len,
        65..=512 => k * 128 <= len,
        _ => false,
    }
}

/// Elements whose ranks are computed together.
const BLOCK: usize = 64;

/// Processes the lines of one outer index; their elements have stride `inner`.
fn lines<T: SortKey, K: IndexedKey>(
    top: TopKParams,
    inner: usize,
    x: &[T],
    values: &mut [T],
    indices: &mut [i32],
    keys: &mut [K],
) {
    for line in 0..inner {
        let elements = x[line..].iter().step_by(inner);
        let found = match is_listed(top.k, x.len() / inner) {
            true if inner == 1 => listed_lowest(top, x, keys),
            true => {
                // The list leaves room for the elements of the line.
                let (list, rest) = keys.split_at_mut(top.k);
                let copy: &mut [T] = &mut cast_slice_mut(rest)[..x.len() / inner];
                copy.iter_mut().zip(elements).for_each(|(to, x)| *to = *x);
                listed_lowest(top, copy, list)
            }
            false => {
                for (i, (key, x)) in keys.iter_mut().zip(elements).enumerate() {
                    *key = K::new(K::rank(top.order.rank(*x)), i);
                }
                lowest(keys, top.k)
            }
        };
        for (rank, key) in found.iter().enumerate() {
            let i = key.index();
            values[rank * inner + line] = x[i * inner + line];
            indices[rank * inner + line] = i as i32;
        }
    }
}

/// The lowest `k` keys of a contiguous line in ascending order, in the first `k` places of `keys`.
fn listed_lowest<'a, T: SortKey, K: IndexedKey>(
    top: TopKParams,
    x: &[T],
    keys: &'a mut [K],
) -> &'a [K] {
    let keys = &mut keys[..top.k];
    let (first, rest) = x.split_at(top.k);
    let rank = |x: T| K::rank(top.order.rank(x));
    for (i, (key, x)) in keys.iter_mut().zip(first).enumerate() {
        *key = K::new(rank(*x), i);
    }
    keys.sort_unstable();
    // The rank of the greatest key; later elements of the same rank come after it.
    let mut bound = rank(first[keys[top.k - 1].index()]);
    for (block, x) in rest.chunks(BLOCK).enumerate() {
        let mut ranks = [K::LAST; BLOCK];
        for (rank_of, x) in ranks.iter_mut().zip(x) {
            *rank_of = rank(*x);
        }
        if !ranks.iter().fold(false, |any, rank| any | (*rank < bound)) {
            continue;
        }
        for (i, rank_of) in ranks[..x.len()].iter().enumerate() {
            if *rank_of >= bound {
                continue;
            }
            let key = K::new(*rank_of, top.k + block * BLOCK + i);
            let at = keys.partition_point(|other| *other < key);
            keys.copy_within(at..top.k - 1, at + 1);
            keys[at] = key;
            bound = rank(x_at(first, rest, keys[top.k - 1].index()));
        }
    }
    keys
}

/// An element of a line in two parts.
fn x_at<T: Copy>(first: &[T], rest: &[T], at: usize) -> T {
    match at.checked_sub(first.len()) {
        None => first[at],
        Some(at) => rest[at],
    }
}

/// Scratch memory as whole words.
pub(crate) fn keys_of<T: Pod>(scratch: &mut [u8]) -> &mut [T] {
    let whole = scratch.len() / size_of::<T>() * size_of::<T>();
    cast_slice_mut(&mut scratch[..whole])
}

/// The lowest `k` keys in ascending order.
pub(crate) fn lowest<K: Ord>(keys: &mut [K], k: usize) -> &mut [K] {
    if k > 0 && k < keys.len() {
        keys.select_nth_unstable(k - 1);
    }
    let keys = &mut keys[..k];
    keys.sort_unstable();
    keys
}
