//! The verifier of whole graphs: what [`Graph::add`](crate::Graph::add) guarantees node by node,
//! checked again from the outside. Passes are followed by it in debug builds.

use std::collections::HashSet;

use crate::error::TypeError;
use crate::graph::{Graph, Node, NodeId, Value};
use crate::ops::{Op, OpKind};
use crate::types::Type;

/// What is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// A node reads a value that is not computed before it.
    #[error("{node} reads {value}, which no earlier node gives")]
    Order {
        /// The node.
        node: NodeId,
        /// The value.
        value: Value,
    },
    /// An operator does not accept the operands it has.
    #[error("{node} ({op}) has operands that its operator refuses")]
    Refused {
        /// The node.
        node: NodeId,
        /// Its operator.
        op: &'static str,
        /// Why.
        #[source]
        source: TypeError,
    },
    /// A node's types are not those that its operator infers.
    #[error("{node} ({op}) has types {found:?}; its operator infers {inferred:?}")]
    Types {
        /// The node.
        node: NodeId,
        /// Its operator.
        op: &'static str,
        /// The types that the node carries.
        found: Vec<Type>,
        /// The types that its operator gives.
        inferred: Vec<Type>,
    },
    /// A graph inside a node is not valid.
    #[error("in `{graph}` of {node}")]
    Inside {
        /// The node.
        node: NodeId,
        /// The attribute that holds the graph.
        graph: &'static str,
        /// What is wrong in it.
        #[source]
        source: Box<VerifyError>,
    },
    /// A leaf's name is missing from the index of names, or two leaves share it.
    #[error("{node} has the name `{name}`, which belongs to another leaf or to none")]
    LeafName {
        /// The leaf.
        node: NodeId,
        /// Its name.
        name: String,
    },
    /// Two outputs have one name.
    #[error("two outputs are named `{name}`")]
    OutputName {
        /// The name.
        name: String,
    },
    /// An output or assignment refers to nothing.
    #[error("{what} refers to {value}, which is not of the graph")]
    Dangling {
        /// `output` or `assignment`.
        what: &'static str,
        /// The value.
        value: Value,
    },
    /// An assignment is not to a state, to a state that has one already, or of another type.
    #[error("the assignment of {value} to {state}: {reason}")]
    Assign {
        /// What is assigned to.
        state: Value,
        /// What is assigned.
        value: Value,
        /// What is wrong.
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
    let refused = |source| VerifyError::Refused {
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
            "the state has one already"
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
