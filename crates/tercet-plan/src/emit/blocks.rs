//! Lowering of nested graphs (branches and loop bodies): their steps become stages of the same
//! program and share its memory.

use std::collections::HashMap;

use tercet_ir::legalize::NodeOrigins;
use tercet_ir::{CompileError, DType, Graph, NodeOrigin};

use super::{GraphAnalysis, LoweringCtx, SlotPlacement, SlotView};
use crate::binding_limit::PartitionedValues;
use crate::lowerings::copy;
use crate::walk::{InPlaceUpdates, shared_packed, turned_attention, walk_block};
use tercet_program::ProgramStep;
use tercet_program::{ControlFlowGraph, NestedNode, NodeLocation};

/// An enclosing node of a nested graph.
#[derive(Clone, Debug)]
pub(crate) struct EnclosingNode {
    /// The node of the source graph that the enclosing node originates from.
    origin: NodeOrigin,
    /// Name of the node's attribute that holds the nested graph.
    graph: &'static str,
}

/// A nested graph of the current node, with the views of its arguments.
pub(crate) struct NestedGraph<'b> {
    /// Name of the node's attribute that holds the nested graph.
    pub(crate) name: &'static str,
    pub(crate) graph: &'b Graph,
    pub(crate) origins: NodeOrigins,
    pub(crate) arguments: &'b [SlotView],
    /// Nodes of the nested graph that write their first results into existing slots.
    pub(crate) in_place: InPlaceUpdates,
}

impl<'a> LoweringCtx<'a> {
    /// Location of the current node in the source graph and its nested graphs, for error messages.
    pub(crate) fn site(&self) -> NodeLocation {
        let own = self.origin();
        let mut sites = Vec::new();
        let mut graph = "";
        let around = self
            .facts
            .enclosing_nodes
            .iter()
            .map(|a| (&a.origin, a.graph));
        for (mut origin, next) in around.chain([(&own, "")]) {
            loop {
                let (node, op) = (origin.node, origin.op);
                sites.push(NestedNode { graph, node, op });
                let Some(inner) = &origin.inside else {
                    break;
                };
                (graph, origin) = (inner.graph, &inner.origin);
            }
            graph = next;
        }
        // The first entry of `sites` is the outermost node.
        let NestedNode { node, op, .. } = sites.remove(0);
        let inside = sites;
        NodeLocation {
            node,
            op,
            path: inside,
        }
    }

    /// The node of the source graph that the current node originates from.
    fn origin(&self) -> NodeOrigin {
        let carried = self.facts.origins.get(self.cursor.at).cloned();
        carried.unwrap_or(NodeOrigin {
            node: self.cursor.at,
            op: self.cursor.op,
            inside: None,
        })
    }

    /// Lowers a nested graph of the current node as separate stages. After the nested graph is
    /// lowered, `end` receives its results and may emit further steps.
    ///
    /// # Errors
    /// The errors of the lowerings, and of `end`.
    pub(crate) fn inside(
        &mut self,
        block: NestedGraph<'_>,
        end: impl FnOnce(&mut LoweringCtx<'_>, &[SlotView]) -> Result<(), CompileError>,
    ) -> Result<Vec<ControlFlowGraph<Vec<ProgramStep>>>, CompileError> {
        debug_assert!(
            self.cursor.branches.is_empty(),
            "invariant: shape branches contain no stages"
        );
        self.close();
        let NestedGraph {
            name,
            graph,
            origins,
            arguments,
            in_place,
        } = block;
        let before = std::mem::take(&mut self.draft.flow);
        let checked = self.draft.checked.len();
        let mut around = self.facts.enclosing_nodes.clone();
        around.push(EnclosingNode {
            origin: self.origin(),
            graph: name,
        });
        let facts = GraphAnalysis {
            bounds: self.facts.bounds,
            signature: self.facts.signature,
            origins,
            soa_layouts: HashMap::new(),
            partitioned: PartitionedValues::default(),
            enclosing_nodes: around,
            shared_packed: shared_packed(graph),
            transposed_attention: turned_attention(graph),
            reduced_matmul_dtype: self.facts.reduced_matmul_dtype,
            has_chains: false,
            has_flow: true,
        };
        let mut inner = LoweringCtx::new(graph, self.caps, facts);
        inner.draft = std::mem::take(&mut self.draft);
        // Cached copies from before the loop or branch remain valid inside it. Cached copies made
        // inside are not valid afterwards.
        inner.values.copies.clone_from(&self.values.copies);
        inner
            .subgraph_size_checks
            .dims
            .clone_from(&self.subgraph_size_checks.dims);
        let done = walk_block(&mut inner, arguments, &in_place);
        let done = done.and_then(|results| end(&mut inner, &results));
        inner.close();
        let sizes = std::mem::take(&mut inner.subgraph_size_checks.checks);
        self.draft = inner.draft;
        self.draft.checked.truncate(checked);
        let mut flow = std::mem::replace(&mut self.draft.flow, before);
        done?;
        if !sizes.is_empty() {
            flow.insert(0, ControlFlowGraph::Sizes(sizes));
        }
        Ok(flow)
    }

    /// Closes the open stage.
    pub(crate) fn close(&mut self) {
        let steps = std::mem::take(&mut self.draft.steps);
        self.draft.decoding.close();
        if !steps.is_empty() {
            self.draft.flow.push(ControlFlowGraph::Stage(steps));
        }
    }

    /// Ends the stage under construction and appends this control flow after it.
    pub(crate) fn follow(&mut self, flow: ControlFlowGraph<Vec<ProgramStep>>) {
        self.close();
        self.draft.flow.push(flow);
    }

    /// Allocates a boolean slot in host-readable memory, for a predicate that the host reads back
    /// during a run.
    ///
    /// # Errors
    /// The errors of [`LoweringCtx::temp`].
    pub(crate) fn predicate(&mut self) -> Result<SlotView, CompileError> {
        self.allocate(DType::Bool, &[], SlotPlacement::Output)
    }

    /// Copies a value into a new slot.
    ///
    /// # Errors
    /// The errors of [`LoweringCtx::temp`].
    pub(crate) fn copied(&mut self, from: &SlotView) -> Result<SlotView, CompileError> {
        let to = self.temp(from.dtype, from.layout.shape())?;
        copy::emit(self, from, &to)?;
        Ok(to)
    }
}
