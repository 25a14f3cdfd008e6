//! Graphs inside operators: the branches of `If`, the parts of `While`, the body of `Scan`.
//!
//! A [`SubGraph`] is an attribute. Its `Input`s, in order, are its arguments, its outputs, in order, its
//! results; their names are its own. Symbols mean what they mean outside. It holds no parameter and no
//! state: what it needs of the graph around it comes in as an argument, a capture.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::attr::{AttrError, AttrValue, Literal};
use crate::error::{EvalError, RunError, TypeError, one_line};
use crate::graph::Graph;
use crate::interp::evaluate;
use crate::op::EvalCtx;
use crate::ops::Op;
use crate::tensor::Tensor;
use crate::types::Type;

/// Graphs nest at most this deep, so that what walks them cannot exhaust the stack.
pub const MAX_NESTING: usize = 16;

/// A graph inside an operator. Cloning shares it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SubGraph {
    graph: Arc<Graph>,
    /// How deep graphs nest in it, itself included.
    depth: usize,
}

impl From<Graph> for SubGraph {
    fn from(graph: Graph) -> SubGraph {
        SubGraph::new(graph)
    }
}

impl SubGraph {
    /// The graph as a part of an operator. Whether it can be one is checked when the operator is added.
    pub fn new(graph: Graph) -> SubGraph {
        let inner = graph.nodes().flat_map(|(_, n)| n.op.subgraphs());
        let deepest = inner.map(|(_, block)| block.depth).max().unwrap_or(0);
        SubGraph {
            graph: Arc::new(graph),
            depth: deepest + 1,
        }
    }

    /// The graph.
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

    /// The types of the results for arguments of these types; `name` is that of the attribute.
    ///
    /// # Errors
    /// [`TypeError::Attr`] for other arguments than the graph's inputs, a parameter or state inside, a
    /// symbol that is no dimension of an argument by itself, and graphs that nest too deep.
    pub fn infer(&self, name: &'static str, given: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let fail = |reason: String| Err(TypeError::Attr { name, reason });
        if self.depth > MAX_NESTING {
            return fail(format!("graphs nest at most {MAX_NESTING} deep"));
        }
        for (id, node) in self.graph.nodes() {
            let (what, leaf) = match &node.op {
                Op::Param(o) => ("parameter", &o.name),
                Op::State(o) => ("state", &o.name),
                _ => continue,
            };
            return fail(format!(
                "{id} is the {what} `{leaf}`; give it to the operator as a capture instead"
            ));
        }
        let taken: Vec<&Type> = self.arguments().collect();
        if taken.len() != given.len() {
            let (taken, given) = (taken.len(), given.len());
            return fail(format!(
                "the graph has {taken} inputs, its operator gives it {given}"
            ));
        }
        for (i, (taken, given)) in taken.iter().zip(given).enumerate() {
            if taken != given {
                return fail(format!(
                    "input {i} is {taken}, its operator gives it {given}"
                ));
            }
        }
        let dims = || taken.iter().flat_map(|ty| ty.shape.iter());
        for symbol in self.graph.symbols() {
            if !dims().any(|dim| dim.as_symbol() == Some(&symbol)) {
                return fail(format!(
                    "symbol `{symbol}` is no dimension of an input by itself; capture a value that has it"
                ));
            }
        }
        Ok(self.results())
    }

    /// The results for these arguments, by the reference; `name` is that of the attribute.
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

/// A failure inside the graph of this attribute, as one of its operator.
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
    fn to_literal(&self) -> Literal {
        Literal::Graph(self.clone())
    }
    fn from_literal(l: &Literal) -> Result<Self, AttrError> {
        match l {
            Literal::Graph(graph) => Ok(graph.clone()),
            _ => Err(AttrError::kind("a graph such as graph { ... }", l)),
        }
    }
}
