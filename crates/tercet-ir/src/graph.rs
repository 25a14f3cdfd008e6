//! The graph: an append-only list of typed nodes.
//!
//! Invariants: a node's inputs have smaller ids, so id order is execution order; every node's types
//! were inferred by its operator when it was added; names of inputs, parameters and states are
//! unique; an output or assignment refers to a value of the graph.

mod origin;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::dim::Symbol;
use crate::error::{OpError, TypeError};
use crate::ops::{Op, OpKind};
use crate::types::{MAX_RANK, Type};

pub use origin::{InnerOrigin, Origin};

/// The index of a node in its graph.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node.
    pub node: NodeId,
    /// Which of its results.
    pub port: u8,
}

impl Value {
    /// Another result of the same node.
    pub fn port(self, port: u8) -> Value {
        Value { port, ..self }
    }
}

/// `%3` for the first result, `%3.1` for the second.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            0 => write!(f, "{}", self.node),
            p => write!(f, "{}.{p}", self.node),
        }
    }
}

/// An operator applied to values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The operator.
    pub op: Op,
    /// Its operands.
    pub inputs: Vec<Value>,
    /// The types of its results.
    pub outputs: Vec<Type>,
}

/// A named result of the graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Output {
    /// Its name, unique among the outputs.
    pub name: String,
    /// The value.
    pub value: Value,
}

/// What a state holds after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Assign {
    /// A `State` leaf.
    pub state: Value,
    /// The value it takes, of the state's type.
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
    outputs: Vec<Output>,
    assigns: Vec<Assign>,
    leaves: HashMap<String, NodeId>,
    output_names: HashSet<String>,
    assigned: HashSet<Value>,
    /// What nodes stand for; none where every node stands for itself.
    origins: Vec<Origin>,
    /// What the nodes that are added now stand for.
    adding_for: Option<Origin>,
}

/// Indices of names follow from the rest, and what nodes stand for is no part of what they mean.
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

    /// Adds a node and returns its first result (`.port(1)` is the second). The only way to make a
    /// node: types are inferred and checked here.
    ///
    /// # Errors
    /// [`OpError`] with the operand types when the operator does not accept them, or when a leaf's
    /// name is taken.
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
                TypeError::Other("an operand is not of this graph".into()),
            ));
        };
        let outputs = infer(&op, &types).map_err(|e| fail(self, e))?;
        self.push(op, inputs, outputs)
            .map_err(|source| fail(self, source))
    }

    /// As [`Graph::add`], where the types of the results are known: those that the operator infers of these operands.
    ///
    /// # Errors
    /// [`OpError`] when a leaf's name is taken.
    pub(crate) fn add_typed(
        &mut self,
        op: Op,
        inputs: &[Value],
        outputs: Vec<Type>,
    ) -> Result<Value, OpError> {
        debug_assert_eq!(
            infer(&op, &inputs.iter().map(|v| self.ty(*v)).collect::<Vec<_>>()).as_ref(),
            Ok(&outputs),
            "invariant: what is copied keeps its types"
        );
        let name = op.kind().doc().name;
        self.push(op, inputs, outputs).map_err(|source| OpError {
            op: name,
            operands: inputs.iter().map(|v| self.ty(*v).clone()).collect(),
            source,
        })
    }

    /// Makes room for so many nodes more.
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
                let reason = format!("`{leaf}` is taken; names of leaves are unique in a graph");
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

    /// Takes back the nodes from `len` on, none of which is a leaf with a name or is read from outside.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.nodes.truncate(len);
        self.origins.truncate(len);
    }

    /// The node that a node stands for: of the graph that this one was rewritten from, or itself.
    pub fn origin(&self, id: NodeId) -> Origin {
        let carried = self.origins.get(id.index()).cloned();
        carried.unwrap_or_else(|| self.own_origin(id))
    }

    fn own_origin(&self, id: NodeId) -> Origin {
        Origin {
            node: id,
            op: self.node(id).op.kind().doc().name,
            inside: None,
        }
    }

    /// Says what nodes that are added from now on stand for; without an origin, for themselves. What
    /// rewrites a graph says it before it adds.
    pub fn add_for(&mut self, origin: Option<Origin>) {
        self.adding_for = origin;
    }

    /// The graph with every node standing for itself, in the graphs inside nodes as well: what is
    /// compiled names its own nodes, whoever rewrote it before.
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

    /// Names a value as a result of the graph.
    ///
    /// # Errors
    /// [`OpError`] when the name is taken or the value is not of this graph.
    pub fn output(&mut self, name: &str, value: Value) -> Result<(), OpError> {
        let fail = |reason: String, operands| OpError {
            op: "output",
            operands,
            source: TypeError::Other(reason),
        };
        let Some(ty) = self.get_type(value) else {
            return Err(fail(format!("{value} is not of this graph"), vec![]));
        };
        if self.output_names.contains(name) {
            return Err(fail(
                format!("the name `{name}` is taken"),
                vec![ty.clone()],
            ));
        }
        self.output_names.insert(name.to_string());
        self.outputs.push(Output {
            name: name.to_string(),
            value,
        });
        Ok(())
    }

    /// Says what a state holds after a run. Reading the state in the same run gives the old value.
    ///
    /// # Errors
    /// [`OpError`] when `state` is not a `State` leaf, is assigned already, or has another type.
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
            return fail(TypeError::Other("an operand is not of this graph".into()));
        };
        if self.node(state.node).op.kind() != OpKind::State {
            return fail(TypeError::Other(format!("{state} is not a state")));
        }
        if self.assigned.contains(&state) {
            return fail(TypeError::Other(format!("{state} is assigned already")));
        }
        if to != from {
            return fail(TypeError::Other(
                "state and value must have the same type".into(),
            ));
        }
        self.assigned.insert(state);
        self.assigns.push(Assign { state, value });
        Ok(())
    }

    /// The type of a value of this graph.
    ///
    /// # Panics
    /// When the value is of another graph.
    pub fn ty(&self, v: Value) -> &Type {
        &self.nodes[v.node.index()].outputs[v.port as usize]
    }

    /// The type of a value, or `None` when it is not of this graph.
    pub fn get_type(&self, v: Value) -> Option<&Type> {
        self.nodes.get(v.node.index())?.outputs.get(v.port as usize)
    }

    /// A node of this graph.
    ///
    /// # Panics
    /// When the id is of another graph.
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

    /// True without nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The named results.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// What states hold after a run.
    pub fn assigns(&self) -> &[Assign] {
        &self.assigns
    }

    /// The node of the input, parameter or state of this name.
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

    /// How many nodes, outputs and assignments read each result of each node.
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

/// The types of an operator's results, which fit the address space.
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
