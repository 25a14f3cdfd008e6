//! Fusion of row reductions with the elementwise nodes before, between and after them, as in the
//! backward pass of norms and softmax, and in losses.
//!
//! A group starts as a reduction over the last axes. Neighboring nodes then join the group: maps
//! that compute one number per element, maps that compute one number per row, and further
//! reductions of the same axes. Every reader of a node in the group must belong to the group, or
//! come after the group's last node.

use std::collections::BTreeSet;

use tercet_ir::ops::{LogSoftmax, Op, ReduceFn, Softmax};
use tercet_ir::{Dim, Node, NodeId, Shape, Value};

use super::dataflow::UseDefGraph;
use super::{FusionGroup, Fusions};
use crate::caps::DeviceCaps;

/// Maximum row length that one workgroup processes quickly enough, even if few other workgroups
/// run.
const MAX_SINGLE_WORKGROUP_ROW: usize = 8192;
/// Maximum number of nodes per group; the time to find a group is quadratic in this number.
const MAX_GROUP_NODES: usize = 48;

/// A fusion group whose kernel computes all its nodes with one workgroup per row.
#[derive(Clone, Debug)]
pub(crate) struct RowWiseGroup {
    /// The nodes in graph order.
    pub(crate) nodes: Vec<NodeId>,
    /// Shape of the tensors that the group reduces.
    pub(crate) shape: Shape,
    /// First axis that belongs to a row; each index of the axes before it is one row.
    pub(crate) axis: usize,
    /// Results of the group's nodes that nodes outside the group read.
    pub(crate) results: Vec<Value>,
}

/// What a node of a row-wise group computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowWiseNodeKind {
    /// The node computes one number per element.
    Elements,
    /// The node reduces the elements of each row to one number.
    Reduction,
    /// The node computes one number per row from other values with one number per row.
    Rows,
    /// The node is a softmax or log-softmax of each row, which expands to reductions and maps.
    Softmax,
}

/// Finds the row-wise groups of a graph.
pub(super) fn find(flow: &UseDefGraph<'_>, caps: &DeviceCaps, found: &mut Fusions) {
    for (id, node) in flow.graph.nodes() {
        let Some((shape, axis)) = rows_of(flow, caps, node) else {
            continue;
        };
        let mut group = GroupBuilder {
            flow,
            fusions: found,
            shape,
            axis,
            nodes: BTreeSet::new(),
        };
        if !group.can_join(id) {
            continue;
        }
        group.nodes.insert(id);
        group.grow();
        if let Some(group) = group.done() {
            found.row_wise(group);
        }
    }
}

impl Fusions {
    fn row_wise(&mut self, group: RowWiseGroup) {
        let Some((last, others)) = group.nodes.split_last() else {
            return;
        };
        self.deferred.extend(others);
        self.rows
            .extend(group.nodes.iter().map(|node| (*node, *last)));
        self.groups.insert(*last, FusionGroup::RowWise(group));
    }
}

/// For a reduction of rows (also within a softmax): the shape of its operand and the first axis
/// that belongs to a row. `None` for other nodes, or if a row-wise kernel would be too slow because
/// there are few long rows.
fn rows_of(flow: &UseDefGraph<'_>, caps: &DeviceCaps, node: &Node) -> Option<(Shape, usize)> {
    let ty = flow.graph.ty(*node.inputs.first()?);
    let (axis, are_last) = match &node.op {
        Op::Reduce(op) => {
            let axis = ty.rank().checked_sub(op.axes.len())?;
            let are_last = op.axes.iter().copied().eq(axis..ty.rank());
            (axis, are_last && !op.axes.is_empty())
        }
        Op::Softmax(Softmax { axis }) | Op::LogSoftmax(LogSoftmax { axis }) => {
            (*axis, axis + 1 == ty.rank())
        }
        _ => return None,
    };
    let (rows, row) = ty.shape.split_at(axis);
    let known = |dims: &[Dim]| {
        let sizes = dims.iter().map(Dim::known);
        sizes.into_iter().try_fold(1usize, |n, d| n.checked_mul(d?))
    };
    let are_worth = match (known(rows), known(row)) {
        (Some(rows), Some(len)) => rows > 0 && len > 1 && is_profitable(caps, rows, len),
        (None, Some(len)) => len > 1,
        (_, None) => false,
    };
    let fits = are_last && are_worth;
    (fits && ty.dtype.is_float()).then(|| (ty.shape.clone(), axis))
}

/// True if a kernel with one workgroup per row is fast: there are enough rows for the compute
/// units, or the rows are short.
pub(crate) fn is_profitable(caps: &DeviceCaps, rows: usize, len: usize) -> bool {
    rows >= caps.units() / 2 || len <= MAX_SINGLE_WORKGROUP_ROW
}

