//! `ScatterElements`, `ScatterNd` and `ScatterAdd`: updates are sorted by their target slice.
//!
//! Every update gets a key of target slice and position. After sorting, the updates of each slice
//! are adjacent and in their original order. Slices are distributed over threads, and the result
//! does not depend on the number of threads. Every index is checked before anything is written.
//!
//! `ScatterElements` with updates on all lines of its axis needs no sort ([`lines`]).
#![allow(unsafe_code, reason = "tasks write disjoint lines of the result")]

mod lines;

use tercet_ir::ops::{ScanFn, ScatterReduce};
use tercet_ir::{EvalError, Graph, MAX_RANK, Node, Op, OpKind};

use crate::args::{KernelArgs, KernelView};
use crate::kernels::{KernelThreads, SimdLevel, sort_unstable};
use crate::lower::cumsum::{CumSumElem, for_scan};
use crate::lower::elem::{for_element, parts};
use crate::lower::indexed::{are_within, resolve, strides};
use crate::lower::reference_eval::evaluate;
use crate::lower::top_k::keys_of;
use crate::lower::{
    AcceptedLayout, CpuKernel, KernelRunFn, LoweredNode, always, copy_view, indices, kernel,
};
use lines::ScatterLines;
use tercet_ir::layout::Layout;

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    kernel("scatter", OpKind::ScatterElements, always, lower),
    kernel("scatter", OpKind::ScatterNd, always, lower),
    kernel("scatter", OpKind::ScatterAdd, always, lower),
];

/// Number of elements of a slice that are combined at once.
const TILE: usize = 128;
/// Minimum elements of a parallel task.
const TASK: usize = 1 << 14;

/// Which operand of the node contains the indices, and which the updates.
#[derive(Clone, Copy)]
struct ScatterOperands {
    idx: usize,
    updates: usize,
}

fn operands(op: &Op) -> ScatterOperands {
    match op {
        Op::ScatterAdd(_) => ScatterOperands { idx: 1, updates: 0 },
        _ => ScatterOperands { idx: 1, updates: 2 },
    }
}

/// Function that combines updates of the same element; `None` if the last update replaces the
/// earlier ones.
fn combination(op: &Op) -> Option<ScanFn> {
    let reduce = match op {
        Op::ScatterElements(op) => op.reduce,
        Op::ScatterNd(op) => op.reduce,
        _ => ScatterReduce::Add,
    };
    match reduce {
        ScatterReduce::Replace => None,
        ScatterReduce::Add => Some(ScanFn::Sum),
        ScatterReduce::Mul => Some(ScanFn::Prod),
        ScatterReduce::Max => Some(ScanFn::Max),
        ScatterReduce::Min => Some(ScanFn::Min),
    }
}

/// Number of updates.
fn count(op: &Op, idx: &Layout) -> usize {
    match op {
        Op::ScatterNd(_) => idx.shape().iter().rev().skip(1).product(),
        _ => idx.numel(),
    }
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    if let Op::ScatterNd(op) = &node.op
        && op.reduce == ScatterReduce::Replace
    {
        return lower_replacing(graph, node);
    }
    let op = node.op.clone();
    let level = SimdLevel::detect();
    let run = for_element!(graph.ty(node.inputs[0]).dtype, run);
    let sized = op.clone();
    let mut accepts = vec![AcceptedLayout::Dense; node.inputs.len()];
    if !matches!(op, Op::ScatterAdd(_)) {
        // The kernel copies the data anyway.
        accepts[0] = AcceptedLayout::Any;
    }
    LoweredNode {
        accepts,
        fallible: true,
        scratch: Some(Box::new(move |layouts, threads| {
            let idx = &layouts[operands(&sized).idx];
            let own = lines_of(&sized, layouts[0].shape(), idx.shape());
            let words = match own {
                Some(lines) => lines.part_len() * threads.max(1),
                None => count(&sized, idx),
            };
            words * size_of::<u64>()
        })),
        work: |layouts| layouts.iter().map(Layout::numel).sum(),
        ..LoweredNode::new(node.inputs.len(), move |args: &mut KernelArgs<'_>| {
            run(level, &op, args)
        })
    }
}

