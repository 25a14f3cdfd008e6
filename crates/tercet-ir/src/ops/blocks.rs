//! Model blocks as single operators: self-attention with projections, and an encoder layer.
//!
//! Each block is defined once, as a function that applies operators through [`OpComposer`]. The
//! same function infers types, evaluates tensors, or builds the graph into which the block is
//! legalized, depending on what the composer applies operators to. Every intermediate result is
//! therefore rounded as its operator defines.

mod attention_block;
mod options;
mod transformer_layer;

use tercet_tensor::{Dim, Shape, Tensor, TensorType, Type};

use crate::error::{EvalError, TypeError};
use crate::op::EvalCtx;
use crate::ops::util::{expect_equal, expect_rank, expect_same_dtype};
use crate::ops::{Linear, Op, Reshape, Slice};
use crate::scalar::UnaryFn;

pub use attention_block::AttentionBlock;
pub use options::{AttentionBlockOptions, BlockRope, LinearWeights, TransformerWeights};
pub use transformer_layer::TransformerLayer;

/// The interface against which blocks are defined: it applies operators to types, tensors or graph
/// values.
pub(crate) trait OpComposer {
    /// The type of an operand or result.
    type Part: Clone;
    /// The error of applying an operator.
    type Error;

    /// Applies an operator and returns its results.
    fn apply(
        &mut self,
        op: impl Into<Op>,
        operands: &[Self::Part],
    ) -> Result<Vec<Self::Part>, Self::Error>;

    /// The dimensions of an operand or result.
    fn dims(&self, part: &Self::Part) -> Shape;
}

/// A [`OpComposer`] that infers types.
pub(crate) struct TypeComposer;

impl OpComposer for TypeComposer {
    type Part = Type;
    type Error = TypeError;

    fn apply(&mut self, op: impl Into<Op>, operands: &[Type]) -> Result<Vec<Type>, TypeError> {
        op.into().infer(&operands.iter().collect::<Vec<_>>())
    }

    fn dims(&self, part: &Type) -> Shape {
        part.shape.clone()
    }
}

/// A [`OpComposer`] that evaluates tensors with the reference.
pub(crate) struct TensorComposer<'a>(pub(crate) &'a EvalCtx);

impl OpComposer for TensorComposer<'_> {
    type Part = Tensor;
    type Error = EvalError;

    fn apply(&mut self, op: impl Into<Op>, operands: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let op = op.into();
        let types: Vec<Type> = operands.iter().map(|t| t.ty().into()).collect();
        let results = op.infer(&types.iter().collect::<Vec<_>>());
        let results = results.map_err(|e| EvalError::Data(e.to_string()))?;
        let known = results.iter().map(|ty| {
            let shape = ty.shape.as_known();
            let shape = shape.expect("invariant: results of known sizes have known sizes");
            TensorType::new(ty.dtype, &shape)
        });
        let known: Vec<TensorType> = known.collect();
        op.eval(self.0, &operands.iter().collect::<Vec<_>>(), &known)
    }

    fn dims(&self, part: &Tensor) -> Shape {
        Shape::known(part.shape())
    }
}

/// An operator that is defined by other operators.
pub(crate) trait ComposedOp {
    /// Checks the types of the operands.
    fn check(&self, operands: &[Type]) -> Result<(), TypeError>;

    /// Computes the result from checked operands.
    fn compose<C: OpComposer>(&self, c: &mut C, operands: &[C::Part]) -> Result<C::Part, C::Error>;
}

fn infer(block: &impl ComposedOp, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
    let operands: Vec<Type> = operands.iter().map(|ty| (*ty).clone()).collect();
    block.check(&operands)?;
    Ok(vec![block.compose(&mut TypeComposer, &operands)?])
}

fn eval(
    block: &impl ComposedOp,
    ctx: &EvalCtx,
    operands: &[&Tensor],
) -> Result<Vec<Tensor>, EvalError> {
    let operands: Vec<Tensor> = operands.iter().map(|t| (*t).clone()).collect();
    Ok(vec![block.compose(&mut TensorComposer(ctx), &operands)?])
}

/// The first result of an operator.
fn first<C: OpComposer>(
    c: &mut C,
    op: impl Into<Op>,
    operands: &[C::Part],
) -> Result<C::Part, C::Error> {
    Ok(c.apply(op, operands)?.swap_remove(0))
}

/// `f(x w + bias)`.
fn dense<C: OpComposer>(
    c: &mut C,
    activation: Option<UnaryFn>,
    [x, w]: [&C::Part; 2],
    bias: Option<&C::Part>,
) -> Result<C::Part, C::Error> {
    let operands: Vec<C::Part> = [x, w].into_iter().chain(bias).cloned().collect();
    first(c, Linear { activation }, &operands)
}

fn reshape<C: OpComposer>(c: &mut C, x: &C::Part, shape: Vec<Dim>) -> Result<C::Part, C::Error> {
    let shape = shape.into();
    first(c, Reshape { shape }, std::slice::from_ref(x))
}

/// Takes `count` heads of `[B, S, heads, D]`.
fn heads<C: OpComposer>(
    c: &mut C,
    x: &C::Part,
    [start, count]: [usize; 2],
) -> Result<C::Part, C::Error> {
    let slice = Slice {
        starts: vec![0, 0, start as i64, 0],
        ends: vec![i64::MAX, i64::MAX, (start + count) as i64, i64::MAX],
        steps: vec![1; 4],
    };
    first(c, slice, std::slice::from_ref(x))
}

/// An iterator over operands; attributes determine whether the next one is present.
struct ComposedOperands<'a, P>(std::slice::Iter<'a, P>);

impl<'a, P> ComposedOperands<'a, P> {
    fn new(operands: &'a [P]) -> ComposedOperands<'a, P> {
        ComposedOperands(operands.iter())
    }

    fn take(&mut self) -> &'a P {
        self.0
            .next()
            .expect("invariant: inference counted the operands")
    }

    fn take_if(&mut self, is_there: bool) -> Option<&'a P> {
        is_there.then(|| self.take())
    }
}

fn expect_count(expected: usize, operands: &[Type]) -> Result<(), TypeError> {
    if operands.len() == expected {
        return Ok(());
    }
    Err(TypeError::Arity {
        expected: expected.to_string(),
        given: operands.len(),
    })
}

/// Checks that a weight is a matrix of `x`'s dtype with this number of rows.
fn expect_matrix(
    name: &'static str,
    weight: &Type,
    x: &Type,
    rows: (&str, &Dim),
) -> Result<(), TypeError> {
    expect_same_dtype(name, weight, x)?;
    expect_rank(name, weight, 2)?;
    let (what, rows) = rows;
    expect_equal(
        &format!("the rows of {name} and {what}"),
        &weight.shape[0],
        rows,
    )
}

/// Checks that a bias or gain is a vector of `x`'s dtype with this size.
fn expect_line(
    name: &'static str,
    line: &Type,
    x: &Type,
    size: (&str, &Dim),
) -> Result<(), TypeError> {
    expect_same_dtype(name, line, x)?;
    expect_rank(name, line, 1)?;
    let (what, size) = size;
    expect_equal(&format!("{name} and {what}"), &line.shape[0], size)
}
