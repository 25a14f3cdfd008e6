//! Legalization: turns what a target cannot run into what it can.
//!
//! A target says per node whether it runs it ([`Target::supports`]). A node that it refuses is
//! rewritten by the first rule of [`RULES`] that applies; every node that a rule adds is legalized
//! in turn. Composite operators have a rule down to core operators, so that legalization is total
//! on a target that has the core. What remains is reported all at once, with the target's reason
//! and the nearest way out; nothing falls back in silence.
//!
//! Graphs inside nodes are legalized in turn, before the target is asked for the node; what is refused
//! in them is reported with the rest.
//!
//! Invariants: the signature stays; every value keeps its type; rules hold within the tolerance
//! table, since a fused operator rounds once where its parts round several times.

use std::collections::HashMap;

use crate::backend::Target;
use crate::error::{CompileError, OpError, UnsupportedNode};
use crate::graph::{Graph, Node, NodeId, Origin, Value, infer};
use crate::ops::Op;
use crate::passes::is_named_leaf;
pub use crate::rules::{RULES, Rule};
use crate::types::Type;
use crate::{DType, Support};

/// Rules on rules: far more than any decomposition needs, few enough to end a cycle of rules.
const MAX_DEPTH: usize = 32;

/// The new graph, as rules see it.
pub struct Builder<'a> {
    graph: Graph,
    target: &'a dyn Target,
    /// The node of the given graph that is legalized.
    at: NodeId,
    depth: usize,
    fired: Vec<&'static str>,
    unsupported: Vec<UnsupportedNode>,
    /// The first rewrite in a graph inside a node that was refused.
    failed: Option<CompileError>,
}

