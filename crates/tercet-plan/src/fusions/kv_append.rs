//! Fusion of the nodes before attention over a KV cache: RoPE of queries and keys, and the updates
//! that append keys and values to their caches.
//!
//! Norms of queries and keys, and other nodes that compute the group's operands, remain separate
//! steps before the group. A group is emitted at its last node, so other nodes may lie between its
//! nodes in graph order.

use std::collections::{BTreeMap, HashSet};

use tercet_ir::layout::is_view;
use tercet_ir::ops::{AttentionLayout, Op, ScatterReduce};
use tercet_ir::{Dim, Graph, Node, NodeId, Value};

use super::dataflow::{UseDefGraph, first};
use super::{FusionGroup, Fusions};
use crate::caps::DeviceCaps;
use crate::lowerings::rope::append;

/// A fusion group: RoPE of queries and keys, and the KV appends of the same tokens, optionally with
/// the attention that follows.
#[derive(Clone, Debug)]
pub(crate) struct KvAppendGroup {
    /// RoPE of the queries.
    pub(crate) query_rope: NodeId,
    /// RoPE of the keys.
    pub(crate) key_rope: NodeId,
    /// The view of the rotated keys that the update reads, if it reads them without a batch axis.
    pub(crate) key_view: Option<NodeId>,
    /// The update that appends the keys to their cache: a slice at given starts, or a scatter of
    /// tokens to given slots and positions.
    pub(crate) key_append: NodeId,
    /// The update that appends the values to their cache.
    pub(crate) value_append: NodeId,
    /// The attention that reads the rotated queries and both caches; `None` if another node reads
    /// the rotated queries.
    pub(crate) attention: Option<NodeId>,
}

impl KvAppendGroup {
    /// The last node of the group in graph order, at which the group is emitted.
    fn last(&self) -> NodeId {
        let appends = self.key_append.max(self.value_append);
        self.attention.unwrap_or(appends.max(self.query_rope))
    }
}

/// Finds the groups: keys that are appended to a cache after RoPE, with the queries and values of
/// the same tokens.
pub(super) fn find(flow: &UseDefGraph<'_>, caps: &DeviceCaps, found: &mut Fusions) {
    let candidates = KvAppendCandidates::new(flow);
    for (&update, &rope) in &candidates.rotated {
        if matches!(flow.graph.node(update).op, Op::ScatterNd(_)) {
            continue;
        }
        found.deferred.insert(rope);
        found
            .groups
            .insert(update, FusionGroup::RopeUpdate { rope });
    }
    if !append::is_available(caps) {
        return;
    }
    for (id, node) in flow.graph.nodes() {
        let Op::Attention(op) = &node.op else {
            continue;
        };
        let operands = [0, 1, 2].map(|i| view_source(flow.graph, node.inputs[i]));
        let nodes = operands.map(|v| v.node);
        // The attention must have its sequence positions on axis 1, like the RoPE nodes.
        let reads_them = operands == nodes.map(first)
            && node.inputs[..3] == operands
            && op.layout == AttentionLayout::Bshd;
        let with = reads_them.then(|| candidates.group(flow, found, nodes, Some(id)));
        let group = with.flatten();
        let group = group.or_else(|| candidates.group(flow, found, nodes, None));
        group.into_iter().for_each(|group| found.append(group));
    }
    // Next, groups without an attention node: their attention is decomposed into other operators.
    for &update in candidates.rotated.keys() {
        let group = candidates.nearest(flow, found, update);
        group.into_iter().for_each(|group| found.append(group));
    }
}

impl Fusions {
    fn append(&mut self, group: KvAppendGroup) {
        let own = [
            group.query_rope,
            group.key_rope,
            group.key_append,
            group.value_append,
        ];
        self.groups.remove(&group.key_append);
        self.deferred.extend(own);
        self.deferred.extend(group.key_view);
        let last = group.last();
        self.deferred.remove(&last);
        self.groups.insert(last, FusionGroup::KvAppend(group));
    }

    /// True if a KV-append group may take the node: it is in no fusion group, or it is an update
    /// that is fused only with its RoPE.
    fn is_free(&self, node: NodeId) -> bool {
        let group = self.groups.get(&node);
        !self.is_deferred(node) && matches!(group, None | Some(FusionGroup::RopeUpdate { .. }))
    }
}

