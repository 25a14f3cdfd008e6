//! Kernel fusion: groups of nodes that are emitted together, found on the legal graph before
//! lowering.
//!
//! The lowering emits a fusion group at its last node; the other nodes are deferred until then and
//! emit no steps. A group is emitted as one fused kernel if a kernel supports it, otherwise as
//! unfused steps. The choice is made separately for each shape branch.
//!
//! Invariant: which nodes form a group depends only on data flow, not on the order of nodes in the
//! graph. All readers of a deferred node are in its group or come after the group's last node.
//! Memory that a deferred node reads is not overwritten before the node is emitted (`dataflow.rs`).
//! Emitting deferred nodes later therefore violates no dependency of the graph.
//!
//! Next: `product.rs` for norms before matmuls and for gates and sums after them, `kv_append.rs`
//! for RoPE and KV appends before attention. `moe_router.rs` covers mixture-of-experts routers,
//! `row_wise.rs` row reductions with elementwise work, and `columns.rs` column sums.
//! `cast_elision.rs` elides casts before matmuls, `norm_prologue.rs` fuses layer norms into GEMV, and
//! `repeated_rows.rs` elides copies of rows before matmuls of experts, `joined_rows.rs` those before gathers.

mod cast_elision;
mod columns;
mod dataflow;
mod joined_rows;
mod kv_append;
mod moe_router;
mod norm_prologue;
mod product;
mod repeated_rows;
mod row_wise;

use std::collections::{HashMap, HashSet};

use tercet_ir::{Graph, NodeId};

use crate::caps::DeviceCaps;
use crate::walk::InPlaceUpdates;
pub(crate) use cast_elision::{UncastMatMul, UncastOperand};
pub(crate) use columns::ColumnSumGroup;
use dataflow::UseDefGraph;
pub(crate) use joined_rows::JoinedRows;
pub(crate) use kv_append::KvAppendGroup;
pub(crate) use moe_router::RouterTopK;
pub(crate) use product::{FusedEpilogue, FusedMatMul, GluEpilogue, NormPrologue};
pub(crate) use repeated_rows::RepeatedRows;
pub(crate) use row_wise::{RowWiseGroup, RowWiseNodeKind, is_profitable, part_of};

/// A fusion group: nodes that are emitted together.
#[derive(Clone, Debug)]
pub(crate) enum FusionGroup {
    /// A matmul with its fused prologue (norm) and epilogue (gate or sum).
    MatMul(FusedMatMul),
    /// A RoPE and the state update that stores its result; the RoPE kernel writes directly into the
    /// state.
    RopeUpdate { rope: NodeId },
    /// RoPE of queries and keys with the appends to the KV cache, optionally with the attention
    /// that follows.
    KvAppend(KvAppendGroup),
    /// A mixture-of-experts router: softmax, top-k and normalization.
    Choice(RouterTopK),
    /// Reductions of rows with the elementwise nodes before, between and after them.
    RowWise(RowWiseGroup),
    /// Sums over leading axes with the elementwise nodes that compute the summed values.
    Columns(ColumnSumGroup),
    /// A matmul that reads its 16-bit operands directly instead of their casts to F32.
    UncastMatMul(UncastMatMul),
    /// A matmul of experts that reads its rows before they are repeated.
    RepeatedRows(RepeatedRows),
    /// A gather that reads its rows from two operands.
    JoinedRows(JoinedRows),
    /// A GEMV whose kernel first computes the norm of its input row.
    Normed { norm: NodeId },
}

/// The fusion groups of a graph.
#[derive(Debug, Default)]
pub(crate) struct Fusions {
    /// Fusion groups, by the last node of each group.
    groups: HashMap<NodeId, FusionGroup>,
    /// Nodes of the fusion groups except the last node of each group.
    deferred: HashSet<NodeId>,
    /// For each node of a row-wise group: the group's last node, at which the group is emitted.
    rows: HashMap<NodeId, NodeId>,
}

impl Fusions {
    /// Finds the fusion groups of a graph for a device. Values in `in_place` are written into the
    /// slots of leaves (states or loop-carried values).
    pub(crate) fn new(graph: &Graph, caps: &DeviceCaps, in_place: &InPlaceUpdates) -> Fusions {
        let mut flow = UseDefGraph::new(graph, in_place);
        let mut found = Fusions::default();
        product::find(&flow, &mut found);
        kv_append::find(&flow, caps, &mut found);
        cast_elision::find(&mut flow, caps, &mut found);
        norm_prologue::find(&flow, &mut found);
        moe_router::find(&flow, &mut found);
        repeated_rows::find(&flow, &mut found);
        joined_rows::find(&flow, &mut found);
        row_wise::find(&flow, caps, &mut found);
        columns::find(&mut flow, caps, &mut found);
        found
    }

    /// True if the node is emitted with its fusion group, at a later node.
    pub(crate) fn is_deferred(&self, node: NodeId) -> bool {
        self.deferred.contains(&node)
    }

    /// True if the node belongs to a fusion group.
    fn has(&self, node: NodeId) -> bool {
        self.deferred.contains(&node) || self.groups.contains_key(&node)
    }

    /// The row-wise group that a node belongs to.
    fn rows_of(&self, node: NodeId) -> Option<&RowWiseGroup> {
        match self.groups.get(self.rows.get(&node)?)? {
            FusionGroup::RowWise(rows) => Some(rows),
            _ => None,
        }
    }

    /// The fusion group whose last node is `node`.
    pub(crate) fn ending_at(&self, node: NodeId) -> Option<&FusionGroup> {
        self.groups.get(&node)
    }
}
