//! F16 and BF16 operands of kernels that compute in f32.
//!
//! The operands are widened into scratch memory, the f32 kernel runs, and its results are rounded
//! once. A constant operand that the kernel packs is widened before packing, once.

use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use smallvec::SmallVec;
use tercet_ir::{DType, EvalError, Graph, Node, Op};

use crate::args::{KernelArgs, KernelView, KernelViewMut};
use crate::kernels::{SimdLevel, convert};
use crate::lower::{AcceptedLayout, KernelPackFn, KernelRunFn, LoweredNode, zeroed_floats};
use tercet_ir::layout::Layout;

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Bytes of scratch memory for `numel` f32 values, padded so that the following data stays aligned.
fn wide_bytes(numel: usize) -> usize {
    (4 * numel).next_multiple_of(64)
}

/// Wraps the kernel of `lower` in conversions if an operand is F16 or BF16.
pub(crate) fn lower(
    lower: impl Fn(&Graph, &Node) -> LoweredNode,
    graph: &Graph,
    node: &Node,
) -> LoweredNode {
    let inner = lower(graph, node);
    let stored = stored_operand(&node.op);
    let ins = node.inputs.iter().enumerate().map(|(i, v)| {
        let dtype = graph.ty(*v).dtype;
        is_half(dtype) && stored != Some(i)
    });
    let outs = node.outputs.iter().map(|ty| is_half(ty.dtype));
    let halves: Arc<[bool]> = ins.chain(outs).collect();
    if !halves.contains(&true) {
        return inner;
    }
    let LoweredNode {
        run,
        mut accepts,
        fallible,
        scratch,
        pack,
        work,
        ..
    } = inner;
    for (accept, _) in accepts
        .iter_mut()
        .zip(halves.iter())
        .filter(|(_, half)| **half)
    {
        *accept = AcceptedLayout::Dense;
    }
    let level = SimdLevel::detect();
    let pack = pack.map(|(at, pack)| match halves[at] {
        true => (at, widened_pack(level, pack)),
        false => (at, pack),
    });
    LoweredNode {
        run: {
            let halves = halves.clone();
            Box::new(move |args| call(level, &run, &halves, args))
        },
        accepts,
        fallible,
        in_place: Vec::new(),
        scratch: Some(Box::new(move |layouts, threads| {
            let wide = layouts.iter().zip(halves.iter()).filter(|(_, half)| **half);
            let wide: usize = wide.map(|(layout, _)| wide_bytes(layout.numel())).sum();
            wide + scratch.as_ref().map_or(0, |size| size(layouts, threads))
        })),
        pack,
        pack_name: None,
        work,
        undo: None,
    }
}

/// Index of the operand that the kernel decodes itself from any dtype.
fn stored_operand(op: &Op) -> Option<usize> {
    matches!(op, Op::DequantMatMul(_) | Op::DequantGroupedMatMul(_)).then_some(1)
}

fn widen(level: SimdLevel, view: &KernelView<'_>, out: &mut [f32]) {
    match view.dtype {
        DType::BF16 => convert::bf16_to_f32(level, cast_slice(view.dense_bytes()), out),
        _ => convert::f16_to_f32(level, cast_slice(view.dense_bytes()), out),
    }
}

fn widened_pack(level: SimdLevel, pack: KernelPackFn) -> KernelPackFn {
    Box::new(move |view| {
        let mut wide = zeroed_floats(view.layout.numel())?;
        widen(level, view, &mut wide);
        pack(&KernelView {
            root: cast_slice(&wide),
            within: 0,
            dtype: DType::F32,
            layout: &Layout::dense(view.shape()),
        })
    })
}

/// Takes memory for `numel` floats from the start of the scratch memory.
fn take<'a>(scratch: &mut &'a mut [u8], numel: usize) -> &'a mut [u8] {
    let (own, rest) = std::mem::take(scratch).split_at_mut(wide_bytes(numel));
    *scratch = rest;
    &mut own[..4 * numel]
}

fn call(
    level: SimdLevel,
    run: &KernelRunFn,
    halves: &[bool],
    args: &mut KernelArgs<'_>,
) -> Result<(), EvalError> {
    let mut scratch = &mut *args.scratch;
    let layouts: SmallVec<[Layout; 8]> =
        args.ins.iter().map(|v| Layout::dense(v.shape())).collect();
    let mut ins: SmallVec<[KernelView<'_>; 8]> = SmallVec::new();
    for ((view, layout), &half) in args.ins.iter().zip(&layouts).zip(halves) {
        // An operand that was packed has an empty root, so there is nothing to widen.
        if !half || view.root.is_empty() {
            ins.push(*view);
            continue;
        }
        let wide = take(&mut scratch, layout.numel());
        widen(level, view, cast_slice_mut(wide));
        ins.push(KernelView {
            root: wide,
            within: 0,
            dtype: DType::F32,
            layout,
        });
    }
    let narrow = args.outs.iter().filter(|out| is_half(out.dtype));
    let wide = narrow.map(|out| wide_bytes(out.layout.numel())).sum();
    let (wide, scratch) = scratch.split_at_mut(wide);
    let mut parts = &mut *wide;
    let outs = args.outs.iter_mut().map(|out| match is_half(out.dtype) {
        true => KernelViewMut {
            bytes: take(&mut parts, out.layout.numel()),
            dtype: DType::F32,
            layout: out.layout,
        },
        false => KernelViewMut {
            bytes: &mut *out.bytes,
            dtype: out.dtype,
            layout: out.layout,
        },
    });
    let outs = outs.collect();
    run(&mut KernelArgs {
        ctx: args.ctx,
        parallel: args.parallel,
        ins,
        outs,
        scratch,
        packed: args.packed,
    })?;
    let mut parts = wide;
    for out in args.outs.iter_mut().filter(|out| is_half(out.dtype)) {
        let from = cast_slice(take(&mut parts, out.layout.numel()));
        let to = cast_slice_mut(out.bytes);
        match out.dtype {
            DType::BF16 => convert::f32_to_bf16(level, from, to),
            _ => convert::f32_to_f16(level, from, to),
        }
    }
    Ok(())
}
