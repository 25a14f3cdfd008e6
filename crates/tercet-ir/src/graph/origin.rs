//! Maps nodes of a rewritten graph to nodes of the original graph.

use std::sync::Arc;

use super::NodeId;
use crate::error::{EvalError, RunError};

/// The original node of a node in a rewritten graph; error messages name it. Nodes that a rule or
/// pass creates from one node have that node as their origin. A node that replaces several has the
/// origin whose data can fail.
///
/// ```
/// use tercet_ir::passes::optimize;
/// use tercet_ir::{CompileOptions, DType, Graph, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [4]))?;
/// let same = g.reshape(x, [4usize])?;
/// let y = g.top_k(same, 2, 0, true)?;
/// g.output("y", y)?;
/// let optimized = optimize(&g, &CompileOptions::new())?;
/// let origin = optimized.origin(optimized.outputs()[0].value.node);
/// assert_eq!((origin.node, origin.op), (y.node, "top_k"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeOrigin {
    /// Id of the node in the original graph.
    pub node: NodeId,
    /// Operator of the original node.
    pub op: &'static str,
    /// Position inside a nested graph of the original node, if the node comes from there.
    pub inside: Option<Arc<InnerOrigin>>,
}

/// A node of a nested graph.
///
/// ```
/// use std::sync::Arc;
/// use tercet_ir::{EvalError, InnerOrigin, NodeId, NodeOrigin, one_line};
/// let gather = NodeOrigin { node: NodeId(2), op: "gather", inside: None };
/// let inside = Some(Arc::new(InnerOrigin { graph: "body", origin: gather }));
/// let origin = NodeOrigin { node: NodeId(7), op: "while", inside };
/// let error = origin.failed(EvalError::Index { index: 9, len: 4 });
/// assert!(one_line(&error).starts_with("%7 (while): in `body`, %2 (gather): index 9"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InnerOrigin {
    /// The attribute that holds the nested graph.
    pub graph: &'static str,
    /// The node in the nested graph.
    pub origin: NodeOrigin,
}

impl NodeOrigin {
    /// The origin of a node of the graph that this node holds in attribute `graph`.
    pub(crate) fn around(&self, graph: &'static str, origin: NodeOrigin) -> NodeOrigin {
        let origin = match &self.inside {
            None => InnerOrigin { graph, origin },
            Some(inner) => InnerOrigin {
                graph: inner.graph,
                origin: inner.origin.around(graph, origin),
            },
        };
        NodeOrigin {
            inside: Some(Arc::new(origin)),
            ..self.clone()
        }
    }

    /// The error of a node with this origin.
    pub fn failed(&self, source: EvalError) -> RunError {
        let source = match &self.inside {
            None => source,
            Some(inner) => inner.origin.failed_in(inner.graph, source),
        };
        let (node, op) = (self.node, self.op);
        RunError::Node { node, op, source }
    }

    fn failed_in(&self, graph: &'static str, source: EvalError) -> EvalError {
        let source = match &self.inside {
            None => source,
            Some(inner) => inner.origin.failed_in(inner.graph, source),
        };
        EvalError::Within {
            graph,
            node: self.node,
            op: self.op,
            source: Box::new(source),
        }
    }
}
