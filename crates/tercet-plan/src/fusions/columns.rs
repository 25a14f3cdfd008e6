//! Sums over leading axes with the elementwise work before them: gradients of gains and biases. Over leading and last axes
//! likewise, as statistics of channels are.
//!
//! Elements are computed where they are summed. What they are computed from is read instead, if that is less memory
//! than writing and reading them, or than reading them where something else needs them as well. Sums over the same
//! axes that share what they read become one kernel.
//!
//! Looked for after groups over rows: what such a group computes for a sum alone it need not write then.

use std::collections::{BTreeMap, BTreeSet};

use tercet_ir::ops::{IndexMap, MapArg, Op, ReduceFn};
use tercet_ir::{NodeId, Shape, Value};

use super::dataflow::{Dataflow, first};
use super::row_wise::{self, Part, part_of};
use super::{Fusions, Group};
use crate::caps::Caps;
use crate::families::map::{as_map, steps_of};

/// Steps that are computed again at most.
const MOST_STEPS: usize = 48;
/// Sums of one kernel.
const MOST_SUMS: usize = 4;

/// Sums over the same leading axes of elements that are computed on the way.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    /// The sums and means, in order.
    pub(crate) sums: Vec<NodeId>,
    /// The nodes whose elements are computed again, and which results of them.
    pub(crate) inlined: BTreeMap<NodeId, BTreeSet<u8>>,
    /// The shape of elements.
    pub(crate) shape: Shape,
    /// The number of leading axes that are summed over.
    pub(crate) axes: usize,
    /// The number of last axes that are.
    pub(crate) inner: usize,
    /// What is read.
    leaves: BTreeSet<Value>,
}

/// Finds the sums of a graph.
pub(super) fn find(flow: &mut Dataflow<'_>, caps: &Caps, found: &mut Fusions) {
    let mut before: Option<Columns> = None;
    let limit = caps.max_storage_buffers as usize;
    for (id, _) in flow.graph.nodes() {
        let Some(columns) = columns(flow, found, id) else {
            continue;
        };
        if columns.leaves.len() >= limit {
            continue;
        }
        if !columns.inlined.is_empty() {
            take(flow, found, &columns);
        }
        let joined = before.and_then(|before| joined(flow, limit, &before, &columns));
        let columns = joined.unwrap_or(columns);
        // A sum of what is there by itself has kernels of its own, but for channels.
        if columns.inner > 0 || columns.sums.len() > 1 || !columns.inlined.is_empty() {
            for sum in &columns.sums {
                found.groups.remove(sum);
                found.deferred.insert(*sum);
            }
            found.deferred.remove(&id);
            found.groups.insert(id, Group::Columns(columns.clone()));
        }
        before = Some(columns);
    }
}

/// A sum with the work before it, if that saves memory.
fn columns(flow: &Dataflow<'_>, found: &Fusions, id: NodeId) -> Option<Columns> {
    let graph = flow.graph;
    let node = graph.node(id);
    let Op::Reduce(op) = &node.op else {
        return None;
    };
    let of = node.inputs[0];
    let ty = graph.ty(of);
    let (axes, inner) = around(&op.axes, ty.rank())?;
    let is_sum = matches!(op.f, ReduceFn::Sum | ReduceFn::Mean);
    let is_known = ty.shape[axes..]
        .iter()
        .all(|d| d.known().is_some_and(|n| n > 0));
    let may = is_sum && is_known && ty.dtype.is_float();
    if !may || found.has(id) || flow.is_constant(id) || flow.in_place.contains_key(&first(id)) {
        return None;
    }
    // Values of 16 bits that a map makes may come from others that it makes, and so on: where that leads too far they are read.
    [false, true]
        .into_iter()
        .find_map(|reads_narrow| sum_of(flow, found, id, (axes, inner), reads_narrow))
}

/// A sum with the work before it, which ends at values of 16 bits if `reads_narrow`.
fn sum_of(
    flow: &Dataflow<'_>,
    found: &Fusions,
    id: NodeId,
    (axes, inner): (usize, usize),
    reads_narrow: bool,
) -> Option<Columns> {
    let graph = flow.graph;
    let of = graph.node(id).inputs[0];
    let ty = graph.ty(of);
    let mut cone = Cone {
        flow,
        found,
        inlined: BTreeMap::new(),
        leaves: BTreeSet::new(),
        steps: 0,
        reads_narrow,
    };
    if cone.may_inline(of, &ty.shape) {
        cone.inline(of, &ty.shape)?;
    } else {
        cone.leaves.insert(of);
    }
    let Cone {
        inlined, leaves, ..
    } = cone;
    let bytes = |v: &Value| match graph.ty(*v).shape == ty.shape {
        true => graph.ty(*v).dtype.size_bytes(),
        false => 0,
    };
    let read: usize = leaves.iter().map(bytes).sum();
    // Groups over rows and other sums compute it themselves.
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
    let fits = read <= most && flow.stay_until(&leaves_stay, id);
    fits.then(|| Columns {
        sums: vec![id],
        inlined,
        shape: ty.shape.clone(),
        axes,
        inner,
        leaves,
    })
}

