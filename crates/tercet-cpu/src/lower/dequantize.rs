//! `Dequantize`: blocks of packed weights to F32, in parallel ranges of blocks.

use tercet_ir::{Graph, Node, Op};

use crate::args::Args;
use crate::kernels::SimdLevel;
use crate::kernels::quant::{Arrangement, QuantView, dequantize_rows};
use crate::lower::Lowered;
use crate::lower::elem::parts;

/// Elements of a task: whole blocks of every scheme.
const TASK: usize = 1 << 14;

pub(crate) fn lower(_: &Graph, node: &Node) -> Lowered {
    let Op::Dequantize(op) = &node.op else {
        unreachable!("invariant: the table gives this row `Dequantize` only")
    };
    let scheme = op.scheme;
    let level = SimdLevel::detect();
    Lowered::new(1, move |args: &mut Args<'_>| {
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
                arrangement: Arrangement::Rows,
            };
            dequantize_rows(level, &rows, 0..1, out);
        });
        Ok(())
    })
}
