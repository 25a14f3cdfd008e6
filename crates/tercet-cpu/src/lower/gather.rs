//! `Gather`: copies rows of any dtype by index, in parallel.
//!
//! Every index is checked in order before anything is written, so the reported error is the first
//! one.

use bytemuck::Pod;
use tercet_ir::{DType, EvalError, Graph, Node, Op, OpKind};

use crate::args::KernelArgs;
use crate::lower::elem::{AxisBlocks, parts};
use crate::lower::{CpuKernel, LoweredNode, always, kernel};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel("gather", OpKind::Gather, always, lower)];

/// Minimum bytes of a parallel task.
const TASK_BYTES: usize = 1 << 16;

pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let Op::Gather(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `Gather` to this row")
    };
    let axis = op.axis;
    LoweredNode {
        fallible: true,
        work: |layouts| layouts.last().map_or(0, |out| out.numel()),
        ..LoweredNode::new(2, move |args: &mut KernelArgs<'_>| {
            // Indices are I32 or I64.
            match args.ins[1].dtype == DType::I64 {
                true => run::<i64>(axis, args),
                false => run::<i32>(axis, args),
            }
        })
    }
}

/// Copies rows of equal byte length; each of the `outer` blocks has `len` rows.
#[derive(Clone, Copy)]
struct GatherRows<'a, I> {
    data: &'a [u8],
    index: &'a [I],
    len: usize,
    bytes: usize,
}

fn run<I: tercet_ir::Element + Pod + Into<i64>>(
    axis: usize,
    args: &mut KernelArgs<'_>,
) -> Result<(), EvalError> {
    let AxisBlocks { outer, len, inner } = AxisBlocks::new(args.ins[0].shape(), axis);
    if args.ins[1].layout.numel() == 0 {
        return Ok(());
    }
    let index: &[I] = args.ins[1].dense();
    for &i in index {
        let index = i.into();
        if !(-(len as i64)..len as i64).contains(&index) {
            return Err(EvalError::Index { index, len });
        }
    }
    let bytes = inner * args.ins[0].dtype.size_bytes();
    if outer * bytes == 0 {
        return Ok(());
    }
    let data = args.ins[0].dense_bytes();
    let rows = GatherRows {
        data,
        index,
        len,
        bytes,
    };
    let task = TASK_BYTES.div_ceil(bytes);
    parts(args.parallel, args.outs[0].bytes, task * bytes, |i, out| {
        // With a constant length, the compiler turns the copy of a short row into a single move.
        match bytes {
            1 => rows.copy::<1>(i * task, out),
            2 => rows.copy::<2>(i * task, out),
            4 => rows.copy::<4>(i * task, out),
            8 => rows.copy::<8>(i * task, out),
            _ => rows.copy::<0>(i * task, out),
        }
    });
    Ok(())
}

impl<I: Copy + Into<i64>> GatherRows<'_, I> {
    /// Copies the rows from `first` on, of `BYTES` bytes each (0: length known only at run time).
    fn copy<const BYTES: usize>(&self, first: usize, out: &mut [u8]) {
        let bytes = if BYTES == 0 { self.bytes } else { BYTES };
        let (mut block, at) = (first / self.index.len(), first % self.index.len());
        let (mut out, mut index) = (out, &self.index[at..]);
        // The rows of one block have the same part of the data.
        while !out.is_empty() {
            let (own, rest) = out.split_at_mut(out.len().min(index.len() * bytes));
            let data = &self.data[block * self.len * bytes..][..self.len * bytes];
            for (row, i) in own.chunks_exact_mut(bytes).zip(index) {
                let i: i64 = (*i).into();
                let i = if i < 0 { i + self.len as i64 } else { i } as usize;
                row.copy_from_slice(&data[i * bytes..][..bytes]);
            }
            (block, out, index) = (block + 1, rest, self.index);
        }
    }
}
