//! Rebuilding a graph: every pass visits the old graph in order and adds nodes to a new one.
//!
//! Named leaves come first in the new graph, in their old order. The signature is therefore
//! unchanged, and a rewrite may use any parameter anywhere. New nodes are added through
//! [`Graph::add`](crate::Graph::add), which infers their types. Copied nodes keep their types,
//! because every replacement has the type of the value that it replaces.

use crate::error::CompileError;
use crate::graph::{Graph, Node, NodeId, NodeOrigin, Value};
use crate::ops::{Op, OpKind};

/// True for leaves that the executor binds by name: they remain even if nothing reads them.
pub(crate) fn is_named_leaf(kind: OpKind) -> bool {
    matches!(kind, OpKind::Input | OpKind::Param | OpKind::State)
}

/// A new graph under construction, with a map from old to new values.
pub(crate) struct Rewriter<'g> {
    old: &'g Graph,
    new: Graph,
    map: Vec<Vec<Option<Value>>>,
    at: NodeId,
}

impl<'g> Rewriter<'g> {
    /// A new graph that contains only the named leaves.
    pub(crate) fn new(old: &'g Graph) -> Result<Rewriter<'g>, CompileError> {
        let map = old.nodes().map(|(_, n)| vec![None; n.outputs.len()]);
        let mut rw = Rewriter {
            old,
            new: Graph::new(),
            map: map.collect(),
            at: NodeId(0),
        };
        rw.new.reserve(old.len());
        for (id, node) in old.nodes() {
            if is_named_leaf(node.op.kind()) {
                rw.copy(id)?;
            }
        }
        Ok(rw)
    }

    /// The old graph.
    pub(crate) fn old(&self) -> &'g Graph {
        self.old
    }

    /// The new graph so far.
    pub(crate) fn new_graph(&self) -> &Graph {
        &self.new
    }

    /// The value of the new graph that replaces a value of the old graph; the pass must have copied
    /// or bound the old value.
    pub(crate) fn value(&self, old: Value) -> Value {
        self.map[old.node.index()][old.port as usize]
            .expect("invariant: a pass binds a value before it visits a reader")
    }

    /// The values of the new graph that replace these values of the old graph.
    pub(crate) fn values(&self, old: &[Value]) -> Vec<Value> {
        old.iter().map(|v| self.value(*v)).collect()
    }

    /// The value of the new graph that replaces an old leaf (constants included), or an old value
    /// computed only from leaves. The pass need not have visited the old value yet.
    pub(crate) fn leaf(&mut self, old: Value) -> Result<Value, CompileError> {
        if self.map[old.node.index()][0].is_none() {
            for input in &self.old.node(old.node).inputs {
                self.leaf(*input)?;
            }
            self.copy(old.node)?;
        }
        Ok(self.value(old))
    }

    /// Sets the old node that is recorded as origin of the next nodes, instead of the visited one.
    pub(crate) fn set_origin(&mut self, id: NodeId) {
        self.at = id;
    }

    /// Adds a node whose operands are new values. The origin of the new node is the old node that
    /// is being visited; if the new node is invalid, the error names the old node.
    pub(crate) fn add(
        &mut self,
        op: impl Into<Op>,
        inputs: &[Value],
    ) -> Result<Value, CompileError> {
        self.add_from(self.old.origin(self.at), op.into(), inputs)
    }

    /// Adds a node whose origin is a node of a nested graph of the visited old node.
    pub(crate) fn add_inner(
        &mut self,
        graph: &'static str,
        inner: NodeOrigin,
        op: Op,
        inputs: &[Value],
    ) -> Result<Value, CompileError> {
        let origin = self.old.origin(self.at).around(graph, inner);
        self.add_from(origin, op, inputs)
    }

    fn add_from(
        &mut self,
        origin: NodeOrigin,
        op: Op,
        inputs: &[Value],
    ) -> Result<Value, CompileError> {
        let node = origin.node;
        self.new.add_for(Some(origin));
        let added = self.new.add(op, inputs);
        added.map_err(|source| CompileError::Rewrite { node, source })
    }

