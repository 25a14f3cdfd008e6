//! `If`: one of two graphs.

use super::{cases, expect_predicate, expect_results, holds};
use crate::accuracy::Accuracy;
use crate::attr::{AttrError, AttrValue, Attrs, Literal, take_attr};
use crate::case::{Case, Reject};
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::subgraph::SubGraph;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

/// `then` where the predicate holds, else `else`; the other one does not run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct If {
    /// Where the predicate holds.
    pub then: SubGraph,
    /// Where it does not; `else` in the text form.
    pub otherwise: SubGraph,
}

// By hand, since `else` is no name of a field.
impl Attrs for If {
    const NAMES: &'static [&'static str] = &["then", "else"];

    fn kinds() -> Vec<(&'static str, String)> {
        vec![("then", SubGraph::kind()), ("else", SubGraph::kind())]
    }

    fn to_literals(&self) -> Vec<(&'static str, Literal)> {
        vec![
            ("then", self.then.to_literal()),
            ("else", self.otherwise.to_literal()),
        ]
    }

    fn from_literals(given: &[(String, Literal)]) -> Result<Self, AttrError> {
        if let Some((name, _)) = given
            .iter()
            .find(|(n, _)| !Self::NAMES.contains(&n.as_str()))
        {
            let known = Self::NAMES.join(", ");
            let name = name.clone();
            return Err(AttrError::Unknown { name, known });
        }
        Ok(If {
            then: take_attr(given, "then")?,
            otherwise: take_attr(given, "else")?,
        })
    }
}

impl If {
    /// The graph that a predicate takes.
    pub fn taken(&self, predicate: &Tensor) -> &SubGraph {
        match holds(predicate) {
            true => &self.then,
            false => &self.otherwise,
        }
    }
}

impl OpSpec for If {
    const DOC: Doc = Doc {
        name: "if",
        text: "The results of the graph `then` where `pred` (`bool[]`) holds, else those of `else`; \
               the other one does not run. Both take the captures and give results of the same types.",
        operands: &["pred", "captures..."],
        dtypes: cases::DTYPES,
        accuracy: Accuracy::Elementwise,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::control::branch);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [pred, captures @ ..] = operands else {
            return Err(TypeError::Arity {
                expected: "1 or more".to_string(),
                given: 0,
            });
        };
        expect_predicate("pred", pred)?;
        let results = self.then.infer("then", captures)?;
        let others = self.otherwise.infer("else", captures)?;
        expect_results("then", results.len())?;
        let list = |types: &[Type]| {
            let list: Vec<String> = types.iter().map(Type::to_string).collect();
            list.join(", ")
        };
        if results != others {
            return Err(TypeError::Attr {
                name: "else",
                reason: format!(
                    "its results are {}; those of `then` are {}",
                    list(&others),
                    list(&results)
                ),
            });
        }
        Ok(results)
    }

    fn eval(
        &self,
        ctx: &EvalCtx,
        operands: &[&Tensor],
        _: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let name = match holds(operands[0]) {
            true => "then",
            false => "else",
        };
        self.taken(operands[0]).evaluate(name, ctx, &operands[1..])
    }

    fn cases() -> Vec<Case> {
        cases::branches()
    }

    fn rejects() -> Vec<Reject> {
        cases::refused_branches()
    }
}

impl Graph {
    /// `then` or `otherwise` of the captures, as `pred` says; the first result, `.port(1)` is the
    /// second.
    ///
    /// # Errors
    /// [`OpError`] when `pred` is not `bool[]`, a graph does not take the captures, or their results
    /// have different types.
    pub fn if_else(
        &mut self,
        pred: Value,
        captures: &[Value],
        then: impl Into<SubGraph>,
        otherwise: impl Into<SubGraph>,
    ) -> Result<Value, OpError> {
        let op = If {
            then: then.into(),
            otherwise: otherwise.into(),
        };
        let operands: Vec<Value> = [pred].iter().chain(captures).copied().collect();
        self.add(op, &operands)
    }
}
