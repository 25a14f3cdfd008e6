//! `Pad`: writes the result row by row along the last axis, from the operand row that the mode
//! selects.

use bytemuck::Pod;
use tercet_ir::layout::Layout;
use tercet_ir::ops::{Pad, PadMode};
use tercet_ir::scalar::{Scalar, convert};
use tercet_ir::{DType, EvalError, Graph, Node, Op, OpKind};

use crate::args::{KernelArgs, KernelView};
use crate::lower::elem::parts;
use crate::lower::reference_eval::evaluate;
use crate::lower::{AcceptedLayout, CpuKernel, LoweredNode, always, kernel};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel("pad", OpKind::Pad, always, lower)];

/// Minimum elements of a parallel task.
const TASK: usize = 1 << 14;

pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let Op::Pad(pad) = &node.op else {
        unreachable!("invariant: the kernel table maps only `Pad` to this row")
    };
    let (op, pad) = (node.op.clone(), pad.clone());
    let value = bits(&pad, node.outputs[0].dtype);
    LoweredNode {
        accepts: vec![AcceptedLayout::Rows],
        fallible: true,
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            let sizes = args.ins[0].shape().iter().enumerate();
            let fits = |(axis, &n): (usize, &usize)| {
                pad.mode.is_valid_for(pad.before[axis], pad.after[axis], n)
            };
            if !sizes.clone().all(fits) {
                return evaluate(&op, args);
            }
            match args.outs[0].dtype.size_bytes() {
                1 => run(&pad, value as u8, args),
                2 => run(&pad, value as u16, args),
                4 => run(&pad, value as u32, args),
                _ => run(&pad, value, args),
            }
        })
    }
}

/// Bit pattern of the padding value in its dtype.
fn bits(pad: &Pad, dtype: DType) -> u64 {
    let (real, int) = match convert(Scalar::F(pad.value.0), dtype) {
        Scalar::F(x) => (x, 0),
        Scalar::I(i) => (0.0, i),
    };
    match dtype {
        DType::F32 => u64::from((real as f32).to_bits()),
        DType::F16 => u64::from(half::f16::from_f64(real).to_bits()),
        DType::BF16 => u64::from(half::bf16::from_f64(real).to_bits()),
        DType::F64 => real.to_bits(),
        DType::I32 | DType::U32 | DType::I64 | DType::I16 | DType::I8 | DType::U8 | DType::Bool => {
            int as u64
        }
    }
}

fn run<T: Pod + Send + Sync>(
    pad: &Pad,
    value: T,
    args: &mut KernelArgs<'_>,
) -> Result<(), EvalError> {
    let (x, out) = (args.ins[0], &mut args.outs[0]);
    if out.layout.numel() == 0 {
        return Ok(());
    }
    let merged = merged(pad, &x, out.layout.shape());
    let (x, shape, pad) = match &merged {
        Some(MergedPad { from, to, pad }) => (KernelView { layout: from, ..x }, to.shape(), pad),
        None => (x, out.layout.shape(), pad),
    };
    let len = shape.last().copied().unwrap_or(1);
    let to: &mut [T] = bytemuck::cast_slice_mut(out.bytes);
    let rows = TASK.div_ceil(len);
    parts(args.parallel, to, rows * len, |i, to| {
        for (j, to) in to.chunks_exact_mut(len).enumerate() {
            row(pad, value, &x, shape, i * rows + j, to);
        }
    });
    Ok(())
}

/// A pad with longer rows.
struct MergedPad {
    from: Layout,
    to: Layout,
    pad: Pad,
}

/// Merges the last axes, which are not padded, with the axis before them: rows of a dense operand stay contiguous.
fn merged(pad: &Pad, x: &KernelView<'_>, shape: &[usize]) -> Option<MergedPad> {
    let pads = pad.before.iter().zip(&pad.after);
    let last = pads
        .map(|(before, after)| before + after)
        .rposition(|n| n > 0)?;
    let inner: usize = shape[last + 1..].iter().product();
    if pad.mode != PadMode::Constant || last + 1 == shape.len() || !x.layout.is_dense() {
        return None;
    }
    let merge = |sizes: &[usize]| -> Vec<usize> {
        let mut sizes = sizes[..=last].to_vec();
        sizes[last] *= inner;
        sizes
    };
    let from = Layout::dense(&merge(x.shape()));
    Some(MergedPad {
        from: Layout::new(from.shape(), from.strides(), x.layout.offset),
        to: Layout::dense(&merge(shape)),
        pad: Pad {
            before: merge(&pad.before),
            after: merge(&pad.after),
            ..pad.clone()
        },
    })
}

/// Writes row `index` of the result.
fn row<T: Pod>(
    pad: &Pad,
    value: T,
    x: &KernelView<'_>,
    shape: &[usize],
    mut index: usize,
    to: &mut [T],
) {
    let (sizes, strides) = (x.layout.shape(), x.layout.strides());
    let outer = shape.len().saturating_sub(1);
    let mut at = x.layout.offset as isize;
    for axis in (0..outer).rev() {
        let place = pad
            .mode
            .source(index % shape[axis], pad.before[axis], sizes[axis]);
        let Some(place) = place else {
            return to.fill(value);
        };
        at += place as isize * strides[axis];
        index /= shape[axis];
    }
    let n = sizes.last().copied().unwrap_or(1);
    let before = pad.before.last().copied().unwrap_or(0);
    let from: &[T] = match x.layout.numel() {
        0 => &[],
        _ => &x.root_as()[at as usize..][..n],
    };
    let (head, tail) = to.split_at_mut(before);
    let (middle, tail) = tail.split_at_mut(n);
    if !from.is_empty() {
        middle.copy_from_slice(from);
    }
    if pad.mode == PadMode::Constant {
        head.fill(value);
        tail.fill(value);
        return;
    }
    for (i, y) in head.iter_mut().enumerate() {
        *y = pad.mode.source(i, before, n).map_or(value, |i| from[i]);
    }
    for (i, y) in tail.iter_mut().enumerate() {
        *y = pad
            .mode
            .source(before + n + i, before, n)
            .map_or(value, |i| from[i]);
    }
}
