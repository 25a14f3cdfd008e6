//! Errors of differentiation.

use std::fmt;

use tercet_tensor::Type;

use super::GradientKind;
use crate::error::OpError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::Op;

/// Why a gradient rule failed.
///
/// ```
/// use tercet_ir::grad::{NoGradient, VjpResult};
/// /// The gradient rule of an operator that cannot be differentiated.
/// fn rule() -> VjpResult {
///     Err(NoGradient::because("its result is an index"))
/// }
/// assert_eq!(rule(), Err(NoGradient::Unsupported("its result is an index".to_string())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoGradient {
    /// The node has no gradient; the text gives the reason without naming the node.
    Unsupported(String),
    /// Adding a node of the gradient failed.
    InvalidNode(OpError),
}

impl NoGradient {
    /// An error with this reason.
    pub fn because(reason: impl Into<String>) -> NoGradient {
        NoGradient::Unsupported(reason.into())
    }
}

impl From<OpError> for NoGradient {
    fn from(e: OpError) -> NoGradient {
        NoGradient::InvalidNode(e)
    }
}

/// A non-differentiable node on the path from a requested value to the loss.
///
/// ```
/// use tercet_ir::{NodeId, grad::GradientBreak};
/// let reason = "its result is an index".to_string();
/// let stop = GradientBreak { node: NodeId(4), op: "arg_max", reason };
/// assert_eq!(stop.to_string(), "%4 arg_max: its result is an index");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GradientBreak {
    /// Id of the non-differentiable node.
    pub node: NodeId,
    /// Operator of the node.
    pub op: &'static str,
    /// Why the node has no gradient.
    pub reason: String,
}

impl fmt::Display for GradientBreak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GradientBreak { node, op, reason } = self;
        write!(f, "{node} {op}: {reason}")
    }
}

/// A requested value that the loss does not depend on.
///
/// ```
/// use tercet_ir::{DType, GradError, Graph, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [3]))?;
/// let unused = g.param("unused", Type::new(DType::F32, [3]))?;
/// let loss = g.reduce_sum(x, &[0], false)?;
/// let Err(GradError::Unused { values, .. }) = g.gradients(loss, &[x, unused]) else {
///     panic!("`unused` has a gradient");
/// };
/// assert_eq!(values[0].name.as_deref(), Some("unused"));
/// assert!(values[0].stops.is_empty());
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreachableTarget {
    /// The requested value.
    pub value: Value,
    /// Name of the value, if it is an input, parameter or state.
    pub name: Option<String>,
    /// The nodes that block the gradient, if the loss depends on the value only through them.
    pub stops: Vec<GradientBreak>,
}

impl UnreachableTarget {
    /// Explains why a value received no cotangent from the loss.
    pub(super) fn new(
        graph: &Graph,
        value: Value,
        loss: Value,
        flat: &[NodeId],
    ) -> UnreachableTarget {
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
                        true => "its derivative is 0",
                        false => continue,
                    }
                }
            };
            stops.push(GradientBreak {
                node: id,
                op: node.op.name(),
                reason: reason.to_string(),
            });
        }
        UnreachableTarget {
            value,
            name: leaf_name(graph, value),
            stops,
        }
    }
}

/// For each node, whether it depends on the value.
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

impl fmt::Display for UnreachableTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value)?;
        if let Some(name) = &self.name {
            write!(f, " `{name}`")?;
        }
        for (i, stop) in self.stops.iter().enumerate() {
            let word = if i == 0 {
                ", whose gradient path ends at"
            } else {
                ","
            };
            write!(f, "{word} {stop}")?;
        }
        Ok(())
    }
}

/// Name of an input, parameter or state.
pub(super) fn leaf_name(graph: &Graph, value: Value) -> Option<String> {
    match &graph.node(value.node).op {
        Op::Input(o) => Some(o.name.clone()),
        Op::Param(o) => Some(o.name.clone()),
        Op::State(o) => Some(o.name.clone()),
        _ => None,
    }
}

struct DisplayLines<'a, T>(&'a [T]);
impl<T: fmt::Display> fmt::Display for DisplayLines<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|n| write!(f, "\n  {n}"))
    }
}

struct DisplayOptName<'a>(&'a Option<String>);
impl fmt::Display for DisplayOptName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, " `{name}`"),
            None => Ok(()),
        }
    }
}

/// Why differentiating a graph failed. The graph is unchanged.
///
/// ```
/// use tercet_ir::{DType, GradError, Graph, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [3]))?;
/// let squares = g.mul(x, x)?;
/// let error = g.gradients(squares, &[x]).unwrap_err();
/// assert!(matches!(error, GradError::Loss { .. }));
/// let loss = g.reduce_mean(squares, &[0], false)?;
/// assert!(g.gradients(loss, &[x]).is_ok());
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GradError {
    /// The loss is not a float scalar.
    #[error("the loss {value} is {ty}; expected a float of rank 0, such as a mean over all axes")]
    Loss {
        /// The value passed as loss.
        value: Value,
        /// Type of the value.
        ty: Type,
    },
    /// A value belongs to another graph.
    #[error("{value} is not in this graph")]
    NotOfGraph {
        /// The value that belongs to another graph.
        value: Value,
    },
    /// A requested value is not a float, so it has no derivative.
    #[error("{value}{} is {ty}; only floats have gradients", DisplayOptName(.name))]
    NotFloat {
        /// The requested value.
        value: Value,
        /// Name of the value, if it is an input, parameter or state.
        name: Option<String>,
        /// Type of the value.
        ty: Type,
    },
    /// A cotangent's type differs from the type of its output.
    #[error("the cotangent of {value} is {given}; expected {ty}")]
    Cotangent {
        /// The output value.
        value: Value,
        /// Type of the output.
        ty: Type,
        /// Type of the cotangent.
        given: Type,
    },
    /// The loss does not depend on some of the requested values.
    #[error(
        "the loss {loss} does not depend on {} of the requested values; omit them:{}",
        .values.len(),
        DisplayLines(.values)
    )]
    Unused {
        /// The loss value.
        loss: Value,
        /// All requested values without influence on the loss.
        values: Vec<UnreachableTarget>,
    },
    /// Nodes on the path to the loss are not differentiable.
    #[error(
        "no gradient through {} between the requested values and the loss; avoid them, or insert `stop_gradient` before:{}",
        crate::counted(.nodes.len(), "node", "nodes"),
        DisplayLines(.nodes)
    )]
    Severed {
        /// All such nodes, starting from the loss.
        nodes: Vec<GradientBreak>,
    },
    /// A gradient rule built an invalid node.
    #[error("the gradient of {node} ({op})")]
    Rule {
        /// The node that was differentiated.
        node: NodeId,
        /// Operator of the differentiated node.
        op: &'static str,
        /// Why the new node is invalid.
        #[source]
        source: OpError,
    },
}

impl GradError {
    pub(super) fn rule(node: NodeId, op: &'static str, source: OpError) -> GradError {
        GradError::Rule { node, op, source }
    }
}
