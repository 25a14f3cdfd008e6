//! Which nodes are emitted together: found on the legal graph before anything is emitted.
//!
//! A pattern hands a group of nodes as one value to the family that emits it, where the last node of the group
//! stands; the others are deferred until then and get no step of their own. The family emits one kernel where it has
//! one that does all, else the same steps as without, arm by arm.
//!
//! Invariant: a group depends on who reads what, never on which nodes stand next to each other. What reads a
//! deferred node stands after its group, and no deferred node reads memory that is overwritten before it is emitted
//! (`dataflow.rs`), so order within the program stays that of the graph's dependencies.
//!
//! Next: `product.rs` for norms, gates and sums around matrix products, `kv_append.rs` for what stands before attention, `choice.rs` for routers,
//! `row_wise.rs` for reductions along rows and the elementwise work around them, `columns.rs` for sums over columns,
//! `widened.rs` for products of operands that were widened, `normed.rs` for layer norms before products of one row.

mod choice;
mod columns;
mod dataflow;
mod kv_append;
mod normed;
mod product;
mod row_wise;
mod widened;

use std::collections::{HashMap, HashSet};

use tercet_ir::{Graph, NodeId};

use crate::caps::Caps;
use crate::walk::Updates;
pub(crate) use choice::Choice;
pub(crate) use columns::Columns;
use dataflow::Dataflow;
pub(crate) use kv_append::KvAppend;
pub(crate) use product::{Epilogue, FusedProduct, Gate, RowNorm};
pub(crate) use row_wise::{Part, RowWise, is_worth, part_of};
pub(crate) use widened::{Narrow, Widened};

/// Nodes that are emitted together.
#[derive(Clone, Debug)]
pub(crate) enum Group {
    /// A matrix product with its prologue and epilogue.
    Product(FusedProduct),
    /// RoPE that an update of a state writes straight into its window.
    RopeUpdate { rope: NodeId },
    /// What stands before attention over a KV cache, and that attention.
    KvAppend(KvAppend),
    /// The greatest elements of a softmax, or their shares.
    Choice(Choice),
    /// Reductions along rows with the elementwise work before, between and after them.
    RowWise(RowWise),
    /// Sums over leading axes with the elementwise work before them.
    Columns(Columns),
    /// A product whose operands are read before they are widened.
    Widened(Widened),
    /// A product of one row with the norm that the row comes from.
    Normed { norm: NodeId },
}

/// The groups of a graph.
#[derive(Debug, Default)]
pub(crate) struct Fusions {
    /// By the last node of each.
    groups: HashMap<NodeId, Group>,
    /// All others of their nodes.
    deferred: HashSet<NodeId>,
    /// The last node of the group over rows that a node belongs to.
    rows: HashMap<NodeId, NodeId>,
}

impl Fusions {
    /// The groups for a device; values of `in_place` are written where leaves lie.
    pub(crate) fn of(graph: &Graph, caps: &Caps, in_place: &Updates) -> Fusions {
        let mut flow = Dataflow::of(graph, in_place);
        let mut found = Fusions::default();
        product::find(&flow, &mut found);
        kv_append::find(&flow, caps, &mut found);
        widened::find(&mut flow, caps, &mut found);
        normed::find(&flow, &mut found);
        choice::find(&flow, &mut found);
        row_wise::find(&flow, caps, &mut found);
        columns::find(&mut flow, caps, &mut found);
        found
    }

    /// True if the node is emitted with a later one.
    pub(crate) fn is_deferred(&self, node: NodeId) -> bool {
        self.deferred.contains(&node)
    }

    /// True if the node belongs to a group.
    fn has(&self, node: NodeId) -> bool {
        self.deferred.contains(&node) || self.groups.contains_key(&node)
    }

    /// The group over rows that a node belongs to.
    fn rows_of(&self, node: NodeId) -> Option<&RowWise> {
        match self.groups.get(self.rows.get(&node)?)? {
            Group::RowWise(rows) => Some(rows),
            _ => None,
        }
    }

    /// The group whose last node this is.
    pub(crate) fn ending_at(&self, node: NodeId) -> Option<&Group> {
        self.groups.get(&node)
    }
}
