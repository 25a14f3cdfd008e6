//! `Conv` in f32, and im2col windows of any dtype.

use tercet_ir::layout::Layout;
use tercet_ir::ops::Window;
use tercet_ir::{Dim, EvalError, Graph, Node, Op, OpKind, Support, Type};

use crate::aligned_alloc::AlignedPages;
use crate::args::{KernelArgs, KernelView, PackedConst};
use crate::kernels::conv::{
    ConvShape, ConvWeights, ConvWindowAxes, conv, conv_scratch_len, pack_conv, packed_conv_len,
};
use crate::kernels::gemm::GemmActivation;
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::elem::{REALS, native_for, parts};
use crate::lower::matmul::activation;
use crate::lower::{
    CpuKernel, KernelPackFn, LoweredNode, always, floats_mut, kernel, missing, through_f32,
    zeroed_floats,
};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    kernel("im2col", OpKind::Im2Col, always, lower_columns),
    through_f32("conv", OpKind::Conv, supports, lower),
];

/// Minimum elements of a parallel im2col task.
const TASK: usize = 1 << 14;

/// Supports floats that are computed in f32. Other dtypes are decomposed into core operators.
pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    let dtype = graph.ty(node.inputs[0]).dtype;
    match &node.op {
        _ if !REALS.contains(&dtype) => native_for(REALS, dtype),
        Op::Conv(o) if activation(o.activation).is_none() => {
            missing("no fused epilogue for this activation")
        }
        _ => Support::Native,
    }
}

/// Sizes on three axes; missing ones are 1.
pub(super) fn three(sizes: &[usize]) -> [usize; 3] {
    let mut all = [1; 3];
    all[3 - sizes.len()..].copy_from_slice(sizes);
    all
}

/// Window parameters (stride, padding, dilation) on three axes, before sizes are known.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvWindowParams {
    stride: [usize; 3],
    dilation: [usize; 3],
    pad: [usize; 3],
    pub(super) pad_after: [usize; 3],
}

impl ConvWindowParams {
    pub(super) fn new(window: &Window) -> ConvWindowParams {
        let window = window.on_three_axes();
        ConvWindowParams {
            stride: three(&window.stride),
            dilation: three(&window.dilation),
            pad: three(&window.pad_before),
            pad_after: three(&window.pad_after),
        }
    }

    /// Window axes for `kernel` taps, spatial sizes `sizes` and result sizes `out`.
    pub(super) fn windows(
        &self,
        sizes: &[usize],
        kernel: &[usize],
        out: &[usize],
    ) -> ConvWindowAxes {
        ConvWindowAxes {
            sizes: three(sizes),
            kernel: three(kernel),
            out: three(out),
            stride: self.stride,
            dilation: self.dilation,
            pad: self.pad,
        }
    }

