//! Blocks of a model as one operator each: attention over whole rows, and an encoder layer.
//!
//! What a block is made of is said once, by operators added over [`Compose`]: over types it is inferred,
//! over tensors evaluated, and over the values of a new graph the rules of legalization take it apart. So
//! each result inside rounds to its dtype as its own operator says.

mod attention_block;
mod options;
mod transformer_layer;

use crate::dim::Dim;
use crate::error::{EvalError, TypeError};
use crate::op::EvalCtx;
use crate::ops::util::{expect_equal, expect_rank, expect_same_dtype};
use crate::ops::{Linear, Op, Reshape, Slice};
use crate::scalar::UnaryFn;
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType, Type};

pub use attention_block::AttentionBlock;
pub use options::{AttentionBlockOptions, BlockRope, Dense, TransformerWeights};
pub use transformer_layer::TransformerLayer;

/// What operators are applied to.
pub(crate) trait Compose {
    /// One operand or result.
    type Part: Clone;
    /// Why an operator was not applied.
    type Error;

    /// The results of an operator.
    fn apply(
        &mut self,
        op: impl Into<Op>,
        operands: &[Self::Part],
    ) -> Result<Vec<Self::Part>, Self::Error>;

    /// The dimensions of a part.
    fn dims(&self, part: &Self::Part) -> Shape;
}

/// Composes types.
pub(crate) struct Types;

impl Compose for Types {
    type Part = Type;
    type Error = TypeError;

    fn apply(&mut self, op: impl Into<Op>, operands: &[Type]) -> Result<Vec<Type>, TypeError> {
        op.into().infer(&operands.iter().collect::<Vec<_>>())
    }

    fn dims(&self, part: &Type) -> Shape {
        part.shape.clone()
    }
}

/// Composes tensors by the reference evaluation.
pub(crate) struct Tensors<'a>(pub(crate) &'a EvalCtx);

impl Compose for Tensors<'_> {
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

/// An operator that says what it is made of.
pub(crate) trait Block {
    /// Refuses operands that do not fit.
    fn check(&self, operands: &[Type]) -> Result<(), TypeError>;

    /// The result of checked operands.
    fn compose<C: Compose>(&self, c: &mut C, operands: &[C::Part]) -> Result<C::Part, C::Error>;
}

fn infer(block: &impl Block, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
    let operands: Vec<Type> = operands.iter().map(|ty| (*ty).clone()).collect();
    block.check(&operands)?;
    Ok(vec![block.compose(&mut Types, &operands)?])
}

fn eval(block: &impl Block, ctx: &EvalCtx, operands: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
    let operands: Vec<Tensor> = operands.iter().map(|t| (*t).clone()).collect();
    Ok(vec![block.compose(&mut Tensors(ctx), &operands)?])
}

/// The one result, or the first, of an operator.
fn first<C: Compose>(
    c: &mut C,
    op: impl Into<Op>,
    operands: &[C::Part],
) -> Result<C::Part, C::Error> {
    Ok(c.apply(op, operands)?.swap_remove(0))
}

/// `f(x w + bias)`.
fn dense<C: Compose>(
    c: &mut C,
    activation: Option<UnaryFn>,
    [x, w]: [&C::Part; 2],
    bias: Option<&C::Part>,
) -> Result<C::Part, C::Error> {
    let operands: Vec<C::Part> = [x, w].into_iter().chain(bias).cloned().collect();
    first(c, Linear { activation }, &operands)
}

fn reshape<C: Compose>(c: &mut C, x: &C::Part, shape: Vec<Dim>) -> Result<C::Part, C::Error> {
    let shape = shape.into();
    first(c, Reshape { shape }, std::slice::from_ref(x))
}

/// `count` heads of `[B, S, heads, D]`.
fn heads<C: Compose>(
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

/// Operands in their order, of which attributes say whether they are there.
struct Operands<'a, P>(std::slice::Iter<'a, P>);

impl<'a, P> Operands<'a, P> {
    fn of(operands: &'a [P]) -> Operands<'a, P> {
        Operands(operands.iter())
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

/// Refuses a weight that is not a matrix of `x`'s dtype with these rows.
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

/// Refuses a bias or gain that is not a line of `x`'s dtype and of this size.
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
