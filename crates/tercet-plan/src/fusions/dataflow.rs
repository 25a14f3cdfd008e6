//! Dataflow analysis: the readers of each value, and the values whose memory is overwritten during
//! a run. Fusions use both to decide whether a node may be emitted later than its position in the
//! graph.

use std::collections::{BTreeSet, HashMap, HashSet};

use tercet_ir::layout::is_view;
use tercet_ir::{Graph, Node, NodeId, Op, Value};

use crate::walk::{InPlaceUpdates, has_one_size, varies_between_runs};

/// Results of the dataflow analysis, which the searches for fusion groups query.
pub(super) struct UseDefGraph<'g> {
    pub(super) graph: &'g Graph,
    /// Update nodes that write their result into the memory of their first operand.
    pub(super) in_place: &'g InPlaceUpdates,
    readers: HashMap<Value, Vec<NodeId>>,
    uses: Vec<Vec<u32>>,
    /// Values whose memory an in-place update writes: the contents before and after the update.
    /// Each value comes with the first node after it that writes this memory, if there is one.
    overwritten: HashMap<Value, Option<NodeId>>,
    constant: HashSet<NodeId>,
}

impl<'g> UseDefGraph<'g> {
    pub(super) fn new(graph: &'g Graph, in_place: &'g InPlaceUpdates) -> UseDefGraph<'g> {
        let mut flow = UseDefGraph {
            graph,
            in_place,
            readers: HashMap::new(),
            uses: graph.use_counts(),
            overwritten: HashMap::new(),
            constant: HashSet::new(),
        };
        for (value, update) in in_place {
            for of in [*value, first(update.leaf)] {
                let same = in_place.iter().filter(|(_, u)| u.leaf == update.leaf);
                let later = same.map(|(v, _)| v.node).filter(|node| *node > of.node);
                flow.overwritten.insert(of, later.min());
            }
        }
        for (id, node) in graph.nodes() {
            for v in &node.inputs {
                flow.readers.entry(*v).or_default().push(id);
            }
            if is_view_of_operand(node)
                && let Some(&written) = flow.overwritten.get(&node.inputs[0])
            {
                flow.overwritten.insert(first(id), written);
            }
            if flow.is_prepared(node) {
                flow.constant.insert(id);
            }
        }
        flow
    }

    fn is_prepared(&self, node: &Node) -> bool {
        let are_constant = || node.inputs.iter().all(|v| self.constant.contains(&v.node));
        !varies_between_runs(&node.op) && has_one_size(self.graph, node) && are_constant()
    }

    /// True if the node has the same results in every run with the same parameters.
    pub(super) fn is_constant(&self, node: NodeId) -> bool {
        self.constant.contains(&node)
    }

    /// True if an in-place update writes the memory of some of these values, so that a later read
    /// may see other data.
    pub(super) fn are_overwritten(&self, values: &[Value]) -> bool {
        values.iter().any(|v| self.overwritten.contains_key(v))
    }

    /// True if no node before `last` overwrites the memory of these values.
    pub(super) fn are_unchanged_until(&self, values: &[Value], last: NodeId) -> bool {
        let written = |v: &Value| self.overwritten.get(v).copied().flatten();
        let changes = |v: &Value| written(v).is_some_and(|node| node < last);
        !values.iter().any(changes)
    }

    /// The nodes that read a value, with one entry per use. Empty if the value is also a result of
    /// the graph.
    pub(super) fn readers(&self, v: Value) -> &[NodeId] {
        let nodes = self.all_readers(v);
        let uses = self.uses[v.node.index()][v.port as usize] as usize;
        if uses == nodes.len() { nodes } else { &[] }
    }

    /// True if this node is the only reader of the value and uses it once.
    pub(super) fn is_only_reader(&self, node: NodeId, v: Value) -> bool {
        self.readers(v) == [node]
    }

    /// True if all readers of the value are among these nodes and the value is not a result of the
    /// graph.
    pub(super) fn is_read_within(&self, v: Value, nodes: &BTreeSet<NodeId>) -> bool {
        let readers = self.all_readers(v);
        let uses = self.uses[v.node.index()][v.port as usize] as usize;
        uses == readers.len() && readers.iter().all(|r| nodes.contains(r))
    }

    /// True if the value is a result of the graph.
    pub(super) fn is_result(&self, v: Value) -> bool {
        self.uses_of(v) > self.all_readers(v).len()
    }

    /// True if no node reads the value and it is not a result of the graph.
    pub(super) fn is_unread(&self, v: Value) -> bool {
        self.uses_of(v) == 0
    }

    /// Records that a node reads these values instead of its operand `of`.
    pub(super) fn replace_read(&mut self, node: NodeId, of: Value, leaves: &BTreeSet<Value>) {
        self.remove_read(node, of);
        for leaf in leaves {
            self.readers.entry(*leaf).or_default().push(node);
            self.uses[leaf.node.index()][leaf.port as usize] += 1;
        }
    }

    /// Removes a node from the readers of all its operands.
    pub(super) fn remove_reader(&mut self, node: NodeId) {
        for v in &self.graph.node(node).inputs {
            self.remove_read(node, *v);
        }
    }

    fn remove_read(&mut self, node: NodeId, v: Value) {
        let readers = self.readers.entry(v).or_default();
        if let Some(at) = readers.iter().position(|r| *r == node) {
            readers.remove(at);
            self.uses[v.node.index()][v.port as usize] -= 1;
        }
    }

    fn uses_of(&self, v: Value) -> usize {
        self.uses[v.node.index()][v.port as usize] as usize
    }

    /// True if all nodes that read the value, except `except`, come after `last`. A result of the
    /// graph counts as read after all nodes.
    pub(super) fn is_read_after(&self, v: Value, last: NodeId, except: Option<NodeId>) -> bool {
        let mut readers = self.all_readers(v).iter();
        readers.all(|reader| *reader > last || Some(*reader) == except)
    }

    /// The nodes that read a value; its use as a graph result is not counted.
    pub(super) fn all_readers(&self, v: Value) -> &[NodeId] {
        self.readers.get(&v).map_or(&[], Vec::as_slice)
    }
}

/// The value of a node's first result.
pub(super) fn first(node: NodeId) -> Value {
    Value { node, port: 0 }
}

/// True if the result of a node is a view of its first operand, so that both share memory.
fn is_view_of_operand(node: &Node) -> bool {
    is_view(node.op.kind()) || matches!((&node.op, node.inputs.len()), (Op::Concat(_), 1))
}