    /// Copies an old node with its operands mapped, unless it already has a new value.
    pub(crate) fn copy(&mut self, id: NodeId) -> Result<(), CompileError> {
        let node = self.old.node(id);
        if self.map[id.index()].iter().all(Option::is_some) && !node.outputs.is_empty() {
            return Ok(());
        }
        let inputs = self.values(&node.inputs);
        let origin = self.old.origin(id);
        let at = origin.node;
        self.new.add_for(Some(origin));
        // A replacement has the type of the value that it replaces, so the copied node keeps its
        // result types.
        let first = self
            .new
            .add_typed(node.op.clone(), &inputs, node.outputs.clone())
            .map_err(|source| CompileError::Rewrite { node: at, source })?;
        for port in 0..node.outputs.len() {
            let port = port as u8;
            self.bind(Value { node: id, port }, first.port(port));
        }
        Ok(())
    }

    /// Maps an old value to a new one.
    pub(crate) fn bind(&mut self, old: Value, new: Value) {
        debug_assert_eq!(
            self.old.ty(old),
            self.new.ty(new),
            "invariant: a rewrite keeps types, at {}",
            self.at
        );
        self.map[old.node.index()][old.port as usize] = Some(new);
    }

    /// The new graph with the old one's outputs and assignments.
    pub(crate) fn finish(mut self) -> Result<Graph, CompileError> {
        self.new.add_for(None);
        let fail = |node, source| CompileError::Rewrite { node, source };
        for o in self.old.outputs() {
            let value = self.value(o.value);
            self.new
                .output(&o.name, value)
                .map_err(|e| fail(o.value.node, e))?;
        }
        for a in self.old.assigns() {
            let (state, value) = (self.value(a.state), self.value(a.value));
            self.new
                .assign(state, value)
                .map_err(|e| fail(a.value.node, e))?;
        }
        Ok(self.new)
    }
}

/// Rebuilds a graph. `visit` receives every node that is not a named leaf, in order. `visit` copies
/// the node, binds its results to other values, or omits the node if no copied node reads it.
pub(crate) fn rebuild<'g>(
    graph: &'g Graph,
    mut visit: impl FnMut(&mut Rewriter<'g>, NodeId, &'g Node) -> Result<(), CompileError>,
) -> Result<Graph, CompileError> {
    let mut rw = Rewriter::new(graph)?;
    for (id, node) in graph.nodes() {
        if !is_named_leaf(node.op.kind()) {
            rw.at = id;
            visit(&mut rw, id, node)?;
        }
    }
    rw.finish()
}

/// For each node, whether a result of the graph depends on it.
pub(crate) fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.len()];
    for v in graph.results() {
        live[v.node.index()] = true;
    }
    for (id, node) in graph.nodes().rev() {
        if live[id.index()] {
            node.inputs.iter().for_each(|v| live[v.node.index()] = true);
        }
    }
    live
}

/// The readers of a value, excluding dead nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValueReaders {
    /// The reading nodes, once for each operand that is the value.
    pub(crate) nodes: Vec<NodeId>,
    /// Whether an output or assignment is the value.
    pub(crate) result: bool,
}

impl ValueReaders {
    /// The node that reads the value, if exactly one operand of one node reads it and no result
    /// does.
    pub(crate) fn only(&self) -> Option<NodeId> {
        match (self.nodes.as_slice(), self.result) {
            (&[node], false) => Some(node),
            (_, _) => None,
        }
    }
}

/// The readers of every value of a graph.
pub(crate) struct ValueUses(Vec<Vec<ValueReaders>>);

impl ValueUses {
    /// Computes the readers among the live nodes.
    pub(crate) fn new(graph: &Graph) -> ValueUses {
        let live = live_nodes(graph);
        let mut uses: Vec<Vec<ValueReaders>> = graph
            .nodes()
            .map(|(_, n)| vec![ValueReaders::default(); n.outputs.len()])
            .collect();
        for (id, node) in graph.nodes().filter(|(id, _)| live[id.index()]) {
            for v in &node.inputs {
                uses[v.node.index()][v.port as usize].nodes.push(id);
            }
        }
        for v in graph.results() {
            uses[v.node.index()][v.port as usize].result = true;
        }
        ValueUses(uses)
    }

    /// The readers of a value.
    pub(crate) fn readers_of(&self, v: Value) -> &ValueReaders {
        &self.0[v.node.index()][v.port as usize]
    }
}
