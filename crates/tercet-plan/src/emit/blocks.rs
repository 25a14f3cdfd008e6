//! Graphs inside nodes: their steps are stages of the same program, over the same memory.

use std::collections::HashMap;

use tercet_ir::legalize::Origins;
use tercet_ir::{CompileError, DType, Graph, NodeId};

use super::{Emit, Home, View};
use crate::families::copy;
use crate::flow::{Flow, Inner, Site};
use crate::program::{SlotId, Step};
use crate::walk::walk_block;

/// A node that a graph lies in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around {
    /// The node, of its graph as it was given.
    node: NodeId,
    op: &'static str,
    /// The attribute.
    graph: &'static str,
}

/// A graph inside the node at hand and what it is given.
pub(crate) struct Block<'b> {
    /// The attribute that holds it.
    pub(crate) name: &'static str,
    pub(crate) graph: &'b Graph,
    pub(crate) origins: Origins,
    pub(crate) arguments: &'b [View],
    /// The slots that nodes write their first results into, where those lie already.
    pub(crate) in_place: HashMap<NodeId, SlotId>,
}

impl<'a> Emit<'a> {
    /// The node at hand, for errors.
    pub(crate) fn site(&self) -> Site {
        let own = (self.origins.of(self.at), self.op);
        let Some(first) = self.around.first() else {
            let (node, op) = own;
            let inside = Vec::new();
            return Site { node, op, inside };
        };
        let next = self.around.iter().skip(1).map(|a| (a.node, a.op));
        let inside = self.around.iter().zip(next.chain([own]));
        let inside = inside.map(|(around, (node, op))| Inner {
            graph: around.graph,
            node,
            op,
        });
        Site {
            node: first.node,
            op: first.op,
            inside: inside.collect(),
        }
    }

    /// Emits a graph inside the node at hand as stages of their own; `end` gets its results.
    ///
    /// # Errors
    /// Those of the families, and of `end`.
    pub(crate) fn inside(
        &mut self,
        block: Block<'_>,
        end: impl FnOnce(&mut Emit<'_>, &[View]) -> Result<(), CompileError>,
    ) -> Result<Vec<Flow<Vec<Step>>>, CompileError> {
        debug_assert!(self.arms.is_empty(), "invariant: arms have no stages");
        self.close();
        let Block {
            name,
            graph,
            origins,
            arguments,
            in_place,
        } = block;
        let before = std::mem::take(&mut self.draft.flow);
        let checked = self.draft.checked.len();
        let mut inner = Emit::new(graph, self.caps, self.bounds, self.signature, origins);
        inner.has_flow = true;
        inner.draft = std::mem::take(&mut self.draft);
        // Copies made before are there in every iteration; those made inside are not there after.
        inner.dense.clone_from(&self.dense);
        inner.around.clone_from(&self.around);
        inner.own_dims.clone_from(&self.own_dims);
        inner.around.push(Around {
            node: self.origins.of(self.at),
            op: self.op,
            graph: name,
        });
        let done = walk_block(&mut inner, arguments, &in_place);
        let done = done.and_then(|results| end(&mut inner, &results));
        inner.close();
        let sizes = std::mem::take(&mut inner.own_checks);
        self.draft = inner.draft;
        self.draft.checked.truncate(checked);
        let mut flow = std::mem::replace(&mut self.draft.flow, before);
        done?;
        if !sizes.is_empty() {
            flow.insert(0, Flow::Sizes(sizes));
        }
        Ok(flow)
    }

    /// Ends the stage that is open.
    pub(crate) fn close(&mut self) {
        self.flush();
        let steps = std::mem::take(&mut self.draft.steps);
        if !steps.is_empty() {
            self.draft.flow.push(Flow::Stage(steps));
        }
    }

    /// What follows on the stage that is open.
    pub(crate) fn follow(&mut self, flow: Flow<Vec<Step>>) {
        self.close();
        self.draft.flow.push(flow);
    }

    /// A truth value where the host reads it in the middle of a run.
    ///
    /// # Errors
    /// As [`Emit::temp`].
    pub(crate) fn predicate(&mut self) -> Result<View, CompileError> {
        self.place(DType::Bool, &[], Home::Output)
    }

    /// A copy of a value in a slot of its own.
    ///
    /// # Errors
    /// As [`Emit::temp`].
    pub(crate) fn copied(&mut self, from: &View) -> Result<View, CompileError> {
        let to = self.temp(from.dtype, from.layout.shape())?;
        copy::emit(self, from, &to)?;
        Ok(to)
    }
}
