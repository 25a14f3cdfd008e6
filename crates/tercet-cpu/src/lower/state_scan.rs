//! `SelectiveScan` and `Mamba2`: each thread processes all time steps of a tile of channels, with
//! their states in scratch memory. Initial states may share the memory of the final states.
#![allow(unsafe_code, reason = "tiles of channels interleave in the result")]

use tercet_ir::ops::ScanSizes;
use tercet_ir::{EvalError, Graph, Node, Op, OpKind, Support};

use crate::args::KernelArgs;
use crate::kernels::parallel::{KernelThreads, SharedMut, for_each_with_scratch};
use crate::lower::elem::{REALS, native_for};
use crate::lower::{CpuKernel, LoweredNode, floats_mut, through_f32};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    through_f32("state_scan", OpKind::SelectiveScan, supports, lower),
    through_f32("state_scan", OpKind::Mamba2, supports, lower),
];

/// Channels per task.
const TILE: usize = 64;

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let types: Vec<_> = node.inputs.iter().map(|v| graph.ty(*v)).collect();
    let Some(sizes) = ScanSizes::from_operands(&types) else {
        unreachable!("invariant: inference rejects unknown sizes")
    };
    let by_state = matches!(node.op, Op::SelectiveScan(_));
    let part = TILE * sizes.states.max(1);
    LoweredNode {
        scratch: Some(Box::new(move |_, threads| {
            part * threads.max(1) * size_of::<f32>()
        })),
        work: |layouts| layouts[0].numel() * 16,
        ..LoweredNode::new(node.inputs.len(), move |args: &mut KernelArgs<'_>| {
            match by_state {
                true => run(sizes, args, |a, dt, h, b, x| {
                    for (h, (a, b)) in h.iter_mut().zip(a.iter().zip(b)) {
                        *h = (dt * a).exp() * *h + dt * x * b;
                    }
                }),
                false => run(sizes, args, |a, dt, h, b, x| {
                    let (decay, x) = ((dt * a[0]).exp(), dt * x);
                    for (h, b) in h.iter_mut().zip(b) {
                        *h = decay * *h + x * b;
                    }
                }),
            }
            Ok::<(), EvalError>(())
        })
    }
}

/// Runs the scan; `next(a, dt, h, b, x)` computes the next state of a channel.
fn run(
    sizes: ScanSizes,
    args: &mut KernelArgs<'_>,
    next: impl Fn(&[f32], f32, &mut [f32], &[f32], f32) + Send + Sync,
) {
    let [x, dt, a, b, c]: [&[f32]; 5] = std::array::from_fn(|i| args.ins[i].dense());
    let given = args.ins.get(5).copied();
    let (batch, steps) = (args.ins[0].shape()[0], args.ins[0].shape()[1]);
    let ScanSizes {
        heads,
        per_head,
        groups,
        states,
    } = sizes;
    let channels = sizes.channels();
    let tiles = channels.div_ceil(TILE);
    let decays = a.len() / heads.max(1);
    let mut outs = args.outs.iter_mut();
    let y = outs.next().map(|out| SharedMut::new(out.as_mut::<f32>()));
    let last = outs.next().map(|out| SharedMut::new(out.as_mut::<f32>()));
    let Some(y) = y else {
        unreachable!("invariant: the operator has a result")
    };
    let is_given = given.is_some();
    // If the operand with the initial states shares the memory of the result for the final states,
    // its own root is empty.
    let apart = given.filter(|view| !view.root.is_empty());
    let apart: Option<&[f32]> = apart.map(|view| view.dense());
    let threads = KernelThreads::parallel(args.parallel);
    let part = TILE * states.max(1);
    for_each_with_scratch(
        threads,
        batch * tiles,
        floats_mut(args.scratch),
        part,
        |task, all| {
            let (row, first) = (task / tiles, task % tiles * TILE);
            let count = TILE.min(channels - first);
            let own = (row * channels + first) * states;
            let own = own..own + count * states;
            match (is_given, apart, last) {
                (true, Some(given), _) => all[..own.len()].copy_from_slice(&given[own.clone()]),
                (true, None, Some(last)) => {
                    // SAFETY: the range is inside the result, and no two tasks share a row or
                    // channel.
                    let held = unsafe { last.slice(own.start, own.len()) };
                    all[..own.len()].copy_from_slice(held);
                }
                (false, ..) | (true, None, None) => all.fill(0.0),
            }
            for at in row * steps..(row + 1) * steps {
                // SAFETY: the range is inside the result, and no two tasks share a row or channel.
                let y = unsafe { y.slice(at * channels + first, count) };
                for (i, y) in y.iter_mut().enumerate() {
                    let channel = first + i;
                    let head = channel / per_head;
                    let group = at * groups + head * groups / heads;
                    let (b, c) = (
                        &b[group * states..][..states],
                        &c[group * states..][..states],
                    );
                    let h = &mut all[i * states..][..states];
                    let (dt, x) = (dt[at * heads + head], x[at * channels + channel]);
                    next(&a[head * decays..][..decays], dt, h, b, x);
                    *y = h.iter().zip(c).map(|(h, c)| h * c).sum();
                }
            }
            if let Some(last) = last {
                // SAFETY: the range is inside the result, and no two tasks share a row or channel.
                unsafe { last.slice(own.start, own.len()) }.copy_from_slice(&all[..own.len()]);
            }
        },
    );
}
