//! `MatMul` of I32, to which matmuls and convolutions of quantized models are lowered.

use tercet_ir::layout::Layout;
use tercet_ir::{DType, EvalError, Graph, Node, OpKind, Support};

use crate::aligned_alloc::AlignedPages;
use crate::args::{KernelArgs, KernelView, PackedConst, PackedForm};
use crate::kernels::int_gemm::{IntGemmShape, int_gemm, int_gemm_wide, pack_panels};
#[cfg(tercet_byte_gemm)]
use crate::kernels::int_gemm_bytes as dots;
#[cfg(target_arch = "x86_64")]
use crate::kernels::int8_conv::gemm;
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::elem::native_for;
use crate::lower::{CpuKernel, KernelPackFn, LoweredNode, kernel, row_products, words};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel("int_gemm", OpKind::MatMul, supports, lower)];

/// Rows from which a right-hand side that is not constant is packed as bytes.
#[cfg(tercet_byte_gemm)]
const MIN_ROWS_TO_PACK: usize = 8;

/// Rows from which a right-hand side that is not constant is packed as pairs.
const MIN_ROWS_TO_PAIR: usize = 4;

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(&[DType::I32], graph.ty(node.inputs[0]).dtype)
}

/// Packed constant right-hand side.
enum IntMatMulWeights {
    /// Values within i8.
    #[cfg(target_arch = "x86_64")]
    Bytes(AlignedPages<i32>),
    /// Values that span a byte, for byte dot products.
    #[cfg(tercet_byte_gemm)]
    Dots(AlignedPages<i32>),
    Panels(AlignedPages<i32>),
    /// Values beyond 16 bits.
    Wide(AlignedPages<i32>),
}

impl PackedForm for IntMatMulWeights {
    fn bytes(&self) -> &[u8] {
        let words: &[i32] = match self {
            #[cfg(target_arch = "x86_64")]
            IntMatMulWeights::Bytes(words) => words,
            #[cfg(tercet_byte_gemm)]
            IntMatMulWeights::Dots(words) => words,
            IntMatMulWeights::Panels(words) | IntMatMulWeights::Wide(words) => words,
        };
        bytemuck::cast_slice(words)
    }
}

/// Sizes of one product of the last two axes; the leading axes count the matrices of each operand.
fn sizes(a: &[usize], b: &[usize]) -> IntGemmShape {
    let (k, n) = match b {
        [k] => (*k, 1),
        [.., k, n] => (*k, *n),
        [] => (1, 1),
    };
    let m = match a {
        [.., m, _] => *m,
        _ => 1,
    };
    IntGemmShape { m, k, n }
}

/// Like [`sizes`], but merges the leading axes of `a` into rows if there is a single `b`.
pub(super) fn joined(a: &[usize], b: &[usize]) -> IntGemmShape {
    match b.len() <= 2 && a.len() > 1 {
        true => IntGemmShape {
            m: a[..a.len() - 1].iter().product(),
            ..sizes(a, b)
        },
        false => sizes(a, b),
    }
}

