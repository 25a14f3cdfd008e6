//! Nested graphs: the branches of `If`, the condition and body of `While`, the body of `Scan`.
//!
//! A [`SubGraph`] is an attribute. The `Input`s of a nested graph, in order, are its arguments, and
//! its outputs, in order, are its results; their names are local. Symbols have the same meaning as
//! outside. A nested graph contains no parameter and no state. Values of the outer graph enter as
//! additional arguments (captures).

use std::collections::BTreeMap;
use std::sync::Arc;

use tercet_tensor::{Bindings, Tensor, Type};

use crate::attr::{AttrError, AttrLiteral, AttrValue};
use crate::error::{EvalError, RunError, TypeError, one_line};
use crate::graph::Graph;
use crate::interp::evaluate;
use crate::op::EvalCtx;
use crate::ops::Op;

/// Maximum nesting depth of graphs. The limit prevents stack overflow in recursive code.
pub const MAX_NESTING: usize = 16;

/// A graph inside an operator. Clones share the graph.
///
/// ```
/// use tercet_ir::{DType, Graph, SubGraph, Type};
/// let mut body = Graph::new();
/// let x = body.input("x", Type::new(DType::F32, [4]))?;
/// let y = body.exp(x)?;
/// body.output("y", y)?;
/// let body = SubGraph::new(body);
/// assert_eq!(body.arguments().count(), 1);
/// assert_eq!(body.results(), [Type::new(DType::F32, [4])]);
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SubGraph {
    graph: Arc<Graph>,
    /// The nesting depth, including this graph.
    depth: usize,
}

impl From<Graph> for SubGraph {
    fn from(graph: Graph) -> SubGraph {
        SubGraph::new(graph)
    }
}

impl SubGraph {
    /// Wraps a graph for use as an attribute. The nested graph is validated when the operator is
    /// added.
    pub fn new(graph: Graph) -> SubGraph {
        let inner = graph.nodes().flat_map(|(_, n)| n.op.subgraphs());
        let deepest = inner.map(|(_, block)| block.depth).max().unwrap_or(0);
        SubGraph {
            graph: Arc::new(graph),
            depth: deepest + 1,
        }
    }

    /// The nested graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The types of the arguments, in order.
    pub fn arguments(&self) -> impl Iterator<Item = &Type> {
        self.graph.nodes().filter_map(|(_, n)| match &n.op {
            Op::Input(input) => Some(&input.ty),
            _ => None,
        })
    }

    /// The types of the results, in order.
    pub fn results(&self) -> Vec<Type> {
        let outputs = self.graph.outputs().iter();
        outputs.map(|o| self.graph.ty(o.value).clone()).collect()
    }

    /// The types of the results for arguments of these types; `name` is the attribute that holds
    /// the graph.
    ///
    /// # Errors
    /// [`TypeError::Attr`] when the arguments do not match the graph's inputs, or the graph
    /// contains a parameter or state. The same error is returned when a symbol is not by itself a
    /// dimension of an argument, or graphs nest too deeply.
    pub fn infer(&self, name: &'static str, given: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let fail = |reason: String| Err(TypeError::Attr { name, reason });
        if self.depth > MAX_NESTING {
            return fail(format!(
                "graphs are nested too deeply; expected at most {MAX_NESTING} levels"
            ));
        }
        for (id, node) in self.graph.nodes() {
            let (what, leaf) = match &node.op {
                Op::Param(o) => ("parameter", &o.name),
                Op::State(o) => ("state", &o.name),
                _ => continue,
            };
            return fail(format!(
                "{id} is the {what} `{leaf}`; pass it to the operator as a capture instead"
            ));
        }
        let taken: Vec<&Type> = self.arguments().collect();
        if taken.len() != given.len() {
            let (taken, given) = (taken.len(), given.len());
            return fail(format!(
                "the graph has {taken} inputs, but its operator passes {given}"
            ));
        }
        for (i, (taken, given)) in taken.iter().zip(given).enumerate() {
            if taken != given {
                return fail(format!(
                    "input {i} is {taken}, but its operator passes {given}"
                ));
            }
        }
        let dims = || taken.iter().flat_map(|ty| ty.shape.iter());
        for symbol in self.graph.symbols() {
            if !dims().any(|dim| dim.as_symbol() == Some(&symbol)) {
                return fail(format!(
                    "symbol `{symbol}` is not by itself a dimension of an input; capture a value with that dimension"
                ));
            }
        }
        Ok(self.results())
    }

    /// Evaluates the graph on these arguments with the reference interpreter; `name` is the
    /// attribute that holds the graph.
    ///
    /// # Errors
    /// [`EvalError::Within`] that names the node that fails.
    pub fn evaluate(
        &self,
        name: &'static str,
        ctx: &EvalCtx,
        arguments: &[&Tensor],
    ) -> Result<Vec<Tensor>, EvalError> {
        let names = self.graph.nodes().filter_map(|(_, n)| match &n.op {
            Op::Input(input) => Some(input.name.clone()),
            _ => None,
        });
        let given = arguments.iter().copied().cloned();
        let leaves: BTreeMap<String, Tensor> = names.zip(given).collect();
        let done = evaluate(&self.graph, ctx, &leaves).map_err(|e| inside(name, e))?;
        let outputs = self.graph.outputs().iter();
        Ok(outputs.map(|o| done.get(o.value).clone()).collect())
    }
}

/// Converts a failure inside the graph of this attribute to an error of the outer operator.
pub fn inside(name: &'static str, e: RunError) -> EvalError {
    match e {
        RunError::Node { node, op, source } => EvalError::Within {
            graph: name,
            node,
            op,
            source: Box::new(source),
        },
        RunError::Dim(e) => e.into(),
        RunError::Tensor(e) => e.into(),
        RunError::UnknownName { .. }
        | RunError::Missing { .. }
        | RunError::Type { .. }
        | RunError::AboveBound { .. }
        | RunError::Conflict { .. }
        | RunError::Narrow { .. }
        | RunError::Rows { .. }
        | RunError::Elements { .. }
        | RunError::OutOfMemory { .. }
        | RunError::NonFinite(_)
        | RunError::OtherDevice { .. }
        | RunError::DeviceLost { .. } => EvalError::Data(format!("in `{name}`: {}", one_line(&e))),
    }
}

impl AttrValue for SubGraph {
    fn kind() -> String {
        "graph".to_string()
    }
    fn to_literal(&self) -> AttrLiteral {
        AttrLiteral::Graph(self.clone())
    }
    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        match l {
            AttrLiteral::Graph(graph) => Ok(graph.clone()),
            _ => Err(AttrError::kind("a graph such as graph { ... }", l)),
        }
    }
    fn set_sizes(&mut self, sizes: &Bindings) -> Result<(), TypeError> {
        let fixed = self.graph().with_known_sizes(sizes);
        *self = fixed
            .map_err(|e| TypeError::Other(format!("in a nested graph: {}", one_line(&e))))?
            .into();
        Ok(())
    }
}
