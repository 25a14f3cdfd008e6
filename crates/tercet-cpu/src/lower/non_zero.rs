//! `NonZero`: marks and counts the elements of each part that are not 0, then writes the coordinates of all
//! parts.
#![allow(
    unsafe_code,
    reason = "parts write rows at positions that depend on the data"
)]

use half::{bf16, f16};
use tercet_ir::{Element, EvalError, Graph, MAX_RANK, Node, OpKind};

use crate::args::KernelArgs;
use crate::kernels::KernelThreads;
use crate::kernels::parallel::{DisjointChunks, SharedMut, for_each, for_each_part};
use crate::lower::elem::{for_element, parts};
use crate::lower::indexed::strides;
use crate::lower::reference_eval::evaluate;
use crate::lower::top_k::keys_of;
use crate::lower::{CpuKernel, LoweredNode, always, kernel};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel("non_zero", OpKind::NonZero, always, lower)];

/// Elements of a part.
const PART: usize = 1 << 14;
/// Elements of a mask.
const BITS: usize = u64::BITS as usize;

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
            let n = layouts[0].numel();
            (n.div_ceil(PART) + n.div_ceil(BITS)) * size_of::<u64>()
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
    let (counts, masks) = keys_of::<u64>(args.scratch).split_at_mut(tasks);
    let masks = &mut masks[..x.len().div_ceil(BITS)];
    let both = (
        DisjointChunks::new(&mut *counts, 1),
        DisjointChunks::new(&mut *masks, PART / BITS),
    );
    for_each_part(threads, both, |i, (count, masks)| {
        let part = &x[i * PART..x.len().min((i + 1) * PART)];
        let mut sum = 0;
        for (mask, x) in masks.iter_mut().zip(part.chunks(BITS)) {
            *mask = mask_of(x);
            sum += u64::from(mask.count_ones());
        }
        count[0] = sum;
    });
    let mut sum = 0;
    for count in counts.iter_mut() {
        sum += std::mem::replace(count, sum);
    }
    total[0] = sum as i32;
    let rank = shape.len();
    let (written, rest) = rows.split_at_mut(sum as usize * rank);
    let out = SharedMut::new(written);
    let (counts, masks) = (&*counts, &*masks);
    for_each(threads, tasks, |i| {
        let start = counts[i] as usize;
        let end = counts.get(i + 1).map_or(sum as usize, |end| *end as usize);
        // SAFETY: the rows of different parts are disjoint, and all are inside the result.
        let rows = unsafe { out.slice(start * rank, (end - start) * rank) };
        let first = i * PART / BITS;
        let masks = &masks[first..masks.len().min(first + PART / BITS)];
        match rank {
            1 => write_coordinates::<1>(masks, i * PART, shape, rows),
            2 => write_coordinates::<2>(masks, i * PART, shape, rows),
            3 => write_coordinates::<3>(masks, i * PART, shape, rows),
            _ => write_coordinates::<MAX_RANK>(masks, i * PART, shape, rows),
        }
    });
    parts(args.parallel, rest, PART, |_, part| part.fill(0));
    Ok(())
}

/// A bit for each of at most 64 elements, set if the element is not 0.
fn mask_of<T: ZeroTest>(x: &[T]) -> u64 {
    // The compiler vectorizes the tests, but not the bits.
    let mut flags = [0u8; BITS];
    match <&[T; BITS]>::try_from(x) {
        Ok(x) => (flags.iter_mut().zip(x)).for_each(|(flag, x)| *flag = u8::from(x.is_set())),
        Err(_) => (flags.iter_mut().zip(x)).for_each(|(flag, x)| *flag = u8::from(x.is_set())),
    }
    let (eights, _) = flags.as_chunks::<8>();
    let bytes = eights.iter().enumerate().map(|(i, flags)| {
        // Each product moves the flag of byte `k` to bit `56 + k`; no two products overlap.
        let byte = u64::from_le_bytes(*flags).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        byte << (8 * i)
    });
    bytes.sum()
}

/// Writes the coordinates of the elements with a set bit; `first` is the index of the first element.
/// `R` is the rank, or at least that.
fn write_coordinates<const R: usize>(
    masks: &[u64],
    first: usize,
    shape: &[usize],
    rows: &mut [i32],
) {
    let Some(&line) = shape.last() else { return };
    let steps = strides(shape);
    let rank = shape.len().min(R);
    let mut rows = rows.chunks_exact_mut(rank);
    // The coordinates and the end of the line of the last element.
    let (mut place, mut end) = ([0i32; R], 0);
    for (at, mask) in (first..).step_by(BITS).zip(masks) {
        let mut mask = *mask;
        while mask != 0 {
            let index = at + mask.trailing_zeros() as usize;
            mask &= mask - 1;
            if index >= end {
                for (place, (step, n)) in place.iter_mut().zip(steps.iter().zip(shape)) {
                    *place = (index / step % n) as i32;
                }
                end = index - index % line + line;
            }
            place[rank - 1] = (line + index - end) as i32;
            if let Some(row) = rows.next() {
                row.copy_from_slice(&place[..rank]);
            }
        }
    }
}
