//! Matmuls in f32: `MatMul` and `Linear`.
//!
//! A constant right-hand side is packed once. Any other right-hand side is packed into scratch
//! memory at each call. Matmuls with quantized weights are in `quant_matmul.rs`.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{EvalError, Graph, Node, Op, OpKind, Support};

use crate::aligned_alloc::AlignedPages;
use crate::args::{KernelArgs, KernelView, PackedConst};
use crate::kernels::gemm::{
    GemmActivation, GemmEpilogue, MatView, PackedB, gemm, gemm_packed, gemm_packed_scratch_len,
    pack_b, packed_b_len,
};
use crate::kernels::parallel::{DisjointChunks, for_each_part};
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::elem::{REALS, native_for};
use crate::lower::{
    AcceptedLayout, CpuKernel, KernelPackFn, LoweredNode, floats_mut, missing, through_f32,
    zeroed_floats,
};
use tercet_ir::layout::Layout;

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    through_f32("gemm", OpKind::MatMul, supports, lower),
    through_f32("gemm", OpKind::Linear, supports, lower),
];

/// Supports floats that are computed in f32; integers and f64 have no packed kernels.
pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    let dtype = graph.ty(node.inputs[0]).dtype;
    if !REALS.contains(&dtype) {
        return native_for(REALS, dtype);
    }
    match &node.op {
        Op::Linear(o) if o.activation.is_some_and(|f| activation(Some(f)).is_none()) => {
            missing("no fused epilogue for this activation")
        }
        _ => Support::Native,
    }
}

pub(super) fn activation(f: Option<UnaryFn>) -> Option<GemmActivation> {
    Some(match f {
        None => GemmActivation::None,
        Some(UnaryFn::Relu) => GemmActivation::Relu,
        Some(UnaryFn::Relu6) => GemmActivation::Relu6,
        Some(UnaryFn::Gelu) => GemmActivation::Gelu,
        Some(UnaryFn::GeluTanh) => GemmActivation::GeluTanh,
        Some(UnaryFn::Silu) => GemmActivation::Silu,
        Some(UnaryFn::Sigmoid) => GemmActivation::Sigmoid,
        Some(UnaryFn::Tanh) => GemmActivation::Tanh,
        Some(_) => return None,
    })
}

/// Lowers `MatMul` and `Linear`.
pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let fused = match &node.op {
        Op::Linear(o) => activation(o.activation).unwrap_or(GemmActivation::None),
        _ => GemmActivation::None,
    };
    let level = SimdLevel::detect();
    let shared_rhs = graph.ty(node.inputs[1]).rank() <= 2;
    let accepts = node.inputs.iter().enumerate().map(|(i, v)| {
        // Leading axes can only be merged into rows if they are dense. The last two axes may have
        // any strides.
        match (i, graph.ty(*v).rank()) {
            (0 | 1, 2) => AcceptedLayout::Matrix,
            (1, n) if n > 2 => AcceptedLayout::Matrix,
            (0, n) if n > 2 && !shared_rhs => AcceptedLayout::Matrix,
            _ => AcceptedLayout::Dense,
        }
    });
    let accepts = accepts.collect();
    let run = move |args: &mut KernelArgs<'_>| {
        run(level, fused, shared_rhs, args);
        Ok(())
    };
    let pack: KernelPackFn = Box::new(move |w| pack(level, w));
    LoweredNode {
        accepts,
        scratch: Some(Box::new(move |layouts, threads| {
            let (m, k, n) = sizes(&layouts[0], &layouts[1], shared_rhs);
            let step = last_stride(&layouts[0]);
            let whole = scratch_len(level, threads, [m, n, k], step);
            let groups = match shared_rhs {
                true => None,
                false => {
                    let one = scratch_len(level, 1, [m, n, k], step);
                    let products = product_count(&layouts[0], &layouts[1]);
                    groups(threads, products, one).map(|groups| groups * one)
                }
            };
            4 * whole.max(groups.unwrap_or(0))
        })),
        pack: shared_rhs.then_some((1, pack)),
        pack_name: Some("panels of f32"),
        work: |layouts| {
            let k = layouts[0].shape().last().copied().unwrap_or(1);
            layouts.last().map_or(0, Layout::numel) * k / 16
        },
        ..LoweredNode::new(node.inputs.len(), run)
    }
}

