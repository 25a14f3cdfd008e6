//! Fusion of sums over leading axes (column sums) with the elementwise work before them, as in
//! gradients of gains and biases. Sums over leading and trailing axes, as in channel statistics,
//! are fused in the same way.
//!
//! The fused kernel computes the summed elements itself and reads only the inputs of this
//! computation. A sum is fused if reading these inputs moves no more memory than writing and
//! reading the elements. If other nodes need the elements anyway, reading the inputs must move no
//! more memory than reading the elements. Several sums over the same axes that share inputs are
//! computed by one kernel.
//!
//! The search for column sums runs after the search for row-wise groups. If only a fused sum reads
//! a value of a row-wise group, the group does not write the value.

use std::collections::{BTreeMap, BTreeSet};

use tercet_ir::ops::{IndexMap, MapArg, Op, ReduceFn};
use tercet_ir::{NodeId, Shape, Value};

use super::dataflow::{UseDefGraph, first};
use super::row_wise::{self, RowWiseNodeKind, part_of};
use super::{FusionGroup, Fusions};
use crate::caps::DeviceCaps;
use crate::lowerings::map::{as_map, steps_of};

/// Maximum number of elementwise operations that the fused kernel recomputes per element.
const MAX_RECOMPUTED_STEPS: usize = 48;
/// Maximum number of sums per kernel.
const MAX_SUMS: usize = 4;

/// A fusion group: sums over the same leading axes, with the elementwise nodes that compute the
/// summed values.
#[derive(Clone, Debug)]
pub(crate) struct ColumnSumGroup {
    /// The nodes of the sums and means, in graph order.
    pub(crate) sums: Vec<NodeId>,
    /// Elementwise nodes that the fused kernel recomputes, each with the ports of the results that
    /// it needs.
    pub(crate) recomputed: BTreeMap<NodeId, BTreeSet<u8>>,
    /// Shape of the summed values.
    pub(crate) shape: Shape,
    /// Number of leading axes that are summed.
    pub(crate) axes: usize,
    /// Number of trailing axes that are summed.
    pub(crate) inner: usize,
    /// Values that the fused kernel reads from memory.
    leaves: BTreeSet<Value>,
}

/// Finds the fusion groups of column sums in a graph.
pub(super) fn find(flow: &mut UseDefGraph<'_>, caps: &DeviceCaps, found: &mut Fusions) {
    let mut before: Option<ColumnSumGroup> = None;
    let limit = caps.max_storage_buffers as usize;
    for (id, _) in flow.graph.nodes() {
        let Some(columns) = columns(flow, found, id) else {
            continue;
        };
        if columns.leaves.len() >= limit {
            continue;
        }
        if !columns.recomputed.is_empty() {
            inline_group(flow, found, &columns);
        }
        let joined = before.and_then(|before| merge_groups(flow, limit, &before, &columns));
        let columns = joined.unwrap_or(columns);
        // A sum without elementwise producers is left to the plain reduction kernels, unless it
        // also sums over trailing axes (channel statistics).
        if columns.inner > 0 || columns.sums.len() > 1 || !columns.recomputed.is_empty() {
            for sum in &columns.sums {
                found.groups.remove(sum);
                found.deferred.insert(*sum);
            }
            found.deferred.remove(&id);
            found
                .groups
                .insert(id, FusionGroup::Columns(columns.clone()));
        }
        before = Some(columns);
    }
}

/// The group of a sum with its elementwise producers, if the fused kernel does not move more memory
/// than separate kernels.
fn columns(flow: &UseDefGraph<'_>, found: &Fusions, id: NodeId) -> Option<ColumnSumGroup> {
    let graph = flow.graph;
    let node = graph.node(id);
    let Op::Reduce(op) = &node.op else {
        return None;
    };
    let of = node.inputs[0];
    let ty = graph.ty(of);
    let (axes, inner) = outer_inner_axes(&op.axes, ty.rank())?;
    let is_sum = matches!(op.f, ReduceFn::Sum | ReduceFn::Mean);
    let is_known = ty.shape[axes..]
        .iter()
        .all(|d| d.known().is_some_and(|n| n > 0));
    let may = is_sum && is_known && ty.dtype.is_float();
    if !may || found.has(id) || flow.is_constant(id) || flow.in_place.contains_key(&first(id)) {
        return None;
    }
    // 16-bit values may be computed by long chains of maps. If recomputing these values is too
    // expensive, the fused kernel reads them from memory.
    [false, true]
        .into_iter()
        .find_map(|reads_narrow| sum_of(flow, found, id, (axes, inner), reads_narrow))
}

