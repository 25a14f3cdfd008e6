//! Constant folding: nodes whose operands are constants are evaluated by the reference.
//!
//! A result may be larger than its operands only up to [`MAX_GROWN_BYTES`] (an `Expand` of a scalar
//! is better left to its reader), and products of large constants are left to the executor, whose
//! kernels are faster than the reference. Random numbers depend on the run and are no constants. A
//! node whose evaluation fails, by an index out of range for example, is kept: it ends the run with
//! the same error on every executor. So is a node with graphs inside, but that an `If` of a constant
//! predicate gives way to the branch it takes.

use super::rewrite::{Rewriter, rebuild};
use super::subgraphs::take_branches;
use crate::accuracy::Accuracy;
use crate::error::CompileError;
use crate::graph::{Graph, Node, Value};
use crate::op::EvalCtx;
use crate::ops::{Const, Op, OpKind};
use crate::tensor::Tensor;
use crate::types::TensorType;

/// The greatest result that may be larger than its operands.
const MAX_GROWN_BYTES: usize = 16 << 10;
/// The greatest operands of a contraction.
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
    // A loop may take any time.
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

/// True for operators whose results depend on the run's step.
fn is_random(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::RngUniform | OpKind::RngNormal | OpKind::Sample
    )
}
