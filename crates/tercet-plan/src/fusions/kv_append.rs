//! Fusion of the nodes before attention over a KV cache: RoPE of queries and keys, and the updates
//! that append keys and values to their caches.
//!
//! With a cache of 16-bit floats, the group also contains the casts between RoPE, cache and
//! attention.
//!
//! Norms of queries and keys, and other nodes that compute the group's operands, remain separate
//! steps before the group. A group is emitted at its last node, so other nodes may lie between its
//! nodes in graph order.

use std::collections::{BTreeMap, HashSet};

use tercet_ir::layout::is_view;
use tercet_ir::ops::{AttentionLayout, IndexMap, MapArg, Op, ScatterReduce};
use tercet_ir::scalar::ScalarOp;
use tercet_ir::{DType, Dim, Graph, Node, NodeId, Value};

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
    /// The same view of cast values.
    value_view: Option<NodeId>,
    /// The update that appends the keys to their cache: a slice at given starts, or a scatter of
    /// tokens to given slots and positions.
    pub(crate) key_append: NodeId,
    /// The update that appends the values to their cache.
    pub(crate) value_append: NodeId,
    /// The attention that reads the rotated queries and both caches; `None` if another node reads
    /// the rotated queries.
    pub(crate) attention: Option<NodeId>,
    /// The casts to the dtype of the caches, if the operands have another one.
    pub(crate) casts: Option<KvAppendCasts>,
}

/// Casts of a group to the dtype of its caches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvAppendCasts {
    /// The cast of the rotated queries.
    pub(crate) query: NodeId,
    /// The cast of the rotated keys.
    pub(crate) key: NodeId,
    /// The cast of the values.
    pub(crate) value: NodeId,
    /// The cast of the attention result back to F32, if it is the only reader of the result.
    pub(crate) result: Option<NodeId>,
}

impl KvAppendGroup {
    /// The last node of the group in graph order, at which the group is emitted.
    fn last(&self) -> NodeId {
        let appends = self.key_append.max(self.value_append);
        let result = self.casts.and_then(|casts| casts.result);
        let attention = result.or(self.attention);
        attention.unwrap_or(appends.max(self.queries()))
    }

    /// The node whose result the attention reads as queries.
    pub(crate) fn queries(&self) -> NodeId {
        self.casts.map_or(self.query_rope, |casts| casts.query)
    }

    /// The views between the nodes of the group.
    fn views(&self) -> impl Iterator<Item = NodeId> {
        self.key_view.into_iter().chain(self.value_view)
    }

    /// All nodes of the group except views and the attention.
    fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let own = [
            self.query_rope,
            self.key_rope,
            self.key_append,
            self.value_append,
        ];
        let casts = self
            .casts
            .map(|casts| [casts.query, casts.key, casts.value]);
        own.into_iter().chain(casts.into_iter().flatten())
    }
}

