//! `GatedDeltaNet`: one thread processes all time steps of one head of one batch row. The recurrent
//! state stays in scratch memory.
#![allow(unsafe_code, reason = "heads interleave in the result")]

use tercet_ir::{Graph, Node, OpKind, Support};

use crate::args::KernelArgs;
use crate::kernels::parallel::{KernelThreads, SharedMut, for_each_with_scratch};
use crate::lower::elem::{REALS, native_for};
use crate::lower::{CpuKernel, LoweredNode, floats_mut, through_f32};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[through_f32(
    "gated_delta_net",
    OpKind::GatedDeltaNet,
    supports,
    lower,
)];

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let [n, p] = [0, 2].map(|i| graph.ty(node.inputs[i]).shape[3].known().unwrap_or(0));
    let part = part(n, p);
    LoweredNode {
        scratch: Some(Box::new(move |_, threads| {
            part * threads.max(1) * size_of::<f32>()
        })),
        work: |layouts| layouts[0].numel() * 64,
        ..LoweredNode::new(node.inputs.len(), move |args: &mut KernelArgs<'_>| {
            run(args);
            Ok(())
        })
    }
}

/// Scratch floats per head: the state and the corrected value of one token.
fn part(n: usize, p: usize) -> usize {
    n * p + p + 1
}

fn run(args: &mut KernelArgs<'_>) {
    let [q, k, v, g, beta]: [&[f32]; 5] = std::array::from_fn(|i| args.ins[i].dense());
    let initial: Option<&[f32]> = args.ins.get(5).map(|state| state.dense());
    let &[batch, steps, heads, n] = args.ins[0].shape() else {
        unreachable!("invariant: inference checked the rank")
    };
    let p = args.ins[2].shape()[3];
    let mut outs = args.outs.iter_mut();
    let o = outs.next().map(|out| SharedMut::new(out.as_mut::<f32>()));
    let last = outs.next().map(|out| SharedMut::new(out.as_mut::<f32>()));
    let Some(o) = o else {
        unreachable!("invariant: the operator has a result")
    };
    let threads = KernelThreads::parallel(args.parallel);
    let scale = 1.0 / (n as f32).sqrt();
    let scratch = floats_mut(args.scratch);
    for_each_with_scratch(threads, batch * heads, scratch, part(n, p), |task, all| {
        let (state, rest) = all.split_at_mut(n * p);
        let d = &mut rest[..p];
        match initial {
            Some(initial) => state.copy_from_slice(&initial[task * n * p..][..n * p]),
            None => state.fill(0.0),
        }
        let (row, head) = (task / heads, task % heads);
        for at in row * steps..(row + 1) * steps {
            let token = at * heads + head;
            let (q, k, v) = (
                &q[token * n..][..n],
                &k[token * n..][..n],
                &v[token * p..][..p],
            );
            let decay = g[token].exp();
            d.fill(0.0);
            for (row, k) in state.chunks_exact_mut(p.max(1)).zip(k) {
                for (s, d) in row.iter_mut().zip(d.iter_mut()) {
                    *s *= decay;
                    *d += k * *s;
                }
            }
            for (d, v) in d.iter_mut().zip(v) {
                *d = beta[token] * (v - *d);
            }
            // SAFETY: the range is inside the result, and no two tasks share a token and head.
            let o = unsafe { o.slice(token * p, p) };
            o.fill(0.0);
            for (row, (k, q)) in state.chunks_exact_mut(p.max(1)).zip(k.iter().zip(q)) {
                for ((s, d), o) in row.iter_mut().zip(d.iter()).zip(o.iter_mut()) {
                    *s += k * d;
                    *o += q * *s;
                }
            }
            o.iter_mut().for_each(|o| *o *= scale);
        }
        if let Some(last) = last {
            // SAFETY: the range is inside the result, and each task has a separate state.
            unsafe { last.slice(task * n * p, n * p) }.copy_from_slice(state);
        }
    });
}
