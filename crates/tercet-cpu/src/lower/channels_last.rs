//! Channels-last (NHWC) convolutions and pools ([`tercet_ir::passes::channels_last`]).
//!
//! Operands and results have permuted types: x is `[N, H, W, C]`. The x of a first layer is the
//! exception: it stays `[N, C, H, W]`, and the kernel reads it plane by plane.

use tercet_ir::layout::Layout;
use tercet_ir::ops::{Conv, Pool, PoolFn};
use tercet_ir::passes::ConvResidualSum;
use tercet_ir::{DType, EvalError, Graph, Node, NodeId, Op, OpKind};

use crate::aligned_alloc::AlignedPages;
use crate::args::{KernelArgs, KernelView, PackedConst};
use crate::kernels::conv::{
    ConvShape, ConvWindowAxes, NhwcEpilogue, NhwcInputLayout, extreme_greater, extreme_lesser,
    nhwc_conv, nhwc_conv_scratch_len, pack_nhwc_conv, packed_nhwc_conv_len,
};
use crate::kernels::gemm::GemmActivation;
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::conv::ConvWindowParams;
use crate::lower::elem::parts;
use crate::lower::matmul::activation;
use crate::lower::{AcceptedLayout, KernelPackFn, LoweredNode, floats_mut, varies, zeroed_floats};

/// Maximum channels for which x is read plane by plane.
const MAX_PLANAR_CHANNELS: usize = 8;
/// Minimum elements of a parallel pooling task.
const TASK: usize = 1 << 13;
/// Number of taps from which f32 sums lose accuracy and f64 is used.
const MIN_TAPS_FOR_F64_SUMS: usize = 64;

/// Returns a predicate: true for the convolutions and pools of the graph that can run
/// channels-last.
pub(crate) fn able(graph: &Graph) -> impl Fn(&Graph, &Node) -> bool + use<> {
    // For each node, true if its values are known before any run. Weights must be constant, because
    // they are packed once.
    let mut constant: Vec<bool> = Vec::with_capacity(graph.len());
    for (_, node) in graph.nodes() {
        let known = node.outputs.iter().all(|ty| ty.shape.as_known().is_some());
        let leaf = matches!(node.op.kind(), OpKind::Param | OpKind::Const);
        let made = !node.inputs.is_empty() && node.inputs.iter().all(|v| constant[v.node.index()]);
        constant.push(known && !varies(&node.op) && (leaf || made));
    }
    let is_constant = move |id: NodeId| constant[id.index()];
    move |graph, node| {
        let is_picture = |v: &tercet_ir::Value| {
            let ty = graph.ty(*v);
            ty.dtype == DType::F32 && ty.rank() == 4
        };
        match (&node.op, node.inputs.as_slice()) {
            (Op::Conv(o), [x, w, ..]) => {
                let weights = graph.ty(*w).shape.as_known();
                let fits = weights.is_some_and(|w| supports(o, &w));
                let applies = o.activation.is_none() || activation(o.activation).is_some();
                is_picture(x) && is_constant(w.node) && fits && applies
            }
            (Op::Pool(o), [x]) => {
                let taps: usize = o.kernel.iter().product();
                let exact =
                    matches!(o.f, PoolFn::Max | PoolFn::Min) || taps <= MIN_TAPS_FOR_F64_SUMS;
                is_picture(x) && exact && node.outputs[0].dtype == DType::F32
            }
            (_, _) => false,
        }
    }
}

/// True if the kernel of a convolution can add a residual.
pub(crate) fn adds(graph: &Graph, node: &Node) -> bool {
    matches!(&node.op, Op::Conv(o) if o.groups == 1) && !reads_planes(graph, node)
}

/// True if the kernels support a convolution with weights of this shape.
fn supports(o: &Conv, w: &[usize]) -> bool {
    let &[m, channels, tall, wide] = w else {
        return false;
    };
    match o.groups {
        1 => m > 0 && channels > 0 && tall * wide > 0,
        groups => {
            let lanes = SimdLevel::detect().lanes();
            m == groups && channels == 1 && groups % lanes == 0 && tall * wide > 0
        }
    }
}

