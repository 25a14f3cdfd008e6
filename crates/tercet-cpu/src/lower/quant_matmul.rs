//! `DequantMatMul`: f32 activations times block-quantized weights.
//!
//! Constant weights are repacked (8 rows interleaved) if that speeds up matmuls of one row. The
//! repacked form has the same size. Weights that are not constant, or whose scheme gains nothing,
//! are not repacked.

use tercet_ir::layout::Layout;
use tercet_ir::{EvalError, Graph, Node, Op, OpKind, Scheme};

use crate::aligned_alloc::AlignedPages;
use crate::args::{KernelArgs, KernelView, PackedConst, PackedForm};
use crate::kernels::gemm::GemmEpilogue;
use crate::kernels::quant::{
    QuantRowLayout, QuantView, i16_scratch_len, pack_strips, quant_matmul, quant_matmul_i16,
    quant_matmul_scratch_len, repack_is_profitable, strips_scratch_len,
};
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::matmul::lhs;
use crate::lower::{
    AcceptedLayout, CpuKernel, KernelPackFn, LowerFn, LoweredNode, floats_mut, row, zeroed_floats,
};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[CpuKernel {
    supports: super::matmul::supports,
    through_f32: true,
    ..row(
        "quant_matmul",
        OpKind::DequantMatMul,
        LowerFn::MatMul(lower),
    )
}];

/// Alignment of repacked weights, so that a vector never spans two cache lines.
const ALIGN: usize = 64;

/// Weights repacked with 8 rows interleaved.
struct RepackedX8 {
    memory: AlignedPages<f32>,
    /// Byte offset of the first aligned block.
    start: usize,
    len: usize,
}

impl PackedForm for RepackedX8 {
    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.memory)[self.start..][..self.len]
    }
}

fn pack(level: SimdLevel, scheme: Scheme, w: &KernelView<'_>) -> Result<PackedConst, EvalError> {
    let bytes = w.dense_bytes();
    let (n, row_bytes) = (w.shape()[0], bytes.len().checked_div(w.shape()[0]));
    let w = QuantView {
        scheme,
        bytes,
        n,
        k: row_bytes.unwrap_or(0) / scheme.block_bytes() * scheme.block_len(),
        arrangement: QuantRowLayout::Rows,
    };
    let mut memory = zeroed_floats((bytes.len() + ALIGN).div_ceil(4))?;
    let start = memory.as_ptr().cast::<u8>().align_offset(ALIGN) % ALIGN;
    let to: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
    pack_strips(
        level,
        KernelThreads::Pool,
        &w,
        &mut to[start..][..bytes.len()],
    );
    let len = bytes.len();
    Ok(PackedConst::new(RepackedX8 { memory, start, len }))
}

/// Lowers `DequantMatMul` of f32 activations. If `rounded`, large-M matmuls may round activations
/// to 16-bit fixed point.
pub(crate) fn lower(graph: &Graph, node: &Node, rounded: bool) -> LoweredNode {
    let Op::DequantMatMul(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only one operator to this kernel")
    };
    let scheme: Scheme = op.scheme;
    let level = SimdLevel::detect();
    let x_rank = graph.ty(node.inputs[0]).rank();
    let run = move |args: &mut KernelArgs<'_>| -> Result<(), EvalError> {
        let (x, w) = (args.ins[0], args.ins[1]);
        let k = x.shape().last().copied().unwrap_or(1);
        let n = w.shape()[0];
        let m = x.shape()[..x.shape().len() - 1].iter().product();
        let strips = args.packed.and_then(|p| p.downcast_ref::<RepackedX8>());
        let (bytes, arrangement) = match strips {
            Some(strips) => (strips.bytes(), QuantRowLayout::Strips),
            None => (w.dense_bytes(), QuantRowLayout::Rows),
        };
        let w = QuantView {
            scheme,
            bytes,
            n,
            k,
            arrangement,
        };
        let scratch = floats_mut(args.scratch);
        let y = args.outs[0].as_mut();
        let x = lhs(&x, m, k);
        let threads = KernelThreads::parallel(args.parallel);
        let product = match rounded {
            true => quant_matmul_i16,
            false => quant_matmul,
        };
        product(level, threads, x, w, y, n, &GemmEpilogue::NONE, scratch);
        Ok(())
    };
    let has_strips = repack_is_profitable(level, scheme);
    let pack: KernelPackFn = Box::new(move |w| pack(level, scheme, w));
    LoweredNode {
        accepts: vec![
            if x_rank == 2 {
                AcceptedLayout::Rows
            } else {
                AcceptedLayout::Dense
            },
            AcceptedLayout::Dense,
        ],
        scratch: Some(Box::new(move |layouts, threads| {
            let x = layouts[0].shape();
            let (lead, k) = x.split_at(x.len() - 1);
            // The kernels for few and for many rows need different scratch memory; this size
            // suffices for both.
            let m: usize = lead.iter().product();
            let of = |m| quant_matmul_scratch_len(level, KernelThreads::Serial, m, k[0]);
            let mut all = threads * (of(1).max(of(m)));
            if rounded {
                all = all.max(i16_scratch_len(level, threads, m, k[0]));
            }
            if has_strips {
                all = all.max(strips_scratch_len(scheme, threads, k[0]));
            }
            4 * all
        })),
        pack: has_strips.then_some((1, pack)),
        work: |layouts| {
            let k = layouts[0].shape().last().copied().unwrap_or(1);
            layouts.last().map_or(0, Layout::numel) * k / 4
        },
        ..LoweredNode::new(2, run)
    }
}
