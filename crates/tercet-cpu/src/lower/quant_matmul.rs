//! `DequantMatMul`: products of f32 with packed blocks.
//!
//! Constant blocks become strips where one row gains by it; they take the room of what they are made of. Others stay as they are.

use tercet_ir::layout::Layout;
use tercet_ir::{EvalError, Graph, Node, Op, Scheme};

use crate::args::{Args, Packed, View};
use crate::kernels::gemm::Epilogue;
use crate::kernels::quant::{
    Arrangement, QuantView, pack_strips, quant_matmul, quant_matmul_rounded,
    quant_matmul_scratch_len, rounded_scratch_len, strips_pay, strips_scratch_len,
};
use crate::kernels::{SimdLevel, Threads};
use crate::lower::matmul::left;
use crate::lower::{Accept, Lowered, Pack, floats_mut, zeroed_floats};
use crate::pages::Pages;

/// Bytes that strips begin at a multiple of: vectors of them do not span lines of caches.
const ALIGN: usize = 64;

/// Weights as strips.
struct Strips {
    memory: Pages<f32>,
    /// Where they begin.
    start: usize,
    len: usize,
}

impl Strips {
    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.memory)[self.start..][..self.len]
    }
}

fn pack(level: SimdLevel, scheme: Scheme, w: &View<'_>) -> Result<Packed, EvalError> {
    let bytes = w.dense_bytes();
    let (n, row_bytes) = (w.shape()[0], bytes.len().checked_div(w.shape()[0]));
    let w = QuantView {
        scheme,
        bytes,
        n,
        k: row_bytes.unwrap_or(0) / scheme.block_bytes() * scheme.block_len(),
        arrangement: Arrangement::Rows,
    };
    let mut memory = zeroed_floats((bytes.len() + ALIGN).div_ceil(4))?;
    let start = memory.as_ptr().cast::<u8>().align_offset(ALIGN) % ALIGN;
    let to: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
    pack_strips(level, Threads::Pool, &w, &mut to[start..][..bytes.len()]);
    let len = bytes.len();
    Ok(Box::new(Strips { memory, start, len }))
}

/// Of f32 activations, which may be rounded where there are many rows.
pub(crate) fn lower(graph: &Graph, node: &Node, rounded: bool) -> Lowered {
    let Op::DequantMatMul(op) = &node.op else {
        unreachable!("invariant: the table gives this kernel one operator")
    };
    let scheme: Scheme = op.scheme;
    let level = SimdLevel::detect();
    let x_rank = graph.ty(node.inputs[0]).rank();
    let run = move |args: &mut Args<'_>| -> Result<(), EvalError> {
        let (x, w) = (args.ins[0], args.ins[1]);
        let k = x.shape().last().copied().unwrap_or(1);
        let n = w.shape()[0];
        let m = x.shape()[..x.shape().len() - 1].iter().product();
        let strips = args.packed.and_then(|p| p.downcast_ref::<Strips>());
        let (bytes, arrangement) = match strips {
            Some(strips) => (strips.bytes(), Arrangement::Strips),
            None => (w.dense_bytes(), Arrangement::Rows),
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
        let x = left(&x, m, k);
        let threads = Threads::parallel(args.parallel);
        let product = match rounded {
            true => quant_matmul_rounded,
            false => quant_matmul,
        };
        product(level, threads, x, w, y, n, &Epilogue::NONE, scratch);
        Ok(())
    };
    let has_strips = strips_pay(level, scheme);
    let pack: Pack = Box::new(move |w| pack(level, scheme, w));
    Lowered {
        accepts: vec![
            if x_rank == 2 {
                Accept::Rows
            } else {
                Accept::Dense
            },
            Accept::Dense,
        ],
        scratch: Some(Box::new(move |layouts, threads| {
            let x = layouts[0].shape();
            let (lead, k) = x.split_at(x.len() - 1);
            // Few and many rows take different paths: room for either.
            let m: usize = lead.iter().product();
            let of = |m| quant_matmul_scratch_len(level, Threads::Serial, m, k[0]);
            let mut all = threads * (of(1).max(of(m)));
            if rounded {
                all = all.max(rounded_scratch_len(level, threads, m, k[0]));
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
        ..Lowered::new(2, run)
    }
}