/// True if a convolution reads x plane by plane, which needs few channels. All other convolutions
/// need x channels-last.
pub(crate) fn reads_planes(graph: &Graph, node: &Node) -> bool {
    let Op::Conv(o) = &node.op else { return false };
    let Some(w) = graph.ty(node.inputs[1]).shape.as_known() else {
        return false;
    };
    let one = [1, 1];
    let windows = ConvWindowParams::new(&o.window()).windows(&one, &w[2..], &one);
    o.groups == 1 && w[1] <= MAX_PLANAR_CHANNELS && windows.is_compact()
}

fn sizes(layout: &Layout) -> [usize; 4] {
    let mut sizes = [1; 4];
    sizes.copy_from_slice(layout.shape());
    sizes
}

/// Windows of a convolution or pool, from the layouts of x and y.
fn windows(
    frame: &ConvWindowParams,
    is_first: bool,
    kernel: &[usize],
    x: &Layout,
    y: &Layout,
) -> ConvWindowAxes {
    let ([_, a, b, c], [_, height, width, _]) = (sizes(x), sizes(y));
    let of_x = if is_first { [b, c] } else { [a, b] };
    frame.windows(&of_x, kernel, &[height, width])
}

/// Convolution sizes from the layouts of x, the weights and y.
fn conv_shape(
    frame: &ConvWindowParams,
    groups: usize,
    is_first: bool,
    [x, w, y]: [&Layout; 3],
) -> ConvShape {
    let of_w = sizes(w);
    ConvShape {
        windows: windows(frame, is_first, &of_w[2..], x, y),
        batch: sizes(x)[0],
        groups,
        channels: of_w[1],
        m: of_w[0] / groups,
    }
}

/// Lowers a convolution. The convolution reads x as `[N, C, H, W]` if `is_first`, otherwise
/// channels-last. With `sum`, the last operand is a residual to add.
pub(crate) fn lower_conv(
    node: &Node,
    is_first: bool,
    sum: Option<&ConvResidualSum>,
) -> LoweredNode {
    let Op::Conv(op) = &node.op else {
        unreachable!("invariant: the caller passes only one operator to this kernel")
    };
    let (frame, groups) = (ConvWindowParams::new(&op.window()), op.groups);
    let f = activation(op.activation).unwrap_or(GemmActivation::None);
    let has_bias = node.inputs.len() > 2;
    let (adds, after) = (sum.is_some(), activation(sum.and_then(|s| s.activation)));
    let after = after.unwrap_or(GemmActivation::None);
    let shape_of =
        move |x: &Layout, w: &Layout, y: &Layout| conv_shape(&frame, groups, is_first, [x, w, y]);
    let level = SimdLevel::detect();
    let pack = move |w: &KernelView<'_>| -> Result<PackedConst, EvalError> {
        // The sizes of x and y are not known yet, and the packed form does not depend on them.
        let one = Layout::dense(&[1; 4]);
        let shape = shape_of(&one, w.layout, &one);
        let mut packed = zeroed_floats(packed_nhwc_conv_len(level, &shape))?;
        pack_nhwc_conv(
            level,
            KernelThreads::Pool,
            &shape,
            is_first,
            w.dense(),
            &mut packed,
        );
        Ok(PackedConst::new(packed))
    };
    let run = move |args: &mut KernelArgs<'_>| -> Result<(), EvalError> {
        let (x, w) = (args.ins[0], args.ins[1]);
        let y = &mut args.outs[0];
        let shape = shape_of(x.layout, w.layout, y.layout);
        let bias = has_bias.then(|| args.ins[2].dense::<f32>());
        let residual = args.ins.last().filter(|_| adds).map(|r| r.dense::<f32>());
        let end = NhwcEpilogue {
            activation: f,
            residual,
            after,
        };
        let packed = args
            .packed
            .and_then(|p| p.downcast_ref::<AlignedPages<f32>>());
        let packed = packed.expect("invariant: the weights are constant, and packed");
        let stride = |axis: usize| x.layout.strides()[axis] as usize;
        let source = match is_first {
            true => NhwcInputLayout::ChannelsFirst,
            false => NhwcInputLayout::ChannelsLast([stride(0), stride(1), stride(2)]),
        };
        nhwc_conv(
            level,
            KernelThreads::parallel(args.parallel),
            &shape,
            if is_first { x.dense() } else { x.tail() },
            source,
            packed,
            bias,
            end,
            y.as_mut(),
            floats_mut(args.scratch),
        );
        Ok(())
    };
    let operands = node.inputs.len() + usize::from(adds);
    let mut accepts = vec![AcceptedLayout::Dense; operands];
    if !is_first {
        accepts[0] = AcceptedLayout::Rows;
    }
    LoweredNode {
        accepts,
        scratch: Some(Box::new(move |layouts, threads| {
            let [x, w, .., y] = layouts else { return 0 };
            let shape = shape_of(x, w, y);
            4 * nhwc_conv_scratch_len(level, threads, &shape, is_first)
        })),
        pack: Some((1, Box::new(pack) as KernelPackFn)),
        work: |layouts| {
            let k: usize = layouts[1].shape()[1..].iter().product();
            layouts.last().map_or(0, Layout::numel) * k / 16
        },
        ..LoweredNode::new(operands, run)
    }
}

