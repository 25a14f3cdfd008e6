//! Legalization: rewrites a graph until the target can run every node.
//!
//! The target reports support for each node ([`Target::supports`]). The first rule of [`RULES`]
//! that applies rewrites an unsupported node; every node that a rule adds is legalized in turn.
//! Composite operators have a rule that decomposes them into core operators. Legalization therefore
//! always succeeds on a target that supports the core. All remaining nodes are reported in one
//! error, with the target's reason and a remedy. There is no silent fallback.
//!
//! Nested graphs are legalized before the node that holds them. Unsupported nodes of nested graphs
//! appear in the same error.
//!
//! Invariants: the signature is unchanged, and every value retains its type. Rules are accurate
//! within the tolerance table, not bitwise: a fused operator rounds once, while its decomposition
//! rounds several times.

use std::collections::HashMap;

use crate::backend::Target;
use crate::error::{CompileError, OpError, UnsupportedNode};
use crate::graph::{Graph, Node, NodeId, NodeOrigin, Value, infer};
use crate::ops::Op;
use crate::passes::is_named_leaf;
pub use crate::rules::{LegalizeRule, RULES};
use tercet_tensor::Type;

use crate::{DType, Support};

/// Maximum nesting of rules: far more than any decomposition needs, and low enough to stop a cycle
/// of rules early.
const MAX_DEPTH: usize = 32;

/// The new graph, as rules access it.
///
/// ```
/// use tercet_ir::legalize::LegalizeBuilder;
/// use tercet_ir::{Op, OpError, Value, ops, rules::RuleResult, scalar::UnaryFn};
/// /// A rule that decomposes `log_softmax` into `softmax` and a logarithm.
/// fn rule(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
///     let Op::LogSoftmax(op) = op else { return Ok(None) };
///     let y = b.add(ops::Softmax { axis: op.axis }, inputs)?;
///     Ok(Some(vec![b.add(ops::Unary { f: UnaryFn::Ln }, &[y])?]))
/// }
/// # let _: fn(&mut LegalizeBuilder<'_>, &Op, &[Value]) -> RuleResult = rule;
/// ```
pub struct LegalizeBuilder<'a> {
    graph: Graph,
    target: &'a dyn Target,
    /// The node of the original graph that is being legalized.
    at: NodeId,
    depth: usize,
    fired: Vec<&'static str>,
    unsupported: Vec<UnsupportedNode>,
    /// The first failed rewrite inside a nested graph.
    failed: Option<CompileError>,
}