/// Sizes `(m, k, n)` of one matrix product. If the right-hand side is a single matrix, the leading
/// axes of the left-hand side count as rows.
fn sizes(a: &Layout, b: &Layout, shared_rhs: bool) -> (usize, usize, usize) {
    let (a, b) = (a.shape(), b.shape());
    let (lead, k) = a.split_at(a.len() - 1);
    let m = match shared_rhs {
        true => lead.iter().product(),
        false => lead.last().copied().unwrap_or(1),
    };
    let n = if b.len() == 1 { 1 } else { b[b.len() - 1] };
    (m, k[0], n)
}

fn pack(level: SimdLevel, w: &KernelView<'_>) -> Result<PackedConst, EvalError> {
    let b = right(w, w.tail());
    let mut packed = zeroed_floats(packed_b_len(level, b.rows, b.cols))?;
    pack_b(level, KernelThreads::Pool, b, &mut packed);
    Ok(PackedConst::new(packed))
}

/// Matrix view of the last two axes; a one-dimensional operand is a column.
fn right<'a>(w: &KernelView<'_>, data: &'a [f32]) -> MatView<'a> {
    let (shape, strides) = (w.shape(), w.layout.strides());
    let at = shape.len().saturating_sub(2);
    match shape.len() {
        1 => MatView {
            data,
            rows: shape[0],
            cols: 1,
            row_stride: strides[0] as usize,
            col_stride: 1,
        },
        _ => MatView {
            data,
            rows: shape[at],
            cols: shape[at + 1],
            row_stride: strides[at] as usize,
            col_stride: strides[at + 1] as usize,
        },
    }
}

/// Rows of the left-hand side: two axes with their strides, or all leading axes of a dense operand
/// merged.
pub(super) fn lhs<'a>(x: &KernelView<'a>, m: usize, k: usize) -> MatView<'a> {
    let (row_stride, col_stride) = match x.layout.strides() {
        // With k = 0 every row is empty and starts at the end of the data.
        _ if k == 0 => (0, 1),
        [row, col] => (*row as usize, *col as usize),
        _ => (k, 1),
    };
    MatView {
        data: x.tail(),
        rows: m,
        cols: k,
        row_stride,
        col_stride,
    }
}

fn run(level: SimdLevel, activation: GemmActivation, shared_rhs: bool, args: &mut KernelArgs<'_>) {
    let threads = KernelThreads::parallel(args.parallel);
    let (a, b) = (args.ins[0], args.ins[1]);
    let (m, k, n) = sizes(a.layout, b.layout, shared_rhs);
    let epilogue = GemmEpilogue {
        bias: args.ins.get(2).map(KernelView::dense),
        activation,
        residual: None,
        after: GemmActivation::None,
    };
    let scratch = floats_mut(args.scratch);
    let y: &mut [f32] = args.outs[0].as_mut();
    if shared_rhs {
        let a = lhs(&a, m, k);
        match args
            .packed
            .and_then(|p| p.downcast_ref::<AlignedPages<f32>>())
        {
            Some(packed) => {
                let packed = PackedB::new(level, packed, k, n);
                gemm_packed(level, threads, a, packed, y, n, &epilogue, scratch);
            }
            None => gemm(
                level,
                threads,
                a,
                right(&b, b.tail()),
                y,
                n,
                &epilogue,
                scratch,
            ),
        }
        return;
    }
    batched(level, threads, &a, &b, (m, k, n), y, scratch);
}

/// Stride between the columns of an operand.
fn last_stride(a: &Layout) -> usize {
    a.strides().last().map_or(1, |step| *step as usize)
}

/// Floats of scratch memory of one product on `threads` threads.
fn scratch_len(
    level: SimdLevel,
    threads: usize,
    [m, n, k]: [usize; 3],
    a_col_stride: usize,
) -> usize {
    gemm_packed_scratch_len(level, threads, [m, n, k], a_col_stride) + packed_b_len(level, k, n)
}