/// Role of a node in a row-wise group with this shape and row axis; `None` if the node cannot be in
/// such a group.
pub(crate) fn part_of(
    graph: &tercet_ir::Graph,
    node: &Node,
    shape: &Shape,
    axis: usize,
) -> Option<RowWiseNodeKind> {
    let own = &node.outputs.first()?.shape;
    match &node.op {
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Where(_)
        | Op::Fma(_)
        | Op::Clamp(_)
        | Op::Cast(_)
        | Op::Map(_) => {
            if own == shape {
                return Some(RowWiseNodeKind::Elements);
            }
            let (lead, rest) = own.split_at_checked(axis)?;
            let is_row = lead == &shape[..axis]
                && rest.iter().all(Dim::is_one)
                && (rest.is_empty() || rest.len() == shape.rank() - axis);
            is_row.then_some(RowWiseNodeKind::Rows)
        }
        Op::Reduce(op) => {
            let from = graph.ty(node.inputs[0]);
            let same = from.shape == *shape && op.axes.iter().copied().eq(axis..shape.rank());
            let has_kernel = from.dtype.is_float() && op.f != ReduceFn::Prod;
            (same && has_kernel).then_some(RowWiseNodeKind::Reduction)
        }
        Op::Softmax(Softmax { axis: own_axis }) | Op::LogSoftmax(LogSoftmax { axis: own_axis }) => {
            let is_row = own == shape && *own_axis == axis && axis + 1 == shape.rank();
            is_row.then_some(RowWiseNodeKind::Softmax)
        }
        _ => None,
    }
}

/// A row-wise fusion group under construction.
struct GroupBuilder<'a> {
    flow: &'a UseDefGraph<'a>,
    fusions: &'a Fusions,
    shape: Shape,
    axis: usize,
    nodes: BTreeSet<NodeId>,
}

impl GroupBuilder<'_> {
    /// Adds neighboring nodes in graph order until no further neighbor can join the group.
    fn grow(&mut self) {
        let mut refused = BTreeSet::new();
        while self.nodes.len() < MAX_GROUP_NODES {
            let around = self.neighbours();
            let Some(next) = around.into_iter().find(|id| !refused.contains(id)) else {
                return;
            };
            self.nodes.insert(next);
            if self.can_join(next) && self.is_closed() {
                // A node that was rejected may join later, once its readers are in the group.
                refused.clear();
            } else {
                self.nodes.remove(&next);
                refused.insert(next);
            }
        }
    }

    /// Nodes outside the group that read results of the group or compute operands of its nodes.
    fn neighbours(&self) -> BTreeSet<NodeId> {
        let mut all = BTreeSet::new();
        for &id in &self.nodes {
            let node = self.flow.graph.node(id);
            all.extend(node.inputs.iter().map(|v| v.node));
            for v in results(id, node) {
                all.extend(self.flow.all_readers(v));
            }
        }
        &all - &self.nodes
    }

    /// True if the node can be in a row-wise group of this shape, belongs to no other fusion group,
    /// and may be emitted later.
    fn can_join(&self, id: NodeId) -> bool {
        let node = self.flow.graph.node(id);
        let updates = |v: Value| self.flow.in_place.contains_key(&v);
        part_of(self.flow.graph, node, &self.shape, self.axis).is_some()
            && !self.fusions.has(id)
            && !self.flow.is_constant(id)
            && !results(id, node).any(updates)
    }

    /// True if all nodes of the group may be emitted at the position of its last node.
    fn is_closed(&self) -> bool {
        let Some(&last) = self.nodes.last() else {
            return true;
        };
        self.nodes.iter().all(|&id| {
            let node = self.flow.graph.node(id);
            let waits = |v: Value| {
                let mut readers = self.flow.all_readers(v).iter();
                readers.all(|r| *r > last || self.nodes.contains(r))
            };
            self.flow.are_unchanged_until(&node.inputs, last) && results(id, node).all(waits)
        })
    }

    /// The finished group; `None` if it has a single node, or a result that its kernel cannot
    /// store.
    fn done(self) -> Option<RowWiseGroup> {
        let graph = self.flow.graph;
        let nodes: Vec<NodeId> = self.nodes.iter().copied().collect();
        let results = read_outside(self.flow, &nodes);
        // A 16-bit result with one number per row cannot be stored, because several workgroups
        // would write the same 32-bit word.
        let is_word = |v: &Value| {
            let ty = graph.ty(*v);
            ty.shape == self.shape || ty.dtype.size_bytes() == 4
        };
        let fits = self.nodes.len() > 1 && results.iter().all(is_word);
        fits.then_some(RowWiseGroup {
            nodes,
            shape: self.shape,
            axis: self.axis,
            results,
        })
    }
}

/// Results of these nodes that nodes outside the list read, or that are results of the graph.
pub(super) fn read_outside(flow: &UseDefGraph<'_>, nodes: &[NodeId]) -> Vec<Value> {
    let own: BTreeSet<NodeId> = nodes.iter().copied().collect();
    let all = nodes
        .iter()
        .flat_map(|id| results(*id, flow.graph.node(*id)));
    all.filter(|v| !flow.is_read_within(*v, &own)).collect()
}

fn results(id: NodeId, node: &Node) -> impl Iterator<Item = Value> {
    (0..node.outputs.len() as u8).map(move |port| Value { node: id, port })
}
