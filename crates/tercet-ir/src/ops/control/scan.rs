//! `Scan`: runs a graph for each step of sequences.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{Dim, Shape, Tensor, TensorType, Type};

use super::{DTYPES, expect_carried, expect_results};
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{expect_equal, expect_rank_at_least};
use crate::subgraph::SubGraph;

attrs! {
    /// Runs `body` once for each step of sequences, along their first axis (ONNX `Scan`).
    ///
    /// The operands are the carried values, the sequences and the captures. The arguments of the
    /// body are the carried values, the step's element of each sequence, and the captures. The
    /// results of the body are the next carried values, then an element of each result sequence.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// # use tercet_ir::{DType, EvalCtx, Graph, Tensor, Type, evaluate};
    /// # let mut g = Graph::new();
    /// let mut body = Graph::new();
    /// let total = body.input("total", Type::new(DType::F32, [0; 0]))?;
    /// let x = body.input("x", Type::new(DType::F32, [0; 0]))?;
    /// let sum = body.plus(total, x)?;
    /// body.output("total", sum)?;
    /// body.output("y", sum)?;
    /// # let zero = g.scalar(DType::F32, 0.0)?;
    /// # let xs = g.constant(Tensor::from_slice(&[3], &[1f32, 2.0, 3.0])?)?;
    /// let last = g.scan_over(&[zero], &[xs], &[], body)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(last).as_slice::<f32>()?, [6.0]);
    /// assert_eq!(done.get(last.port(1)).as_slice::<f32>()?, [1.0, 3.0, 6.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Scan {
        /// The graph that runs for each step.
        pub body: SubGraph,
        /// The number of carried values.
        pub carried: usize,
        /// The number of sequences, at least one.
        pub scanned: usize,
        /// For each sequence, whether it is read from its end.
        pub reverse: Vec<bool>,
        /// For each result sequence, whether it is filled from its end.
        pub reverse_results: Vec<bool>,
    }
}

/// The type of one element of a sequence.
fn part(sequence: &Type) -> Type {
    sequence.with_shape(sequence.shape.iter().skip(1).cloned().collect::<Shape>())
}

/// The index of a step in a sequence of `steps` elements.
fn place(step: usize, steps: usize, reverse: bool) -> usize {
    match reverse {
        true => steps - 1 - step,
        false => step,
    }
}

/// The element of a sequence at an index.
fn part_of(sequence: &Tensor, at: usize) -> Result<Tensor, EvalError> {
    let ty = TensorType::new(sequence.dtype(), &sequence.shape()[1..]);
    let bytes = ty.size_bytes();
    let part = &sequence.bytes()[at * bytes..(at + 1) * bytes];
    Ok(Tensor::from_bytes(ty, part)?)
}

impl Scan {
    /// The number of steps and the types of the body's arguments.
    fn arguments(&self, operands: &[&Type]) -> Result<(Dim, Vec<Type>), TypeError> {
        let (carried, scanned) = (self.carried, self.scanned);
        let least = carried.saturating_add(scanned);
        if operands.len() < least {
            return Err(TypeError::Arity {
                expected: format!("{least} or more"),
                given: operands.len(),
            });
        }
        let sequences = &operands[carried..least];
        for sequence in sequences {
            expect_rank_at_least("scanned", sequence, 1)?;
        }
        let [first, rest @ ..] = sequences else {
            let reason = "0 scanned sequences; expected 1 or more".to_string();
            let name = "scanned";
            return Err(TypeError::Attr { name, reason });
        };
        let steps = first.shape[0].clone();
        for sequence in rest {
            expect_equal("steps of the sequences", &steps, &sequence.shape[0])?;
        }
        let mut arguments: Vec<Type> = operands.iter().copied().cloned().collect();
        for ty in &mut arguments[carried..least] {
            *ty = part(ty);
        }
        Ok((steps, arguments))
    }
}