/// Number of groups into which the `products` are split so that groups run in parallel; one thread
/// then computes a product with `scratch` floats. `None` if all threads should share each product,
/// which is faster for few large products.
fn groups(threads: usize, products: usize, scratch: usize) -> Option<usize> {
    /// Groups per thread, for load balancing.
    const GROUPS: usize = 4;
    /// Maximum scratch floats per product, so that the caches hold several products at once.
    const SMALL: usize = 1 << 16;
    let fits = threads > 1 && products >= 2 * threads && (1..=SMALL).contains(&scratch);
    fits.then(|| products.min(GROUPS * threads))
}

/// The leading axes of both operands after broadcasting: their number and their sizes.
fn leading(a: &Layout, b: &Layout) -> (usize, [usize; tercet_ir::MAX_RANK]) {
    let rank = |v: &Layout| v.rank().saturating_sub(2);
    let lead = rank(a).max(rank(b));
    let mut shape = [1usize; tercet_ir::MAX_RANK];
    for v in [a, b] {
        let skip = lead - rank(v);
        for axis in 0..rank(v) {
            if v.shape()[axis] != 1 {
                shape[skip + axis] = v.shape()[axis];
            }
        }
    }
    (lead, shape)
}

fn product_count(a: &Layout, b: &Layout) -> usize {
    let (lead, shape) = leading(a, b);
    shape[..lead].iter().product()
}

/// Computes one product per index of the broadcast leading axes.
fn batched(
    level: SimdLevel,
    threads: KernelThreads,
    a: &KernelView<'_>,
    b: &KernelView<'_>,
    (m, k, n): (usize, usize, usize),
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let (lead, shape) = leading(a.layout, b.layout);
    // Start offset of an operand in product `i`.
    let offset = |v: &KernelView<'_>, mut i: usize| -> usize {
        let skip = lead - v.shape().len().saturating_sub(2);
        let mut at = 0;
        for axis in (0..lead).rev() {
            let index = i % shape[axis];
            i /= shape[axis];
            if axis >= skip && v.shape()[axis - skip] != 1 {
                at += index * v.layout.strides()[axis - skip] as usize;
            }
        }
        at
    };
    let product = |i: usize, threads, y: &mut [f32], scratch: &mut [f32]| {
        let (own_a, own_b) = (a.tail::<f32>(), b.tail::<f32>());
        let own_a = own_a.get(offset(a, i)..).unwrap_or(&[]);
        let own_b = own_b.get(offset(b, i)..).unwrap_or(&[]);
        let mut rows = right(a, own_a);
        if a.shape().len() == 1 {
            rows = rows.transposed();
        }
        let cols = right(b, own_b);
        gemm(
            level,
            threads,
            rows,
            cols,
            y,
            n,
            &GemmEpilogue::NONE,
            scratch,
        );
    };
    debug_assert!(k == a.shape().last().copied().unwrap_or(1));
    let size = (m * n).max(1);
    let products = y.len() / size;
    let one = scratch_len(level, 1, [m, n, k], last_stride(a.layout));
    // Scratch memory is sized for the bounds. If products of that size are too large for groups,
    // it may be too short for all groups of smaller products.
    let fitting = |groups: usize| groups.min(scratch.len() / one);
    let groups = groups(threads.count(), products, one).map(fitting);
    if let Some(groups) = groups.filter(|groups| *groups >= threads.count()) {
        let each = products.div_ceil(groups);
        let parts = (
            DisjointChunks::new(y, each * size),
            DisjointChunks::new(&mut scratch[..groups * one], one),
        );
        for_each_part(threads, parts, |group, (y, scratch)| {
            for (i, y) in y.chunks_mut(size).enumerate() {
                product(group * each + i, KernelThreads::Serial, y, scratch);
            }
        });
        return;
    }
    for (i, y) in y.chunks_mut(size).enumerate() {
        product(i, threads, y, scratch);
    }
}
