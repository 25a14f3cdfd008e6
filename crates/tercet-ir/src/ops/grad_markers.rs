//! Identity operators that only affect differentiation: `StopGradient` and `Checkpoint`.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{counted, exactly, reject};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// The operand, which gradients treat as a constant.
    ///
    /// ```
    /// use tercet_ir::{DType, GradError, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [3]))?;
    /// let fixed = g.stop_gradient(x)?;
    /// let loss = g.reduce_sum(fixed, &[0], false)?;
    /// assert!(matches!(g.gradients(loss, &[x]), Err(GradError::Unused { .. })));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct StopGradient {}
}

attrs! {
    /// The operand, which is saved for gradients. Gradients recompute the values that depend on the
    /// saved operand, up to the next checkpoint (Chen et al., "Training deep nets with sublinear
    /// memory cost", 2016).
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [3]))?;
    /// let saved = g.checkpoint(x)?;
    /// let y = g.exp(saved)?;
    /// assert_eq!(g.ty(y), g.ty(x));
    /// let loss = g.reduce_sum(y, &[0], false)?;
    /// assert!(g.gradients(loss, &[x]).is_ok());
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Checkpoint {}
}

/// Implements [`OpSpec`] for an identity operator, from its name, meaning, gradient and builder
/// method.
macro_rules! identities {
    ($($Op:ident $name:literal $text:literal $gradient:expr, $build:ident;)*) => {$(
        impl OpSpec for $Op {
            const DOC: OpDoc = OpDoc {
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
            fn cases() -> Vec<OpCase> {
                cases(Graph::$build)
            }
            fn rejects() -> Vec<RejectCase> {
                vec![reject("nothing", "expected 1 operands, got 0", |g| g.add($Op {}, &[]))]
            }
        }
    )*};
}

identities! {
    StopGradient "stop_gradient" "The operand, which gradients treat as a constant."
        Gradient::Zero("the operator stops gradients"), stop_gradient;
    Checkpoint "checkpoint" "The operand, which is saved for gradients. They recompute the values that depend on it, up to the next checkpoint."
        Gradient::Rule(rules::shape::identity), checkpoint;
}

fn cases(build: fn(&mut Graph, Value) -> Result<Value, OpError>) -> Vec<OpCase> {
    let shaped = |name: &str, shape: &'static [usize]| {
        OpCase::new(name, move |c| {
            let x = c.input("x", shape, InputFill::Special)?;
            let y = build(&mut c.graph, x)?;
            c.output(y)
        })
    };
    vec![
        shaped("odd_3x7", &[3, 7]),
        shaped("rank_0", &[]),
        shaped("empty", &[2, 0]),
        OpCase::new("between_nodes", move |c| {
            let x = c.input("x", [2, 3], counted(&[2, 3]))?;
            let y = build(&mut c.graph, x)?;
            let y = c.graph.transpose(y, &[1, 0])?;
            let y = build(&mut c.graph, y)?;
            c.output_expect(y, &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0])
        })
        .only(DType::NUMBERS),
        OpCase::new("symbolic", move |c| {
            let s = c.sym("s", 5, 9);
            let x = c.input("x", [s, 3.into()], InputFill::Normal)?;
            let y = build(&mut c.graph, x)?;
            c.output(y)
        }),
    ]
}

impl Graph {
    /// `x` of any type, which gradients treat as a constant.
    ///
    /// # Errors
    /// [`OpError`] when `x` belongs to another graph.
    pub fn stop_gradient(&mut self, x: Value) -> Result<Value, OpError> {
        self.add(StopGradient {}, &[x])
    }

    /// `x` of any type, which is saved for gradients. In a graph with checkpoints, gradients
    /// recompute values from them instead of saving all values until the backward pass reads them.
    ///
    /// # Errors
    /// [`OpError`] when `x` belongs to another graph.
    pub fn checkpoint(&mut self, x: Value) -> Result<Value, OpError> {
        self.add(Checkpoint {}, &[x])
    }
}
