//! Python's `//` and `%`, which round towards minus infinity; the operators `div` and `rem` of
//! integers, and `rem` of floats, round towards zero.

use tercet::ops::{Binary, Compare, Unary};
use tercet::scalar::{BinaryFn, CompareFn, UnaryFn};
use tercet::{DType, Graph, OpError, Tensor, Value};

fn binary(graph: &mut Graph, f: BinaryFn, a: Value, b: Value) -> Result<Value, OpError> {
    graph.add(Binary { f }, &[a, b])
}

fn compare(graph: &mut Graph, f: CompareFn, a: Value, b: Value) -> Result<Value, OpError> {
    graph.add(Compare { f }, &[a, b])
}

/// A zero of a dtype, without axes.
fn zero(graph: &mut Graph, dtype: DType) -> Result<Value, OpError> {
    let zero = Tensor::zeros(tercet::TensorType::new(dtype, &[]));
    graph.constant(zero.expect("invariant: one element fits memory"))
}

/// `a % b` with the sign of `b`.
///
/// # Errors
/// [`OpError`] for operands that the operators reject.
pub(crate) fn floor_mod(graph: &mut Graph, a: Value, b: Value) -> Result<Value, OpError> {
    let rest = binary(graph, BinaryFn::Rem, a, b)?;
    let dtype = graph.ty(rest).dtype;
    if dtype.int_range().is_some_and(|(least, _)| least == 0) {
        return Ok(rest);
    }
    let zero = zero(graph, dtype)?;
    let differs = compare(graph, CompareFn::Ne, rest, zero)?;
    let rest_is_negative = compare(graph, CompareFn::Lt, rest, zero)?;
    let is_negative = compare(graph, CompareFn::Lt, b, zero)?;
    let opposed = binary(graph, BinaryFn::Xor, rest_is_negative, is_negative)?;
    let moves = binary(graph, BinaryFn::And, differs, opposed)?;
    let moved = binary(graph, BinaryFn::Add, rest, b)?;
    graph.where_(moves, moved, rest)
}

/// `a // b`, rounded towards minus infinity.
///
/// # Errors
/// [`OpError`] for operands that the operators reject.
pub(crate) fn floor_div(graph: &mut Graph, a: Value, b: Value) -> Result<Value, OpError> {
    let rest = floor_mod(graph, a, b)?;
    let dtype = graph.ty(rest).dtype;
    let whole = binary(graph, BinaryFn::Sub, a, rest)?;
    let quotient = binary(graph, BinaryFn::Div, whole, b)?;
    if dtype.int_range().is_some() {
        return Ok(quotient);
    }
    // The difference is a multiple of `b` up to rounding. A division by zero stays infinite.
    let rounded = graph.add(Unary { f: UnaryFn::Round }, &[quotient])?;
    let zero = zero(graph, dtype)?;
    let by_zero = compare(graph, CompareFn::Eq, b, zero)?;
    let infinite = binary(graph, BinaryFn::Div, a, b)?;
    graph.where_(by_zero, infinite, rounded)
}
