//! Removes checkpoints. Checkpoints prevent `cse` from merging recomputed nodes with the original
//! ones, so they are not needed after `cse`.

use super::rewrite::rebuild;
use crate::error::CompileError;
use crate::graph::{Graph, Value};
use crate::ops::OpKind;

/// Replaces checkpoints by their operands.
pub(super) fn drop_checkpoints(graph: &Graph) -> Result<Graph, CompileError> {
    rebuild(graph, |rw, id, node| match node.op.kind() {
        OpKind::Checkpoint => {
            let x = rw.value(node.inputs[0]);
            rw.bind(Value { node: id, port: 0 }, x);
            Ok(())
        }
        _ => rw.copy(id),
    })
}
