//! `Gather`: rows of any dtype by index, copied in parallel.
//!
//! Every index is checked before anything is written, in order, so that the fault is the first one.

use bytemuck::Pod;
use tercet_ir::{DType, EvalError, Graph, Node, Op};

use crate::args::Args;
use crate::lower::Lowered;
use crate::lower::elem::{AxisView, parts};

/// Bytes of a parallel task, at least.
const TASK_BYTES: usize = 1 << 16;

pub(crate) fn lower(_: &Graph, node: &Node) -> Lowered {
    let Op::Gather(op) = &node.op else {
        unreachable!("invariant: the table gives this row `Gather` only")
    };
    let axis = op.axis;
    Lowered {
        fallible: true,
        work: |layouts| layouts.last().map_or(0, |out| out.numel()),
        ..Lowered::new(2, move |args: &mut Args<'_>| {
            // Indices are I32 or I64.
            match args.ins[1].dtype == DType::I64 {
                true => run::<i64>(axis, args),
                false => run::<i32>(axis, args),
            }
        })
    }
}

/// Copies equal rows of bytes: row `at` of one of `outer` blocks of `len` rows.
#[derive(Clone, Copy)]
struct Rows<'a, I> {
    data: &'a [u8],
    index: &'a [I],
    len: usize,
    bytes: usize,
}

fn run<I: tercet_ir::Element + Pod + Into<i64>>(
    axis: usize,
    args: &mut Args<'_>,
) -> Result<(), EvalError> {
    let AxisView { outer, len, inner } = AxisView::of(args.ins[0].shape(), axis);
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
    let rows = Rows {
        data,
        index,
        len,
        bytes,
    };
    let task = TASK_BYTES.div_ceil(bytes);
    parts(args.parallel, args.outs[0].bytes, task * bytes, |i, out| {
        // A constant length makes the copy of a short row a single move.
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

impl<I: Copy + Into<i64>> Rows<'_, I> {
    /// The rows from `first` on, of `BYTES` bytes (0: any number).
    fn copy<const BYTES: usize>(&self, first: usize, out: &mut [u8]) {
        let bytes = if BYTES == 0 { self.bytes } else { BYTES };
        let (mut block, mut at) = (first / self.index.len(), first % self.index.len());
        for row in out.chunks_exact_mut(bytes) {
            let i: i64 = self.index[at].into();
            let i = if i < 0 { i + self.len as i64 } else { i } as usize;
            let from = (block * self.len + i) * bytes;
            row.copy_from_slice(&self.data[from..from + bytes]);
            at += 1;
            if at == self.index.len() {
                (block, at) = (block + 1, 0);
            }
        }
    }
}