/// Finds the groups: keys that are appended to a cache after RoPE, with the queries and values of
/// the same tokens.
pub(super) fn find(flow: &UseDefGraph<'_>, caps: &DeviceCaps, found: &mut Fusions) {
    let candidates = KvAppendCandidates::new(flow);
    for (&update, keys) in &candidates.rotated {
        if matches!(flow.graph.node(update).op, Op::ScatterNd(_)) || keys.cast.is_some() {
            continue;
        }
        let rope = keys.rope;
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
        self.groups.remove(&group.key_append);
        self.deferred.extend(group.nodes());
        self.deferred.extend(group.views());
        self.deferred.extend(group.attention);
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
    /// In-place state updates that store the result of a RoPE without other readers.
    rotated: BTreeMap<NodeId, RotatedKeys>,
    /// In-place state updates that store other values, such as the values of a KV cache.
    plain: Vec<NodeId>,
    /// RoPE nodes whose results are not stored in a state, such as those of queries.
    queries: Vec<NodeId>,
}

/// Keys that an update stores: the result of a RoPE, or its cast.
#[derive(Clone, Copy, Debug)]
struct RotatedKeys {
    rope: NodeId,
    /// The cast of the result to the dtype of the state.
    cast: Option<NodeId>,
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
                        Some(keys) => drop(found.rotated.insert(id, keys)),
                        None => found.plain.push(id),
                    }
                }
                _ => {}
            }
        }
        let rotated: HashSet<NodeId> = found.rotated.values().map(|keys| keys.rope).collect();
        found.queries.retain(|id| !rotated.contains(id));
        found
    }

    /// The group of these queries, key append and value append, if the nodes belong together and
    /// can be fused. The queries are a RoPE, or the cast of one.
    fn group(
        &self,
        flow: &UseDefGraph<'_>,
        found: &Fusions,
        [queries, key_append, value_append]: [NodeId; 3],
        attention: Option<NodeId>,
    ) -> Option<KvAppendGroup> {
        let graph = flow.graph;
        let query_rope = match &graph.node(queries).op {
            Op::Cast(_) => graph.node(queries).inputs[0].node,
            _ => queries,
        };
        let known = self.queries.binary_search(&query_rope).is_ok()
            && self.plain.binary_search(&value_append).is_ok();
        let keys = *self.rotated.get(&key_append).filter(|_| known)?;
        let group = KvAppendGroup {
            query_rope,
            key_rope: keys.rope,
            key_view: view_between(graph, key_append, keys.cast.unwrap_or(keys.rope)),
            value_view: None,
            key_append,
            value_append,
            attention,
            casts: None,
        };
        let group = match keys.cast {
            Some(cast) => with_casts(flow, found, group, cast)?,
            None => group,
        };
        let fits = group.nodes().all(|id| found.is_free(id) || id == keys.rope)
            && (attention.is_none_or(|_| group.queries() == queries))
            && are_alike(graph, &group)
            && can_defer(flow, &group);
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

/// The view through which an update reads the result of a node; `None` if it reads it directly.
fn view_between(graph: &Graph, update: NodeId, of: NodeId) -> Option<NodeId> {
    let read = appended(graph.node(update)).node;
    (read != of).then_some(read)
}

/// Adds the casts to the dtype of the caches to a group whose keys are cast by `key`. `None` if
/// queries or values are not cast like the keys.
fn with_casts(
    flow: &UseDefGraph<'_>,
    found: &Fusions,
    group: KvAppendGroup,
    key: NodeId,
) -> Option<KvAppendGroup> {
    let graph = flow.graph;
    let dtype = graph.node(key).outputs[0].dtype;
    let cast_of = |id: NodeId| match flow.readers(first(id)) {
        [cast] if is_cast(graph, *cast, [DType::F32, dtype]) => Some(*cast),
        _ => None,
    };
    let query = cast_of(group.query_rope)?;
    let (value, value_view) = cast_into(flow, group.value_append);
    let value = value.filter(|value| is_strided_cast(graph, *value, [DType::F32, dtype]))?;
    let same_shape =
        |id: NodeId, of: NodeId| graph.node(id).outputs[0].shape == graph.node(of).outputs[0].shape;
    if !same_shape(value, group.key_rope) {
        return None;
    }
    let result = group.attention.and_then(|attention| {
        let [cast] = flow.readers(first(attention)) else {
            return None;
        };
        let ty = &graph.node(attention).outputs[0];
        let has_words = ty
            .shape
            .last()
            .and_then(Dim::known)
            .is_some_and(|n| n.is_multiple_of(2));
        let fits = is_cast(graph, *cast, [dtype, DType::F32]) && !found.has(*cast);
        (fits && has_words).then_some(*cast)
    });
    Some(KvAppendGroup {
        value_view,
        casts: Some(KvAppendCasts {
            query,
            key,
            value,
            result,
        }),
        ..group
    })
}

/// True if the node casts from the first dtype to the second.
fn is_cast(graph: &Graph, id: NodeId, [from, to]: [DType; 2]) -> bool {
    let node = graph.node(id);
    matches!(node.op, Op::Cast(_))
        && graph.ty(node.inputs[0]).dtype == from
        && node.outputs[0].dtype == to
}

/// True if the node casts a value, or a strided view of it, from the first dtype to the second.
fn is_strided_cast(graph: &Graph, id: NodeId, dtypes: [DType; 2]) -> bool {
    let node = graph.node(id);
    let Op::Map(map) = &node.op else {
        return is_cast(graph, id, dtypes);
    };
    let [from, to] = dtypes;
    let casts = match &map.body[..] {
        [step] => matches!(step.op, ScalarOp::Cast(_)) && step.args[..] == [MapArg::Input(0)],
        _ => false,
    };
    let are_strides = |index: &IndexMap| {
        index
            .axes
            .iter()
            .all(|axis| axis.shift == 0 && axis.step >= 0)
    };
    casts
        && map.inputs.iter().all(are_strides)
        && node.inputs.len() == 1
        && node.outputs.len() == 1
        && graph.ty(node.inputs[0]).dtype == from
        && node.outputs[0].dtype == to
}

/// The cast whose result alone an update stores, and the view between both.
fn cast_into(flow: &UseDefGraph<'_>, update: NodeId) -> (Option<NodeId>, Option<NodeId>) {
    let graph = flow.graph;
    let (mut reader, mut stored) = (update, appended(graph.node(update)));
    let mut view = None;
    if matches!(graph.node(stored.node).op, Op::Reshape(_)) && flow.is_only_reader(reader, stored) {
        view = Some(stored.node);
        (reader, stored) = (stored.node, graph.node(stored.node).inputs[0]);
    }
    let is_cast = matches!(graph.node(stored.node).op, Op::Cast(_) | Op::Map(_));
    let cast = (is_cast && flow.is_only_reader(reader, stored)).then_some(stored.node);
    (cast, view)
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

/// The RoPE whose result, or its cast from F32, a state update stores. `None` if one of them has
/// other readers, or if its rows are not whole rows of the state that consist of whole 32-bit words.
fn rope_into(flow: &UseDefGraph<'_>, id: NodeId, node: &Node) -> Option<RotatedKeys> {
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
    let (ty, state) = (graph.ty(update), &node.outputs[0]);
    let mut cast = None;
    if is_cast(graph, update.node, [DType::F32, state.dtype])
        && state.dtype.size_bytes() == 2
        && flow.is_only_reader(reader, update)
    {
        cast = Some(update.node);
        (reader, update) = (update.node, graph.node(update.node).inputs[0]);
    }
    let rope = graph.node(update.node);
    let lanes = 4 / ty.dtype.size_bytes().min(4);
    let head = ty.shape.get(3).and_then(Dim::known);
    let are_words = head.is_some_and(|head| head.is_multiple_of(lanes));
    let fits = matches!(rope.op, Op::Rope(_))
        && flow.is_only_reader(reader, update)
        && ty.dtype == state.dtype
        && ty.shape.get(3) == state.shape.get(3)
        && are_words
        && !flow.are_overwritten(&rope.inputs);
    let rope = update.node;
    fits.then_some(RotatedKeys { rope, cast })
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
    let stored = match group.casts {
        Some(casts) => flow.graph.node(casts.value).inputs[0],
        None => appended(values),
    };
    let of_append = [vec![places(keys)], vec![places(values), stored]];
    let mut operands = vec![
        read(group.query_rope, 0),
        read(group.key_rope, 0),
        &of_append[0][..],
        &of_append[1][..],
    ];
    operands.extend(group.attention.map(|id| read(id, 3)));
    let results = [group.queries(), group.key_append, group.value_append].map(first);
    let is_read_by_attention_only = |id: NodeId| flow.is_only_reader(id, first(group.queries()));
    results
        .into_iter()
        .all(|v| flow.is_read_after(v, last, group.attention))
        && operands.into_iter().all(|read| !flow.are_overwritten(read))
        && group.attention.is_none_or(is_read_by_attention_only)
        && !flow.is_constant(group.query_rope)
}