fn pack(level: SimdLevel, w: &KernelView<'_>) -> Result<PackedConst, EvalError> {
    let (shape, b) = (sizes(&[], w.shape()), w.dense::<i32>());
    #[cfg(tercet_byte_gemm)]
    if let Some(center) = dots::center(level, KernelThreads::Pool, b) {
        let mut bytes = words(dots::packed_len(&shape))?;
        dots::pack(KernelThreads::Pool, &shape, b, center, &mut bytes);
        return Ok(PackedConst::new(IntMatMulWeights::Dots(bytes)));
    }
    #[cfg(target_arch = "x86_64")]
    if gemm::supports(level, b) {
        let mut bytes = words(gemm::packed_len(&shape))?;
        gemm::pack(&shape, b, &mut bytes);
        return Ok(PackedConst::new(IntMatMulWeights::Bytes(bytes)));
    }
    let _ = level;
    let mut panels = words(shape.panels_len())?;
    let weights = match pack_panels(KernelThreads::Pool, &shape, b, &mut panels) {
        true => IntMatMulWeights::Panels(panels),
        false => {
            let mut wide = words(b.len())?;
            wide.copy_from_slice(b);
            IntMatMulWeights::Wide(wide)
        }
    };
    Ok(PackedConst::new(weights))
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let level = SimdLevel::detect();
    let one_rhs = graph.ty(node.inputs[1]).rank() <= 2;
    let pack: KernelPackFn = Box::new(move |w: &KernelView<'_>| pack(level, w));
    LoweredNode {
        scratch: Some(Box::new(|layouts, _| {
            let shape = joined(layouts[0].shape(), layouts[1].shape());
            let own = shape.rows_len() + shape.panels_len();
            #[cfg(target_arch = "x86_64")]
            let own = own.max(gemm::scratch_len(&shape));
            #[cfg(tercet_byte_gemm)]
            let own = own.max(dots::scratch_len(&shape) + dots::packed_len(&shape));
            4 * own
        })),
        pack: one_rhs.then_some((1, pack)),
        work: |layouts| {
            let k = layouts[0].shape().last().copied().unwrap_or(1);
            layouts.last().map_or(0, Layout::numel) * k / 16
        },
        ..LoweredNode::new(2, move |args| {
            run(level, args);
            Ok(())
        })
    }
}

fn run(level: SimdLevel, args: &mut KernelArgs<'_>) {
    let threads = KernelThreads::parallel(args.parallel);
    let (a, b) = (args.ins[0], args.ins[1]);
    let shape = joined(a.shape(), b.shape());
    let scratch: &mut [i32] = bytemuck::cast_slice_mut(args.scratch);
    let y: &mut [i32] = args.outs[0].as_mut();
    let a_data = a.dense::<i32>();
    let packed = args
        .packed
        .and_then(|p| p.downcast_ref::<IntMatMulWeights>());
    #[cfg(target_arch = "x86_64")]
    if let Some(IntMatMulWeights::Bytes(weights)) = packed {
        if gemm::prefers_pairs(&shape, a_data, weights) {
            let (rows, panels) = scratch.split_at_mut(shape.rows_len());
            gemm::unpack_pairs(threads, &shape, weights, panels);
            return int_gemm(level, threads, &shape, a_data, panels, y, rows);
        }
        return gemm::byte_gemm(level, threads, &shape, a_data, weights, y, scratch);
    }
    #[cfg(tercet_byte_gemm)]
    if let Some(IntMatMulWeights::Dots(weights)) = packed {
        return dots::byte_gemm(level, threads, &shape, a_data, weights, y, scratch);
    }
    let whole = scratch;
    let (rows, _) = whole.split_at_mut(shape.rows_len());
    match packed {
        Some(IntMatMulWeights::Panels(panels)) => {
            return int_gemm(level, threads, &shape, a_data, panels, y, rows);
        }
        Some(IntMatMulWeights::Wide(b)) => return int_gemm_wide(threads, &shape, a_data, b, y),
        #[cfg(target_arch = "x86_64")]
        Some(IntMatMulWeights::Bytes(_)) => {}
        #[cfg(tercet_byte_gemm)]
        Some(IntMatMulWeights::Dots(_)) => {}
        None => {}
    }
    let b_data = b.dense::<i32>();
    if shape.m < MIN_ROWS_TO_PAIR {
        let shapes = [a.shape(), b.shape()];
        return row_products::products(level, threads, shapes, a_data, b_data, y);
    }
    // Packing is worth it if several rows read the panels.
    #[cfg(tercet_byte_gemm)]
    if shape.m >= MIN_ROWS_TO_PACK
        && let Some(center) = dots::center(level, threads, b_data)
    {
        let (bytes, rest) = whole.split_at_mut(dots::packed_len(&shape));
        let (own_a, own_b) = (shape.m * shape.k, shape.k * shape.n);
        for (i, y) in y.chunks_exact_mut((shape.m * shape.n).max(1)).enumerate() {
            let [at_a, at_b] = places(a.shape(), b.shape(), i);
            let b = &b_data[at_b * own_b..][..own_b];
            dots::pack(threads, &shape, b, center, bytes);
            dots::byte_gemm(
                level,
                threads,
                &shape,
                &a_data[at_a * own_a..][..own_a],
                bytes,
                y,
                rest,
            );
        }
        return;
    }
    let (rows, panels) = whole.split_at_mut(shape.rows_len());
    let (own_a, own_b) = (shape.m * shape.k, shape.k * shape.n);
    for (i, y) in y.chunks_exact_mut((shape.m * shape.n).max(1)).enumerate() {
        let [at_a, at_b] = places(a.shape(), b.shape(), i);
        let a = &a_data[at_a * own_a..][..own_a];
        let b = &b_data[at_b * own_b..][..own_b];
        match pack_panels(threads, &shape, b, panels) {
            true => int_gemm(level, threads, &shape, a, panels, y, rows),
            false => int_gemm_wide(threads, &shape, a, b, y),
        }
    }
}

/// Matrix index in each operand for product `i`; the leading axes broadcast.
pub(super) fn places(a: &[usize], b: &[usize], mut i: usize) -> [usize; 2] {
    if b.len() <= 2 {
        return [0, 0];
    }
    let [lead_a, lead_b] = [a, b].map(|shape| &shape[..shape.len().saturating_sub(2)]);
    let (mut at, mut step) = ([0; 2], [1; 2]);
    for axis in 1..=lead_a.len().max(lead_b.len()) {
        let [n_a, n_b] = [lead_a, lead_b].map(|lead| {
            let place = lead.len().checked_sub(axis);
            place.map_or(1, |place| lead[place])
        });
        let n = if n_a == 1 { n_b } else { n_a };
        let index = i % n.max(1);
        i /= n.max(1);
        for (side, own) in [n_a, n_b].into_iter().enumerate() {
            if own != 1 {
                at[side] += index * step[side];
            }
            step[side] *= own;
        }
    }
    at
}
