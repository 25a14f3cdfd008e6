//! Maps of a single conversion of a whole operand: converted in one pass, without registers.

use tercet_ir::ops::Map;
use tercet_ir::scalar::ScalarOp;
use tercet_ir::{DType, Graph, Node};

use super::TASK;
use crate::args::KernelArgs;
use crate::kernels::SimdLevel;
use crate::kernels::cast;
use crate::lower::LoweredNode;
use crate::lower::elem::parts;

/// Lowers a map that is one conversion of an operand with the shape of the result. `None` for other maps.
pub(super) fn lower(
    graph: &Graph,
    node: &Node,
    map: &Map,
    inputs: &[DType],
) -> Option<LoweredNode> {
    let ([step], &[from]) = (map.body.as_slice(), inputs) else {
        return None;
    };
    let out = &node.outputs[0];
    let whole =
        map.inputs[0].is_identity(out.rank()) && graph.ty(node.inputs[0]).shape == out.shape;
    let convert = cast::function(from, out.dtype)
        .filter(|_| whole && matches!(step.op, ScalarOp::Cast(_)))?;
    let (from_bytes, to_bytes) = (from.size_bytes(), out.dtype.size_bytes());
    let level = SimdLevel::detect();
    Some(LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
        let (x, parallel) = (args.ins[0].dense_bytes(), args.parallel);
        parts(parallel, args.outs[0].bytes, TASK * to_bytes, |i, out| {
            let count = out.len() / to_bytes;
            let x = &x[i * TASK * from_bytes..][..count * from_bytes];
            convert(level, x, out);
        });
        Ok(())
    }))
}
