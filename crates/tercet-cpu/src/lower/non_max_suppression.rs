//! `NonMaxSuppression`: one task per class of a batch. Sort keys of the candidates, with the index of
//! the box in the low bits, are sorted in blocks: the best block usually has all boxes to select. Each
//! class writes to its own rows; then the rows move together.
#![allow(
    unsafe_code,
    reason = "classes of different tasks write their own rows and counts"
)]

use tercet_ir::{Graph, Node, Op, OpKind};

use crate::args::KernelArgs;
use crate::kernels::box_overlap::{BoxList, box_parts, list_len};
use crate::kernels::parallel::{SharedMut, for_each_with_scratch};
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::elem::{REALS, native_for};
use crate::lower::rank::SortKey;
use crate::lower::top_k::keys_of;
use crate::lower::{CpuKernel, LoweredNode, through_f32};

/// The kernels of this file. F64 is decomposed.
pub(super) const KERNELS: &[CpuKernel] = &[through_f32(
    "non_max_suppression",
    OpKind::NonMaxSuppression,
    |graph, node| native_for(REALS, graph.ty(node.inputs[0]).dtype),
    lower,
)];

/// Scores that are compared with the threshold together.
const BLOCK: usize = 64;

/// Keys of the first sorted block at least.
const MIN_BLOCK: usize = 64;

/// The parameters of a run.
#[derive(Clone, Copy)]
struct NmsParams {
    max_boxes: usize,
    iou_threshold: f32,
    score_threshold: Option<f32>,
    is_centered: bool,
    level: SimdLevel,
}

/// Words of scratch memory of a thread: keys of all boxes of a class, and the selected boxes.
fn words_of_thread(n_boxes: usize, max_boxes: usize) -> usize {
    n_boxes + list_len(max_boxes.min(n_boxes)).div_ceil(2)
}

fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let Op::NonMaxSuppression(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `NonMaxSuppression` to this row")
    };
    let params = NmsParams {
        max_boxes: op.max_boxes,
        iou_threshold: op.iou_threshold.0 as f32,
        score_threshold: op.score_threshold.map(|t| t.0 as f32),
        is_centered: op.is_centered,
        level: SimdLevel::detect(),
    };
    LoweredNode {
        scratch: Some(Box::new(move |layouts, threads| {
            let &[batches, classes, n_boxes] = layouts[1].shape() else {
                return 0;
            };
            let words = words_of_thread(n_boxes, params.max_boxes) * threads.max(1);
            (batches * classes + words) * size_of::<u64>()
        })),
        work: |layouts| layouts[1].numel() * 16,
        ..LoweredNode::new(2, move |args: &mut KernelArgs<'_>| {
            run(params, args);
            Ok(())
        })
    }
}

fn run(params: NmsParams, args: &mut KernelArgs<'_>) {
    let (boxes, scores): (&[f32], &[f32]) = (args.ins[0].dense(), args.ins[1].dense());
    let &[batches, n_classes, n_boxes] = args.ins[1].shape() else {
        unreachable!("invariant: inference checked the rank")
    };
    let [rows, total] = args.outs.as_mut_slice() else {
        unreachable!("invariant: the operator has two results")
    };
    let (rows, total) = (rows.as_mut::<i32>(), total.as_mut::<i32>());
    let tasks = batches * n_classes;
    let (counts, words) = keys_of::<u64>(args.scratch).split_at_mut(tasks);
    let class_len = params.max_boxes * 3;
    let out = SharedMut::new(rows);
    let out_counts = SharedMut::new(counts);
    let part_len = words_of_thread(n_boxes, params.max_boxes);
    let threads = KernelThreads::parallel(args.parallel);
    for_each_with_scratch(threads, tasks, words, part_len, |i, words| {
        let (batch, class) = (i / n_classes, i % n_classes);
        let boxes = &boxes[batch * n_boxes * 4..][..n_boxes * 4];
        let scores = &scores[i * n_boxes..][..n_boxes];
        // SAFETY: the rows of different classes are disjoint, and the result has all of them.
        let rows = unsafe { out.slice(i * class_len, class_len) };
        // SAFETY: each class has one count.
        let count = unsafe { out_counts.slice(i, 1) };
        let prefix = [batch as i32, class as i32];
        count[0] = select(params, (boxes, scores), words, prefix, rows) as u64;
    });
    let mut end = 0;
    for (i, count) in counts.iter().enumerate() {
        let len = *count as usize * 3;
        rows.copy_within(i * class_len..i * class_len + len, end);
        end += len;
    }
    rows[end..].fill(0);
    total[0] = (end / 3) as i32;
}

/// Writes the rows of the selected boxes of one class and returns their number.
fn select(
    params: NmsParams,
    (boxes, scores): (&[f32], &[f32]),
    words: &mut [u64],
    prefix: [i32; 2],
    rows: &mut [i32],
) -> usize {
    let (keys, list) = words.split_at_mut(scores.len());
    let mut selected = BoxList::new(bytemuck::cast_slice_mut(list));
    let mut rest = candidates(scores, params.score_threshold, keys);
    let mut rows = rows.chunks_exact_mut(3);
    let mut block = MIN_BLOCK.max(params.max_boxes.saturating_mul(2));
    while !rest.is_empty() && selected.len() < params.max_boxes {
        let len = block.min(rest.len());
        // Blocks grow, so that a class of many overlapping boxes is split a few times only.
        block = block.saturating_mul(2);
        if len < rest.len() {
            rest.select_nth_unstable(len - 1);
        }
        let (best, others) = std::mem::take(&mut rest).split_at_mut(len);
        best.sort_unstable();
        rest = others;
        for key in best.iter() {
            let index = *key as u32 as usize;
            let one = box_parts(&boxes[index * 4..][..4], params.is_centered);
            if selected.covers(params.level, &one, params.iou_threshold) {
                continue;
            }
            selected.push(&one);
            if let Some(row) = rows.next() {
                row.copy_from_slice(&[prefix[0], prefix[1], index as i32]);
            }
            if selected.len() == params.max_boxes {
                break;
            }
        }
    }
    selected.len()
}

/// Sort keys of the boxes with sufficient scores; the box with the highest score has the lowest key.
fn candidates<'k>(scores: &[f32], least: Option<f32>, keys: &'k mut [u64]) -> &'k mut [u64] {
    let is_candidate = |score: f32| match least {
        Some(least) => score > least,
        None => !score.is_nan(),
    };
    let mut count = 0;
    for (first, scores) in (0u64..).step_by(BLOCK).zip(scores.chunks(BLOCK)) {
        // Detectors have few candidates. This test has no branches, so that the compiler vectorizes it.
        let is_any = scores.iter().fold(false, |any, x| any | is_candidate(*x));
        if !is_any {
            continue;
        }
        for (index, score) in (first..).zip(scores) {
            // Written in any case, and kept by the count: the condition is no branch.
            keys[count] = score.rank(true) << 32 | index;
            count += usize::from(is_candidate(*score));
        }
    }
    &mut keys[..count]
}