/// Candidate nodes for KV-append groups, each list in graph order.
#[derive(Default)]
struct KvAppendCandidates {
    /// In-place state updates that store the result of a RoPE without other readers, each mapped to
    /// this RoPE.
    rotated: BTreeMap<NodeId, NodeId>,
    /// In-place state updates that store other values, such as the values of a KV cache.
    plain: Vec<NodeId>,
    /// RoPE nodes whose results are not stored in a state, such as those of queries.
    queries: Vec<NodeId>,
}

impl KvAppendCandidates {
    fn new(flow: &UseDefGraph<'_>) -> KvAppendCandidates {
        let graph = flow.graph;
        let mut found = KvAppendCandidates::default();
        for (id, node) in graph.nodes() {
            match node.op {
                Op::Rope(_) => found.queries.push(id),
                Op::DynamicUpdateSlice(_) | Op::ScatterNd(_) if updates_state(flow, id, node) => {
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

    /// The group of this query RoPE, key append and value append, if the nodes belong together and
    /// can be fused.
    fn group(
        &self,
        flow: &UseDefGraph<'_>,
        found: &Fusions,
        [query_rope, key_append, value_append]: [NodeId; 3],
        attention: Option<NodeId>,
    ) -> Option<KvAppendGroup> {
        let known = self.queries.binary_search(&query_rope).is_ok()
            && self.plain.binary_search(&value_append).is_ok();
        let key_rope = *self.rotated.get(&key_append).filter(|_| known)?;
        let keys = appended(flow.graph.node(key_append)).node;
        let group = KvAppendGroup {
            query_rope,
            key_rope,
            key_view: (keys != key_rope).then_some(keys),
            key_append,
            value_append,
            attention,
        };
        let are_free = [query_rope, key_append, value_append]
            .into_iter()
            .all(|id| found.is_free(id));
        let fits = are_free && are_alike(flow.graph, &group) && can_defer(flow, &group);
        fits.then_some(group)
    }

    /// The group of a key append with the value append and the query RoPE that are nearest to it in
    /// graph order.
    fn nearest(
        &self,
        flow: &UseDefGraph<'_>,
        found: &Fusions,
        key_append: NodeId,
    ) -> Option<KvAppendGroup> {
        let [before, after] = neighbours(&self.plain, key_append);
        [after, before].into_iter().flatten().find_map(|values| {
            let queries = neighbours(&self.queries, key_append.max(values));
            let mut queries = queries.into_iter().flatten();
            queries.find_map(|queries| self.group(flow, found, [queries, key_append, values], None))
        })
    }
}

/// The nodes of an ordered list that are directly before and directly after a node.
fn neighbours(list: &[NodeId], to: NodeId) -> [Option<NodeId>; 2] {
    let at = list.partition_point(|id| *id < to);
    let before = at.checked_sub(1).and_then(|at| list.get(at));
    // If the list contains the node itself, this entry is skipped.
    let after = list[at..].iter().find(|id| **id != to);
    [before.copied(), after.copied()]
}

/// The value whose memory a chain of view operators refers to.
fn view_source(graph: &Graph, mut v: Value) -> Value {
    while is_view(graph.node(v.node).op.kind()) {
        v = graph.node(v.node).inputs[0];
    }
    v
}

fn updates_state(flow: &UseDefGraph<'_>, id: NodeId, node: &Node) -> bool {
    let leaf = flow.graph.node(node.inputs[0].node);
    let value = Value { node: id, port: 0 };
    flow.in_place.contains_key(&value) && matches!(leaf.op, Op::State(_))
}

/// The values that a state update writes.
fn appended(update: &Node) -> Value {
    match update.op {
        Op::ScatterNd(_) => update.inputs[2],
        _ => update.inputs[1],
    }
}

/// The operand with the positions that a state update writes.
fn places(update: &Node) -> Value {
    match update.op {
        Op::ScatterNd(_) => update.inputs[1],
        _ => update.inputs[2],
    }
}

/// The RoPE whose result a state update stores. `None` if the RoPE has other readers, or if its
/// rows are not whole rows of the state that consist of whole 32-bit words.
fn rope_into(flow: &UseDefGraph<'_>, id: NodeId, node: &Node) -> Option<NodeId> {
    let graph = flow.graph;
    let mut update = appended(node);
    let mut reader = id;
    if let Op::ScatterNd(op) = &node.op {
        // The tokens `[n, heads, size]` are those of one sequence, `[1, n, heads, size]`.
        let view = graph.node(update.node);
        let is_view = matches!(view.op, Op::Reshape(_)) && flow.is_only_reader(id, update);
        let tokens = graph.ty(*view.inputs.first().filter(|_| is_view)?);
        let is_one = matches!(&tokens.shape[..], [batch, rest @ ..]
            if batch.is_one() && rest == &graph.ty(update).shape[..]);
        if op.reduce != ScatterReduce::Replace || !is_one || !is_slice_of_heads(graph, node) {
            return None;
        }
        (reader, update) = (update.node, view.inputs[0]);
    }
    let rope = graph.node(update.node);
    let (ty, state) = (graph.ty(update), &node.outputs[0]);
    let lanes = 4 / ty.dtype.size_bytes().min(4);
    let head = ty.shape.get(3).and_then(Dim::known);
    let are_words = head.is_some_and(|head| head.is_multiple_of(lanes));
    let fits = matches!(rope.op, Op::Rope(_))
        && flow.is_only_reader(reader, update)
        && ty.dtype == state.dtype
        && ty.shape.get(3) == state.shape.get(3)
        && are_words
        && !flow.are_overwritten(&rope.inputs);
    fits.then_some(update.node)
}

/// True if the update of a scatter is a slice `[heads, size]` of a cache `[slots, positions, heads,
/// size]` for each token.
fn is_slice_of_heads(graph: &Graph, node: &Node) -> bool {
    let [cache, places, update] = [0, 1, 2].map(|at| &graph.ty(node.inputs[at]).shape);
    cache.len() == 4 && update.len() == 3 && places.len() == 2 && places[1] == Dim::Known(2)
}

/// True if queries and keys have the same RoPE with the same positions for all heads. Keys and
/// values must also be stored at the same positions in caches of one type.
fn are_alike(graph: &Graph, group: &KvAppendGroup) -> bool {
    let [q, k] = [group.query_rope, group.key_rope].map(|id| graph.node(id));
    let [keys, values] = [group.key_append, group.value_append].map(|id| graph.node(id));
    let (Op::Rope(q_rope), Op::Rope(k_rope)) = (&q.op, &k.op) else {
        return false;
    };
    let (q_ty, k_ty) = (&q.outputs[0], &k.outputs[0]);
    q_rope == k_rope
        && q_rope.layout == AttentionLayout::Bshd
        && q.inputs[1..] == k.inputs[1..]
        && q_ty.dtype == k_ty.dtype
        && [1, 3]
            .iter()
            .all(|&axis| q_ty.shape[axis] == k_ty.shape[axis])
        && k_ty.shape[3] != Dim::Known(0)
        && are_tokens_like(graph, keys, values)
        && keys.outputs[0] == values.outputs[0]
        && places(keys) == places(values)
}

/// True if both updates are of one kind and store tokens of one type.
fn are_tokens_like(graph: &Graph, keys: &Node, values: &Node) -> bool {
    let is_scatter = |node: &Node| matches!(node.op, Op::ScatterNd(_));
    let replaces = match &values.op {
        Op::ScatterNd(op) => op.reduce == ScatterReduce::Replace,
        _ => true,
    };
    is_scatter(keys) == is_scatter(values)
        && replaces
        && graph.ty(appended(keys)) == graph.ty(appended(values))
}

/// True if the whole group may be emitted at its last node: no earlier node outside the group reads
/// its results, and its operands do not change until then. No node reads the old contents of a
/// state after an in-place update, so only reads of the new contents are checked.
fn can_defer(flow: &UseDefGraph<'_>, group: &KvAppendGroup) -> bool {
    let last = group.last();
    let read = |id: NodeId, from: usize| &flow.graph.node(id).inputs[from..];
    let [keys, values] = [group.key_append, group.value_append].map(|id| flow.graph.node(id));
    let of_append = [vec![places(keys)], vec![places(values), appended(values)]];
    let mut operands = vec![
        read(group.query_rope, 0),
        read(group.key_rope, 0),
        &of_append[0][..],
        &of_append[1][..],
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
