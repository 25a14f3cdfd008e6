//! Attention that also returns its log-sum-exp, and attention gradients, without scores in memory
//! (FlashAttention style).

use std::ops::Range;

use tercet_ir::ops::{Attention as AttentionOp, AttentionGrad, AttentionGradOf, MaskKind};
use tercet_ir::{DType, Graph, Node, NodeId, Op, Support};

use super::{heads, heads_mut, keep_mask, sized, work};
use crate::args::KernelArgs;
use crate::kernels::attention::{
    AttentionCotangents, AttentionGradArgs, attention_grad, attention_grad_scratch_len,
};
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::elem::native_for;
use crate::lower::{AcceptedLayout, LoweredNode, floats_mut, missing};

/// Supports F32 without a bias or `kv_len`. The gradient of a bias is as large as the scores, and
/// `kv_len` masks do not follow from positions. In both cases the gradient is decomposed into
/// operators that store the scores.
pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    let op = match &node.op {
        Op::AttentionWithLse(o) => o.attention(),
        Op::AttentionGrad(o) => o.attention(),
        _ => unreachable!("invariant: the kernel table maps only two operators to this kernel"),
    };
    if op.mask == MaskKind::Bias || op.kv_len {
        return missing("no attention gradient with a bias mask or `kv_len`");
    }
    match super::supports(graph, node) {
        Support::Native => native_for(&[DType::F32], graph.ty(node.inputs[0]).dtype),
        other => other,
    }
}

/// Number of operands before the mask.
const OPERANDS: usize = 6;

/// A later node that computes the other gradients (dQ, or dK and dV) of the same attention. One
/// step then computes both nodes.
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

/// Range of an `AttentionGrad`'s results within (dQ, dK, dV).
pub(crate) fn results(of: AttentionGradOf) -> Range<usize> {
    match of {
        AttentionGradOf::Queries => 0..1,
        AttentionGradOf::Keys => 1..3,
    }
}

/// Lowers a single `AttentionGrad`.
pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let Op::AttentionGrad(o) = &node.op else {
        unreachable!("invariant: the kernel table maps only one operator to this kernel")
    };
    lowered(node, o, results(o.of))
}

/// Lowers an `AttentionGrad` and the [`twin`] with the other gradients to one kernel for dQ, dK and
/// dV.
pub(crate) fn lower_both(_: &Graph, node: &Node) -> LoweredNode {
    let Op::AttentionGrad(o) = &node.op else {
        unreachable!("invariant: both nodes are gradients of attention")
    };
    lowered(node, o, 0..3)
}

/// Lowers to a kernel that computes the range `wanted` of (dQ, dK, dV).
fn lowered(node: &Node, op: &AttentionGrad, wanted: Range<usize>) -> LoweredNode {
    let level = SimdLevel::detect();
    let op: AttentionOp = op.attention();
    let sizing = op.clone();
    let run = move |args: &mut KernelArgs<'_>| {
        let [q, k, v, dy] = [args.ins[0], args.ins[1], args.ins[2], args.ins[3]];
        let lens = [k.shape()[op.layout.seq_axis()]];
        let mut a = sized(&op, [q.layout, k.layout, v.layout], &lens);
        if op.mask == MaskKind::Keep {
            a.mask = keep_mask(&args.ins[OPERANDS]);
        }
        let of = AttentionGradArgs {
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
        let threads = KernelThreads::parallel(args.parallel);
        let to = AttentionCotangents { queries, keys };
        attention_grad(level, threads, &a, &of, to, scratch);
        Ok(())
    };
    let mut accepts = vec![AcceptedLayout::Dense; node.inputs.len()];
    accepts[..4].fill(AcceptedLayout::Rows);
    LoweredNode {
        accepts,
        scratch: Some(Box::new(move |layouts, threads| {
            let [q, k, v] = [&layouts[0], &layouts[1], &layouts[2]];
            let lens = [k.shape()[sizing.layout.seq_axis()]];
            let a = sized(&sizing, [q, k, v], &lens);
            4 * threads * attention_grad_scratch_len(level, KernelThreads::Serial, &a)
        })),
        work,
        ..LoweredNode::new(node.inputs.len(), run)
    }
}