fn expect_flags(name: &'static str, flags: &[bool], count: usize) -> Result<(), TypeError> {
    if flags.len() == count {
        return Ok(());
    }
    let reason = format!("{} values for {count} sequences", flags.len());
    Err(TypeError::Attr { name, reason })
}

impl OpSpec for Scan {
    const DOC: OpDoc = OpDoc {
        name: "scan",
        text: "Runs the graph `body` for each step of the sequences `scanned` (ONNX `Scan` along \
               the first axis). Its arguments are the carried values, the step's element of each \
               sequence, and the captures. Its results are the next carried values, then an \
               element of each result sequence. Returns the final carried values, then the result \
               sequences.",
        operands: &["carried...", "scanned...", "captures..."],
        dtypes: DTYPES,
        accuracy: Accuracy::Elementwise,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::control::scan);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let (steps, arguments) = self.arguments(operands)?;
        let mut results = self
            .body
            .infer("body", &arguments.iter().collect::<Vec<_>>())?;
        expect_results("body", results.len())?;
        let Some(sequences) = results.len().checked_sub(self.carried) else {
            let (found, name) = (results.len(), "body");
            let reason = format!(
                "it has {found} results, {} values are carried",
                self.carried
            );
            return Err(TypeError::Attr { name, reason });
        };
        expect_carried("body", &results, &operands[..self.carried])?;
        expect_flags("reverse", &self.reverse, self.scanned)?;
        expect_flags("reverse_results", &self.reverse_results, sequences)?;
        for ty in &mut results[self.carried..] {
            let shape = [steps.clone()].into_iter().chain(ty.shape.iter().cloned());
            *ty = ty.with_shape(shape.collect::<Shape>());
        }
        Ok(results)
    }

    fn eval(
        &self,
        ctx: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (first, rest) = operands.split_at(self.carried);
        let (sequences, captures) = rest.split_at(self.scanned);
        let steps = sequences[0].shape()[0];
        let mut carried: Vec<Tensor> = first.iter().copied().cloned().collect();
        let made = results[self.carried..].iter().cloned();
        let mut made: Vec<Tensor> = made.map(Tensor::zeros).collect::<Result<_, _>>()?;
        for step in 0..steps {
            let mut parts = Vec::with_capacity(sequences.len());
            for (sequence, reverse) in sequences.iter().zip(&self.reverse) {
                parts.push(part_of(sequence, place(step, steps, *reverse))?);
            }
            let arguments = carried.iter().chain(&parts).chain(captures.iter().copied());
            let arguments: Vec<&Tensor> = arguments.collect();
            let mut given = self.body.evaluate("body", ctx, &arguments)?;
            let added = given.split_off(self.carried);
            for ((to, from), reverse) in made.iter_mut().zip(&added).zip(&self.reverse_results) {
                let (at, from) = (place(step, steps, *reverse), from.bytes());
                to.bytes_mut()[at * from.len()..(at + 1) * from.len()].copy_from_slice(from);
            }
            carried = given;
        }
        carried.append(&mut made);
        Ok(carried)
    }
}

impl Graph {
    /// Runs `body` once for each step along the first axis of the sequences `scanned`, from their
    /// starts; [`Scan`] itself supports both directions. The results are the final carried values,
    /// then the result sequences, by port.
    ///
    /// # Errors
    /// [`OpError`] when the sequences differ in length or the arguments or results of `body` do not
    /// match.
    pub fn scan_over(
        &mut self,
        carried: &[Value],
        scanned: &[Value],
        captures: &[Value],
        body: impl Into<SubGraph>,
    ) -> Result<Value, OpError> {
        let body = body.into();
        let made = body.graph().outputs().len().saturating_sub(carried.len());
        let op = Scan {
            body,
            carried: carried.len(),
            scanned: scanned.len(),
            reverse: vec![false; scanned.len()],
            reverse_results: vec![false; made],
        };
        self.add(op, &[carried, scanned, captures].concat())
    }
}
