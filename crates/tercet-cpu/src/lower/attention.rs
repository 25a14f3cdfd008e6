//! Attention and rotary embedding in f32.

pub(crate) mod grad;

use smallvec::SmallVec;
use tercet_ir::ops::{Attention as AttentionOp, RopeStyle};
use tercet_ir::ops::{AttentionLayout as Axes, MaskKind};
use tercet_ir::{EvalError, Graph, Node, Op, OpKind, Support};

use crate::args::{KernelArgs, KernelView, KernelViewMut};
use crate::kernels::attention::{
    AttentionArgs, AttentionKeyMask, HeadsView, HeadsViewMut, attention_scratch_len,
    attention_with_lse,
};
use crate::kernels::rows::{RopePairs, rope};
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::elem::{REALS, native_for, parts};
use crate::lower::{
    AcceptedLayout, CpuKernel, LoweredNode, floats_mut, indices, kernel, missing, through_f32,
};
use tercet_ir::layout::Layout;

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    through_f32("attention", OpKind::Attention, supports, lower),
    kernel("attention", OpKind::AttentionWithLse, grad::supports, lower),
    kernel(
        "attention_grad",
        OpKind::AttentionGrad,
        grad::supports,
        grad::lower,
    ),
    through_f32("rope", OpKind::Rope, supports, lower_rope),
];

/// Supports floats that are computed in f32, with a non-zero head size.
pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    let empty = |v: &tercet_ir::Value| {
        graph
            .ty(*v)
            .shape
            .last()
            .is_some_and(|d| d.known() == Some(0))
    };
    if node.inputs.iter().take(3).any(empty) {
        return missing("no kernel for a head size of 0");
    }
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

/// Strides of the batch, head and position axes.
fn strides(axes: Axes, layout: &Layout) -> [usize; 3] {
    let s = layout.strides();
    [s[0], s[axes.head_axis()], s[axes.seq_axis()]].map(|s| s as usize)
}

fn heads<'a>(axes: Axes, view: &KernelView<'a>) -> HeadsView<'a> {
    HeadsView {
        data: view.tail(),
        strides: strides(axes, view.layout),
    }
}

fn heads_mut<'a>(axes: Axes, out: &'a mut KernelViewMut<'_>) -> HeadsViewMut<'a> {
    HeadsViewMut {
        strides: strides(axes, out.layout),
        data: out.as_mut(),
    }
}

fn keep_mask<'a>(mask: &KernelView<'a>) -> AttentionKeyMask<'a> {
    AttentionKeyMask::Keep(mask.dense_bytes(), mask_strides(mask.layout))
}

/// Rough work in element operations of both matmuls: queries by keys, and scores by values.
fn work(layouts: &[Layout]) -> usize {
    let keys = layouts[1].numel() / layouts[1].shape()[3].max(1);
    layouts[0].numel() * keys / 16
}

/// Attention arguments for these layouts, without mask data.
fn sized<'a>(op: &AttentionOp, layouts: [&Layout; 3], kv_lens: &'a [usize]) -> AttentionArgs<'a> {
    let [q, k, v] = layouts;
    let dk = q.shape()[3];
    AttentionArgs {
        batch: q.shape()[0],
        q_heads: op.q_heads,
        kv_heads: op.kv_heads,
        q_len: q.shape()[op.layout.seq_axis()],
        kv_lens,
        dk,
        dv: v.shape()[3],
        scale: op.scale_for(dk) as f32,
        softcap: op.softcap.map(|c| c.0 as f32),
        mask: match (op.mask, k.shape().len()) {
            (MaskKind::Causal, _) => AttentionKeyMask::Causal,
            (MaskKind::Window(w), _) => AttentionKeyMask::SlidingWindow(w),
            (MaskKind::None | MaskKind::Keep | MaskKind::Bias, _) => AttentionKeyMask::None,
        },
    }
}

/// Strides of `[batch, head, query, key]` of a mask operand; 0 for broadcast axes.
fn mask_strides(layout: &Layout) -> [usize; 4] {
    let axes: &[usize] = match layout.rank() {
        2 => &[0, 3],
        3 => &[0, 2, 3],
        _ => &[0, 1, 2, 3],
    };
    let mut strides = [0; 4];
    let own = layout.shape().iter().zip(layout.strides());
    for (&axis, (&n, &s)) in axes.iter().zip(own) {
        strides[axis] = if n == 1 { 0 } else { s as usize };
    }
    strides
}

