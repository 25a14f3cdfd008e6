//! `TopK` of elements of up to 4 bytes: each element of a line becomes a sort key in scratch
//! memory. The lowest `k` keys are selected and sorted. The low bits of a key are the index, so
//! equal elements keep their order.

use bytemuck::{Pod, cast_slice_mut};
use tercet_ir::{DType, EvalError, Graph, Node, Op, Support};

use crate::args::KernelArgs;
use crate::kernels::KernelThreads;
use crate::kernels::parallel::{DisjointChunks, for_each_part};
use crate::lower::LoweredNode;
use crate::lower::elem::{AxisBlocks, for_element, native_for};
use crate::lower::rank::SortKey;
use crate::lower::reference_eval::evaluate;

const NARROW: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::U32,
    DType::I8,
    DType::U8,
    DType::Bool,
];

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(NARROW, graph.ty(node.inputs[0]).dtype)
}

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
    /// Sort key in 32 bits; lower keys come first.
    #[inline(always)]
    fn rank<T: SortKey>(self, x: T) -> u64 {
        match self {
            TopKOrder::Greatest => x.rank(true),
            TopKOrder::Least => x.rank(false),
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
    let run = for_element!(graph.ty(node.inputs[0]).dtype, run);
    let axis = top.axis;
    LoweredNode {
        fallible: true,
        scratch: Some(Box::new(move |layouts, threads| {
            layouts[0].shape()[axis] * size_of::<u64>() * threads.max(1)
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
    let view = AxisBlocks::new(args.ins[0].shape(), top.axis);
    let [values, indices] = args.outs.as_mut_slice() else {
        unreachable!("invariant: the operator has two results")
    };
    if values.layout.numel() == 0 {
        return Ok(());
    }
    let x: &[T] = args.ins[0].dense();
    let (values, indices) = (values.as_mut::<T>(), indices.as_mut::<i32>());
    let keys: &mut [u64] = keys_of(args.scratch);
    let workers = match args.parallel {
        true => (keys.len() / view.len).min(view.outer),
        false => 1,
    };
    let blocks = view.outer.div_ceil(workers);
    let (from, to) = (blocks * view.len * view.inner, blocks * top.k * view.inner);
    let run = |x: &[T], values: &mut [T], indices: &mut [i32], keys: &mut [u64]| {
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

/// Scratch memory as whole words.
pub(crate) fn keys_of<T: Pod>(scratch: &mut [u8]) -> &mut [T] {
    let whole = scratch.len() / size_of::<T>() * size_of::<T>();
    cast_slice_mut(&mut scratch[..whole])
}

/// Processes the lines of one outer index; their elements have stride `inner`.
fn lines<T: SortKey>(
    top: TopKParams,
    inner: usize,
    x: &[T],
    values: &mut [T],
    indices: &mut [i32],
    keys: &mut [u64],
) {
    for line in 0..inner {
        let elements = x[line..].iter().step_by(inner);
        for (i, (key, x)) in keys.iter_mut().zip(elements).enumerate() {
            *key = top.order.rank(*x) << 32 | i as u64;
        }
        for (rank, key) in lowest(keys, top.k).iter().enumerate() {
            let i = *key as u32 as usize;
            values[rank * inner + line] = x[i * inner + line];
            indices[rank * inner + line] = i as i32;
        }
    }
}

/// The lowest `k` keys in ascending order.
pub(crate) fn lowest(keys: &mut [u64], k: usize) -> &mut [u64] {
    if k > 0 && k < keys.len() {
        keys.select_nth_unstable(k - 1);
    }
    let keys = &mut keys[..k];
    keys.sort_unstable();
    keys
}