impl<'a> Builder<'a> {
    fn new(target: &'a dyn Target) -> Builder<'a> {
        Builder {
            graph: Graph::new(),
            target,
            at: NodeId(0),
            depth: 0,
            fired: Vec::new(),
            unsupported: Vec::new(),
            failed: None,
        }
    }

    /// Adds a node, or what it decomposes into, and returns its first result.
    ///
    /// # Errors
    /// [`OpError`] when the operator does not accept the operands.
    pub fn add(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Result<Value, OpError> {
        let results = self.add_all(op, inputs)?;
        Ok(*results
            .first()
            .expect("invariant: every operator has a result"))
    }

    /// Adds a node, or what it decomposes into, and returns all its results.
    ///
    /// # Errors
    /// As [`Builder::add`].
    pub fn add_all(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Result<Vec<Value>, OpError> {
        let op = self.with_legal_subgraphs(op.into());
        let node = match self.as_node(op, inputs) {
            Ok(node) => node,
            // The graph's own `add` words the error.
            Err(op) => return self.graph.add(op, inputs).map(|v| vec![v]),
        };
        let reason = match self.target.supports(&self.graph, &node) {
            Support::Native => return self.keep(node),
            Support::Missing { reason } => reason,
        };
        if self.depth < MAX_DEPTH {
            self.depth += 1;
            let replaced = self.by_rule(&node.op, inputs);
            self.depth -= 1;
            if let Some(values) = replaced? {
                return Ok(values);
            }
        }
        self.unsupported.push(UnsupportedNode {
            node: self.at,
            op: node.op.kind().doc().name,
            remedy: remedy(&self.graph, self.target, &node),
            results: node.outputs.clone(),
            reason,
        });
        self.keep(node)
    }

    /// The type of a value.
    pub fn ty(&self, v: Value) -> &Type {
        self.graph.ty(v)
    }

    /// The graph so far, for the builder methods of leaves.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The operator with the graphs inside it legalized.
    fn with_legal_subgraphs(&mut self, op: Op) -> Op {
        let mut blocks = Vec::new();
        for (name, block) in op.subgraphs() {
            let mut inner = Builder::new(self.target);
            match rebuild(&mut inner, block.graph()) {
                Ok(()) => blocks.push(inner.graph.into()),
                Err(e) => {
                    self.failed.get_or_insert(e);
                    blocks.push(block.clone());
                }
            }
            self.fired.extend(inner.fired);
            let outer = op.kind().doc().name;
            let refused = inner.unsupported.into_iter();
            let refused = refused.map(|n| UnsupportedNode {
                node: self.at,
                reason: format!("{} in `{name}` of {outer}: {}", n.node, n.reason),
                ..n
            });
            // A rule may give a node another time.
            for node in refused {
                if !self.unsupported.contains(&node) {
                    self.unsupported.push(node);
                }
            }
        }
        match blocks.is_empty() {
            true => op,
            false => op.with_subgraphs(blocks),
        }
    }

    /// The node that `add` would make; the operator where it would not.
    fn as_node(&self, op: Op, inputs: &[Value]) -> Result<Node, Op> {
        let types: Option<Vec<&Type>> = inputs.iter().map(|v| self.graph.get_type(*v)).collect();
        match types.and_then(|types| infer(&op, &types).ok()) {
            Some(outputs) => Ok(Node {
                op,
                inputs: inputs.to_vec(),
                outputs,
            }),
            None => Err(op),
        }
    }

    fn keep(&mut self, node: Node) -> Result<Vec<Value>, OpError> {
        let ports = node.outputs.len() as u8;
        let first = self.graph.add_typed(node.op, &node.inputs, node.outputs)?;
        Ok((0..ports).map(|p| first.port(p)).collect())
    }

    fn by_rule(&mut self, op: &Op, inputs: &[Value]) -> Result<Option<Vec<Value>>, OpError> {
        for rule in RULES
            .iter()
            .copied()
            .flatten()
            .filter(|r| r.on == op.kind())
        {
            if let Some(values) = (rule.apply)(self, op, inputs)? {
                self.fired.push(rule.name);
                return Ok(Some(values));
            }
        }
        Ok(None)
    }
}

/// The nearest way out for a node that the target refuses and no rule decomposes.
fn remedy(graph: &Graph, target: &dyn Target, node: &Node) -> String {
    let as_f32 = |ty: &Type| match ty.dtype.is_float() {
        true => ty.with_dtype(DType::F32),
        false => ty.clone(),
    };
    let operands: Vec<Type> = node.inputs.iter().map(|v| as_f32(graph.ty(*v))).collect();
    let changed = node
        .inputs
        .iter()
        .zip(&operands)
        .any(|(v, ty)| graph.ty(*v) != ty);
    // The same operator on f32 operands, in a graph of its own.
    let f32_runs = || {
        let mut probe = Graph::new();
        let inputs: Option<Vec<Value>> = operands
            .iter()
            .enumerate()
            .map(|(i, ty)| probe.input(&i.to_string(), ty.clone()).ok())
            .collect();
        let inputs = inputs?;
        let outputs = node.op.infer(&operands.iter().collect::<Vec<_>>()).ok()?;
        let op = node.op.clone();
        let probed = Node {
            op,
            inputs,
            outputs,
        };
        Some(target.supports(&probe, &probed).is_native())
    };
    if changed && f32_runs() == Some(true) {
        "cast its operands to f32".to_string()
    } else {
        format!(
            "compile for an executor that has it, such as `cpu`; `{}` does not",
            target.name()
        )
    }
}

/// Rewrites a graph so that the target runs every node.
///
/// # Errors
/// [`CompileError::Unsupported`] with every node that the target refuses and no rule decomposes;
/// [`CompileError::Rewrite`] when a rule builds a node that its operator refuses.
pub fn legalize(graph: &Graph, target: &dyn Target) -> Result<Graph, CompileError> {
    legalize_traced(graph, target).map(|(graph, _)| graph)
}

/// As [`legalize`], with the names of the rules that were used, in order.
///
/// # Errors
/// As [`legalize`].
pub fn legalize_traced(
    graph: &Graph,
    target: &dyn Target,
) -> Result<(Graph, Vec<&'static str>), CompileError> {
    let mut b = Builder::new(target);
    rebuild(&mut b, graph)?;
    if !b.unsupported.is_empty() {
        return Err(CompileError::Unsupported {
            target: target.name(),
            nodes: b.unsupported,
        });
    }
    Ok((b.graph, b.fired))
}

/// Adds the nodes of a graph, or what they decompose into, its outputs and assignments.
fn rebuild(b: &mut Builder<'_>, graph: &Graph) -> Result<(), CompileError> {
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(graph.len());
    for (id, node) in graph.nodes() {
        let origin = graph.origin(id);
        b.at = origin.node;
        b.graph.add_for(Some(origin));
        let new = |v: &Value| map[v.node.index()][v.port as usize];
        let inputs: Vec<Value> = node.inputs.iter().map(new).collect();
        // Leaves with names are the signature: every target takes them.
        let added = match is_named_leaf(node.op.kind()) {
            true => b.keep(node.clone()),
            false => b.add_all(node.op.clone(), &inputs),
        };
        if let Some(e) = b.failed.take() {
            return Err(e);
        }
        let at = b.at;
        let values = added.map_err(|source| CompileError::Rewrite { node: at, source })?;
        debug_assert!(
            values.iter().map(|v| b.ty(*v)).eq(&node.outputs),
            "invariant: a rule keeps types, at {id} {node}"
        );
        map.push(values);
    }
    b.graph.add_for(None);
    for o in graph.outputs() {
        let value = map[o.value.node.index()][o.value.port as usize];
        let node = o.value.node;
        b.graph
            .output(&o.name, value)
            .map_err(|source| CompileError::Rewrite { node, source })?;
    }
    for a in graph.assigns() {
        let new = |v: Value| map[v.node.index()][v.port as usize];
        let node = a.value.node;
        b.graph
            .assign(new(a.state), new(a.value))
            .map_err(|source| CompileError::Rewrite { node, source })?;
    }
    Ok(())
}

/// What the nodes of a rewritten graph stand for, for errors; the same for the graphs inside them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    nodes: Vec<Option<Origin>>,
    inside: HashMap<NodeId, Vec<Origins>>,
}

impl Origins {
    /// The node of the given graph, or this one's own number where nothing stands behind it.
    pub fn of(&self, id: NodeId) -> NodeId {
        self.get(id).map_or(id, |origin| origin.node)
    }

    /// What a node stands for; nothing for one that only executing needs.
    pub fn get(&self, id: NodeId) -> Option<&Origin> {
        self.nodes.get(id.index())?.as_ref()
    }

    /// Those of a graph inside a node, by its place in [`Op::subgraphs`].
    pub fn inside(&self, id: NodeId, block: usize) -> Origins {
        let blocks = self.inside.get(&id);
        let own = blocks.and_then(|b| b.get(block));
        own.cloned().unwrap_or_default()
    }

    /// Those of a graph in which each node has another number, by the old ones.
    pub fn renumbered(&self, new: &[NodeId]) -> Origins {
        let most = new.iter().map(|id| id.index() + 1).max().unwrap_or(0);
        let mut nodes = vec![None; most];
        let mut inside = HashMap::new();
        for (old, new) in new.iter().enumerate() {
            let old = NodeId(old as u32);
            nodes[new.index()] = self.get(old).cloned();
            if let Some(blocks) = self.inside.get(&old) {
                inside.insert(*new, blocks.clone());
            }
        }
        Origins { nodes, inside }
    }
}

/// What the nodes of a graph stand for. Whatever rewrote it (passes, rules, narrowing) carried that along:
/// see [`Graph::origin`].
pub fn origins(graph: &Graph) -> Origins {
    let nodes = graph.nodes().map(|(id, _)| Some(graph.origin(id)));
    let mut inside = HashMap::new();
    for (id, node) in graph.nodes() {
        let blocks = node.op.subgraphs().into_iter();
        let own: Vec<Origins> = blocks.map(|(_, block)| origins(block.graph())).collect();
        if !own.is_empty() {
            inside.insert(id, own);
        }
    }
    Origins {
        nodes: nodes.collect(),
        inside,
    }
}