/// Lowers `ScatterNd` that replaces slices. The kernel writes the operand's own memory if that is a
/// state or has no later reader. Before it overwrites slices of a state, the kernel saves their old
/// contents, so that a failed run can restore them.
fn lower_replacing(graph: &Graph, node: &Node) -> LoweredNode {
    let op = node.op.clone();
    let level = SimdLevel::detect();
    let elsewhere = for_element!(graph.ty(node.inputs[0]).dtype, run);
    let undo: KernelRunFn = Box::new(|args| {
        let (count, inner) = slices_of(args);
        let out = &mut args.outs[0];
        let (keys, saved) = args.scratch.split_at(count * size_of::<u64>());
        for (key, saved) in keys
            .chunks_exact(size_of::<u64>())
            .zip(saved.chunks_exact(inner.max(1)))
        {
            let slice = u64::from_le_bytes(key.try_into().unwrap_or_default()) as usize;
            out.bytes[slice * inner..][..inner].copy_from_slice(&saved[..inner]);
        }
        Ok(())
    });
    let size = node.outputs[0].dtype.size_bytes();
    LoweredNode {
        accepts: vec![AcceptedLayout::Dense; 3],
        fallible: true,
        in_place: vec![0],
        scratch: Some(Box::new(move |layouts, _| {
            let idx = layouts[1].shape();
            let count: usize = idx.iter().rev().skip(1).product();
            count * size_of::<u64>() + layouts[2].numel() * size
        })),
        work: |layouts| layouts[2].numel(),
        undo: Some(undo),
        ..LoweredNode::new(
            node.inputs.len(),
            move |args: &mut KernelArgs<'_>| match args.ins[0].root.is_empty() {
                true => replace_in_place(args),
                false => elsewhere(level, &op, args),
            },
        )
    }
}

/// Number of updates of a `ScatterNd`, and bytes of one update.
fn slices_of(args: &KernelArgs<'_>) -> (usize, usize) {
    let (idx, updates) = (&args.ins[1], &args.ins[2]);
    let count: usize = idx.shape().iter().rev().skip(1).product();
    let bytes = updates.layout.numel() * updates.dtype.size_bytes();
    (count, bytes.checked_div(count).unwrap_or(0))
}

fn replace_in_place(args: &mut KernelArgs<'_>) -> Result<(), EvalError> {
    let (count, inner) = slices_of(args);
    let (idx, updates) = (args.ins[1], args.ins[2]);
    let out = &mut args.outs[0];
    let lens = &out.layout.shape()[..idx.shape().last().copied().unwrap_or(0)];
    let (keys, saved) = args.scratch.split_at_mut(count * size_of::<u64>());
    let mut named = indices(&idx);
    for key in keys.chunks_exact_mut(size_of::<u64>()) {
        let mut slice = 0;
        for (&len, index) in lens.iter().zip(named.by_ref()) {
            slice = slice * len + resolve(index, len)?;
        }
        key.copy_from_slice(&(slice as u64).to_le_bytes());
    }
    let places = || {
        keys.chunks_exact(size_of::<u64>())
            .map(|key| u64::from_le_bytes(key.try_into().unwrap_or_default()) as usize)
    };
    for (slice, saved) in places().zip(saved.chunks_exact_mut(inner.max(1))) {
        saved[..inner].copy_from_slice(&out.bytes[slice * inner..][..inner]);
    }
    let updates = updates.dense_bytes();
    for (row, slice) in places().enumerate() {
        out.bytes[slice * inner..][..inner].copy_from_slice(&updates[row * inner..][..inner]);
    }
    Ok(())
}

/// The lines of a `ScatterElements` whose updates need no sort.
fn lines_of(op: &Op, data: &[usize], idx: &[usize]) -> Option<ScatterLines> {
    match op {
        Op::ScatterElements(op) => {
            let replaces = op.reduce == ScatterReduce::Replace;
            ScatterLines::new(data, idx, op.axis, replaces)
        }
        _ => None,
    }
}

