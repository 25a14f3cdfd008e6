//! The verifier of whole graphs. The verifier repeats the checks of
//! [`Graph::add`](crate::Graph::add) on a finished graph. In debug builds the verifier runs after
//! each pass.

use std::collections::HashSet;

use tercet_tensor::Type;

use crate::error::TypeError;
use crate::graph::{Graph, Node, NodeId, Value};
use crate::ops::{Op, OpKind};

/// The invariant that a graph violates.
///
/// ```
/// use tercet_ir::verify::{VerifyError, verify};
/// use tercet_ir::{DType, Graph, NodeId, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [4]))?;
/// g.output("x", x)?;
/// assert_eq!(verify(&g), Ok(()));
/// let error = VerifyError::Order { node: NodeId(0), value: x };
/// assert_eq!(error.to_string(), "%0 reads %0, which no earlier node computes");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// A node reads a value that no earlier node computes.
    #[error("{node} reads {value}, which no earlier node computes")]
    Order {
        /// The node that reads the value.
        node: NodeId,
        /// The value that is read too early.
        value: Value,
    },
    /// An operator rejects its operands.
    #[error("{node} ({op}) has invalid operands")]
    InvalidOperands {
        /// Id of the node.
        node: NodeId,
        /// Operator of the node.
        op: &'static str,
        /// Why the operands are invalid.
        #[source]
        source: TypeError,
    },
    /// A node's types differ from the types that its operator infers.
    #[error("{node} ({op}) has types {found:?}; its operator infers {inferred:?}")]
    Types {
        /// Id of the node.
        node: NodeId,
        /// Operator of the node.
        op: &'static str,
        /// The types stored in the node.
        found: Vec<Type>,
        /// The types that the operator infers.
        inferred: Vec<Type>,
    },
    /// A nested graph is invalid.
    #[error("in `{graph}` of {node}")]
    Inside {
        /// The node that holds the nested graph.
        node: NodeId,
        /// The attribute that holds the nested graph.
        graph: &'static str,
        /// The violation inside the nested graph.
        #[source]
        source: Box<VerifyError>,
    },
    /// A leaf's name is missing from the name index, or two leaves share it.
    #[error(
        "the name `{name}` of {node} is missing from the name index or belongs to another leaf"
    )]
    LeafName {
        /// Id of the leaf.
        node: NodeId,
        /// Name of the leaf.
        name: String,
    },
    /// Two outputs have the same name.
    #[error("two outputs are named `{name}`")]
    OutputName {
        /// The duplicate output name.
        name: String,
    },
    /// An output or assignment refers to a value that does not exist.
    #[error("{what} refers to {value}, which is not in the graph")]
    Dangling {
        /// `output` or `assignment`.
        what: &'static str,
        /// The value that does not exist.
        value: Value,
    },
    /// An assignment is invalid: its target is not a state, is already assigned, or has another
    /// type.
    #[error("invalid assignment of {value} to {state}: {reason}")]
    Assign {
        /// The target of the assignment.
        state: Value,
        /// The assigned value.
        value: Value,
        /// Why the assignment is invalid.
        reason: &'static str,
    },
}

/// Checks every node, name, output and assignment of a graph.
///
/// # Errors
/// [`VerifyError`] of the first violation in order of the nodes.
pub fn verify(graph: &Graph) -> Result<(), VerifyError> {
    for (id, node) in graph.nodes() {
        verify_node(graph, id, node)?;
        let name = match &node.op {
            Op::Input(o) => &o.name,
            Op::Param(o) => &o.name,
            Op::State(o) => &o.name,
            _ => continue,
        };
        if graph.leaf(name) != Some(id) {
            return Err(VerifyError::LeafName {
                node: id,
                name: name.clone(),
            });
        }
    }
    verify_results(graph)
}

fn verify_node(graph: &Graph, id: NodeId, node: &Node) -> Result<(), VerifyError> {
    let op = node.op.kind().doc().name;
    let mut operands = Vec::with_capacity(node.inputs.len());
    for &value in &node.inputs {
        let ty = graph.get_type(value).filter(|_| value.node < id);
        operands.push(ty.ok_or(VerifyError::Order { node: id, value })?);
    }
    for (name, block) in node.op.subgraphs() {
        verify(block.graph()).map_err(|source| VerifyError::Inside {
            node: id,
            graph: name,
            source: Box::new(source),
        })?;
    }
    let refused = |source| VerifyError::InvalidOperands {
        node: id,
        op,
        source,
    };
    let inferred = node.op.infer(&operands).map_err(refused)?;
    if inferred != node.outputs {
        return Err(VerifyError::Types {
            node: id,
            op,
            found: node.outputs.clone(),
            inferred,
        });
    }
    Ok(())
}

fn verify_results(graph: &Graph) -> Result<(), VerifyError> {
    let known = |what, value| match graph.get_type(value) {
        Some(ty) => Ok(ty),
        None => Err(VerifyError::Dangling { what, value }),
    };
    let mut names = HashSet::new();
    for o in graph.outputs() {
        known("output", o.value)?;
        if !names.insert(&o.name) {
            return Err(VerifyError::OutputName {
                name: o.name.clone(),
            });
        }
    }
    let mut states = HashSet::new();
    for a in graph.assigns() {
        let (to, from) = (known("assignment", a.state)?, known("assignment", a.value)?);
        let reason = if graph.node(a.state.node).op.kind() != OpKind::State {
            "its target is not a state"
        } else if !states.insert(a.state) {
            "the state is already assigned"
        } else if to != from {
            "the types differ"
        } else {
            continue;
        };
        return Err(VerifyError::Assign {
            state: a.state,
            value: a.value,
            reason,
        });
    }
    Ok(())
}
