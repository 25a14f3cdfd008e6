//! Algebraic simplification: a table of named rules, each directional and exact.
//!
//! A rule receives one operator with operands of the new graph and returns a replacement for its
//! result, or nothing. Nodes that a rule adds are simplified in turn. Every rule makes the graph
//! smaller, its chains shallower or its nodes cheaper, so rewriting terminates.
//!
//! Exact means bitwise equal for every operand (except NaN payloads). `x + 0.0` is not simplified
//! to `x`, because `-0.0 + 0.0` is `0.0`, but `x + -0.0` and `x - 0.0` are. `exp(ln(x))` and
//! multiplications by reciprocals are not simplified.

mod arith;
mod shape;

use tercet_tensor::Type;

use super::rewrite::{Rewriter, rebuild};
use crate::error::CompileError;
use crate::graph::{Graph, Node, Value};
use crate::ops::{Op, OpKind};

/// A rule of the simplifier.
///
/// ```
/// use tercet_ir::passes::{SIMPLIFICATIONS, Simplification, simplify_traced};
/// use tercet_ir::{DType, Graph, OpKind, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [4]))?;
/// let y = g.neg(x)?;
/// let y = g.neg(y)?;
/// g.output("y", y)?;
/// let (_, applied) = simplify_traced(&g)?;
/// let mut rules = SIMPLIFICATIONS.iter().copied().flatten();
/// let rule: Option<&Simplification> = rules.find(|rule| rule.name == applied[0]);
/// assert_eq!(rule.map(|rule| rule.on), Some(OpKind::Unary));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Simplification {
    /// Name of the rule.
    pub name: &'static str,
    /// The rule as an equation.
    pub doc: &'static str,
    /// The operator that the rule matches.
    pub on: OpKind,
    apply: SimplifyFn,
}

type SimplifyFn =
    for<'a, 'g, 'o> fn(&'a mut Simplifier<'g, 'o>, &'a Op, &'a [Value]) -> SimplifyResult;
/// The replacement of the result, if the rule matches.
type SimplifyResult = Result<Option<Value>, CompileError>;

/// Every rule, in matching order; the first match is applied.
pub const SIMPLIFICATIONS: &[&[Simplification]] = &[arith::RULES, shape::RULES];

/// Simplifies every node.
pub(super) fn simplify(graph: &Graph) -> Result<Graph, CompileError> {
    simplify_traced(graph).map(|(graph, _)| graph)
}

/// Simplifies every node and returns the names of the applied rules, in order.
///
/// # Errors
/// [`CompileError::Rewrite`] when a rule builds an invalid node.
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

/// The interface through which a rule inspects and adds nodes.
struct Simplifier<'g, 'o> {
    rw: &'o mut Rewriter<'g>,
    fired: &'o mut Vec<&'static str>,
}

impl Simplifier<'_, '_> {
    fn try_rules(&mut self, op: &Op, inputs: &[Value]) -> SimplifyResult {
        let rules = SIMPLIFICATIONS.iter().copied().flatten();
        for rule in rules.filter(|r| r.on == op.kind()) {
            if let Some(new) = (rule.apply)(self, op, inputs)? {
                self.fired.push(rule.name);
                return Ok(Some(new));
            }
        }
        Ok(None)
    }

    /// Adds a node, or its simplification.
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

    /// The node that computes a value.
    fn node(&self, v: Value) -> &Node {
        self.rw.new_graph().node(v.node)
    }

    /// The type of the single result of `op`, if its operands are valid.
    fn infer(&self, op: &Op, inputs: &[Value]) -> Option<Type> {
        let types: Vec<&Type> = inputs.iter().map(|v| self.ty(*v)).collect();
        let [ty] = <[Type; 1]>::try_from(op.infer(&types).ok()?).ok()?;
        Some(ty)
    }
}
