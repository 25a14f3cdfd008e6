//! Identities that differentiation looks at: where gradients stop, and what they keep of the way forward.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{Case, Fill, Reject};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::util::{counted, exactly, reject};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// The operand, which gradients take for a constant.
    pub struct StopGradient {}
}

attrs! {
    /// The operand, which gradients keep: what depends on it, up to the next checkpoint, they compute again
    /// (Chen et al., "Training deep nets with sublinear memory cost", 2016).
    pub struct Checkpoint {}
}

/// Declares the [`OpSpec`] of an identity: of its name, its meaning, its gradient and its builder method.
macro_rules! identities {
    ($($Op:ident $name:literal $text:literal $gradient:expr, $build:ident;)*) => {$(
        impl OpSpec for $Op {
            const DOC: Doc = Doc {
                name: $name,
                text: $text,
                operands: &["x"],
                dtypes: DType::ALL,
                accuracy: Accuracy::Exact,
                tier: Tier::Composite,
            };
            const GRADIENT: Gradient<Self> = $gradient;
            fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
                let [x] = exactly(operands)?;
                Ok(vec![x.clone()])
            }
            fn eval(
                &self,
                _: &EvalCtx,
                operands: &[&Tensor],
                _: &[TensorType],
            ) -> Result<Vec<Tensor>, EvalError> {
                Ok(vec![operands[0].clone()])
            }
            fn cases() -> Vec<Case> {
                cases(Graph::$build)
            }
            fn rejects() -> Vec<Reject> {
                vec![reject("nothing", "expected 1 operands, got 0", |g| g.add($Op {}, &[]))]
            }
        }
    )*};
}

identities! {
    StopGradient "stop_gradient" "The operand, which gradients take for a constant."
        Gradient::Zero("it is there to stop gradients"), stop_gradient;
    Checkpoint "checkpoint" "The operand, which gradients keep: what depends on it, up to the next checkpoint, they compute again instead of keeping it."
        Gradient::Rule(rules::shape::identity), checkpoint;
}

fn cases(build: fn(&mut Graph, Value) -> Result<Value, OpError>) -> Vec<Case> {
    let shaped = |name: &str, shape: &'static [usize]| {
        Case::new(name, move |c| {
            let x = c.input("x", shape, Fill::Special)?;
            let y = build(&mut c.graph, x)?;
            c.output(y)
        })
    };
    vec![
        shaped("odd_3x7", &[3, 7]),
        shaped("rank_0", &[]),
        shaped("empty", &[2, 0]),
        Case::new("between_nodes", move |c| {
            let x = c.input("x", [2, 3], counted(&[2, 3]))?;
            let y = build(&mut c.graph, x)?;
            let y = c.graph.transpose(y, &[1, 0])?;
            let y = build(&mut c.graph, y)?;
            c.output_expect(y, &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0])
        })
        .only(DType::NUMBERS),
        Case::new("symbolic", move |c| {
            let s = c.sym("s", 5, 9);
            let x = c.input("x", [s, 3.into()], Fill::Normal)?;
            let y = build(&mut c.graph, x)?;
            c.output(y)
        }),
    ]
}

impl Graph {
    /// `x` of any type, which gradients take for a constant.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not of this graph.
    pub fn stop_gradient(&mut self, x: Value) -> Result<Value, OpError> {
        self.add(StopGradient {}, &[x])
    }

    /// `x` of any type, which gradients keep. Where a graph has checkpoints, its gradients compute again from them what
    /// depends on them, instead of keeping all values until they are read backwards.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not of this graph.
    pub fn checkpoint(&mut self, x: Value) -> Result<Value, OpError> {
        self.add(Checkpoint {}, &[x])
    }
}
