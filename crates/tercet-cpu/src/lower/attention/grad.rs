//! Attention that keeps its sums, and its gradients: without its scores in memory.

use std::ops::Range;

use tercet_ir::ops::{Attention as AttentionOp, AttentionGrad, AttentionGradOf, MaskKind};
use tercet_ir::{DType, Graph, Node, NodeId, Op, Support};

use super::{heads, heads_mut, keep_mask, sized, work};
use crate::args::Args;
use crate::kernels::attention::{Backward, Cotangents, attention_grad, attention_grad_scratch_len};
use crate::kernels::{SimdLevel, Threads};
use crate::lower::elem::native_for;
use crate::lower::{Accept, Lowered, floats_mut, missing};

/// F32, but for what is left to the scores: the cotangent of a bias is as large, and keys in use are no matter of position.
pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    let op = match &node.op {
        Op::AttentionWithLse(o) => o.attention(),
        Op::AttentionGrad(o) => o.attention(),
        _ => unreachable!("invariant: the table gives this kernel two operators"),
    };
    if op.mask == MaskKind::Bias || op.kv_len {
        return missing("cotangents of attention with a bias or `kv_len`");
    }
    match super::supports(graph, node) {
        Support::Native => native_for(&[DType::F32], graph.ty(node.inputs[0]).dtype),
        other => other,
    }
}

/// Operands before the mask.
const OPERANDS: usize = 6;

/// The other gradient of the same attention, after this one: both are computed at once.
pub(crate) fn twin(graph: &Graph, id: NodeId, node: &Node) -> Option<NodeId> {
    let Op::AttentionGrad(own) = &node.op else {
        return None;
    };
    let is_twin = |other: &Node| match &other.op {
        Op::AttentionGrad(of) => {
            of.of != own.of && of.attention() == own.attention() && other.inputs == node.inputs
        }
        _ => false,
    };
    let mut others = graph.nodes().filter(|(other, n)| *other > id && is_twin(n));
    others.next().map(|(other, _)| other)
}

/// The results of an `AttentionGrad` among the cotangents of queries, keys and values.
pub(crate) fn results(of: AttentionGradOf) -> Range<usize> {
    match of {
        AttentionGradOf::Queries => 0..1,
        AttentionGradOf::Keys => 1..3,
    }
}

/// `AttentionGrad` of a node by itself.
pub(crate) fn lower(_: &Graph, node: &Node) -> Lowered {
    let Op::AttentionGrad(o) = &node.op else {
        unreachable!("invariant: the table gives this kernel one operator")
    };
    lowered(node, o, results(o.of))
}

/// A gradient of attention with its twin: the cotangents of queries, keys and values.
pub(crate) fn lower_both(_: &Graph, node: &Node) -> Lowered {
    let Op::AttentionGrad(o) = &node.op else {
        unreachable!("invariant: twins are gradients of attention")
    };
    lowered(node, o, 0..3)
}

/// The cotangents that are `wanted` of those of queries, keys and values.
fn lowered(node: &Node, op: &AttentionGrad, wanted: Range<usize>) -> Lowered {
    let level = SimdLevel::detect();
    let op: AttentionOp = op.attention();
    let sizing = op.clone();
    let run = move |args: &mut Args<'_>| {
        let [q, k, v, dy] = [args.ins[0], args.ins[1], args.ins[2], args.ins[3]];
        let lens = [k.shape()[op.layout.seq_axis()]];
        let mut a = sized(&op, [q.layout, k.layout, v.layout], &lens);
        if op.mask == MaskKind::Keep {
            a.mask = keep_mask(&args.ins[OPERANDS]);
        }
        let of = Backward {
            q: heads(op.layout, &q),
            k: heads(op.layout, &k),
            v: heads(op.layout, &v),
            dy: heads(op.layout, &dy),
            lse: args.ins[4].dense(),
            delta: args.ins[5].dense(),
        };
        let mut outs = args.outs.iter_mut();
        let queries = match wanted.contains(&0) {
            true => outs.next().map(|out| heads_mut(op.layout, out)),
            false => None,
        };
        let keys = match (outs.next(), outs.next()) {
            (Some(dk), Some(dv)) => Some([heads_mut(op.layout, dk), heads_mut(op.layout, dv)]),
            _ => None,
        };
        let scratch = floats_mut(args.scratch);
        let threads = Threads::parallel(args.parallel);
        let to = Cotangents { queries, keys };
        attention_grad(level, threads, &a, &of, to, scratch);
        Ok(())
    };
    let mut accepts = vec![Accept::Dense; node.inputs.len()];
    accepts[..4].fill(Accept::Rows);
    Lowered {
        accepts,
        scratch: Some(Box::new(move |layouts, threads| {
            let [q, k, v] = [&layouts[0], &layouts[1], &layouts[2]];
            let lens = [k.shape()[sizing.layout.seq_axis()]];
            let a = sized(&sizing, [q, k, v], &lens);
            4 * threads * attention_grad_scratch_len(level, Threads::Serial, &a)
        })),
        work,
        ..Lowered::new(node.inputs.len(), run)
    }
}
