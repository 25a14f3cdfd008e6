//! `GatherElements`, `GatherNd` and `OneHot`: element access by index operands.
//!
//! Every index is checked in order before anything is written, so the reported error is the first
//! one.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use bytemuck::Pod;
use half::{bf16, f16};
use tercet_ir::{DType, EvalError, Graph, MAX_RANK, Node, Op, OpKind};

use crate::args::{KernelArgs, KernelView, KernelViewMut};
use crate::kernels::KernelThreads;
use crate::kernels::parallel::for_each;
use crate::lower::elem::parts;
use crate::lower::reference_eval::evaluate;
use crate::lower::{AcceptedLayout, CpuKernel, LoweredNode, always, copy_view, indices, kernel};
use tercet_ir::layout::Layout;

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    kernel(
        "gather_elements",
        OpKind::GatherElements,
        always,
        lower_elements,
    ),
    kernel("gather_nd", OpKind::GatherNd, always, lower_nd),
    kernel("one_hot", OpKind::OneHot, always, lower_one_hot),
];

/// Minimum bytes of a parallel task.
const TASK_BYTES: usize = 1 << 16;

/// Resolves an index (negative from the end) on an axis of `len` elements.
pub(crate) fn resolve(index: i64, len: usize) -> Result<usize, EvalError> {
    let at = match index < 0 {
        true => index.checked_add(len as i64),
        false => Some(index),
    };
    match at {
        Some(at) if (0..len as i64).contains(&at) => Ok(at as usize),
        Some(_) | None => Err(EvalError::Index { index, len }),
    }
}

/// Checks all indices on an axis of `len` elements.
///
/// # Errors
/// [`EvalError::Index`] for the first invalid index.
pub(crate) fn check_all(idx: &KernelView<'_>, len: usize, parallel: bool) -> Result<(), EvalError> {
    /// Indices per task.
    const PART: usize = 1 << 15;
    let invalid = AtomicBool::new(false);
    let end = len as i64;
    // One comparison without branches per index: valid ones are below twice the length after the shift.
    let is_invalid = |index: i64| index.wrapping_add(end) as u64 >= 2 * end as u64;
    let threads = KernelThreads::parallel(parallel);
    let count = idx.layout.numel();
    let named = IndexSlice::from_view(idx);
    for_each(threads, count.div_ceil(PART), |i| {
        let part = i * PART..count.min((i + 1) * PART);
        let any = match named {
            IndexSlice::I32(list) => list[part]
                .iter()
                .fold(false, |any, i| any | is_invalid((*i).into())),
            IndexSlice::I64(list) => list[part].iter().fold(false, |any, i| any | is_invalid(*i)),
        };
        if any {
            invalid.store(true, Relaxed);
        }
    });
    match invalid.into_inner() {
        true => indices(idx).try_for_each(|i| resolve(i, len).map(|_| ())),
        false => Ok(()),
    }
}

