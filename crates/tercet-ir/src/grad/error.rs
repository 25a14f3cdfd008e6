//! Why a graph could not be differentiated.

use std::fmt;

use crate::error::OpError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::Op;
use crate::types::Type;

use super::GradientKind;

/// What a rule gives instead of cotangents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoGradient {
    /// There is no gradient of this node, for a reason that names no node.
    Because(String),
    /// A node of the gradient was refused.
    Refused(OpError),
}

impl NoGradient {
    /// No gradient, for this reason.
    pub fn because(reason: impl Into<String>) -> NoGradient {
        NoGradient::Because(reason.into())
    }
}

impl From<OpError> for NoGradient {
    fn from(e: OpError) -> NoGradient {
        NoGradient::Refused(e)
    }
}

/// A node without a gradient on the way from a wanted value to the loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Severed {
    /// The node.
    pub node: NodeId,
    /// Its operator.
    pub op: &'static str,
    /// Why it has no gradient.
    pub reason: String,
}

impl fmt::Display for Severed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Severed { node, op, reason } = self;
        write!(f, "{node} {op}: {reason}")
    }
}

/// A wanted value that does not change the loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    /// The value.
    pub value: Value,
    /// Its name, of an input, parameter or state.
    pub name: Option<String>,
    /// The nodes at which gradients end on the way, if there is a way.
    pub stops: Vec<Severed>,
}

impl Unused {
    /// What keeps a value from a loss that it got no cotangent of.
    pub(super) fn of(graph: &Graph, value: Value, loss: Value, flat: &[NodeId]) -> Unused {
        let behind = reached(graph, loss);
        let mut after = vec![false; graph.len()];
        let mut stops = Vec::new();
        for (id, node) in graph.nodes() {
            let reads = |v: &Value| *v == value || v.node != value.node && after[v.node.index()];
            if !behind[id.index()] || !node.inputs.iter().any(reads) {
                continue;
            }
            after[id.index()] = true;
            let reason = match node.op.kind().gradient() {
                GradientKind::Zero(reason) => reason,
                GradientKind::Rule | GradientKind::Decompose | GradientKind::None(_) => {
                    match flat.contains(&id) {
                        true => "its slope is 0",
                        false => continue,
                    }
                }
            };
            stops.push(Severed {
                node: id,
                op: node.op.name(),
                reason: reason.to_string(),
            });
        }
        Unused {
            value,
            name: leaf_name(graph, value),
            stops,
        }
    }
}

/// For each node whether the value depends on it.
fn reached(graph: &Graph, value: Value) -> Vec<bool> {
    let mut reached = vec![false; graph.len()];
    reached[value.node.index()] = true;
    for (id, node) in graph.nodes().rev() {
        if reached[id.index()] {
            node.inputs
                .iter()
                .for_each(|v| reached[v.node.index()] = true);
        }
    }
    reached
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value)?;
        if let Some(name) = &self.name {
            write!(f, " `{name}`")?;
        }
        for (i, stop) in self.stops.iter().enumerate() {
            let word = if i == 0 { ", whose way ends at" } else { "," };
            write!(f, "{word} {stop}")?;
        }
        Ok(())
    }
}

/// The name of an input, parameter or state.
pub(super) fn leaf_name(graph: &Graph, value: Value) -> Option<String> {
    match &graph.node(value.node).op {
        Op::Input(o) => Some(o.name.clone()),
        Op::Param(o) => Some(o.name.clone()),
        Op::State(o) => Some(o.name.clone()),
        _ => None,
    }
}

struct Lines<'a, T>(&'a [T]);
impl<T: fmt::Display> fmt::Display for Lines<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|n| write!(f, "\n  {n}"))
    }
}

struct Named<'a>(&'a Option<String>);
impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, " `{name}`"),
            None => Ok(()),
        }
    }
}

/// Why a graph could not be differentiated. It is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GradError {
    /// What is to be differentiated is not one float.
    #[error("the loss {value} is {ty}; expected a float of rank 0, such as a mean over all axes")]
    Loss {
        /// The value.
        value: Value,
        /// Its type.
        ty: Type,
    },
    /// A value is of another graph.
    #[error("{value} is not of this graph")]
    NotOfGraph {
        /// The value.
        value: Value,
    },
    /// A value that has no derivatives.
    #[error("{value}{} is {ty}; only floats have gradients", Named(.name))]
    NotFloat {
        /// The value.
        value: Value,
        /// Its name, of an input, parameter or state.
        name: Option<String>,
        /// Its type.
        ty: Type,
    },
    /// A cotangent has another type than its output.
    #[error("the cotangent of {value} is {given}; expected {ty}")]
    Cotangent {
        /// The output.
        value: Value,
        /// Its type.
        ty: Type,
        /// The cotangent's type.
        given: Type,
    },
    /// The loss does not change with some of the values.
    #[error(
        "the loss {loss} does not change with {} of the values; leave them out:{}",
        .values.len(),
        Lines(.values)
    )]
    Unused {
        /// The loss.
        loss: Value,
        /// All of them.
        values: Vec<Unused>,
    },
    /// Nodes on the way to the loss have no gradient.
    #[error(
        "{} on the way from the wanted values have no gradient; go around them, or say `stop_gradient` before:{}",
        crate::counted(.nodes.len(), "node", "nodes"),
        Lines(.nodes)
    )]
    Severed {
        /// All of them, from the loss on.
        nodes: Vec<Severed>,
    },
    /// A node of the gradient of a node was refused.
    #[error("the gradient of {node} ({op})")]
    Rule {
        /// The node that was differentiated.
        node: NodeId,
        /// Its operator.
        op: &'static str,
        /// Why.
        #[source]
        source: OpError,
    },
}

impl GradError {
    pub(super) fn rule(node: NodeId, op: &'static str, source: OpError) -> GradError {
        GradError::Rule { node, op, source }
    }
}
