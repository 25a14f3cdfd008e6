//! `Recurrence`: batch rows are distributed over threads. A step with few rows and large weights distributes its
//! blocks of weights over threads instead, so each thread keeps its own part in its cache.
#![allow(unsafe_code, reason = "tasks write rows of several results")]

use smallvec::SmallVec;
use tercet_ir::ops::Recurrence;
use tercet_ir::{EvalError, Graph, Node, Op, OpKind, Support};

use crate::aligned_alloc::AlignedPages;
use crate::args::{KernelArgs, KernelView, PackedConst};
use crate::kernels::SimdLevel;
use crate::kernels::parallel::{KernelThreads, SharedMut, for_each};
use crate::kernels::recurrence::{RecurrentRow, RecurrentShape, advance};
use crate::lower::elem::{REALS, native_for};
use crate::lower::{CpuKernel, KernelPackFn, LoweredNode, floats_mut, through_f32, zeroed_floats};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[through_f32(
    "recurrence",
    OpKind::Recurrence,
    supports,
    lower,
)];

/// Batch rows per task.
const ROWS: usize = 4;
/// Multiply-adds of a step from which several threads compute it together.
const SHARED_STEP_WORK: usize = 1 << 18;
/// Blocks per task of a step that several threads compute.
const BLOCKS: usize = 2;

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::Recurrence(op) = node.op.clone() else {
        unreachable!("invariant: the kernel table maps only `Recurrence` to this row")
    };
    let size = graph.ty(node.inputs[1]).shape[0].known().unwrap_or(0);
    let level = SimdLevel::detect();
    let shape = RecurrentShape::new(level, op.cell, size);
    let pack: KernelPackFn = Box::new(
        move |w: &KernelView<'_>| -> Result<PackedConst, EvalError> {
            let mut packed = zeroed_floats(shape.packed_len())?;
            shape.pack(w.dense(), &mut packed);
            Ok(PackedConst::new(packed))
        },
    );
    LoweredNode {
        scratch: Some(Box::new(move |layouts, _| {
            // The second states, and the weights if they are not constant.
            let states = layouts[0].shape()[0] * size;
            (states + shape.packed_len()) * size_of::<f32>()
        })),
        pack: Some((1, pack)),
        work: |layouts| layouts[0].numel() * layouts[1].shape()[0].max(1),
        ..LoweredNode::new(node.inputs.len(), move |args: &mut KernelArgs<'_>| {
            run(level, &op, &shape, args);
            Ok(())
        })
    }
}

fn run(level: SimdLevel, op: &Recurrence, shape: &RecurrentShape, args: &mut KernelArgs<'_>) {
    let size = shape.size;
    let [x, bias, h0]: [&[f32]; 3] = [0, 2, 3].map(|i| args.ins[i].dense());
    let c0: Option<&[f32]> = args.ins.get(4).map(|c0| c0.dense());
    let &[batch, steps, wide] = args.ins[0].shape() else {
        unreachable!("invariant: inference checked the rank")
    };
    let (memory, spare) = floats_mut(args.scratch).split_at_mut(batch * size);
    match c0 {
        Some(c0) => memory.copy_from_slice(c0),
        None => memory.fill(0.0),
    }
    let packed = args
        .packed
        .and_then(|p| p.downcast_ref::<AlignedPages<f32>>());
    let packed: &[f32] = match packed {
        Some(packed) => packed,
        None => {
            let own = &mut spare[..shape.packed_len()];
            shape.pack(args.ins[1].dense(), own);
            own
        }
    };
    let outs = args.outs.iter_mut();
    let outs: SmallVec<[SharedMut<f32>; 3]> = outs
        .map(|out| SharedMut::new(out.as_mut::<f32>()))
        .collect();
    let memory = SharedMut::new(memory);
    // The rows `first..first + rows` at a step.
    let at_step = |first: usize, rows: usize, nth: usize| -> SmallVec<[RecurrentRow<'_>; 8]> {
        let place = |nth: usize| if op.reverse { steps - 1 - nth } else { nth };
        let row = |row: usize| {
            let at = row * steps + place(nth);
            RecurrentRow {
                x: &x[at * wide..][..wide],
                before: match nth {
                    0 => &h0[row * size..][..size],
                    // SAFETY: the range is inside the result. Its writers have finished, as each step ends before
                    // the next one begins.
                    nth => unsafe { outs[0].slice((row * steps + place(nth - 1)) * size, size) },
                },
                memory: memory.from(row * size),
                after: outs[0].from(at * size),
            }
        };
        (first..first + rows).map(row).collect()
    };
    let threads = KernelThreads::parallel(args.parallel);
    let tasks = batch.div_ceil(ROWS);
    if tasks < threads.count() && batch * size * wide >= SHARED_STEP_WORK {
        for nth in 0..steps {
            let rows = at_step(0, batch, nth);
            for_each(threads, shape.blocks().div_ceil(BLOCKS), |task| {
                let blocks = task * BLOCKS..shape.blocks().min((task + 1) * BLOCKS);
                advance(level, shape, blocks, packed, bias, &rows);
            });
        }
    } else {
        for_each(threads, tasks, |task| {
            let first = task * ROWS;
            for nth in 0..steps {
                let rows = at_step(first, ROWS.min(batch - first), nth);
                advance(level, shape, 0..shape.blocks(), packed, bias, &rows);
            }
        });
    }
    let last = match (steps, op.reverse) {
        (0, _) => None,
        (_, true) => Some(0),
        (steps, false) => Some(steps - 1),
    };
    for (i, out) in outs[1..].iter().enumerate() {
        for row in 0..batch {
            // SAFETY: the ranges are inside the results and the scratch memory, and all tasks have ended.
            let (to, from) = unsafe {
                let from: &[f32] = match (i, last) {
                    (0, Some(step)) => outs[0].slice((row * steps + step) * size, size),
                    (0, None) => &h0[row * size..][..size],
                    _ => memory.slice(row * size, size),
                };
                (out.slice(row * size, size), from)
            };
            to.copy_from_slice(from);
        }
    }
}
