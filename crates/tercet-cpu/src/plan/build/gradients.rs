//! Fuses the gradients of one attention into one step, because they share most of their work.

use tercet_ir::{CompileError, Node, NodeId, Op};

use super::steps::StepLabel;
use super::{CpuProgramBuilder, ResultPlacements};
use crate::lower::CpuKernel;
use crate::lower::attention::grad::{lower_both, results};
use crate::plan::ValuePlacement;

impl CpuProgramBuilder<'_> {
    /// Emits one step for a node `AttentionGrad` and for the node `other`, which computes the other
    /// gradients of the same attention.
    pub(super) fn both_gradients(
        &mut self,
        kernel: &CpuKernel,
        id: NodeId,
        node: &Node,
        other: NodeId,
    ) -> Result<Vec<ValuePlacement>, CompileError> {
        let ins: Vec<ValuePlacement> = node.inputs.iter().map(|v| self.place(*v).clone()).collect();
        let site = StepLabel::new(id, node, kernel.name);
        // The cotangents have the types of queries, keys and values, which are the first three
        // operands.
        let types: Vec<_> = node.inputs[..3]
            .iter()
            .map(|v| self.graph.ty(*v).clone())
            .collect();
        let lowered = kernel.lower_node(lower_both, self.graph, node);
        let places = self.emit(site, lowered, ins, &types, &ResultPlacements::new(), false)?;
        let of = |node: &Node| match &node.op {
            Op::AttentionGrad(o) => places[results(o.of)].to_vec(),
            _ => unreachable!("invariant: both nodes are gradients of attention"),
        };
        let twin = of(self.graph.node(other));
        self.computed.insert(other, twin);
        Ok(of(node))
    }
}