/// Lowers a pool.
pub(crate) fn lower_pool(node: &Node) -> LoweredNode {
    let Op::Pool(op) = &node.op else {
        unreachable!("invariant: the caller passes only one operator to this kernel")
    };
    let (op, frame) = (op.clone(), ConvWindowParams::new(&op.window()));
    LoweredNode {
        accepts: vec![AcceptedLayout::Rows],
        work: |layouts| 4 * layouts.iter().map(Layout::numel).max().unwrap_or(0),
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            pool(&op, &frame, args);
            Ok(())
        })
    }
}

fn pool(op: &Pool, frame: &ConvWindowParams, args: &mut KernelArgs<'_>) {
    let (x, out) = (args.ins[0], &mut args.outs[0]);
    if out.layout.numel() == 0 {
        return;
    }
    let w = windows(frame, false, &op.kernel, x.layout, out.layout);
    let [_, height, width, channels] = sizes(out.layout);
    let strides: Vec<usize> = x.layout.strides().iter().map(|s| *s as usize).collect();
    let (data, level): (&[f32], _) = (x.tail(), SimdLevel::detect());
    let row = width * channels;
    let rows = TASK.div_ceil(row * w.taps().min(MIN_TAPS_FOR_F64_SUMS));
    parts(
        args.parallel,
        out.as_mut(),
        rows * row,
        |i, y: &mut [f32]| {
            for (j, y) in y.chunks_exact_mut(row).enumerate() {
                let (entry, h) = ((i * rows + j) / height, (i * rows + j) % height);
                for (col, y) in y.chunks_exact_mut(channels).enumerate() {
                    let at = |tap: [usize; 3]| {
                        let of = [0, h, col];
                        let inside = |axis: usize| {
                            let at = of[axis] * w.stride[axis] + tap[axis] * w.dilation[axis];
                            at.checked_sub(w.pad[axis]).filter(|at| *at < w.sizes[axis])
                        };
                        let (h, v) = (inside(1)?, inside(2)?);
                        let from = entry * strides[0] + h * strides[1] + v * strides[2];
                        Some(&data[from..from + channels])
                    };
                    let taps = (0..w.taps()).filter_map(|t| at(w.tap(t)));
                    match op.f {
                        PoolFn::Max => fold(y, taps, f32::NEG_INFINITY, |y, x| {
                            extreme_greater(level, y, x)
                        }),
                        PoolFn::Min => {
                            fold(y, taps, f32::INFINITY, |y, x| extreme_lesser(level, y, x))
                        }
                        PoolFn::Sum | PoolFn::Mean => fold(y, taps, 0.0, plus),
                        PoolFn::Prod => fold(y, taps, 1.0, times),
                    }
                    if op.f == PoolFn::Mean {
                        let counted = super::pool::taps_of(op, frame, &w, 1, h)
                            * super::pool::taps_of(op, frame, &w, 2, col);
                        y.iter_mut().for_each(|y| *y /= counted as f32);
                    }
                }
            }
        },
    );
}

fn plus(y: &mut [f32], x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += *x);
}

fn times(y: &mut [f32], x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y *= *x);
}

#[inline(always)]
fn fold<'a>(
    y: &mut [f32],
    taps: impl Iterator<Item = &'a [f32]>,
    start: f32,
    f: impl Fn(&mut [f32], &[f32]),
) {
    y.fill(start);
    for x in taps {
        f(y, x);
    }
}
