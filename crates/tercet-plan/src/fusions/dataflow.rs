//! Who reads what of a graph, and whose memory changes while it runs: what decides whether nodes may be emitted
//! later than they stand.

use std::collections::{BTreeSet, HashMap, HashSet};

use tercet_ir::layout::is_view;
use tercet_ir::{Graph, Node, NodeId, Op, Value};

use crate::walk::{Updates, has_one_size, varies};

/// The facts of a graph that patterns ask for.
pub(super) struct Dataflow<'g> {
    pub(super) graph: &'g Graph,
    /// The updates that are written where their first operand lies.
    pub(super) in_place: &'g Updates,
    readers: HashMap<Value, Vec<NodeId>>,
    uses: Vec<Vec<u32>>,
    /// What lies where an update in place writes, before or after it, and the first node after the value's own that
    /// writes there, if there is one.
    overwritten: HashMap<Value, Option<NodeId>>,
    constant: HashSet<NodeId>,
}

impl<'g> Dataflow<'g> {
    pub(super) fn of(graph: &'g Graph, in_place: &'g Updates) -> Dataflow<'g> {
        let mut flow = Dataflow {
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
            if looks_at_operand(node)
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
        !varies(&node.op) && has_one_size(self.graph, node) && are_constant()
    }

    /// True if the node has the same results in every run with the same parameters.
    pub(super) fn is_constant(&self, node: NodeId) -> bool {
        self.constant.contains(&node)
    }

    /// True if some of these values lies where something is written during a run: read later, it may be another.
    pub(super) fn are_overwritten(&self, values: &[Value]) -> bool {
        values.iter().any(|v| self.overwritten.contains_key(v))
    }

    /// True if none of these values lies where something is written before `last`.
    pub(super) fn stay_until(&self, values: &[Value], last: NodeId) -> bool {
        let written = |v: &Value| self.overwritten.get(v).copied().flatten();
        let changes = |v: &Value| written(v).is_some_and(|node| node < last);
        !values.iter().any(changes)
    }

    /// The nodes that read a value, each as often as it does; none where it is also a result of the
    /// graph.
    pub(super) fn readers(&self, v: Value) -> &[NodeId] {
        let nodes = self.all_readers(v);
        let uses = self.uses[v.node.index()][v.port as usize] as usize;
        if uses == nodes.len() { nodes } else { &[] }
    }

    /// True if this node, once, is all that reads the value.
    pub(super) fn is_only_reader(&self, node: NodeId, v: Value) -> bool {
        self.readers(v) == [node]
    }

    /// True if only these nodes read the value, and it is no result of the graph.
    pub(super) fn is_read_within(&self, v: Value, nodes: &BTreeSet<NodeId>) -> bool {
        let readers = self.all_readers(v);
        let uses = self.uses[v.node.index()][v.port as usize] as usize;
        uses == readers.len() && readers.iter().all(|r| nodes.contains(r))
    }

    /// True if the value is a result of the graph.
    pub(super) fn is_result(&self, v: Value) -> bool {
        self.uses_of(v) > self.all_readers(v).len()
    }

    /// True if nothing reads the value.
    pub(super) fn is_unread(&self, v: Value) -> bool {
        self.uses_of(v) == 0
    }

    /// Lets a node read these values instead of one of its operands.
    pub(super) fn reads_instead(&mut self, node: NodeId, of: Value, leaves: &BTreeSet<Value>) {
        self.no_longer_reads(node, of);
        for leaf in leaves {
            self.readers.entry(*leaf).or_default().push(node);
            self.uses[leaf.node.index()][leaf.port as usize] += 1;
        }
    }

    /// Lets a node read nothing.
    pub(super) fn forget_reader(&mut self, node: NodeId) {
        for v in &self.graph.node(node).inputs {
            self.no_longer_reads(node, *v);
        }
    }

    fn no_longer_reads(&mut self, node: NodeId, v: Value) {
        let readers = self.readers.entry(v).or_default();
        if let Some(at) = readers.iter().position(|r| *r == node) {
            readers.remove(at);
            self.uses[v.node.index()][v.port as usize] -= 1;
        }
    }

    fn uses_of(&self, v: Value) -> usize {
        self.uses[v.node.index()][v.port as usize] as usize
    }

    /// True if no node up to `last` reads the value, apart from `except`. Results of the graph are read in the end.
    pub(super) fn is_read_after(&self, v: Value, last: NodeId, except: Option<NodeId>) -> bool {
        let mut readers = self.all_readers(v).iter();
        readers.all(|reader| *reader > last || Some(*reader) == except)
    }

    /// The nodes that read a value.
    pub(super) fn all_readers(&self, v: Value) -> &[NodeId] {
        self.readers.get(&v).map_or(&[], Vec::as_slice)
    }
}

/// The first result of a node.
pub(super) fn first(node: NodeId) -> Value {
    Value { node, port: 0 }
}

/// True if the result of a node lies where its first operand does.
fn looks_at_operand(node: &Node) -> bool {
    is_view(node.op.kind()) || matches!((&node.op, node.inputs.len()), (Op::Concat(_), 1))
}
