//! The gradients of one attention, which share most of their work, as one step.

use tercet_ir::{CompileError, Node, NodeId, Op};

use super::steps::Site;
use super::{Builder, Homes};
use crate::lower::Kernel;
use crate::lower::attention::grad::{lower_both, results};
use crate::plan::Place;

impl Builder<'_> {
    /// The step of a gradient of attention and of its twin, which finds its results there.
    pub(super) fn both_gradients(
        &mut self,
        kernel: &Kernel,
        id: NodeId,
        node: &Node,
        other: NodeId,
    ) -> Result<Vec<Place>, CompileError> {
        let ins: Vec<Place> = node.inputs.iter().map(|v| self.place(*v).clone()).collect();
        let site = Site::of(id, node, kernel.name);
        // Queries, keys and values have the types of their cotangents.
        let types: Vec<_> = node.inputs[..3]
            .iter()
            .map(|v| self.graph.ty(*v).clone())
            .collect();
        let lowered = kernel.make(lower_both, self.graph, node);
        let places = self.emit(site, lowered, ins, &types, &Homes::new(), false)?;
        let of = |node: &Node| match &node.op {
            Op::AttentionGrad(o) => places[results(o.of)].to_vec(),
            _ => unreachable!("invariant: twins are gradients of attention"),
        };
        let twin = of(self.graph.node(other));
        self.made.insert(other, twin);
        Ok(of(node))
    }
}
