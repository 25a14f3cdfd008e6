//! Matrix products of f32: `MatMul` and `Linear`.
//!
//! A constant right-hand side is packed once; one that changes is packed in scratch memory at each
//! call. Products with packed blocks are in `quant_matmul.rs`.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{EvalError, Graph, Node, Op, Support};

use crate::args::{Args, Packed, View};
use crate::kernels::gemm::{
    Activation, Epilogue, MatView, PackedB, gemm, gemm_packed, gemm_packed_scratch_len, pack_b,
    packed_b_len,
};
use crate::kernels::parallel::{Chunks, for_each_part};
use crate::kernels::{SimdLevel, Threads};
use crate::lower::elem::{REALS, native_for};
use crate::lower::{Accept, Lowered, Pack, floats_mut, missing, zeroed_floats};
use crate::pages::Pages;
use tercet_ir::layout::Layout;

/// Real numbers; integers and f64 have no packed kernels.
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

pub(super) fn activation(f: Option<UnaryFn>) -> Option<Activation> {
    Some(match f {
        None => Activation::None,
        Some(UnaryFn::Relu) => Activation::Relu,
        Some(UnaryFn::Relu6) => Activation::Relu6,
        Some(UnaryFn::Gelu) => Activation::Gelu,
        Some(UnaryFn::GeluTanh) => Activation::GeluTanh,
        Some(UnaryFn::Silu) => Activation::Silu,
        Some(UnaryFn::Sigmoid) => Activation::Sigmoid,
        Some(UnaryFn::Tanh) => Activation::Tanh,
        Some(_) => return None,
    })
}

/// `MatMul` and `Linear`.
pub(crate) fn lower(graph: &Graph, node: &Node) -> Lowered {
    let fused = match &node.op {
        Op::Linear(o) => activation(o.activation).unwrap_or(Activation::None),
        _ => Activation::None,
    };
    let level = SimdLevel::detect();
    let shared_rhs = graph.ty(node.inputs[1]).rank() <= 2;
    let accepts = node.inputs.iter().enumerate().map(|(i, v)| {
        // Leading axes merge into rows only where they are dense; two axes may have any strides.
        match (i, graph.ty(*v).rank()) {
            (0 | 1, 2) => Accept::Matrix,
            (1, n) if n > 2 => Accept::Matrix,
            (0, n) if n > 2 && !shared_rhs => Accept::Matrix,
            _ => Accept::Dense,
        }
    });
    let accepts = accepts.collect();
    let run = move |args: &mut Args<'_>| {
        run(level, fused, shared_rhs, args);
        Ok(())
    };
    let pack: Pack = Box::new(move |w| pack(level, w));
    Lowered {
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
        work: |layouts| {
            let k = layouts[0].shape().last().copied().unwrap_or(1);
            layouts.last().map_or(0, Layout::numel) * k / 16
        },
        ..Lowered::new(node.inputs.len(), run)
    }
}

/// Rows, depth and columns of one product; leading axes count as rows where the right-hand side is
/// one matrix.
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

fn pack(level: SimdLevel, w: &View<'_>) -> Result<Packed, EvalError> {
    let b = right(w, w.tail());
    let mut packed = zeroed_floats(packed_b_len(level, b.rows, b.cols))?;
    pack_b(level, Threads::Pool, b, &mut packed);
    Ok(Box::new(packed))
}

/// The last two axes as a matrix; one axis is a column.
fn right<'a>(w: &View<'_>, data: &'a [f32]) -> MatView<'a> {
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

/// The rows of the left-hand side: two axes with their strides, or everything before the last axis
/// of a dense operand.
pub(super) fn left<'a>(x: &View<'a>, m: usize, k: usize) -> MatView<'a> {
    let (row_stride, col_stride) = match x.layout.strides() {
        // Rows without elements all begin where the data ends.
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

fn run(level: SimdLevel, activation: Activation, shared_rhs: bool, args: &mut Args<'_>) {
    let threads = Threads::parallel(args.parallel);
    let (a, b) = (args.ins[0], args.ins[1]);
    let (m, k, n) = sizes(a.layout, b.layout, shared_rhs);
    let epilogue = Epilogue {
        bias: args.ins.get(2).map(View::dense),
        activation,
        residual: None,
        after: Activation::None,
    };
    let scratch = floats_mut(args.scratch);
    let y: &mut [f32] = args.outs[0].as_mut();
    if shared_rhs {
        let a = left(&a, m, k);
        match args.packed.and_then(|p| p.downcast_ref::<Pages<f32>>()) {
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

/// From one column of an operand to the next.
fn last_stride(a: &Layout) -> usize {
    a.strides().last().map_or(1, |step| *step as usize)
}

/// Floats of scratch memory of one product on so many threads.
fn scratch_len(
    level: SimdLevel,
    threads: usize,
    [m, n, k]: [usize; 3],
    a_col_stride: usize,
) -> usize {
    gemm_packed_scratch_len(level, threads, [m, n, k], a_col_stride) + packed_b_len(level, k, n)
}

/// The groups of products that run at once, each product of one thread with so many floats of scratch memory; nothing where threads
/// share each product instead, as those of few large ones do.
fn groups(threads: usize, products: usize, scratch: usize) -> Option<usize> {
    /// Groups per thread, so that uneven threads even out.
    const GROUPS: usize = 4;
    /// Floats of scratch memory of a product that the caches hold beside the others.
    const SMALL: usize = 1 << 16;
    let fits = threads > 1 && products >= 2 * threads && (1..=SMALL).contains(&scratch);
    fits.then(|| products.min(GROUPS * threads))
}

/// The leading axes of a product, which broadcast: their number, and their sizes.
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

/// One product per index of the leading axes, which broadcast.
fn batched(
    level: SimdLevel,
    threads: Threads,
    a: &View<'_>,
    b: &View<'_>,
    (m, k, n): (usize, usize, usize),
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let (lead, shape) = leading(a.layout, b.layout);
    // Where the operand of product `i` begins.
    let offset = |v: &View<'_>, mut i: usize| -> usize {
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
        gemm(level, threads, rows, cols, y, n, &Epilogue::NONE, scratch);
    };
    debug_assert!(k == a.shape().last().copied().unwrap_or(1));
    let size = (m * n).max(1);
    let products = y.len() / size;
    let one = scratch_len(level, 1, [m, n, k], last_stride(a.layout));
    if let Some(groups) = groups(threads.count(), products, one) {
        let each = products.div_ceil(groups);
        let parts = (
            Chunks::new(y, each * size),
            Chunks::new(&mut scratch[..groups * one], one),
        );
        for_each_part(threads, parts, |group, (y, scratch)| {
            for (i, y) in y.chunks_mut(size).enumerate() {
                product(group * each + i, Threads::Serial, y, scratch);
            }
        });
        return;
    }
    for (i, y) in y.chunks_mut(size).enumerate() {
        product(i, threads, y, scratch);
    }
}