/// Like `columns`; if `reads_narrow`, the fused kernel reads 16-bit values from memory instead of
/// recomputing them.
fn sum_of(
    flow: &UseDefGraph<'_>,
    found: &Fusions,
    id: NodeId,
    (axes, inner): (usize, usize),
    reads_narrow: bool,
) -> Option<ColumnSumGroup> {
    let graph = flow.graph;
    let of = graph.node(id).inputs[0];
    let ty = graph.ty(of);
    let mut cone = ElementwiseProducers {
        flow,
        fusions: found,
        recomputed: BTreeMap::new(),
        leaves: BTreeSet::new(),
        steps: 0,
        reads_narrow,
    };
    if cone.can_inline(of, &ty.shape) {
        cone.inline(of, &ty.shape)?;
    } else {
        cone.leaves.insert(of);
    }
    let ElementwiseProducers {
        recomputed: inlined,
        leaves,
        ..
    } = cone;
    let bytes = |v: &Value| match graph.ty(*v).shape == ty.shape {
        true => graph.ty(*v).dtype.size_bytes(),
        false => 0,
    };
    let read: usize = leaves.iter().map(bytes).sum();
    // Nodes of the same row-wise group do not need the summed value in memory, because their kernel
    // computes it itself.
    let rows = found.rows.get(&of.node);
    let is_of_rows = |reader: &NodeId| rows.is_some() && found.rows.get(reader) == rows;
    let needs_it = |reader: &NodeId| !inlined.contains_key(reader) && !is_of_rows(reader);
    let is_apart = flow
        .all_readers(of)
        .iter()
        .filter(|r| **r != id)
        .any(needs_it)
        || flow.is_result(of);
    let own = ty.dtype.size_bytes();
    let most = if is_apart { own } else { 2 * own };
    let leaves_stay: Vec<Value> = leaves.iter().copied().collect();
    let fits = read <= most && flow.are_unchanged_until(&leaves_stay, id);
    fits.then(|| ColumnSumGroup {
        sums: vec![id],
        recomputed: inlined,
        shape: ty.shape.clone(),
        axes,
        inner,
        leaves,
    })
}

/// Number of leading and of trailing axes that a reduction reduces. `None` unless the reduced axes
/// include the first axis and the axes that remain are consecutive.
fn outer_inner_axes(axes: &[usize], rank: usize) -> Option<(usize, usize)> {
    let lead = axes.iter().enumerate().take_while(|(i, a)| i == *a).count();
    let inner = axes.len() - lead;
    let are_last = axes[lead..].iter().copied().eq(rank - inner..rank);
    (lead > 0 && axes.len() < rank && are_last).then_some((lead, inner))
}

/// Collects the elementwise nodes that compute a value.
struct ElementwiseProducers<'a> {
    flow: &'a UseDefGraph<'a>,
    fusions: &'a Fusions,
    recomputed: BTreeMap<NodeId, BTreeSet<u8>>,
    leaves: BTreeSet<Value>,
    steps: usize,
    /// True if the kernel reads 16-bit values from memory; it always recomputes the summed value
    /// itself.
    reads_narrow: bool,
}

