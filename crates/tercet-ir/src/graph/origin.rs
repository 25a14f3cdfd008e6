//! Which node of the graph as it was given a node of a rewritten one stands for.

use std::sync::Arc;

use super::NodeId;
use crate::error::{EvalError, RunError};

/// The node that a node of a rewritten graph stands for: the one that errors name. What a rule or a pass
/// makes of a node stands for it; what it makes of several, for the one whose data can fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The node, of the graph as it was given.
    pub node: NodeId,
    /// Its operator.
    pub op: &'static str,
    /// Where it lies in a graph inside that node, which took the node's place.
    pub inside: Option<Arc<InnerOrigin>>,
}

/// A node of a graph inside a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InnerOrigin {
    /// The attribute that holds the graph.
    pub graph: &'static str,
    /// The node in it.
    pub origin: Origin,
}

impl Origin {
    /// The node of a graph that lies in this node, in the attribute `graph`.
    pub(crate) fn around(&self, graph: &'static str, origin: Origin) -> Origin {
        let origin = match &self.inside {
            None => InnerOrigin { graph, origin },
            Some(inner) => InnerOrigin {
                graph: inner.graph,
                origin: inner.origin.around(graph, origin),
            },
        };
        Origin {
            inside: Some(Arc::new(origin)),
            ..self.clone()
        }
    }

    /// The error of a node that stands for this one.
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
