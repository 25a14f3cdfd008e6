//! Graphs inside nodes: their steps are stages of the same program, over the same memory.

use std::collections::HashMap;

use tercet_ir::legalize::Origins;
use tercet_ir::{CompileError, DType, Graph, Origin};

use super::{Emit, Facts, Home, View};
use crate::families::copy;
use crate::flow::{Flow, Inner, Site};
use crate::program::Step;
use crate::split::Parts;
use crate::walk::{Updates, shared_packed, turned_attention, walk_block};

/// A node that a graph lies in.
#[derive(Clone, Debug)]
pub(crate) struct Around {
    /// What it stands for.
    origin: Origin,
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
    pub(crate) in_place: Updates,
}

impl<'a> Emit<'a> {
    /// The node at hand, for errors.
    pub(crate) fn site(&self) -> Site {
        let own = self.origin();
        let mut sites = Vec::new();
        let mut graph = "";
        let around = self.facts.around.iter().map(|a| (&a.origin, a.graph));
        for (mut origin, next) in around.chain([(&own, "")]) {
            loop {
                let (node, op) = (origin.node, origin.op);
                sites.push(Inner { graph, node, op });
                let Some(inner) = &origin.inside else {
                    break;
                };
                (graph, origin) = (inner.graph, &inner.origin);
            }
            graph = next;
        }
        // The first is the outermost.
        let Inner { node, op, .. } = sites.remove(0);
        let inside = sites;
        Site { node, op, inside }
    }

    /// What the node at hand stands for.
    fn origin(&self) -> Origin {
        let carried = self.facts.origins.get(self.cursor.at).cloned();
        carried.unwrap_or(Origin {
            node: self.cursor.at,
            op: self.cursor.op,
            inside: None,
        })
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
        debug_assert!(
            self.cursor.arms.is_empty(),
            "invariant: arms have no stages"
        );
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
        let mut around = self.facts.around.clone();
        around.push(Around {
            origin: self.origin(),
            graph: name,
        });
        let facts = Facts {
            bounds: self.facts.bounds,
            signature: self.facts.signature,
            origins,
            planes: HashMap::new(),
            parts: Parts::default(),
            around,
            shared_packed: shared_packed(graph),
            turned_attention: turned_attention(graph),
            products: self.facts.products,
            has_chains: false,
            has_flow: true,
        };
        let mut inner = Emit::new(graph, self.caps, facts);
        inner.draft = std::mem::take(&mut self.draft);
        // Copies made before are there in every iteration; those made inside are not there after.
        inner.values.copies.clone_from(&self.values.copies);
        inner.own_sizes.dims.clone_from(&self.own_sizes.dims);
        let done = walk_block(&mut inner, arguments, &in_place);
        let done = done.and_then(|results| end(&mut inner, &results));
        inner.close();
        let sizes = std::mem::take(&mut inner.own_sizes.checks);
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
        let steps = std::mem::take(&mut self.draft.steps);
        self.draft.decoding.close();
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