impl ElementwiseProducers<'_> {
    /// Adds the node that computes a value, and its elementwise producers. `None` if the node is
    /// not elementwise or if there are too many operations.
    fn inline(&mut self, v: Value, shape: &Shape) -> Option<()> {
        if !self.can_inline(v, shape) {
            return None;
        }
        let node = self.flow.graph.node(v.node);
        let known = self.recomputed.entry(v.node).or_default();
        if !known.insert(v.port) {
            return Some(());
        }
        let map = as_map(self.flow.graph, node);
        let steps = steps_of(&map, std::iter::once(v.port));
        self.steps += steps.len();
        if self.steps > MAX_RECOMPUTED_STEPS {
            return None;
        }
        let args = steps.iter().flat_map(|at| &map.body[*at].args);
        for arg in args {
            let MapArg::Input(i) = *arg else {
                continue;
            };
            let read = node.inputs[i];
            let is_own = map.inputs[i] == IndexMap::identity(shape.rank());
            let is_read = self.reads_narrow && self.flow.graph.ty(read).dtype.size_bytes() == 2;
            if !is_read && self.can_inline(read, shape) {
                if !is_own {
                    return None;
                }
                self.inline(read, shape)?;
            } else if self.is_stored(read) {
                self.leaves.insert(read);
            } else {
                return None;
            }
        }
        Some(())
    }

    fn can_inline(&self, v: Value, shape: &Shape) -> bool {
        let node = self.flow.graph.node(v.node);
        let is_elementwise = part_of(self.flow.graph, node, shape, shape.rank());
        let is_free = match self.fusions.has(v.node) {
            true => self.fusions.rows_of(v.node).is_some(),
            false => true,
        };
        let updates = self.flow.in_place.contains_key(&v);
        is_elementwise == Some(RowWiseNodeKind::Elements)
            && is_free
            && !updates
            && !self.flow.is_constant(v.node)
    }

    /// True if the value is in memory when the fused kernel runs, or if its row-wise group can
    /// store it there.
    fn is_stored(&self, v: Value) -> bool {
        let ty = self.flow.graph.ty(v);
        self.fusions.rows_of(v.node).is_none() || ty.dtype.size_bytes() == 4
    }
}

/// Makes the sum a reader of the values that its fused kernel reads, in place of its operand.
fn inline_group(flow: &mut UseDefGraph<'_>, found: &mut Fusions, columns: &ColumnSumGroup) {
    let id = columns.sums[0];
    let of = flow.graph.node(id).inputs[0];
    flow.replace_read(id, of, &columns.leaves);
    // Recomputed nodes that no other node reads are not emitted.
    for &node in columns.recomputed.keys().rev() {
        let graph = flow.graph;
        let outputs = graph.node(node).outputs.len() as u8;
        let mut ports = (0..outputs).map(|port| Value { node, port });
        if !found.has(node) && ports.all(|v| flow.is_unread(v)) {
            found.deferred.insert(node);
            flow.remove_reader(node);
        }
    }
    let nodes = columns.recomputed.keys().copied();
    let nodes = nodes.chain(columns.leaves.iter().map(|v| v.node));
    let touched: BTreeSet<NodeId> = nodes.filter_map(|n| found.rows.get(&n).copied()).collect();
    for last in touched {
        let Some(FusionGroup::RowWise(rows)) = found.groups.get_mut(&last) else {
            continue;
        };
        rows.results = row_wise::read_outside(flow, &rows.nodes);
    }
}

/// Merges two groups of column sums into one, which is emitted at the last node of the second.
fn merge_groups(
    flow: &UseDefGraph<'_>,
    limit: usize,
    a: &ColumnSumGroup,
    b: &ColumnSumGroup,
) -> Option<ColumnSumGroup> {
    let id = *b.sums.last()?;
    let same = a.shape == b.shape && (a.axes, a.inner) == (b.axes, b.inner);
    let is_whole = |v: &&Value| flow.graph.ty(**v).shape == a.shape;
    let shares = a.leaves.intersection(&b.leaves).filter(is_whole).count() > 0;
    let waits = |sum: &NodeId| flow.all_readers(first(*sum)).iter().all(|r| *r > id);
    let leaves: BTreeSet<Value> = a.leaves.union(&b.leaves).copied().collect();
    let stays: Vec<Value> = leaves.iter().copied().collect();
    let sums = [&a.sums[..], &b.sums[..]].concat();
    let fits = sums.len() <= MAX_SUMS && leaves.len() + sums.len() <= limit;
    if !same
        || !shares
        || !fits
        || !a.sums.iter().all(waits)
        || !flow.are_unchanged_until(&stays, id)
    {
        return None;
    }
    let mut inlined = a.recomputed.clone();
    for (node, ports) in &b.recomputed {
        inlined.entry(*node).or_default().extend(ports);
    }
    Some(ColumnSumGroup {
        sums,
        recomputed: inlined,
        leaves,
        ..b.clone()
    })
}
