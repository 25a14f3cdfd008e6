//! Algebraic simplification: a table of named rules, each directional and exact.
//!
//! A rule sees one operator with operands of the new graph and gives a value that stands for its
//! result, or nothing. What a rule adds is simplified in turn. Every rule makes the graph shorter,
//! its chains shallower or its nodes cheaper, so that rewriting ends.
//!
//! Exact means: the same bits for every operand, NaN up to its payload. `x + 0.0` is not kept as
//! `x`, because `-0.0 + 0.0` is `0.0`; `x + -0.0` and `x - 0.0` are. `exp(ln(x))` and
//! multiplications by reciprocals stay as they are.

mod arith;
mod shape;

use super::rewrite::{Rewriter, rebuild};
use crate::error::CompileError;
use crate::graph::{Graph, Node, Value};
use crate::ops::{Op, OpKind};
use crate::types::Type;

/// A rule of the simplifier.
#[derive(Clone, Copy, Debug)]
pub struct Simplification {
    /// The name.
    pub name: &'static str,
    /// The equation.
    pub doc: &'static str,
    /// The operator that it looks at.
    pub on: OpKind,
    apply: Apply,
}

type Apply = for<'a, 'g, 'o> fn(&'a mut Simplifier<'g, 'o>, &'a Op, &'a [Value]) -> Simplified;
/// A value that stands for the result, if the rule matches.
type Simplified = Result<Option<Value>, CompileError>;

/// Every rule; the first that matches is taken.
pub const SIMPLIFICATIONS: &[&[Simplification]] = &[arith::RULES, shape::RULES];

/// Simplifies every node.
pub(super) fn simplify(graph: &Graph) -> Result<Graph, CompileError> {
    simplify_traced(graph).map(|(graph, _)| graph)
}

/// Simplifies every node and says which rules were used, in order.
///
/// # Errors
/// [`CompileError::Rewrite`] when a rule builds a node that its operator refuses.
pub fn simplify_traced(graph: &Graph) -> Result<(Graph, Vec<&'static str>), CompileError> {
    let mut fired = Vec::new();
    let new = rebuild(graph, |rw, id, node| {
        let inputs = rw.values(&node.inputs);
        let mut s = Simplifier {
            rw,
            fired: &mut fired,
        };
        match s.try_rules(&node.op, &inputs)? {
            Some(new) => {
                rw.bind(Value { node: id, port: 0 }, new);
                Ok(())
            }
            None => rw.copy(id),
        }
    })?;
    Ok((new, fired))
}

/// What a rule sees and adds to.
struct Simplifier<'g, 'o> {
    rw: &'o mut Rewriter<'g>,
    fired: &'o mut Vec<&'static str>,
}

impl Simplifier<'_, '_> {
    fn try_rules(&mut self, op: &Op, inputs: &[Value]) -> Simplified {
        let rules = SIMPLIFICATIONS.iter().copied().flatten();
        for rule in rules.filter(|r| r.on == op.kind()) {
            if let Some(new) = (rule.apply)(self, op, inputs)? {
                self.fired.push(rule.name);
                return Ok(Some(new));
            }
        }
        Ok(None)
    }

    /// Adds a node, or what it simplifies to.
    fn add(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Result<Value, CompileError> {
        let op = op.into();
        match self.try_rules(&op, inputs)? {
            Some(v) => Ok(v),
            None => self.rw.add(op, inputs),
        }
    }

    fn ty(&self, v: Value) -> &Type {
        self.rw.new_graph().ty(v)
    }

    /// The node that gives a value.
    fn node(&self, v: Value) -> &Node {
        self.rw.new_graph().node(v.node)
    }

    /// The type of the single result of `op`, if its operands are accepted.
    fn infer(&self, op: &Op, inputs: &[Value]) -> Option<Type> {
        let types: Vec<&Type> = inputs.iter().map(|v| self.ty(*v)).collect();
        let [ty] = <[Type; 1]>::try_from(op.infer(&types).ok()?).ok()?;
        Some(ty)
    }
}
