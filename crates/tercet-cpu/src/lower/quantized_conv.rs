//! `QuantizedConv`: int8 convolutions.

use tercet_ir::layout::Layout;
use tercet_ir::ops::QuantizedConv;
use tercet_ir::{DType, EvalError, Graph, Node, Op, OpKind, Support};

use crate::aligned_alloc::AlignedPages;
use crate::args::{KernelArgs, KernelView, PackedConst};
use crate::kernels::conv::ConvShape;
use crate::kernels::int8_conv::{
    Int8ConvArgs, Int8Encoding, Requantize, int8_conv, pack, packed_len, scratch_len,
};
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::conv::ConvWindowParams;
use crate::lower::{CpuKernel, KernelPackFn, LoweredNode, kernel, missing, words};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel(
    "quantized_conv",
    OpKind::QuantizedConv,
    supports,
    lower,
)];

fn quantized_conv_op(node: &Node) -> &QuantizedConv {
    let Op::QuantizedConv(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only one operator to this kernel")
    };
    op
}

/// Supports windows on one or two axes; other convolutions are decomposed.
pub(crate) fn supports(_: &Graph, node: &Node) -> Support {
    match quantized_conv_op(node).stride.len() {
        3 => missing("windows on three axes are not supported"),
        _ => Support::Native,
    }
}

fn codes(dtype: DType, zero: i64) -> Int8Encoding {
    Int8Encoding {
        signed: dtype == DType::I8,
        zero: zero as i32,
    }
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let op = quantized_conv_op(node).clone();
    let (frame, groups) = (ConvWindowParams::new(&op.window()), op.groups);
    let shape_of = move |x: &[usize], w: &[usize], y: &[usize]| ConvShape {
        windows: frame.windows(&x[2..], &w[2..], &y[2..]),
        batch: x[0],
        groups,
        channels: w[1],
        m: w[0] / groups,
    };
    let level = SimdLevel::detect();
    let dtype = |i: usize| graph.ty(node.inputs[i]).dtype;
    let x_codes = codes(dtype(0), op.x_zero);
    let w_codes = codes(dtype(1), op.w_zero);
    let pack_weights: KernelPackFn = Box::new(
        move |w: &KernelView<'_>| -> Result<PackedConst, EvalError> {
            // The sizes of x and y are not known yet, and the packed form does not depend on them.
            let one = vec![1; w.shape().len()];
            let shape = shape_of(&one, w.shape(), &one);
            let mut packed = words(packed_len(level, &shape, w_codes))?;
            pack(level, &shape, w_codes, w.dense_bytes(), &mut packed);
            Ok(PackedConst::new(packed))
        },
    );
    let run = move |args: &mut KernelArgs<'_>| -> Result<(), EvalError> {
        let (x, w) = (args.ins[0], args.ins[1]);
        let y = &mut args.outs[0];
        let shape = shape_of(x.shape(), w.shape(), y.shape());
        let scratch: &mut [i32] = bytemuck::cast_slice_mut(args.scratch);
        let (own, scratch) =
            scratch.split_at_mut(packed_len(level, &shape, w_codes).next_multiple_of(16));
        let weights = match args
            .packed
            .and_then(|p| p.downcast_ref::<AlignedPages<i32>>())
        {
            Some(packed) => &packed[..],
            None => {
                pack(level, &shape, w_codes, w.dense_bytes(), own);
                &*own
            }
        };
        let call = Int8ConvArgs {
            shape: &shape,
            x: x.dense_bytes(),
            codes: x_codes,
            weights: w_codes,
            finish: Requantize {
                scale: args.ins[2].dense(),
                bias: args.ins[3].dense(),
                zero: op.y_zero as i32,
                lo: op.lo as i32,
                hi: op.hi as i32,
            },
        };
        let threads = KernelThreads::parallel(args.parallel);
        int8_conv(level, threads, &call, weights, y.bytes, scratch);
        Ok(())
    };
    LoweredNode {
        scratch: Some(Box::new(move |layouts, threads| {
            let [x, w, .., y] = layouts else { return 0 };
            let shape = shape_of(x.shape(), w.shape(), y.shape());
            let weights = packed_len(level, &shape, w_codes).next_multiple_of(16);
            4 * (weights + scratch_len(level, threads, &shape, w_codes))
        })),
        pack: Some((1, pack_weights)),
        work: |layouts| {
            let k: usize = layouts[1].shape()[1..].iter().product();
            layouts.last().map_or(0, Layout::numel) * k / 32
        },
        ..LoweredNode::new(node.inputs.len(), run)
    }
}