impl<'a> LegalizeBuilder<'a> {
    fn new(target: &'a dyn Target) -> LegalizeBuilder<'a> {
        LegalizeBuilder {
            graph: Graph::new(),
            target,
            at: NodeId(0),
            depth: 0,
            fired: Vec::new(),
            unsupported: Vec::new(),
            failed: None,
        }
    }

    /// Adds a node, or its decomposition, and returns its first result.
    ///
    /// # Errors
    /// [`OpError`] when the operator rejects the operands.
    pub fn add(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Result<Value, OpError> {
        let results = self.add_all(op, inputs)?;
        Ok(*results
            .first()
            .expect("invariant: every operator has a result"))
    }

    /// Adds a node, or its decomposition, and returns all its results.
    ///
    /// # Errors
    /// As [`LegalizeBuilder::add`].
    pub fn add_all(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Result<Vec<Value>, OpError> {
        let op = self.with_legal_subgraphs(op.into());
        let node = match self.as_node(op, inputs) {
            Ok(node) => node,
            // Type inference has failed, so `Graph::add` fails too and returns the error for the
            // operands.
            Err(op) => return self.graph.add(op, inputs).map(|v| vec![v]),
        };
        let reason = match self.target.supports(&self.graph, &node) {
            Support::Native => return self.copy_node(node),
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
        self.copy_node(node)
    }

    /// The type of a value.
    pub fn ty(&self, v: Value) -> &Type {
        self.graph.ty(v)
    }

    /// The graph so far, for the builder methods of leaves.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The operator with its nested graphs legalized.
    fn with_legal_subgraphs(&mut self, op: Op) -> Op {
        let mut blocks = Vec::new();
        for (name, block) in op.subgraphs() {
            let mut inner = LegalizeBuilder::new(self.target);
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
            // If a rule adds the same node twice, it is listed once.
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

    /// The node that `add` would create; an error with the operator if `add` would fail.
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

    fn copy_node(&mut self, node: Node) -> Result<Vec<Value>, OpError> {
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

/// The suggested remedy for a node that the target does not support and no rule decomposes.
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
    // Whether the same operator on f32 operands is supported, tested in a separate graph.
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
            "compile for an executor that supports it, such as `cpu`; `{}` does not",
            target.name()
        )
    }
}

/// Rewrites a graph so that the target runs every node.
///
/// # Errors
/// [`CompileError::Unsupported`] with every node that the target does not support and no rule
/// decomposes; [`CompileError::Rewrite`] when a rule builds an invalid node.
pub fn legalize(graph: &Graph, target: &dyn Target) -> Result<Graph, CompileError> {
    legalize_traced(graph, target).map(|(graph, _)| graph)
}

/// As [`legalize`], with the names of the applied rules in order.
///
/// # Errors
/// As [`legalize`].
pub fn legalize_traced(
    graph: &Graph,
    target: &dyn Target,
) -> Result<(Graph, Vec<&'static str>), CompileError> {
    let mut b = LegalizeBuilder::new(target);
    rebuild(&mut b, graph)?;
    if !b.unsupported.is_empty() {
        return Err(CompileError::Unsupported {
            target: target.name(),
            nodes: b.unsupported,
        });
    }
    Ok((b.graph, b.fired))
}

/// Adds the nodes of a graph, or their decompositions, and its outputs and assignments.
fn rebuild(b: &mut LegalizeBuilder<'_>, graph: &Graph) -> Result<(), CompileError> {
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(graph.len());
    for (id, node) in graph.nodes() {
        let origin = graph.origin(id);
        b.at = origin.node;
        b.graph.add_for(Some(origin));
        let new = |v: &Value| map[v.node.index()][v.port as usize];
        let inputs: Vec<Value> = node.inputs.iter().map(new).collect();
        // Inputs, parameters and states form the signature, so every target supports them.
        let added = match is_named_leaf(node.op.kind()) {
            true => b.copy_node(node.clone()),
            false => b.add_all(node.op.clone(), &inputs),
        };
        if let Some(e) = b.failed.take() {
            return Err(e);
        }
        let at = b.at;
        let values = added.map_err(|source| CompileError::Rewrite { node: at, source })?;
        debug_assert!(
            values.iter().map(|v| b.ty(*v)).eq(&node.outputs),
            "invariant: a rule preserves types, at {id} {node}"
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

/// The original nodes of a rewritten graph and of its nested graphs, for error messages.
///
/// ```
/// use tercet_ir::legalize::{NodeOrigins, origins};
/// use tercet_ir::{DType, Graph, NodeId, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [4]))?;
/// let y = g.exp(x)?;
/// let origins: NodeOrigins = origins(&g);
/// assert_eq!(origins.origin(y.node), y.node);
/// let moved = origins.renumbered(&[NodeId(0), NodeId(5)]);
/// assert_eq!(moved.origin(NodeId(5)), y.node);
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeOrigins {
    nodes: Vec<Option<NodeOrigin>>,
    inside: HashMap<NodeId, Vec<NodeOrigins>>,
}

impl NodeOrigins {
    /// The original node, or the node itself if it has no origin.
    pub fn origin(&self, id: NodeId) -> NodeId {
        self.get(id).map_or(id, |origin| origin.node)
    }

    /// The origin of a node; `None` for nodes that only the executor needs.
    pub fn get(&self, id: NodeId) -> Option<&NodeOrigin> {
        self.nodes.get(id.index())?.as_ref()
    }

    /// The origins of a nested graph, by its index in [`Op::subgraphs`].
    pub fn inside(&self, id: NodeId, block: usize) -> NodeOrigins {
        let blocks = self.inside.get(&id);
        let own = blocks.and_then(|b| b.get(block));
        own.cloned().unwrap_or_default()
    }

    /// The origins after renumbering: `new` holds the new id of each node.
    pub fn renumbered(&self, new: &[NodeId]) -> NodeOrigins {
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
        NodeOrigins { nodes, inside }
    }
}

/// For each node of a rewritten graph, the node of the original graph that it comes from. Passes,
/// rules and narrowing keep this record: see [`Graph::origin`].
pub fn origins(graph: &Graph) -> NodeOrigins {
    let nodes = graph.nodes().map(|(id, _)| Some(graph.origin(id)));
    let mut inside = HashMap::new();
    for (id, node) in graph.nodes() {
        let blocks = node.op.subgraphs().into_iter();
        let own: Vec<NodeOrigins> = blocks.map(|(_, block)| origins(block.graph())).collect();
        if !own.is_empty() {
            inside.insert(id, own);
        }
    }
    NodeOrigins {
        nodes: nodes.collect(),
        inside,
    }
}
