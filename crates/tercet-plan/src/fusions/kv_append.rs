//! What stands before attention over a KV cache: RoPE of queries and keys, and the updates that append keys and values
//! to their caches.
//!
//! Norms of queries and keys, and whatever else makes the three, are steps of their own before the group, wherever
//! they stand in the graph: a group waits for its last node, and only what its nodes depend on comes first.

use std::collections::{BTreeMap, HashSet};

use tercet_ir::layout::is_view;
use tercet_ir::ops::{Layout, Op};
use tercet_ir::{Dim, Graph, Node, NodeId, Value};

use super::dataflow::{Dataflow, first};
use super::{Fusions, Group};
use crate::caps::Caps;
use crate::families::rope::append;

/// Queries, keys and values of the same tokens on their way to attention.
#[derive(Clone, Debug)]
pub(crate) struct KvAppend {
    /// RoPE of the queries.
    pub(crate) query_rope: NodeId,
    /// RoPE of the keys.
    pub(crate) key_rope: NodeId,
    /// The update that appends the keys to their cache.
    pub(crate) key_append: NodeId,
    /// The update that appends the values to theirs.
    pub(crate) value_append: NodeId,
    /// The attention that reads all three, where nothing else reads the queries.
    pub(crate) attention: Option<NodeId>,
}

impl KvAppend {
    /// The node that stands last.
    fn last(&self) -> NodeId {
        let appends = self.key_append.max(self.value_append);
        self.attention.unwrap_or(appends.max(self.query_rope))
    }
}

/// Finds keys that get their RoPE on their way into a cache, and with them the queries and values of the same tokens.
pub(super) fn find(flow: &Dataflow<'_>, caps: &Caps, found: &mut Fusions) {
    let candidates = Candidates::of(flow);
    for (&update, &rope) in &candidates.rotated {
        found.deferred.insert(rope);
        found.groups.insert(update, Group::RopeUpdate { rope });
    }
    if !append::is_available(caps) {
        return;
    }
    for (id, node) in flow.graph.nodes() {
        let Op::Attention(op) = &node.op else {
            continue;
        };
        let operands = [0, 1, 2].map(|i| looked_at(flow.graph, node.inputs[i]));
        let nodes = operands.map(|v| v.node);
        // Its positions are those of RoPE, along axis 1.
        let reads_them = operands == nodes.map(first)
            && node.inputs[..3] == operands
            && op.layout == Layout::Bshd;
        let with = reads_them.then(|| candidates.group(flow, found, nodes, Some(id)));
        let group = with.flatten();
        let group = group.or_else(|| candidates.group(flow, found, nodes, None));
        group.into_iter().for_each(|group| found.append(group));
    }
    // Attention that is written out in other operators.
    for &update in candidates.rotated.keys() {
        let group = candidates.nearest(flow, found, update);
        group.into_iter().for_each(|group| found.append(group));
    }
}

impl Fusions {
    fn append(&mut self, group: KvAppend) {
        let own = [
            group.query_rope,
            group.key_rope,
            group.key_append,
            group.value_append,
        ];
        self.groups.remove(&group.key_append);
        self.deferred.extend(own);
        let last = group.last();
        self.deferred.remove(&last);
        self.groups.insert(last, Group::KvAppend(group));
    }

    /// True if the node belongs to no group, but for an update that is one with its RoPE only.
    fn is_free(&self, node: NodeId) -> bool {
        let group = self.groups.get(&node);
        !self.is_deferred(node) && matches!(group, None | Some(Group::RopeUpdate { .. }))
    }
}

/// The nodes that groups may be made of, each in the order of the graph.
#[derive(Default)]
struct Candidates {
    /// Updates of states in place with what RoPE gives, if nothing else reads it, and that RoPE.
    rotated: BTreeMap<NodeId, NodeId>,
    /// All other updates of states in place.
    plain: Vec<NodeId>,
    /// All other RoPE.
    queries: Vec<NodeId>,
}

impl Candidates {
    fn of(flow: &Dataflow<'_>) -> Candidates {
        let graph = flow.graph;
        let mut found = Candidates::default();
        for (id, node) in graph.nodes() {
            match node.op {
                Op::Rope(_) => found.queries.push(id),
                Op::DynamicUpdateSlice(_) if updates_state(flow, id, node) => {
                    match rope_into(flow, id, node) {
                        Some(rope) => drop(found.rotated.insert(id, rope)),
                        None => found.plain.push(id),
                    }
                }
                _ => {}
            }
        }
        let rotated: HashSet<NodeId> = found.rotated.values().copied().collect();
        found.queries.retain(|id| !rotated.contains(id));
        found
    }

