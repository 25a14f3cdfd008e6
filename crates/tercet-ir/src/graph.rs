//! The graph: an append-only list of typed nodes.
//!
//! Invariants:
//!
//! - A node's inputs have smaller ids, so id order is a valid execution order.
//! - The operator inferred every node's types when the node was added.
//! - Names of inputs, parameters and states are unique.
//! - An output or assignment refers to a value of the graph.

mod origin;
mod sizes;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};

use tercet_tensor::{MAX_RANK, Symbol, Type};

use crate::error::{OpError, TypeError};
use crate::ops::{Op, OpKind};

pub use origin::{InnerOrigin, NodeOrigin};
pub use sizes::SizesError;

/// The index of a node in its graph.
///
/// ```
/// use tercet_ir::{DType, Graph, NodeId, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [4]))?;
/// let y = g.exp(x)?;
/// assert_eq!((x.node, y.node), (NodeId(0), NodeId(1)));
/// assert_eq!(g.node(y.node).inputs, [x]);
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The index as a `usize`.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// One result of a node.
///
/// ```
/// use tercet_ir::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [10]))?;
/// let largest = g.top_k(x, 3, 0, true)?;
/// let indices = largest.port(1);
/// assert_eq!((largest.to_string(), indices.to_string()), ("%1".into(), "%1.1".into()));
/// assert_eq!(g.ty(indices).to_string(), "i32[3]");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// Id of the node that computes the value.
    pub node: NodeId,
    /// Index among the node's results.
    pub port: u8,
}

impl Value {
    /// Another result of the same node.
    pub fn port(self, port: u8) -> Value {
        Value { port, ..self }
    }
}

/// `%3` for the first result of node 3, `%3.1` for the second.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            0 => write!(f, "{}", self.node),
            p => write!(f, "{}.{p}", self.node),
        }
    }
}

/// An operator applied to values.
///
/// ```
/// use tercet_ir::{DType, Graph, OpKind, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
/// let y = g.transpose(x, &[1, 0])?;
/// let node = g.node(y.node);
/// assert_eq!(node.op.kind(), OpKind::Transpose);
/// assert_eq!(node.inputs, [x]);
/// assert_eq!(node.outputs, [Type::new(DType::F32, [3, 2])]);
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The operator with its attributes.
    pub op: Op,
    /// The operands.
    pub inputs: Vec<Value>,
    /// The types of the results.
    pub outputs: Vec<Type>,
}

/// A named result of the graph.
///
/// ```
/// use tercet_ir::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [4]))?;
/// let y = g.exp(x)?;
/// g.output("y", y)?;
/// let output = &g.outputs()[0];
/// assert_eq!((output.name.as_str(), output.value), ("y", y));
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GraphOutput {
    /// Name of the output, unique among the outputs.
    pub name: String,
    /// The value that the output returns.
    pub value: Value,
}

/// An assignment of a value to a state at the end of a run.
///
/// ```
/// use tercet_ir::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let total = g.state("total", Type::new(DType::F32, [4]))?;
/// let x = g.input("x", Type::new(DType::F32, [4]))?;
/// let sum = g.plus(total, x)?;
/// g.assign(total, sum)?;
/// assert_eq!((g.assigns()[0].state, g.assigns()[0].value), (total, sum));
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateAssign {
    /// The assigned `State` leaf.
    pub state: Value,
    /// The new value of the state, of the state's type.
    pub value: Value,
}

/// A typed tensor graph.
///
/// ```
/// use tercet_ir::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
/// let y = g.softmax(x, 1)?;
/// g.output("y", y)?;
/// assert_eq!(g.ty(y).to_string(), "f32[2, 3]");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    outputs: Vec<GraphOutput>,
    assigns: Vec<StateAssign>,
    leaves: HashMap<String, NodeId>,
    output_names: HashSet<String>,
    assigned: HashSet<Value>,
    /// The original node of each node in a rewritten graph. Empty if every node is its own origin.
    origins: Vec<NodeOrigin>,
    /// The original node that is recorded for nodes added next.
    adding_for: Option<NodeOrigin>,
}

/// Ignores the name index, which follows from the nodes, and the origins, which do not affect the
/// meaning.
impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        self.nodes == other.nodes && self.outputs == other.outputs && self.assigns == other.assigns
    }
}
impl Eq for Graph {}

