//! What a rule sees of the node that it differentiates, and the graph that it appends to.

use std::ops::{Deref, DerefMut};

use crate::error::OpError;
use crate::graph::{Graph, NodeId, Value};

use super::decompose::decompose;
use super::error::NoGradient;
use super::reverse::pull;

/// What a rule returns; cotangents are given by [`Vjp::give`].
pub type Ruled = Result<(), NoGradient>;

/// A vector-Jacobian product under construction: the node, the cotangents of its results, and the graph that what the
/// rule adds goes to.
#[derive(Debug)]
pub struct Vjp<'a> {
    graph: &'a mut Graph,
    node: NodeId,
    /// The operands and the node as gradients read them: computed again behind checkpoints.
    operands: Vec<Value>,
    result: NodeId,
    of_results: Vec<Option<Value>>,
    wanted: Vec<bool>,
    given: Vec<Option<Value>>,
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
            given: vec![None; operands.len()],
            operands,
            of_results,
            wanted,
        }
    }

    /// The cotangents of operands, by the values that they were.
    pub(super) fn finish(self) -> Vec<(Value, Value)> {
        let inputs = &self.graph.node(self.node).inputs;
        let pairs = inputs.iter().zip(self.given);
        pairs.filter_map(|(v, c)| Some((*v, c?))).collect()
    }

    /// How many operands there are.
    pub fn count(&self) -> usize {
        self.operands.len()
    }

    /// The operands.
    pub fn operands(&self) -> Vec<Value> {
        self.operands.clone()
    }

    /// An operand.
    ///
    /// # Panics
    /// When there are fewer: a rule knows its operator.
    pub fn x(&self, operand: usize) -> Value {
        self.operands[operand]
    }

    /// A result of the node that is differentiated.
    pub fn y(&self, result: u8) -> Value {
        Value {
            node: self.result,
            port: result,
        }
    }

    /// True where a cotangent of the operand is of use. Integers never want one.
    pub fn wants(&self, operand: usize) -> bool {
        self.wanted.get(operand).copied().unwrap_or(false)
    }

    /// True where a result has a cotangent.
    pub fn has(&self, result: u8) -> bool {
        self.of_results[usize::from(result)].is_some()
    }

    /// The cotangent of a result: zeros where nothing depends on it.
    ///
    /// # Errors
    /// [`OpError`] when zeros of its type cannot be made.
    pub fn dy(&mut self, result: u8) -> Result<Value, OpError> {
        match self.of_results[usize::from(result)] {
            Some(dy) => Ok(dy),
            None => self.graph.zeros_like(self.y(result)),
        }
    }

    /// Gives the cotangent of an operand, which has the operand's type. What is given twice is added; what is not
    /// wanted is dropped; what is not given is zero.
    ///
    /// # Errors
    /// [`OpError`] when it has another type.
    pub fn give(&mut self, operand: usize, cotangent: Value) -> Result<(), OpError> {
        if !self.wants(operand) {
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
        self.given[operand] = Some(match self.given[operand] {
            Some(so_far) => self.graph.plus(so_far, cotangent)?,
            None => cotangent,
        });
        Ok(())
    }

    /// Zeros for every operand that wants a cotangent and has none.
    pub(super) fn give_zeros(&mut self) -> Result<(), OpError> {
        for i in 0..self.operands.len() {
            if self.wanted[i] && self.given[i].is_none() {
                self.given[i] = Some(self.graph.zeros_like(self.operands[i])?);
            }
        }
        Ok(())
    }

    /// Appends what `build` makes of the operands, the same results in other words, and gives the operands'
    /// cotangents through it.
    ///
    /// # Errors
    /// [`NoGradient`] where a node of it has none.
    pub fn through(
        &mut self,
        build: impl FnOnce(&mut Graph, &[Value]) -> Result<Vec<Value>, NoGradient>,
    ) -> Ruled {
        let from = self.graph.len();
        let results = build(self.graph, &self.operands)?;
        let pairs = results.iter().zip(&self.of_results);
        let pairs: Vec<(Value, Value)> = pairs.filter_map(|(y, dy)| Some((*y, (*dy)?))).collect();
        let mut wanted: Vec<Value> = Vec::new();
        for (v, _) in self.operands.iter().zip(&self.wanted).filter(|(_, w)| **w) {
            if !wanted.contains(v) {
                wanted.push(*v);
            }
        }
        let pulled = pull(self.graph, from, &pairs, &wanted, Vec::new()).map_err(inner)?;
        if !pulled.severed.is_empty() {
            let reasons = pulled.severed.iter();
            let reasons: Vec<String> = reasons.map(|s| format!("{}: {}", s.op, s.reason)).collect();
            return Err(NoGradient::because(reasons.join("; ")));
        }
        for (v, cotangent) in wanted.iter().zip(pulled.cotangents) {
            // An operand that is there twice got the sum of both.
            let first = self.operands.iter().position(|x| x == v);
            if let (Some(at), Some(cotangent)) = (first, cotangent) {
                self.give(at, cotangent)?;
            }
        }
        Ok(())
    }

    /// As [`Vjp::through`], through what legalization makes of the node.
    pub(crate) fn through_decomposition(&mut self) -> Ruled {
        let op = self.graph.node(self.node).op.clone();
        self.through(|g, operands| decompose(g, &op, operands))
    }
}

/// A rule builds by the methods of [`Graph`].
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

/// The error of a walk inside a rule.
fn inner(e: super::GradError) -> NoGradient {
    match e {
        super::GradError::Rule { source, .. } => NoGradient::Refused(source),
        e => NoGradient::because(crate::one_line(&e)),
    }
}