/// How many leading axes and how many last ones a reduction is over, if it is over some of the former and leaves some axes
/// between them.
fn around(axes: &[usize], rank: usize) -> Option<(usize, usize)> {
    let lead = axes.iter().enumerate().take_while(|(i, a)| i == *a).count();
    let inner = axes.len() - lead;
    let are_last = axes[lead..].iter().copied().eq(rank - inner..rank);
    (lead > 0 && axes.len() < rank && are_last).then_some((lead, inner))
}

/// The elementwise work before a value.
struct Cone<'a> {
    flow: &'a Dataflow<'a>,
    found: &'a Fusions,
    inlined: BTreeMap<NodeId, BTreeSet<u8>>,
    leaves: BTreeSet<Value>,
    steps: usize,
    /// True if values of 16 bits are read, but for the one that is summed.
    reads_narrow: bool,
}

impl Cone<'_> {
    /// Takes in the node of a value and what it needs of others; nothing where it is no elementwise one.
    fn inline(&mut self, v: Value, shape: &Shape) -> Option<()> {
        if !self.may_inline(v, shape) {
            return None;
        }
        let node = self.flow.graph.node(v.node);
        let known = self.inlined.entry(v.node).or_default();
        if !known.insert(v.port) {
            return Some(());
        }
        let map = as_map(self.flow.graph, node);
        let steps = steps_of(&map, std::iter::once(v.port));
        self.steps += steps.len();
        if self.steps > MOST_STEPS {
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
            if !is_read && self.may_inline(read, shape) {
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

    fn may_inline(&self, v: Value, shape: &Shape) -> bool {
        let node = self.flow.graph.node(v.node);
        let is_elementwise = part_of(self.flow.graph, node, shape, shape.rank());
        let is_free = match self.found.has(v.node) {
            true => self.found.rows_of(v.node).is_some(),
            false => true,
        };
        let updates = self.flow.in_place.contains_key(&v);
        is_elementwise == Some(Part::Elements)
            && is_free
            && !updates
            && !self.flow.is_constant(v.node)
    }

    /// True if a value has, or can have, memory of its own.
    fn is_stored(&self, v: Value) -> bool {
        let ty = self.flow.graph.ty(v);
        self.found.rows_of(v.node).is_none() || ty.dtype.size_bytes() == 4
    }
}

/// Lets the sum read what its group reads.
fn take(flow: &mut Dataflow<'_>, found: &mut Fusions, columns: &Columns) {
    let id = columns.sums[0];
    let of = flow.graph.node(id).inputs[0];
    flow.reads_instead(id, of, &columns.leaves);
    // What nothing reads any more is not emitted.
    for &node in columns.inlined.keys().rev() {
        let graph = flow.graph;
        let outputs = graph.node(node).outputs.len() as u8;
        let mut ports = (0..outputs).map(|port| Value { node, port });
        if !found.has(node) && ports.all(|v| flow.is_unread(v)) {
            found.deferred.insert(node);
            flow.forget_reader(node);
        }
    }
    let nodes = columns.inlined.keys().copied();
    let nodes = nodes.chain(columns.leaves.iter().map(|v| v.node));
    let touched: BTreeSet<NodeId> = nodes.filter_map(|n| found.rows.get(&n).copied()).collect();
    for last in touched {
        let Some(Group::RowWise(rows)) = found.groups.get_mut(&last) else {
            continue;
        };
        rows.results = row_wise::read_outside(flow, &rows.nodes);
    }
}

/// Two groups as one, which stands where the second does.
fn joined(flow: &Dataflow<'_>, limit: usize, a: &Columns, b: &Columns) -> Option<Columns> {
    let id = *b.sums.last()?;
    let same = a.shape == b.shape && (a.axes, a.inner) == (b.axes, b.inner);
    let is_whole = |v: &&Value| flow.graph.ty(**v).shape == a.shape;
    let shares = a.leaves.intersection(&b.leaves).filter(is_whole).count() > 0;
    let waits = |sum: &NodeId| flow.all_readers(first(*sum)).iter().all(|r| *r > id);
    let leaves: BTreeSet<Value> = a.leaves.union(&b.leaves).copied().collect();
    let stays: Vec<Value> = leaves.iter().copied().collect();
    let sums = [&a.sums[..], &b.sums[..]].concat();
    let fits = sums.len() <= MOST_SUMS && leaves.len() + sums.len() <= limit;
    if !same || !shares || !fits || !a.sums.iter().all(waits) || !flow.stay_until(&stays, id) {
        return None;
    }
    let mut inlined = a.inlined.clone();
    for (node, ports) in &b.inlined {
        inlined.entry(*node).or_default().extend(ports);
    }
    Some(Columns {
        sums,
        inlined,
        leaves,
        ..b.clone()
    })
}
