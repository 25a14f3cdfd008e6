//! Constant folding: the reference interpreter evaluates nodes whose operands are constants.
//!
//! These nodes are not folded:
//!
//! - Nodes whose result is larger than their operands and exceeds [`MAX_GROWN_BYTES`]. An `Expand`
//!   of a scalar, for example, is cheaper for its reader.
//! - Contractions of large constants, because the executor's kernels are faster than the reference.
//! - Random operators, because their results depend on the run.
//! - Nodes whose evaluation fails, for example because of an index out of range. In a run, their
//!   evaluation then fails with the same error on every executor.
//! - Nodes with nested graphs. Only an `If` with a constant predicate is replaced by the taken
//!   branch.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{Tensor, TensorType};

use super::rewrite::{Rewriter, rebuild};
use super::subgraphs::take_branches;
use crate::error::CompileError;
use crate::graph::{Graph, Node, Value};
use crate::op::EvalCtx;
use crate::ops::{Const, Op, OpKind};

/// Maximum size of a result that is larger than its operands.
const MAX_GROWN_BYTES: usize = 16 << 10;
/// Maximum operand size of a folded contraction.
const MAX_CONTRACTION_BYTES: usize = 1 << 20;

/// Folds constants.
pub(super) fn fold_constants(graph: &Graph) -> Result<Graph, CompileError> {
    let folded = rebuild(graph, |rw, id, node| {
        let Some(tensors) = fold(rw, node) else {
            return rw.copy(id);
        };
        for (port, tensor) in tensors.into_iter().enumerate() {
            let new = rw.add(Const { tensor }, &[])?;
            let port = port as u8;
            rw.bind(Value { node: id, port }, new);
        }
        Ok(())
    })?;
    take_branches(folded)
}

/// The results of a node, if they are constant and small enough.
fn fold(rw: &Rewriter<'_>, node: &Node) -> Option<Vec<Tensor>> {
    let kind = node.op.kind();
    // A loop may run for an unlimited time.
    if kind == OpKind::Const || is_random(kind) || !node.op.subgraphs().is_empty() {
        return None;
    }
    let operands: Option<Vec<&Tensor>> = node
        .inputs
        .iter()
        .map(|v| match &rw.new_graph().node(rw.value(*v).node).op {
            Op::Const(c) => Some(&c.tensor),
            _ => None,
        })
        .collect();
    let operands = operands?;
    let results: Option<Vec<TensorType>> = node
        .outputs
        .iter()
        .map(|ty| {
            let shape = ty.shape.as_known()?;
            let dtype = ty.dtype;
            Some(TensorType { dtype, shape })
        })
        .collect();
    let results = results?;
    let read: usize = operands.iter().map(|t| t.bytes().len()).sum();
    let written = results
        .iter()
        .map(TensorType::saturating_bytes)
        .fold(0, u64::saturating_add);
    let heavy = kind.doc().accuracy >= Accuracy::Contraction && read > MAX_CONTRACTION_BYTES;
    if heavy || written > read.max(MAX_GROWN_BYTES) as u64 {
        return None;
    }
    node.op.eval(&EvalCtx::default(), &operands, &results).ok()
}

/// True for operators whose results depend on the run's random counter.
fn is_random(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::RngUniform | OpKind::RngNormal | OpKind::Sample
    )
}