impl Hash for Graph {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nodes.hash(state);
        self.outputs.hash(state);
        self.assigns.hash(state);
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Adds a node and returns its first result (`.port(1)` is the second). Every node is added
    /// through this method, which infers and checks its types.
    ///
    /// # Errors
    /// [`OpError`] with the operand types when the operator rejects them, or when a leaf's name is
    /// already in use.
    pub fn add(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Result<Value, OpError> {
        let op = op.into();
        let name = op.kind().doc().name;
        let fail = |graph: &Graph, source: TypeError| {
            let operands = inputs
                .iter()
                .filter_map(|v| graph.get_type(*v))
                .cloned()
                .collect();
            OpError {
                op: name,
                operands,
                source,
            }
        };
        let types: Option<Vec<&Type>> = inputs.iter().map(|v| self.get_type(*v)).collect();
        let Some(types) = types else {
            return Err(fail(
                self,
                TypeError::Other("an operand is not in this graph".into()),
            ));
        };
        let outputs = infer(&op, &types).map_err(|e| fail(self, e))?;
        self.push(op, inputs, outputs)
            .map_err(|source| fail(self, source))
    }

    /// As [`Graph::add`], with result types that the caller has already inferred from these
    /// operands.
    ///
    /// # Errors
    /// [`OpError`] when a leaf's name is already in use.
    pub(crate) fn add_typed(
        &mut self,
        op: Op,
        inputs: &[Value],
        outputs: Vec<Type>,
    ) -> Result<Value, OpError> {
        debug_assert_eq!(
            infer(&op, &inputs.iter().map(|v| self.ty(*v)).collect::<Vec<_>>()).as_ref(),
            Ok(&outputs),
            "invariant: copied nodes keep their types"
        );
        let name = op.kind().doc().name;
        self.push(op, inputs, outputs).map_err(|source| OpError {
            op: name,
            operands: inputs.iter().map(|v| self.ty(*v).clone()).collect(),
            source,
        })
    }

    /// Reserves memory for `nodes` additional nodes.
    pub(crate) fn reserve(&mut self, nodes: usize) {
        self.nodes.reserve(nodes);
        self.origins.reserve(nodes);
    }

    fn push(&mut self, op: Op, inputs: &[Value], outputs: Vec<Type>) -> Result<Value, TypeError> {
        let id = u32::try_from(self.nodes.len())
            .map_err(|_| TypeError::Other("the graph has 2^32 nodes".into()))?;
        let node = NodeId(id);
        if let Some(leaf) = leaf_name(&op) {
            if self.leaves.contains_key(leaf) {
                let reason = format!(
                    "`{leaf}` is already in use; names of leaves must be unique in a graph"
                );
                return Err(TypeError::Attr {
                    name: "name",
                    reason,
                });
            }
            self.leaves.insert(leaf.to_string(), node);
        }
        self.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            outputs,
        });
        if let Some(origin) = self.adding_for.clone() {
            for at in self.origins.len()..node.index() {
                self.origins.push(self.own_origin(NodeId(at as u32)));
            }
            self.origins.push(origin);
        }
        Ok(Value { node, port: 0 })
    }

    /// Removes the nodes from index `len` on. No removed node may be a named leaf or have users
    /// outside the removed range.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.nodes.truncate(len);
        self.origins.truncate(len);
    }

    /// The original of a node: a node of the graph that this one was rewritten from, or the node
    /// itself.
    pub fn origin(&self, id: NodeId) -> NodeOrigin {
        let carried = self.origins.get(id.index()).cloned();
        carried.unwrap_or_else(|| self.own_origin(id))
    }

    fn own_origin(&self, id: NodeId) -> NodeOrigin {
        NodeOrigin {
            node: id,
            op: self.node(id).op.kind().doc().name,
            inside: None,
        }
    }

    /// Sets the original node of the nodes that are added next; `None` makes each node its own
    /// origin. Code that rewrites a graph calls this method before it adds nodes.
    pub fn add_for(&mut self, origin: Option<NodeOrigin>) {
        self.adding_for = origin;
    }

    /// A copy in which every node is its own origin, also in nested graphs. Errors of a compiled
    /// graph then name that graph's nodes, even if earlier code rewrote it.
    pub(crate) fn without_origins(&self) -> Graph {
        let mut graph = self.clone();
        (graph.origins, graph.adding_for) = (Vec::new(), None);
        for node in &mut graph.nodes {
            let blocks = node.op.subgraphs();
            if blocks.iter().any(|(_, b)| b.graph().has_origins()) {
                let blocks = blocks.into_iter();
                let blocks = blocks.map(|(_, b)| b.graph().without_origins().into());
                node.op = node.op.with_subgraphs(blocks.collect());
            }
        }
        graph
    }

    fn has_origins(&self) -> bool {
        let blocks = || self.nodes.iter().flat_map(|n| n.op.subgraphs());
        !self.origins.is_empty() || blocks().any(|(_, b)| b.graph().has_origins())
    }

    /// Adds a value as a named output of the graph.
    ///
    /// # Errors
    /// [`OpError`] when the name is already in use or the value belongs to another graph.
    pub fn output(&mut self, name: &str, value: Value) -> Result<(), OpError> {
        let fail = |reason: String, operands| OpError {
            op: "output",
            operands,
            source: TypeError::Other(reason),
        };
        let Some(ty) = self.get_type(value) else {
            return Err(fail(format!("{value} is not in this graph"), vec![]));
        };
        if self.output_names.contains(name) {
            return Err(fail(
                format!("the name `{name}` is already in use"),
                vec![ty.clone()],
            ));
        }
        self.output_names.insert(name.to_string());
        self.outputs.push(GraphOutput {
            name: name.to_string(),
            value,
        });
        Ok(())
    }

    /// Assigns `value` to a state at the end of a run. Reading the state in the same run gives the
    /// old value.
    ///
    /// # Errors
    /// [`OpError`] when `state` is not a `State` leaf, is already assigned, or has another type.
    pub fn assign(&mut self, state: Value, value: Value) -> Result<(), OpError> {
        let operands = [state, value]
            .iter()
            .filter_map(|v| self.get_type(*v))
            .cloned()
            .collect();
        let fail = |source| {
            Err(OpError {
                op: "assign",
                operands,
                source,
            })
        };
        let (Some(to), Some(from)) = (self.get_type(state), self.get_type(value)) else {
            return fail(TypeError::Other("an operand is not in this graph".into()));
        };
        if self.node(state.node).op.kind() != OpKind::State {
            return fail(TypeError::Other(format!("{state} is not a state")));
        }
        if self.assigned.contains(&state) {
            return fail(TypeError::Other(format!("{state} is already assigned")));
        }
        if to != from {
            return fail(TypeError::Other(
                "state and value must have the same type".into(),
            ));
        }
        self.assigned.insert(state);
        self.assigns.push(StateAssign { state, value });
        Ok(())
    }

    /// The type of a value of this graph.
    ///
    /// # Panics
    /// When the value belongs to another graph.
    pub fn ty(&self, v: Value) -> &Type {
        &self.nodes[v.node.index()].outputs[v.port as usize]
    }

    /// The type of a value, or `None` when it belongs to another graph.
    pub fn get_type(&self, v: Value) -> Option<&Type> {
        self.nodes.get(v.node.index())?.outputs.get(v.port as usize)
    }

    /// The node with this id.
    ///
    /// # Panics
    /// When the id belongs to another graph.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// All nodes with their ids, in execution order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> + ExactSizeIterator {
        self.nodes
            .iter()
            .enumerate()
            .map(|(i, n)| (NodeId(i as u32), n))
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The named outputs.
    pub fn outputs(&self) -> &[GraphOutput] {
        &self.outputs
    }

    /// The state assignments that end a run.
    pub fn assigns(&self) -> &[StateAssign] {
        &self.assigns
    }

    /// The input, parameter or state with this name.
    pub fn leaf(&self, name: &str) -> Option<NodeId> {
        self.leaves.get(name).copied()
    }

    /// The symbols of all types, each once, in order of first use.
    pub fn symbols(&self) -> Vec<Symbol> {
        let mut symbols = Vec::new();
        let mut seen = HashSet::new();
        for ty in self.nodes.iter().flat_map(|n| &n.outputs) {
            ty.for_each_symbol(|s| {
                if seen.insert(s) {
                    symbols.push(s.clone());
                }
            });
        }
        symbols
    }

    /// Every value that leaves the graph: outputs, then assigned values.
    pub fn results(&self) -> impl Iterator<Item = Value> + '_ {
        self.outputs
            .iter()
            .map(|o| o.value)
            .chain(self.assigns.iter().map(|a| a.value))
    }

    /// The number of nodes, outputs and assignments that read each result of each node.
    pub fn use_counts(&self) -> Vec<Vec<u32>> {
        let mut uses: Vec<Vec<u32>> = self
            .nodes
            .iter()
            .map(|n| vec![0; n.outputs.len()])
            .collect();
        for v in self
            .nodes
            .iter()
            .flat_map(|n| n.inputs.iter().copied())
            .chain(self.results())
        {
            uses[v.node.index()][v.port as usize] += 1;
        }
        uses
    }
}

fn leaf_name(op: &Op) -> Option<&str> {
    match op {
        Op::Input(o) => Some(&o.name),
        Op::Param(o) => Some(&o.name),
        Op::State(o) => Some(&o.name),
        _ => None,
    }
}

/// Infers the types of an operator's results and checks that they fit the address space.
pub(crate) fn infer(op: &Op, types: &[&Type]) -> Result<Vec<Type>, TypeError> {
    let outputs = op.infer(types)?;
    outputs.into_iter().map(check_size).collect()
}

fn check_size(ty: Type) -> Result<Type, TypeError> {
    let bytes = ty
        .shape
        .numel()
        .and_then(|n| n.checked_mul(&ty.dtype.size_bytes().into()));
    let fits = match bytes {
        Some(crate::Dim::Known(n)) => n <= isize::MAX as usize,
        Some(crate::Dim::Sym(_)) => true,
        None => false,
    };
    match fits {
        _ if ty.rank() > MAX_RANK => Err(TypeError::TooManyAxes { ty }),
        true => Ok(ty),
        false => Err(TypeError::TooLarge { ty }),
    }
}