    /// Window axes with as many windows as fit.
    fn all(&self, sizes: &[usize], kernel: &[usize]) -> ConvWindowAxes {
        let mut w = self.windows(sizes, kernel, &[]);
        for axis in 0..3 {
            let reach = (w.kernel[axis] - 1) * w.dilation[axis] + 1;
            let padded = w.sizes[axis] + w.pad[axis] + self.pad_after[axis];
            w.out[axis] = (padded - reach) / w.stride[axis] + 1;
        }
        w
    }
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::Conv(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only one operator to this kernel")
    };
    let (frame, groups) = (ConvWindowParams::new(&op.window()), op.groups);
    let f = activation(op.activation).unwrap_or(GemmActivation::None);
    let shape_of = move |x: &[usize], w: &[usize], y: &[usize]| ConvShape {
        windows: frame.windows(&x[2..], &w[2..], &y[2..]),
        batch: x[0],
        groups,
        channels: w[1],
        m: w[0] / groups,
    };
    let level = SimdLevel::detect();
    // The sizes of x and y are not known yet, and the packed form does not depend on them.
    let packed_of = move |w: &[usize]| {
        let one = vec![1; w.len()];
        let shape = shape_of(&one, w, &one);
        packed_conv_len(level, &shape).map(|len| (shape, len))
    };
    let weights = graph.ty(node.inputs[1]).shape.as_known();
    let pack: Option<KernelPackFn> = weights.and_then(|w| packed_of(&w)).map(|(shape, len)| {
        let pack = move |w: &KernelView<'_>| -> Result<PackedConst, EvalError> {
            let mut packed = zeroed_floats(len)?;
            pack_conv(level, KernelThreads::Pool, &shape, w.dense(), &mut packed);
            Ok(PackedConst::new(packed))
        };
        Box::new(pack) as KernelPackFn
    });
    let run = move |args: &mut KernelArgs<'_>| -> Result<(), EvalError> {
        let (x, w) = (args.ins[0], args.ins[1]);
        let y = &mut args.outs[0];
        let shape = shape_of(x.shape(), w.shape(), y.shape());
        let bias = args.ins.get(2).map(|b| b.dense::<f32>());
        let w = match args
            .packed
            .and_then(|p| p.downcast_ref::<AlignedPages<f32>>())
        {
            Some(packed) => ConvWeights::Packed(packed),
            None => ConvWeights::Plain(w.dense()),
        };
        conv(
            level,
            KernelThreads::parallel(args.parallel),
            &shape,
            x.dense(),
            w,
            bias,
            f,
            y.as_mut(),
            floats_mut(args.scratch),
        );
        Ok(())
    };
    LoweredNode {
        scratch: Some(Box::new(move |layouts, threads| {
            let [x, w, .., y] = layouts else { return 0 };
            let shape = shape_of(x.shape(), w.shape(), y.shape());
            4 * conv_scratch_len(level, threads, &shape)
        })),
        pack: pack.map(|pack| (1, pack)),
        work: |layouts| {
            let k: usize = layouts[1].shape()[1..].iter().product();
            layouts.last().map_or(0, Layout::numel) * k / 16
        },
        ..LoweredNode::new(node.inputs.len(), run)
    }
}

pub(crate) fn lower_columns(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::Im2Col(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only one operator to this kernel")
    };
    let (frame, op) = (ConvWindowParams::new(&op.window()), op.clone());
    let is_known = graph.ty(node.inputs[0]).shape.as_known().is_some();
    let run = move |args: &mut KernelArgs<'_>| {
        if !is_known {
            let x = args.ins[0];
            let shape: Vec<Dim> = x.shape().iter().copied().map(Dim::Known).collect();
            let ty = Type::new(x.dtype, shape);
            let windows = op.windows(&ty);
            windows.map_err(|e| EvalError::Data(e.to_string()))?;
        }
        match args.outs[0].dtype.size_bytes() {
            1 => columns::<u8>(&frame, &op.kernel, args),
            2 => columns::<u16>(&frame, &op.kernel, args),
            4 => columns::<u32>(&frame, &op.kernel, args),
            _ => columns::<u64>(&frame, &op.kernel, args),
        }
        Ok(())
    };
    LoweredNode {
        fallible: !is_known,
        ..LoweredNode::new(1, run)
    }
}

fn columns<T: bytemuck::Pod + Default + Send + Sync>(
    frame: &ConvWindowParams,
    kernel: &[usize],
    args: &mut KernelArgs<'_>,
) {
    let (x, out) = (args.ins[0], &mut args.outs[0]);
    let w = frame.all(&x.shape()[2..], kernel);
    let (taps, plane, count) = (w.taps(), w.plane(), w.count());
    if out.layout.numel() == 0 {
        return;
    }
    let from: &[T] = bytemuck::cast_slice(x.dense_bytes());
    let to: &mut [T] = bytemuck::cast_slice_mut(out.bytes);
    let rows = TASK.div_ceil(count);
    parts(args.parallel, to, rows * count, |i, to| {
        for (j, to) in to.chunks_exact_mut(count).enumerate() {
            let row = i * rows + j;
            let plane = &from[row / taps * plane..][..plane];
            w.gather(plane, w.tap(row % taps), 0..count, to);
        }
    });
}