/// Lowers `Attention` and `AttentionWithLse`.
pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let op = match &node.op {
        Op::Attention(op) => op.clone(),
        Op::AttentionWithLse(op) => op.attention(),
        _ => unreachable!("invariant: the kernel table maps only two operators to this kernel"),
    };
    let level = SimdLevel::detect();
    let sizing = op.clone();
    let fallible = op.kv_len;
    let run = move |args: &mut KernelArgs<'_>| {
        let [q, k, v] = [args.ins[0], args.ins[1], args.ins[2]];
        let keys = k.shape()[op.layout.seq_axis()];
        let mut lens = match op.kv_len {
            true => kv_lens(&args.ins[args.ins.len() - 1], keys)?,
            false => SmallVec::from_slice(&[keys]),
        };
        let ends = match op.mask {
            MaskKind::Keep => ends(&args.ins[3], q.shape()[0], &lens),
            MaskKind::None | MaskKind::Causal | MaskKind::Window(_) | MaskKind::Bias => None,
        };
        let is_counted = ends.is_some();
        lens = ends.unwrap_or(lens);
        let mut a = sized(&op, [q.layout, k.layout, v.layout], &lens);
        match op.mask {
            MaskKind::Keep if is_counted => {}
            MaskKind::Keep => a.mask = keep_mask(&args.ins[3]),
            MaskKind::Bias => {
                let mask = args.ins[3];
                a.mask = AttentionKeyMask::Bias(mask.dense(), mask_strides(mask.layout));
            }
            MaskKind::None | MaskKind::Causal | MaskKind::Window(_) => {}
        }
        let mut outs = args.outs.iter_mut();
        let out = outs.next().map(|out| heads_mut(op.layout, out));
        let out = out.expect("invariant: attention has a result");
        let lse = outs.next().map(|lse| lse.as_mut::<f32>());
        let (q, k, v) = (
            heads(op.layout, &q),
            heads(op.layout, &k),
            heads(op.layout, &v),
        );
        let scratch = floats_mut(args.scratch);
        let threads = KernelThreads::parallel(args.parallel);
        attention_with_lse(level, threads, &a, q, k, v, out, lse, scratch);
        Ok(())
    };
    let mut accepts = vec![AcceptedLayout::Dense; node.inputs.len()];
    accepts[..3].fill(AcceptedLayout::Rows);
    LoweredNode {
        accepts,
        fallible,
        scratch: Some(Box::new(move |layouts, threads| {
            let [q, k, v] = [&layouts[0], &layouts[1], &layouts[2]];
            let keys = [k.shape()[sizing.layout.seq_axis()]];
            let a = sized(&sizing, [q, k, v], &keys);
            4 * threads * attention_scratch_len(level, KernelThreads::Serial, &a)
        })),
        work,
        ..LoweredNode::new(node.inputs.len(), run)
    }
}

/// Number of visible keys per batch entry, if the mask keeps the same prefix of keys for all
/// queries. `None` for every other mask.
fn ends(mask: &KernelView<'_>, batch: usize, lens: &[usize]) -> Option<SmallVec<[usize; 16]>> {
    let ([entry, head, query, key], keep) = (mask_strides(mask.layout), mask.dense_bytes());
    if head != 0 || query != 0 || key != 1 {
        return None;
    }
    let end = |b: usize| {
        let most = if lens.len() == 1 { lens[0] } else { lens[b] };
        let keep = keep.get(b * entry..b * entry + most)?;
        let end = keep.iter().position(|keep| *keep == 0).unwrap_or(most);
        keep[end..].iter().all(|keep| *keep == 0).then_some(end)
    };
    (0..batch).map(end).collect()
}

fn kv_lens(lens: &KernelView<'_>, keys: usize) -> Result<SmallVec<[usize; 16]>, EvalError> {
    indices(lens)
        .map(|n| {
            let len = usize::try_from(n).ok().filter(|&n| n <= keys);
            len.ok_or_else(|| {
                EvalError::Data(format!(
                    "kv_len is {n}; accepted: 0 to {keys}, the number of keys"
                ))
            })
        })
        .collect()
}

/// Heads per parallel task of `Rope`.
const ROPE_TASK: usize = 64;

/// Lowers `Rope`.
pub(crate) fn lower_rope(_: &Graph, node: &Node) -> LoweredNode {
    let Op::Rope(op) = node.op.clone() else {
        unreachable!("invariant: the kernel table maps only one operator to this kernel")
    };
    let level = SimdLevel::detect();
    let pairs = match op.style {
        RopeStyle::NeoX => RopePairs::NeoX,
        RopeStyle::GptJ => RopePairs::GptJ,
    };
    let run = move |args: &mut KernelArgs<'_>| {
        let [x, cos, sin] = [args.ins[0], args.ins[1], args.ins[2]];
        let half = op.n_rot / 2;
        let (shape, from) = (x.shape(), heads(op.layout, &x));
        let (seq, n_heads, dim) = (
            shape[op.layout.seq_axis()],
            shape[op.layout.head_axis()],
            shape[3],
        );
        if x.layout.numel() == 0 {
            return Ok(());
        }
        let (cos_data, sin_data): (&[f32], &[f32]) = (cos.dense(), sin.dense());
        let row = |table: &KernelView<'_>, b: usize, s: usize| match table.shape().len() {
            2 => s * half,
            _ => (b * seq + s) * half,
        };
        let y: &mut [f32] = args.outs[0].as_mut();
        // Computes head `i` of the result, counting heads of all positions and batch entries in the
        // order of the result's memory.
        let one = |i: usize, y: &mut [f32]| {
            let (outer, inner) = (i / shape[2] % shape[1], i % shape[2]);
            let b = i / (shape[1] * shape[2]);
            let (s, h) = match op.layout {
                Axes::Bshd => (outer, inner),
                Axes::Bhsd => (inner, outer),
            };
            debug_assert!(s < seq && h < n_heads);
            let at = b * from.strides[0] + h * from.strides[1] + s * from.strides[2];
            let cos = &cos_data[row(&cos, b, s)..][..half];
            let sin = &sin_data[row(&sin, b, s)..][..half];
            rope(level, pairs, &from.data[at..at + dim], cos, sin, y);
        };
        parts(args.parallel, y, ROPE_TASK * dim, |task, y| {
            let heads = y.chunks_mut(dim).enumerate();
            heads.for_each(|(i, y)| one(task * ROPE_TASK + i, y));
        });
        Ok(())
    };
    LoweredNode {
        accepts: vec![
            AcceptedLayout::Rows,
            AcceptedLayout::Dense,
            AcceptedLayout::Dense,
        ],
        ..LoweredNode::new(3, run)
    }
}
