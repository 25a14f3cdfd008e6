//! `While`: a graph again and again.

use super::{cases, expect_carried, expect_predicate, expect_results, holds};
use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{Case, Reject};
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::subgraph::SubGraph;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// `body` as long as `cond` holds. Both take the values carried, then the captures.
    pub struct While {
        /// One result, `bool[]`: whether there is another iteration.
        pub cond: SubGraph,
        /// The values carried into the next iteration, of the same types.
        pub body: SubGraph,
        /// The most iterations; a run in which there would be more fails.
        pub max_iter: u64,
    }
}

impl While {
    /// The number of values carried.
    pub fn carried(&self) -> usize {
        self.body.graph().outputs().len()
    }
}

impl OpSpec for While {
    const DOC: Doc = Doc {
        name: "while",
        text: "While the graph `cond` of the carried values and the captures gives true, the carried \
               values become the results of `body` of the same; the carried values at the end. A run \
               in which `cond` still holds after `max_iter` iterations fails.",
        operands: &["carried...", "captures..."],
        dtypes: cases::DTYPES,
        accuracy: Accuracy::Elementwise,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::None(rules::control::WHILE);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let results = self.body.infer("body", operands)?;
        expect_results("body", results.len())?;
        if results.len() > operands.len() {
            return Err(TypeError::Arity {
                expected: format!("{} or more", results.len()),
                given: operands.len(),
            });
        }
        expect_carried("body", &results, operands)?;
        match self.cond.infer("cond", operands)?.as_slice() {
            [predicate] => expect_predicate("cond", predicate)?,
            others => {
                let reason = format!("it has {} results; expected one, bool[]", others.len());
                let name = "cond";
                return Err(TypeError::Attr { name, reason });
            }
        }
        Ok(results)
    }

    fn eval(
        &self,
        ctx: &EvalCtx,
        operands: &[&Tensor],
        _: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (first, captures) = operands.split_at(self.carried());
        let mut carried: Vec<Tensor> = first.iter().copied().cloned().collect();
        let mut done = 0;
        loop {
            let arguments: Vec<&Tensor> = carried.iter().chain(captures.iter().copied()).collect();
            let more = self.cond.evaluate("cond", ctx, &arguments)?;
            if !more.first().is_some_and(holds) {
                return Ok(carried);
            }
            if done == self.max_iter {
                let max_iter = self.max_iter;
                return Err(EvalError::MaxIter { max_iter });
            }
            carried = self.body.evaluate("body", ctx, &arguments)?;
            done += 1;
        }
    }

    fn cases() -> Vec<Case> {
        cases::loops()
    }

    fn rejects() -> Vec<Reject> {
        cases::refused_loops()
    }
}

impl Graph {
    /// `body` of the values carried and the captures, again and again while `cond` holds, at most
    /// `max_iter` times; the first value carried at the end, `.port(1)` is the second.
    ///
    /// # Errors
    /// [`OpError`] when a graph does not take these operands, `cond` does not give `bool[]`, or `body`
    /// not the types that are carried.
    pub fn while_loop(
        &mut self,
        carried: &[Value],
        captures: &[Value],
        cond: impl Into<SubGraph>,
        body: impl Into<SubGraph>,
        max_iter: u64,
    ) -> Result<Value, OpError> {
        let (cond, body) = (cond.into(), body.into());
        let op = While {
            cond,
            body,
            max_iter,
        };
        self.add(op, &[carried, captures].concat())
    }
}
