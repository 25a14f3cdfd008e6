//! `NonZero`: counts the elements of each part that are not 0, then writes the coordinates of all parts.
#![allow(
    unsafe_code,
    reason = "parts write rows at positions that depend on the data"
)]

use half::{bf16, f16};
use tercet_ir::{Element, EvalError, Graph, MAX_RANK, Node};

use crate::args::KernelArgs;
use crate::kernels::KernelThreads;
use crate::kernels::parallel::{DisjointChunks, SharedMut, for_each, for_each_part};
use crate::lower::LoweredNode;
use crate::lower::elem::{for_element, parts};
use crate::lower::indexed::strides;
use crate::lower::reference_eval::evaluate;
use crate::lower::top_k::keys_of;

/// Elements of a part.
const PART: usize = 1 << 14;

/// Element type that can be compared with 0.
trait ZeroTest: Element {
    /// True for NaN too.
    fn is_set(self) -> bool;
}

macro_rules! numbers {
    ($($t:ty: $zero:expr),*) => {$(impl ZeroTest for $t {
        #[inline(always)]
        fn is_set(self) -> bool { self != $zero }
    })*};
}
numbers!(f32: 0.0, f64: 0.0, i32: 0, u32: 0, i64: 0, i16: 0, i8: 0, u8: 0);
numbers!(f16: f16::ZERO, bf16: bf16::ZERO);

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let op = node.op.clone();
    let run = for_element!(graph.ty(node.inputs[0]).dtype, run);
    LoweredNode {
        fallible: true,
        scratch: Some(Box::new(|layouts, _| {
            layouts[0].numel().div_ceil(PART) * size_of::<u64>()
        })),
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            // The reference reports too many elements.
            match i32::try_from(args.ins[0].layout.numel()) {
                Ok(_) => run(args),
                Err(_) => evaluate(&op, args),
            }
        })
    }
}

fn run<T: ZeroTest>(args: &mut KernelArgs<'_>) -> Result<(), EvalError> {
    let (x, shape): (&[T], &[usize]) = (args.ins[0].dense(), args.ins[0].shape());
    let [rows, total] = args.outs.as_mut_slice() else {
        unreachable!("invariant: the operator has two results")
    };
    let (rows, total) = (rows.as_mut::<i32>(), total.as_mut::<i32>());
    let threads = KernelThreads::parallel(args.parallel);
    let tasks = x.len().div_ceil(PART);
    let counts: &mut [u64] = &mut keys_of(args.scratch)[..tasks];
    for_each_part(threads, DisjointChunks::new(counts, 1), |i, count| {
        let part = &x[i * PART..x.len().min((i + 1) * PART)];
        // Small sums, so that the compiler vectorizes them.
        let blocks = part
            .chunks(128)
            .map(|x| x.iter().map(|x| u8::from(x.is_set())).sum::<u8>());
        count[0] = blocks.map(u64::from).sum();
    });
    let mut sum = 0;
    for count in counts.iter_mut() {
        sum += std::mem::replace(count, sum);
    }
    total[0] = sum as i32;
    let rank = shape.len();
    let (written, rest) = rows.split_at_mut(sum as usize * rank);
    let out = SharedMut::new(written);
    let counts = &*counts;
    for_each(threads, tasks, |i| {
        let first = i * PART;
        let x = &x[first..x.len().min(first + PART)];
        let start = counts[i] as usize;
        let end = counts.get(i + 1).map_or(sum as usize, |end| *end as usize);
        // SAFETY: the rows of different parts are disjoint, and all are inside the result.
        let rows = unsafe { out.slice(start * rank, (end - start) * rank) };
        write_coordinates(x, first, shape, rows);
    });
    parts(args.parallel, rest, PART, |_, part| part.fill(0));
    Ok(())
}

/// Writes the coordinates of the elements that are not 0; `first` is the index of the first element.
fn write_coordinates<T: ZeroTest>(x: &[T], first: usize, shape: &[usize], rows: &mut [i32]) {
    let Some(&line) = shape.last() else { return };
    let steps = strides(shape);
    let rank = shape.len();
    let mut rows = rows.chunks_exact_mut(rank);
    let mut at = 0;
    while at < x.len() {
        let index = first + at;
        let mut place = [0i32; MAX_RANK];
        for (place, (step, n)) in place.iter_mut().zip(steps.iter().zip(shape)) {
            *place = (index / step % n) as i32;
        }
        let count = (line - index % line).min(x.len() - at);
        let column = place[rank - 1];
        for (j, x) in x[at..at + count].iter().enumerate() {
            if x.is_set()
                && let Some(row) = rows.next()
            {
                row.copy_from_slice(&place[..rank]);
                row[rank - 1] = column + j as i32;
            }
        }
        at += count;
    }
}