fn run<T: CumSumElem>(
    level: SimdLevel,
    op: &Op,
    args: &mut KernelArgs<'_>,
) -> Result<(), EvalError> {
    let ScatterOperands { idx, updates } = operands(op);
    let (idx, updates) = (args.ins[idx], args.ins[updates]);
    let out = &mut args.outs[0];
    if let Some(lines) = lines_of(op, out.layout.shape(), idx.shape()) {
        copy_view(&args.ins[0], out.bytes, args.parallel);
        let scratch = keys_of(args.scratch);
        let threads = KernelThreads::parallel(args.parallel);
        return lines.run::<T>(
            combination(op),
            &idx,
            updates.dense(),
            out.as_mut(),
            scratch,
            threads,
        );
    }
    let (shape, count) = (out.layout.shape(), count(op, idx.layout));
    let keys: &mut [u64] = &mut keys_of(args.scratch)[..count];
    let few = |n: usize| u32::try_from(n).is_ok();
    let inner = match op {
        Op::ScatterElements(op) => {
            let fits = are_within(idx.shape(), shape, op.axis);
            if !fits || !few(out.layout.numel()) || !few(count) {
                return evaluate(&Op::from(op.clone()), args);
            }
            element_keys(&idx, shape, op.axis, keys)?;
            1
        }
        op => {
            let k = match op {
                Op::ScatterNd(_) => idx.shape().last().copied().unwrap_or(0),
                _ => 1,
            };
            let (lens, inner) = shape.split_at(k);
            if !few(lens.iter().product()) || !few(count) {
                return evaluate(op, args);
            }
            slice_keys(&idx, lens, keys)?;
            inner.iter().product()
        }
    };
    match op {
        Op::ScatterAdd(_) => out.bytes.fill(0),
        _ => copy_view(&args.ins[0], out.bytes, args.parallel),
    }
    if out.layout.numel() == 0 || count == 0 {
        return Ok(());
    }
    // All keys are distinct, so an unstable sort gives a unique order.
    sort_unstable(KernelThreads::parallel(args.parallel), keys);
    let keys: &[u64] = keys;
    let (f, updates): (_, &[T]) = (combination(op), updates.dense());
    let slices = TASK.div_ceil(inner);
    parts(args.parallel, out.as_mut(), slices * inner, |task, out| {
        let (first, end) = (task * slices, task * slices + out.len() / inner);
        let begin = keys.partition_point(|key| slice_of(*key) < first);
        let own = &keys[begin..];
        let own = &own[..own.partition_point(|key| slice_of(*key) < end)];
        for group in own.chunk_by(|a, b| slice_of(*a) == slice_of(*b)) {
            let at = (slice_of(group[0]) - first) * inner;
            let out = &mut out[at..at + inner];
            match f {
                Some(f) => combined(level, f, group, updates, out),
                None => {
                    let last = group.last().map_or(0, |key| place_of(*key));
                    out.copy_from_slice(&updates[last * inner..][..inner]);
                }
            }
        }
    });
    Ok(())
}

fn key(slice: usize, place: usize) -> u64 {
    (slice as u64) << 32 | place as u64
}

fn slice_of(key: u64) -> usize {
    (key >> 32) as usize
}

fn place_of(key: u64) -> usize {
    key as u32 as usize
}

/// Combines the updates of a group into one slice, in the accumulator type; rounds once.
fn combined<T: CumSumElem>(
    level: SimdLevel,
    f: ScanFn,
    group: &[u64],
    updates: &[T],
    out: &mut [T],
) {
    let inner = out.len();
    if let [key] = group
        && T::combine_slices(level, f, out, &updates[place_of(*key) * inner..][..inner])
    {
        return;
    }
    // The compiler vectorizes sums and products.
    if let ([key], ScanFn::Sum | ScanFn::Prod) = (group, f) {
        let from = &updates[place_of(*key) * inner..][..inner];
        for_scan!(f, |F| for (y, x) in out.iter_mut().zip(from) {
            let own = T::combine(F, T::identity(F), *y);
            *y = T::result(T::combine(F, own, *x));
        });
        return;
    }
    let mut so_far = [T::identity(f); TILE];
    for (tile, out) in out.chunks_mut(TILE).enumerate() {
        for_scan!(f, |F| {
            for (so_far, y) in so_far.iter_mut().zip(out.iter()) {
                *so_far = T::combine(F, T::identity(F), *y);
            }
            for key in group {
                let from = &updates[place_of(*key) * inner + tile * TILE..][..out.len()];
                for (so_far, x) in so_far.iter_mut().zip(from) {
                    *so_far = T::combine(F, *so_far, *x);
                }
            }
        });
        for (so_far, y) in so_far.iter().zip(out.iter_mut()) {
            *y = T::result(*so_far);
        }
    }
}

/// Writes the keys of updates of single elements. The target is the update's own position, with its
/// coordinate along `axis` replaced by the index.
fn element_keys(
    idx: &KernelView<'_>,
    data: &[usize],
    axis: usize,
    keys: &mut [u64],
) -> Result<(), EvalError> {
    let (shape, steps) = (idx.shape(), strides(data));
    let mut at = [0usize; MAX_RANK];
    for (i, (index, slot)) in indices(idx).zip(keys).enumerate() {
        let along = resolve(index, data[axis])?;
        let place = (0..data.len()).map(|a| steps[a] * if a == axis { along } else { at[a] });
        *slot = key(place.sum(), i);
        for a in (0..shape.len()).rev() {
            at[a] += 1;
            if at[a] < shape[a] {
                break;
            }
            at[a] = 0;
        }
    }
    Ok(())
}

/// Writes the keys of updates of slices. A row of the index operand is a coordinate in axes of
/// sizes `lens`; the target is its row-major position.
fn slice_keys(idx: &KernelView<'_>, lens: &[usize], keys: &mut [u64]) -> Result<(), EvalError> {
    let mut named = indices(idx);
    for (i, slot) in keys.iter_mut().enumerate() {
        let mut at = 0;
        for (&len, index) in lens.iter().zip(named.by_ref()) {
            at = at * len + resolve(index, len)?;
        }
        *slot = key(at, i);
    }
    Ok(())
}