/// Checked indices of either dtype.
#[derive(Clone, Copy)]
enum IndexSlice<'a> {
    I32(&'a [i32]),
    I64(&'a [i64]),
}

impl<'a> IndexSlice<'a> {
    fn from_view(idx: &KernelView<'a>) -> IndexSlice<'a> {
        match idx.dtype == DType::I64 {
            true => IndexSlice::I64(idx.dense()),
            false => IndexSlice::I32(idx.dense()),
        }
    }

    /// Position of index `i` on an axis of `len` elements.
    fn at(self, i: usize, len: usize) -> usize {
        let index = match self {
            IndexSlice::I32(list) => i64::from(list[i]),
            IndexSlice::I64(list) => list[i],
        };
        (if index < 0 { index + len as i64 } else { index }) as usize
    }
}

/// Strides of a dense tensor in elements.
pub(crate) fn strides(shape: &[usize]) -> [usize; MAX_RANK] {
    let mut strides = [1; MAX_RANK];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// True if no axis of the index tensor, except `axis`, is longer than the same axis of the data.
pub(crate) fn are_within(idx: &[usize], data: &[usize], axis: usize) -> bool {
    let pairs = idx.iter().zip(data).enumerate();
    pairs.into_iter().all(|(a, (m, n))| a == axis || m <= n)
}

pub(crate) fn lower_elements(_: &Graph, node: &Node) -> LoweredNode {
    let Op::GatherElements(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `GatherElements` to this row")
    };
    let (op, axis) = (node.op.clone(), op.axis);
    LoweredNode {
        accepts: vec![AcceptedLayout::Dense, AcceptedLayout::Any],
        fallible: true,
        scratch: Some(Box::new(move |layouts, _| {
            let named = IndexRows::new(&layouts[1], layouts[0].shape(), axis).index;
            match named.is_dense() {
                true => 0,
                false => named.numel() * size_of::<i64>(),
            }
        })),
        work: |layouts| layouts.last().map_or(0, |out| out.numel()),
        ..LoweredNode::new(2, move |args: &mut KernelArgs<'_>| {
            let (data, idx) = (args.ins[0], args.ins[1]);
            if !are_within(idx.shape(), data.shape(), axis) {
                return evaluate(&op, args);
            }
            let rows = IndexRows::new(idx.layout, data.shape(), axis);
            let named = KernelView {
                layout: &rows.index,
                ..idx
            };
            let dense = Layout::dense(rows.index.shape());
            let bytes = dense.numel() * idx.dtype.size_bytes();
            let named = match rows.index.is_dense() {
                true => named,
                false => {
                    let copy = &mut args.scratch[..bytes];
                    copy_view(&named, copy, args.parallel);
                    KernelView {
                        root: copy,
                        layout: &dense,
                        ..idx
                    }
                }
            };
            check_all(&named, data.shape()[axis], args.parallel)?;
            let out = &mut args.outs[0];
            if out.layout.numel() == 0 {
                return Ok(());
            }
            if rows.inner > 1 {
                let bytes = rows.inner * out.dtype.size_bytes();
                copy_rows(axis, &data, &named, bytes, out.bytes, args.parallel);
                return Ok(());
            }
            match out.dtype.size_bytes() {
                1 => elements::<u8>(axis, &data, &named, out, args.parallel),
                2 => elements::<u16>(axis, &data, &named, out, args.parallel),
                4 => elements::<u32>(axis, &data, &named, out, args.parallel),
                _ => elements::<u64>(axis, &data, &named, out, args.parallel),
            }
            Ok(())
        })
    }
}

/// Index operand of a `GatherElements` without its last axes along which it repeats: an index there names a whole row
/// of the data.
struct IndexRows {
    index: Layout,
    /// Elements of a row.
    inner: usize,
}

impl IndexRows {
    fn new(index: &Layout, data: &[usize], axis: usize) -> IndexRows {
        let (shape, strides) = (index.shape(), index.strides());
        let mut axes = shape.len();
        let mut inner = 1;
        // A row of the data is contiguous if it covers whole axes.
        while axes > axis + 1
            && (shape[axes - 1] == 1 || strides[axes - 1] == 0)
            && data.get(axes - 1) == Some(&shape[axes - 1])
        {
            axes -= 1;
            inner *= shape[axes];
        }
        match inner {
            // The other kernel reads lines along the last axis.
            1 => IndexRows {
                index: *index,
                inner,
            },
            _ => IndexRows {
                index: Layout::new(&shape[..axes], &strides[..axes], index.offset),
                inner,
            },
        }
    }
}

/// Copies one row of `bytes` bytes per index.
fn copy_rows(
    axis: usize,
    data: &KernelView<'_>,
    idx: &KernelView<'_>,
    bytes: usize,
    out: &mut [u8],
    parallel: bool,
) {
    let (shape, sizes) = (idx.shape(), data.shape());
    let steps = strides(&sizes[..shape.len()]);
    let (from, named) = (data.dense_bytes(), IndexSlice::from_view(idx));
    let task = TASK_BYTES.div_ceil(bytes);
    parts(parallel, out, task * bytes, |i, out| {
        for (j, to) in out.chunks_exact_mut(bytes).enumerate() {
            let row = i * task + j;
            let (mut rest, mut at) = (row, named.at(row, sizes[axis]) * steps[axis]);
            for a in (0..shape.len()).rev() {
                if a != axis {
                    at += rest % shape[a] * steps[a];
                }
                rest /= shape[a];
            }
            to.copy_from_slice(&from[at * bytes..][..bytes]);
        }
    });
}

/// Gathers line by line along the last axis of the result.
fn elements<T: Pod + Send + Sync>(
    axis: usize,
    data: &KernelView<'_>,
    idx: &KernelView<'_>,
    out: &mut KernelViewMut<'_>,
    parallel: bool,
) {
    let (idx, sizes) = (IndexSlice::from_view(idx), data.shape());
    let shape = out.layout.shape();
    let (last, steps) = (shape.len() - 1, strides(sizes));
    let line = shape[last];
    let from: &[T] = bytemuck::cast_slice(data.dense_bytes());
    let to: &mut [T] = bytemuck::cast_slice_mut(out.bytes);
    let lines = (TASK_BYTES / size_of::<T>()).div_ceil(line);
    parts(parallel, to, lines * line, |task, to| {
        for (i, to) in to.chunks_exact_mut(line).enumerate() {
            let first = (task * lines + i) * line;
            let (mut rest, mut base) = (task * lines + i, 0);
            for a in (0..last).rev() {
                if a != axis {
                    base += rest % shape[a] * steps[a];
                }
                rest /= shape[a];
            }
            let (len, step) = (sizes[axis] as i64, steps[axis]);
            let at = |index: i64| (if index < 0 { index + len } else { index }) as usize;
            if axis == last {
                let row = &from[base..base + sizes[axis]];
                match idx {
                    IndexSlice::I32(list) => {
                        for (y, index) in to.iter_mut().zip(&list[first..]) {
                            *y = row[at((*index).into())];
                        }
                    }
                    IndexSlice::I64(list) => {
                        for (y, index) in to.iter_mut().zip(&list[first..]) {
                            *y = row[at(*index)];
                        }
                    }
                }
                continue;
            }
            match idx {
                IndexSlice::I32(list) => {
                    for (j, (y, index)) in to.iter_mut().zip(&list[first..]).enumerate() {
                        *y = from[base + at((*index).into()) * step + j];
                    }
                }
                IndexSlice::I64(list) => {
                    for (j, (y, index)) in to.iter_mut().zip(&list[first..]).enumerate() {
                        *y = from[base + at(*index) * step + j];
                    }
                }
            }
        }
    });
}

pub(crate) fn lower_nd(_: &Graph, node: &Node) -> LoweredNode {
    let Op::GatherNd(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `GatherNd` to this row")
    };
    let batch = op.batch_dims;
    LoweredNode {
        fallible: true,
        work: |layouts| layouts.last().map_or(0, |out| out.numel()),
        ..LoweredNode::new(2, move |args: &mut KernelArgs<'_>| {
            let (data, idx) = (args.ins[0], args.ins[1]);
            let last = idx.shape().len() - 1;
            let k = idx.shape()[last];
            let lens = &data.shape()[batch..batch + k];
            match lens {
                &[len] => check_all(&idx, len, args.parallel)?,
                _ => {
                    for (i, index) in indices(&idx).enumerate() {
                        resolve(index, lens[i % k])?;
                    }
                }
            }
            let out = &mut args.outs[0];
            let inner: usize = data.shape()[batch + k..].iter().product();
            let bytes = inner * data.dtype.size_bytes();
            if out.layout.numel() == 0 {
                return Ok(());
            }
            // Number of index rows (each is one coordinate) per batch entry.
            let rows: usize = idx.shape()[batch..last].iter().product();
            let within: usize = lens.iter().product();
            let (from, named) = (data.dense_bytes(), IndexSlice::from_view(&idx));
            let task = TASK_BYTES.div_ceil(bytes);
            parts(args.parallel, out.bytes, task * bytes, |i, to| {
                for (j, to) in to.chunks_exact_mut(bytes).enumerate() {
                    let row = i * task + j;
                    let places = lens.iter().enumerate();
                    let at = places.fold(0, |at, (c, &n)| at * n + named.at(row * k + c, n));
                    let first = (row / rows * within + at) * bytes;
                    to.copy_from_slice(&from[first..first + bytes]);
                }
            });
            Ok(())
        })
    }
}

pub(crate) fn lower_one_hot(_: &Graph, node: &Node) -> LoweredNode {
    let Op::OneHot(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `OneHot` to this row")
    };
    let (depth, one) = (op.depth, one(op.to));
    LoweredNode {
        fallible: true,
        work: |layouts| layouts.last().map_or(0, |out| out.numel()),
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            let out = &mut args.outs[0];
            let size = out.dtype.size_bytes();
            out.bytes.fill(0);
            for (row, index) in indices(&args.ins[0]).enumerate() {
                let at = (row * depth + resolve(index, depth)?) * size;
                out.bytes[at..at + size].copy_from_slice(&one.to_le_bytes()[..size]);
            }
            Ok(())
        })
    }
}

/// Bit pattern of 1 in a dtype, in the low bits.
fn one(dtype: DType) -> u64 {
    match dtype {
        DType::F32 => 1f32.to_bits().into(),
        DType::F16 => f16::ONE.to_bits().into(),
        DType::BF16 => bf16::ONE.to_bits().into(),
        DType::F64 => 1f64.to_bits(),
        DType::I32 | DType::U32 | DType::I64 | DType::I16 | DType::I8 | DType::U8 | DType::Bool => {
            1
        }
    }
}
