//! `Recurrence`: one thread processes all time steps of a few batch rows. At each step the thread
//! reads the weights once for all of its rows.
#![allow(unsafe_code, reason = "tasks write rows of several results")]

use tercet_ir::ops::Recurrence;
use tercet_ir::{Graph, Node, Op, Support};

use crate::args::KernelArgs;
use crate::kernels::parallel::{KernelThreads, SharedMut, for_each_with_scratch};
use crate::lower::elem::{REALS, native_for};
use crate::lower::{LoweredNode, floats_mut};

/// Batch rows per task.
const ROWS: usize = 4;

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::Recurrence(op) = node.op.clone() else {
        unreachable!("invariant: the kernel table maps only `Recurrence` to this row")
    };
    let size = graph.ty(node.inputs[1]).shape[0].known().unwrap_or(0);
    let part = part(&op, size);
    LoweredNode {
        scratch: Some(Box::new(move |_, threads| {
            part * threads.max(1) * size_of::<f32>()
        })),
        work: |layouts| layouts[0].numel() * layouts[1].shape()[0].max(1),
        ..LoweredNode::new(node.inputs.len(), move |args: &mut KernelArgs<'_>| {
            run(&op, size, args);
            Ok(())
        })
    }
}

/// Scratch floats of a task: the gate pre-activations from the state, and the states.
fn part(op: &Recurrence, size: usize) -> usize {
    ROWS * size * (op.cell.gates() + 2) + 1
}

fn run(op: &Recurrence, size: usize, args: &mut KernelArgs<'_>) {
    let [x, w, bias, h0]: [&[f32]; 4] = std::array::from_fn(|i| args.ins[i].dense());
    let c0: Option<&[f32]> = args.ins.get(4).map(|c0| c0.dense());
    let (batch, steps) = (args.ins[0].shape()[0], args.ins[0].shape()[1]);
    let (gates, wide) = (op.cell.gates(), op.cell.gates() * size);
    let outs = args.outs.iter_mut();
    let outs: smallvec::SmallVec<[SharedMut<f32>; 3]> = outs
        .map(|out| SharedMut::new(out.as_mut::<f32>()))
        .collect();
    let threads = KernelThreads::parallel(args.parallel);
    let scratch = floats_mut(args.scratch);
    let tasks = batch.div_ceil(ROWS);
    for_each_with_scratch(threads, tasks, scratch, part(op, size), |task, all| {
        let first = task * ROWS;
        let rows = ROWS.min(batch - first);
        let (own, rest) = all.split_at_mut(rows * wide);
        let (hidden, rest) = rest.split_at_mut(rows * size);
        let cell = &mut rest[..rows * size];
        hidden.copy_from_slice(&h0[first * size..][..rows * size]);
        match c0 {
            Some(c0) => cell.copy_from_slice(&c0[first * size..][..rows * size]),
            None => cell.fill(0.0),
        }
        for step in 0..steps {
            let step = if op.reverse { steps - 1 - step } else { step };
            for own in own.chunks_exact_mut(wide.max(1)) {
                own.copy_from_slice(bias);
            }
            for (k, w) in w.chunks_exact(wide.max(1)).enumerate() {
                for (row, own) in own.chunks_exact_mut(wide.max(1)).enumerate() {
                    let h = hidden[row * size + k];
                    own.iter_mut().zip(w).for_each(|(own, w)| *own += h * w);
                }
            }
            for row in 0..rows {
                let at = (first + row) * steps + step;
                // SAFETY: the range is inside the result, and no two tasks share a row.
                let y = unsafe { outs[0].slice(at * size, size) };
                let (x, own) = (&x[at * wide..][..wide], &own[row * wide..][..wide]);
                for (i, y) in y.iter_mut().enumerate() {
                    let of = |all: &[f32]| -> [f64; 4] {
                        std::array::from_fn(|g| match g < gates {
                            true => f64::from(all[g * size + i]),
                            false => 0.0,
                        })
                    };
                    let place = row * size + i;
                    let state = [hidden[place], cell[place]].map(f64::from);
                    let [h, c] = op.cell.next(&of(x), &of(own), state);
                    (hidden[place], cell[place]) = (h as f32, c as f32);
                    *y = h as f32;
                }
            }
        }
        for (out, state) in outs[1..].iter().zip([&*hidden, &*cell]) {
            // SAFETY: the range is inside the result, and no two tasks share a row.
            unsafe { out.slice(first * size, rows * size) }.copy_from_slice(state);
        }
    });
}
