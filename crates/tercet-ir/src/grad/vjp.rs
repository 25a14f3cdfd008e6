//! The interface of gradient rules: the differentiated node and the graph to which rules append.

use std::ops::{Deref, DerefMut};

use crate::error::OpError;
use crate::graph::{Graph, NodeId, Value};

use super::decompose::decompose;
use super::error::NoGradient;
use super::reverse::reverse_pass;

/// The result of a gradient rule; the rule passes cotangents to [`Vjp::accumulate`].
pub type VjpResult = Result<(), NoGradient>;

/// A vector-Jacobian product under construction: the node, the cotangents of its results, and the
/// graph to which the rule appends.
///
/// ```
/// use tercet_ir::grad::{Vjp, VjpResult};
/// /// The gradient rule of a custom operator `y = 3 x`.
/// fn triple(v: &mut Vjp<'_>) -> VjpResult {
///     let dy = v.dy(0)?;
///     let dtype = v.ty(dy).dtype;
///     let three = v.scalar(dtype, 3.0)?;
///     let dx = v.mul(dy, three)?;
///     Ok(v.accumulate(0, dx)?)
/// }
/// # let _: fn(&mut Vjp<'_>) -> VjpResult = triple;
/// ```
#[derive(Debug)]
pub struct Vjp<'a> {
    graph: &'a mut Graph,
    node: NodeId,
    /// The operands and results of the node as gradients read them, recomputed after checkpoints.
    operands: Vec<Value>,
    result: NodeId,
    result_cotangents: Vec<Option<Value>>,
    needed: Vec<bool>,
    operand_cotangents: Vec<Option<Value>>,
}

