//! `Dequantize`: decodes blocks of quantized weights to F32, in parallel over ranges of blocks.

use tercet_ir::{Graph, Node, Op, OpKind};

use crate::args::KernelArgs;
use crate::kernels::SimdLevel;
use crate::kernels::quant::{QuantRowLayout, QuantView, dequantize_rows};
use crate::lower::elem::parts;
use crate::lower::{CpuKernel, LoweredNode, always, kernel};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel("dequantize", OpKind::Dequantize, always, lower)];

/// Elements per task; a multiple of every scheme's block length.
const TASK: usize = 1 << 14;

pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let Op::Dequantize(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `Dequantize` to this row")
    };
    let scheme = op.scheme;
    let level = SimdLevel::detect();
    LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
        if args.ins[0].layout.numel() == 0 {
            return Ok(());
        }
        let bytes = args.ins[0].dense_bytes();
        let task_bytes = TASK / scheme.block_len() * scheme.block_bytes();
        let out = args.outs[0].as_mut::<f32>();
        parts(args.parallel, out, TASK, |i, out| {
            let size = out.len() / scheme.block_len() * scheme.block_bytes();
            let rows = QuantView {
                scheme,
                bytes: &bytes[i * task_bytes..][..size],
                n: 1,
                k: out.len(),
                arrangement: QuantRowLayout::Rows,
            };
            dequantize_rows(level, &rows, 0..1, out);
        });
        Ok(())
    })
}
