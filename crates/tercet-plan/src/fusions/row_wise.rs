//! Reductions along rows with the elementwise work before, between and after them: norms and softmaxes backwards, losses.
//!
//! A group grows from a reduction over the last axes: to maps over the shape that it reduces, to maps over what is
//! left of that (a number a row), and to further reductions of the same axes, as long as everything that reads one of
//! its nodes belongs to it or stands after its last one.

use std::collections::BTreeSet;

use tercet_ir::ops::{LogSoftmax, Op, ReduceFn, Softmax};
use tercet_ir::{Dim, Node, NodeId, Shape, Value};

use super::dataflow::Dataflow;
use super::{Fusions, Group};
use crate::caps::Caps;

/// Elements of a row that one workgroup is soon done with.
const SHORT_ROW: usize = 8192;
/// Nodes of a group; growing looks at all of them for each.
const MOST_NODES: usize = 48;

/// Nodes over rows that are emitted together.
#[derive(Clone, Debug)]
pub(crate) struct RowWise {
    /// The nodes in order.
    pub(crate) nodes: Vec<NodeId>,
    /// The shape of rows of elements.
    pub(crate) shape: Shape,
    /// The first axis along rows.
    pub(crate) axis: usize,
    /// The values that something outside reads.
    pub(crate) results: Vec<Value>,
}

/// What a node of a group computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A number for each element.
    Elements,
    /// A number for each row from elements of the row.
    Reduction,
    /// A number for each row from such numbers.
    Rows,
    /// Softmax of each row, or its logarithm: reductions and steps of its own.
    Softmax,
}

/// Finds the groups of a graph.
pub(super) fn find(flow: &Dataflow<'_>, caps: &Caps, found: &mut Fusions) {
    for (id, node) in flow.graph.nodes() {
        let Some((shape, axis)) = rows_of(flow, caps, node) else {
            continue;
        };
        let mut group = Growing {
            flow,
            found,
            shape,
            axis,
            nodes: BTreeSet::new(),
        };
        if !group.may_join(id) {
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
    fn row_wise(&mut self, group: RowWise) {
        let Some((last, others)) = group.nodes.split_last() else {
            return;
        };
        self.deferred.extend(others);
        self.rows
            .extend(group.nodes.iter().map(|node| (*node, *last)));
        self.groups.insert(*last, Group::RowWise(group));
    }
}

/// The shape and the first axis of the rows that a node reduces to a float each, on the way at least, if there are enough of
/// them.
fn rows_of(flow: &Dataflow<'_>, caps: &Caps, node: &Node) -> Option<(Shape, usize)> {
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
        (Some(rows), Some(len)) => rows > 0 && len > 1 && is_worth(caps, rows, len),
        (None, Some(len)) => len > 1,
        (_, None) => false,
    };
    let fits = are_last && are_worth;
    (fits && ty.dtype.is_float()).then(|| (ty.shape.clone(), axis))
}

/// True if a kernel with a workgroup for each of so many rows of so many elements does not leave a device idle for long.
pub(crate) fn is_worth(caps: &Caps, rows: usize, len: usize) -> bool {
    rows >= caps.units() / 2 || len <= SHORT_ROW
}

/// What a node is to rows of a shape.
pub(crate) fn part_of(
    graph: &tercet_ir::Graph,
    node: &Node,
    shape: &Shape,
    axis: usize,
) -> Option<Part> {
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
                return Some(Part::Elements);
            }
            let (lead, rest) = own.split_at_checked(axis)?;
            let is_row = lead == &shape[..axis]
                && rest.iter().all(Dim::is_one)
                && (rest.is_empty() || rest.len() == shape.rank() - axis);
            is_row.then_some(Part::Rows)
        }
        Op::Reduce(op) => {
            let from = graph.ty(node.inputs[0]);
            let same = from.shape == *shape && op.axes.iter().copied().eq(axis..shape.rank());
            let has_kernel = from.dtype.is_float() && op.f != ReduceFn::Prod;
            (same && has_kernel).then_some(Part::Reduction)
        }
        Op::Softmax(Softmax { axis: own_axis }) | Op::LogSoftmax(LogSoftmax { axis: own_axis }) => {
            let is_row = own == shape && *own_axis == axis && axis + 1 == shape.rank();
            is_row.then_some(Part::Softmax)
        }
        _ => None,
    }
}

/// A group on its way.
struct Growing<'a> {
    flow: &'a Dataflow<'a>,
    found: &'a Fusions,
    shape: Shape,
    axis: usize,
    nodes: BTreeSet<NodeId>,
}

impl Growing<'_> {
    /// Takes in neighbours, from the first one on, while there are some that can join.
    fn grow(&mut self) {
        let mut refused = BTreeSet::new();
        while self.nodes.len() < MOST_NODES {
            let around = self.neighbours();
            let Some(next) = around.into_iter().find(|id| !refused.contains(id)) else {
                return;
            };
            self.nodes.insert(next);
            if self.may_join(next) && self.is_closed() {
                // What was refused may join now: its readers might belong to the group.
                refused.clear();
            } else {
                self.nodes.remove(&next);
                refused.insert(next);
            }
        }
    }

    /// Nodes that read one of the group's, or that it reads.
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

    /// True if the node is of these rows, belongs to no group and may be emitted later than it stands.
    fn may_join(&self, id: NodeId) -> bool {
        let node = self.flow.graph.node(id);
        let updates = |v: Value| self.flow.in_place.contains_key(&v);
        part_of(self.flow.graph, node, &self.shape, self.axis).is_some()
            && !self.found.has(id)
            && !self.flow.is_constant(id)
            && !results(id, node).any(updates)
    }

    /// True if all nodes may wait for the last one.
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
            self.flow.stay_until(&node.inputs, last) && results(id, node).all(waits)
        })
    }

    /// The group, if it is more than one node.
    fn done(self) -> Option<RowWise> {
        let graph = self.flow.graph;
        let nodes: Vec<NodeId> = self.nodes.iter().copied().collect();
        let results = read_outside(self.flow, &nodes);
        // Words of narrow numbers would belong to several rows.
        let is_word = |v: &Value| {
            let ty = graph.ty(*v);
            ty.shape == self.shape || ty.dtype.size_bytes() == 4
        };
        let fits = self.nodes.len() > 1 && results.iter().all(is_word);
        fits.then_some(RowWise {
            nodes,
            shape: self.shape,
            axis: self.axis,
            results,
        })
    }
}

/// The results of these nodes that something else reads.
pub(super) fn read_outside(flow: &Dataflow<'_>, nodes: &[NodeId]) -> Vec<Value> {
    let own: BTreeSet<NodeId> = nodes.iter().copied().collect();
    let all = nodes
        .iter()
        .flat_map(|id| results(*id, flow.graph.node(*id)));
    all.filter(|v| !flow.is_read_within(*v, &own)).collect()
}

fn results(id: NodeId, node: &Node) -> impl Iterator<Item = Value> {
    (0..node.outputs.len() as u8).map(move |port| Value { node: id, port })
}
