//! `While`: repeats a graph while a condition holds.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{Tensor, TensorType, Type};

use super::{DTYPES, expect_carried, expect_predicate, expect_results, is_true};
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::subgraph::SubGraph;

attrs! {
    /// Repeats `body` while `cond` is true. The arguments of both are the carried values, then the
    /// captures.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// # use tercet_ir::{DType, EvalCtx, Graph, Type, evaluate};
    /// # let mut g = Graph::new();
    /// let (mut cond, mut body) = (Graph::new(), Graph::new());
    /// let v = cond.input("v", Type::new(DType::F32, [0; 0]))?;
    /// let limit = cond.scalar(DType::F32, 100.0)?;
    /// let below = cond.lt(v, limit)?;
    /// cond.output("continue", below)?;
    /// let v = body.input("v", Type::new(DType::F32, [0; 0]))?;
    /// let sum = body.plus(v, v)?;
    /// body.output("v", sum)?;
    /// let x = g.scalar(DType::F32, 1.0)?;
    /// let y = g.while_loop(&[x], &[], cond, body, 50)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [128.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct While {
        /// A graph with one result, `bool[]`: whether to run another iteration.
        pub cond: SubGraph,
        /// A graph whose results are the carried values of the next iteration, with the same types.
        pub body: SubGraph,
        /// Maximum number of iterations; a run that would need more fails.
        pub max_iter: u64,
    }
}

impl While {
    /// The number of carried values.
    pub fn carried(&self) -> usize {
        self.body.graph().outputs().len()
    }
}

impl OpSpec for While {
    const DOC: OpDoc = OpDoc {
        name: "while",
        text: "Repeats the graph `body` while the graph `cond` is true. The arguments of both are \
               the carried values and the captures; the results of `body` are the next carried \
               values. Returns the final carried values. A run fails if `cond` is still true after \
               `max_iter` iterations.",
        operands: &["carried...", "captures..."],
        dtypes: DTYPES,
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
                let reason = format!(
                    "the graph has {} results; expected one, bool[]",
                    others.len()
                );
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
            if !more.first().is_some_and(is_true) {
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
}

impl Graph {
    /// Repeats `body` on the carried values and the captures while `cond` is true, at most
    /// `max_iter` times. Returns the first final carried value; `.port(1)` is the second.
    ///
    /// # Errors
    /// [`OpError`] when a graph does not accept these operands, or the result of `cond` is not
    /// `bool[]`. [`OpError`] also when the results of `body` do not have the types of the carried
    /// values.
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