    /// The group of RoPE of queries and of updates of caches with keys and values, if it is one.
    fn group(
        &self,
        flow: &Dataflow<'_>,
        found: &Fusions,
        [query_rope, key_append, value_append]: [NodeId; 3],
        attention: Option<NodeId>,
    ) -> Option<KvAppend> {
        let known = self.queries.binary_search(&query_rope).is_ok()
            && self.plain.binary_search(&value_append).is_ok();
        let key_rope = *self.rotated.get(&key_append).filter(|_| known)?;
        let group = KvAppend {
            query_rope,
            key_rope,
            key_append,
            value_append,
            attention,
        };
        let are_free = [query_rope, key_append, value_append]
            .into_iter()
            .all(|id| found.is_free(id));
        let fits = are_free && are_alike(flow.graph, &group) && may_wait(flow, &group);
        fits.then_some(group)
    }

    /// The group of an update with keys and of what stands nearest to it.
    fn nearest(
        &self,
        flow: &Dataflow<'_>,
        found: &Fusions,
        key_append: NodeId,
    ) -> Option<KvAppend> {
        let [before, after] = neighbours(&self.plain, key_append);
        [after, before].into_iter().flatten().find_map(|values| {
            let queries = neighbours(&self.queries, key_append.max(values));
            let mut queries = queries.into_iter().flatten();
            queries.find_map(|queries| self.group(flow, found, [queries, key_append, values], None))
        })
    }
}

/// The nodes of a list in order that stand next to one that is not in it.
fn neighbours(list: &[NodeId], to: NodeId) -> [Option<NodeId>; 2] {
    let at = list.partition_point(|id| *id < to);
    let before = at.checked_sub(1).and_then(|at| list.get(at));
    // It is itself in the list of its own kind.
    let after = list[at..].iter().find(|id| **id != to);
    [before.copied(), after.copied()]
}

/// What views look at in the end.
fn looked_at(graph: &Graph, mut v: Value) -> Value {
    while is_view(graph.node(v.node).op.kind()) {
        v = graph.node(v.node).inputs[0];
    }
    v
}

fn updates_state(flow: &Dataflow<'_>, id: NodeId, node: &Node) -> bool {
    let leaf = flow.graph.node(node.inputs[0].node);
    let value = Value { node: id, port: 0 };
    flow.in_place.contains_key(&value) && matches!(leaf.op, Op::State(_))
}

/// The RoPE whose result an update writes into a state, where nothing else reads it and its rows are the state's, in
/// whole words.
fn rope_into(flow: &Dataflow<'_>, id: NodeId, node: &Node) -> Option<NodeId> {
    let update = node.inputs[1];
    let rope = flow.graph.node(update.node);
    let (ty, state) = (flow.graph.ty(update), &node.outputs[0]);
    let lanes = 4 / ty.dtype.size_bytes().min(4);
    let head = ty.shape.get(3).and_then(Dim::known);
    let are_words = head.is_some_and(|head| head.is_multiple_of(lanes));
    let fits = matches!(rope.op, Op::Rope(_))
        && flow.is_only_reader(id, update)
        && ty.dtype == state.dtype
        && ty.shape.get(3) == state.shape.get(3)
        && are_words
        && !flow.are_overwritten(&rope.inputs);
    fits.then_some(update.node)
}

/// True if queries and keys get the same positions, which do not depend on the head, and keys and values go to the
/// same places of caches of one type.
fn are_alike(graph: &Graph, group: &KvAppend) -> bool {
    let [q, k] = [group.query_rope, group.key_rope].map(|id| graph.node(id));
    let [keys, values] = [group.key_append, group.value_append].map(|id| graph.node(id));
    let (Op::Rope(q_rope), Op::Rope(k_rope)) = (&q.op, &k.op) else {
        return false;
    };
    let (q_ty, k_ty) = (&q.outputs[0], &k.outputs[0]);
    q_rope == k_rope
        && q_rope.layout == Layout::Bshd
        && q.inputs[1..] == k.inputs[1..]
        && q_ty.dtype == k_ty.dtype
        && [1, 3]
            .iter()
            .all(|&axis| q_ty.shape[axis] == k_ty.shape[axis])
        && k_ty.shape[3] != Dim::Known(0)
        && graph.ty(values.inputs[1]) == k_ty
        && keys.outputs[0] == values.outputs[0]
        && keys.inputs[2] == values.inputs[2]
}

/// True if all of the group may be emitted where its last node stands: nothing reads its results before, and what
/// it reads is the same then. An update in place has no later readers of what its state held before, so that only
/// reads of new contents are left to look at.
fn may_wait(flow: &Dataflow<'_>, group: &KvAppend) -> bool {
    let last = group.last();
    let read = |id: NodeId, from: usize| &flow.graph.node(id).inputs[from..];
    let mut operands = vec![
        read(group.query_rope, 0),
        read(group.key_rope, 0),
        read(group.key_append, 2),
        read(group.value_append, 1),
    ];
    operands.extend(group.attention.map(|id| read(id, 3)));
    let results = [group.query_rope, group.key_append, group.value_append].map(first);
    let is_read_by_attention_only = |id: NodeId| flow.is_only_reader(id, first(group.query_rope));
    results
        .into_iter()
        .all(|v| flow.is_read_after(v, last, group.attention))
        && operands.into_iter().all(|read| !flow.are_overwritten(read))
        && group.attention.is_none_or(is_read_by_attention_only)
        && !flow.is_constant(group.query_rope)
}