impl<'a> Vjp<'a> {
    pub(super) fn new(
        graph: &'a mut Graph,
        node: NodeId,
        (operands, result): (Vec<Value>, NodeId),
        of_results: Vec<Option<Value>>,
        wanted: Vec<bool>,
    ) -> Vjp<'a> {
        Vjp {
            graph,
            node,
            result,
            operand_cotangents: vec![None; operands.len()],
            operands,
            result_cotangents: of_results,
            needed: wanted,
        }
    }

    /// The cotangents of operands, with the original operand values.
    pub(super) fn finish(self) -> Vec<(Value, Value)> {
        let inputs = &self.graph.node(self.node).inputs;
        let pairs = inputs.iter().zip(self.operand_cotangents);
        pairs.filter_map(|(v, c)| Some((*v, c?))).collect()
    }

    /// The number of operands.
    pub fn count(&self) -> usize {
        self.operands.len()
    }

    /// The operands of the node.
    pub fn operands(&self) -> Vec<Value> {
        self.operands.clone()
    }

    /// An operand of the node.
    ///
    /// # Panics
    /// When the node has fewer operands: a rule knows its operator.
    pub fn x(&self, operand: usize) -> Value {
        self.operands[operand]
    }

    /// A result of the differentiated node.
    pub fn y(&self, result: u8) -> Value {
        Value {
            node: self.result,
            port: result,
        }
    }

    /// True if a cotangent of the operand is needed. False for integers.
    pub fn needs_cotangent(&self, operand: usize) -> bool {
        self.needed.get(operand).copied().unwrap_or(false)
    }

    /// True if a result has a cotangent.
    pub fn has(&self, result: u8) -> bool {
        self.result_cotangents[usize::from(result)].is_some()
    }

    /// The cotangent of a result; zeros if nothing depends on the result.
    ///
    /// # Errors
    /// [`OpError`] when zeros of its type cannot be created.
    pub fn dy(&mut self, result: u8) -> Result<Value, OpError> {
        match self.result_cotangents[usize::from(result)] {
            Some(dy) => Ok(dy),
            None => self.graph.zeros_like(self.y(result)),
        }
    }

    /// Adds the cotangent of an operand, which must have the operand's type. Several cotangents of
    /// one operand are summed. Unneeded cotangents are dropped, and missing ones are zero.
    ///
    /// # Errors
    /// [`OpError`] when the cotangent has another type.
    pub fn accumulate(&mut self, operand: usize, cotangent: Value) -> Result<(), OpError> {
        if !self.needs_cotangent(operand) {
            return Ok(());
        }
        let (own, given) = (self.ty(self.x(operand)), self.ty(cotangent));
        if own != given {
            return Err(OpError {
                op: self.graph.node(self.node).op.name(),
                operands: vec![given.clone()],
                source: crate::TypeError::Other(format!(
                    "its rule gives a cotangent of another type than operand {operand}, {own}"
                )),
            });
        }
        self.operand_cotangents[operand] = Some(match self.operand_cotangents[operand] {
            Some(so_far) => self.graph.plus(so_far, cotangent)?,
            None => cotangent,
        });
        Ok(())
    }

    /// Adds zeros for every operand that needs a cotangent and has none.
    pub(super) fn accumulate_zeros(&mut self) -> Result<(), OpError> {
        for i in 0..self.operands.len() {
            if self.needed[i] && self.operand_cotangents[i].is_none() {
                self.operand_cotangents[i] = Some(self.graph.zeros_like(self.operands[i])?);
            }
        }
        Ok(())
    }

    /// Differentiates an equivalent decomposition. Appends the nodes that `build` adds for the
    /// operands, which must compute the same results, and adds the operands' cotangents.
    ///
    /// # Errors
    /// [`NoGradient`] when one of those nodes has none.
    pub fn through(
        &mut self,
        build: impl FnOnce(&mut Graph, &[Value]) -> Result<Vec<Value>, NoGradient>,
    ) -> VjpResult {
        let from = self.graph.len();
        let results = build(self.graph, &self.operands)?;
        let pairs = results.iter().zip(&self.result_cotangents);
        let pairs: Vec<(Value, Value)> = pairs.filter_map(|(y, dy)| Some((*y, (*dy)?))).collect();
        let mut wanted: Vec<Value> = Vec::new();
        for (v, _) in self.operands.iter().zip(&self.needed).filter(|(_, w)| **w) {
            if !wanted.contains(v) {
                wanted.push(*v);
            }
        }
        let pulled = reverse_pass(self.graph, from, &pairs, &wanted, Vec::new()).map_err(inner)?;
        if !pulled.breaks.is_empty() {
            let reasons = pulled.breaks.iter();
            let reasons: Vec<String> = reasons.map(|s| format!("{}: {}", s.op, s.reason)).collect();
            return Err(NoGradient::because(reasons.join("; ")));
        }
        for (v, cotangent) in wanted.iter().zip(pulled.cotangents) {
            // If an operand occurs twice, its cotangent is the sum of both, so it is added only
            // once.
            let first = self.operands.iter().position(|x| x == v);
            if let (Some(at), Some(cotangent)) = (first, cotangent) {
                self.accumulate(at, cotangent)?;
            }
        }
        Ok(())
    }

    /// As [`Vjp::through`], with the decomposition that legalization uses.
    pub(crate) fn through_decomposition(&mut self) -> VjpResult {
        let op = self.graph.node(self.node).op.clone();
        self.through(|g, operands| decompose(g, &op, operands))
    }
}

/// Rules call the builder methods of [`Graph`].
impl Deref for Vjp<'_> {
    type Target = Graph;

    fn deref(&self) -> &Graph {
        self.graph
    }
}

impl DerefMut for Vjp<'_> {
    fn deref_mut(&mut self) -> &mut Graph {
        self.graph
    }
}

/// Converts the error of a reverse pass inside a rule.
fn inner(e: super::GradError) -> NoGradient {
    match e {
        super::GradError::Rule { source, .. } => NoGradient::InvalidNode(source),
        e => NoGradient::because(crate::one_line(&e)),
    }
}
