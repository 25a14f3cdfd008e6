//! `If`: runs one of two graphs.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{Bindings, Tensor, TensorType, Type};

use super::{DTYPES, expect_predicate, expect_results, is_true};
use crate::attr::{AttrError, AttrLiteral, AttrValue, Attrs, take_attr};
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::subgraph::SubGraph;

/// Runs `then` if the predicate is true, else `else`; the other graph does not run.
///
/// ```
/// # use std::collections::BTreeMap;
/// # use tercet_ir::{DType, EvalCtx, Graph, Tensor, Type, evaluate};
/// # let mut g = Graph::new();
/// let (mut double, mut keep) = (Graph::new(), Graph::new());
/// let v = double.input("v", Type::new(DType::F32, [2]))?;
/// let sum = double.plus(v, v)?;
/// double.output("y", sum)?;
/// let v = keep.input("v", Type::new(DType::F32, [2]))?;
/// keep.output("y", v)?;
/// # let x = g.constant(Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
/// let pred = g.constant(Tensor::from_bools(&[], &[true])?)?;
/// let y = g.if_else(pred, &[x], double, keep)?;
/// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
/// assert_eq!(done.get(y).as_slice::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct If {
    /// The graph that runs if the predicate is true.
    pub then: SubGraph,
    /// The graph that runs if the predicate is false; `else` in the text form.
    pub otherwise: SubGraph,
}

// Implemented by hand, because `else` cannot be a Rust field name.
impl Attrs for If {
    const NAMES: &'static [&'static str] = &["then", "else"];

    fn kinds() -> Vec<(&'static str, String)> {
        vec![("then", SubGraph::kind()), ("else", SubGraph::kind())]
    }

    fn to_literals(&self) -> Vec<(&'static str, AttrLiteral)> {
        vec![
            ("then", self.then.to_literal()),
            ("else", self.otherwise.to_literal()),
        ]
    }

    fn from_literals(given: &[(String, AttrLiteral)]) -> Result<Self, AttrError> {
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

    fn set_sizes(&mut self, sizes: &Bindings) -> Result<(), TypeError> {
        self.then.set_sizes(sizes)?;
        self.otherwise.set_sizes(sizes)
    }
}

impl If {
    /// The graph that runs for a predicate.
    pub fn selected_branch(&self, predicate: &Tensor) -> &SubGraph {
        match is_true(predicate) {
            true => &self.then,
            false => &self.otherwise,
        }
    }
}

impl OpSpec for If {
    const DOC: OpDoc = OpDoc {
        name: "if",
        text: "The results of the graph `then` if `pred` (`bool[]`) is true, else those of `else`; \
               the other graph does not run. The captures are the arguments of both, and their \
               results have the same types.",
        operands: &["pred", "captures..."],
        dtypes: DTYPES,
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
        let name = match is_true(operands[0]) {
            true => "then",
            false => "else",
        };
        self.selected_branch(operands[0])
            .evaluate(name, ctx, &operands[1..])
    }
}

impl Graph {
    /// Runs `then` or `otherwise` on the captures, depending on `pred`. Returns the first result;
    /// `.port(1)` is the second.
    ///
    /// # Errors
    /// [`OpError`] when `pred` is not `bool[]`, a graph does not accept the captures, or their
    /// results have different types.
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
