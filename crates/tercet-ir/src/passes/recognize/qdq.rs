//! Codes of 8 bits that are dequantised, computed with and quantised again.
//!
//! Exporters write `quantise(f(dequantise(codes)))`. A convolution becomes one of codes, and so does a product of few rows; what only moves or
//! compares numbers does the same with codes, and quantises anew where its result has another scale.

use super::super::rewrite::Rewriter;
use super::super::view::is_weight;
use super::{Seen, orders};
use crate::attr::Real;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::CompileError;
use crate::graph::{Node, Value};
use crate::ops::{
    Binary, Cast, Clamp, Const, Expand, Linear, Op, PoolFn, QuantizedConv, Reshape, ResizeMode,
    Transpose, Unary, Window,
};
use crate::scalar::{BinaryFn, UnaryFn};
use crate::tensor::Tensor;
use crate::types::TensorType;

/// How codes stand for numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Scheme {
    scale: f64,
    zero: i64,
    dtype: DType,
}

/// Numbers that are made of codes: `(codes - zero) * scale`.
pub(super) struct Dequantized {
    pub(super) codes: Value,
    pub(super) zero: i64,
    pub(super) scale: Value,
}

/// Codes that are made of numbers: `clamp(round(numbers / scale) + zero)`, with a function that bounds numbers before as bounds of
/// the codes.
struct Quantized {
    numbers: Value,
    to: Scheme,
    lo: i64,
    hi: i64,
}

/// What stands for the node, if it ends a quantisation of what is made of codes.
pub(super) fn of(
    seen: &Seen<'_>,
    rw: &mut Rewriter<'_>,
    node: &Node,
) -> Result<Option<Value>, CompileError> {
    let Some(made) = quantized(seen, node) else {
        return Ok(None);
    };
    if let Some(y) = conv(seen, rw, &made)?.or(product(seen, rw, &made)?) {
        return Ok(Some(y));
    }
    moved(seen, rw, &made)
}

fn is_code(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

/// A whole number that every element of a constant is.
fn whole(seen: &Seen<'_>, v: Value) -> Option<i64> {
    let n = seen.splat(v)?;
    (n.fract() == 0.0 && n.abs() <= 65_536.0).then_some(n as i64)
}

/// A scale that is one number.
fn one_scale(seen: &Seen<'_>, v: Value) -> Option<f64> {
    seen.splat(v).filter(|s| s.is_finite() && *s > 0.0)
}

fn quantized(seen: &Seen<'_>, node: &Node) -> Option<Quantized> {
    let (&Op::Cast(Cast { to }), &[bounded]) = (&node.op, node.inputs.as_slice()) else {
        return None;
    };
    let (least, greatest) = to.int_range().filter(|_| is_code(to))?;
    let alone = |v: Value| seen.read_once(v).then_some(v);
    let (bounded, lo, hi) = bounds(seen, alone(bounded)?)?;
    if (lo, hi) != (least as f64, greatest as f64) || seen.graph.ty(bounded).dtype != DType::F32 {
        return None;
    }
    let moved = alone(bounded)?;
    let (rounded, zero) = match seen.unary(moved, UnaryFn::Round) {
        Some(_) => (moved, 0),
        None => {
            let pair = seen.binary(moved, BinaryFn::Add)?;
            let found = orders(pair).into_iter().find_map(|[rounded, zero]| {
                seen.unary(rounded, UnaryFn::Round)?;
                Some((alone(rounded)?, whole(seen, zero)?))
            });
            found?
        }
    };
    let scaled = alone(seen.unary(rounded, UnaryFn::Round)?)?;
    let [numbers, scale] = seen.binary(scaled, BinaryFn::Div)?;
    let scale = one_scale(seen, scale)?;
    if !(least..=greatest).contains(&zero) || seen.graph.ty(numbers) != seen.graph.ty(scaled) {
        return None;
    }
    let mut made = Quantized {
        numbers,
        to: Scheme {
            scale,
            zero,
            dtype: to,
        },
        lo: least,
        hi: greatest,
    };
    // Rounding keeps the order: a bound of numbers is one of codes.
    let code = |number: f64| {
        let code = (number / scale).round_ties_even() + zero as f64;
        code.clamp(least as f64, greatest as f64) as i64
    };
    if let Some(x) = seen.unary(numbers, UnaryFn::Relu) {
        if seen.read_once(numbers) {
            (made.numbers, made.lo) = (x, code(0.0));
        }
    } else if let Some((x, lo, hi)) = bounds(seen, numbers)
        && seen.read_once(numbers)
    {
        (made.numbers, made.lo, made.hi) = (x, code(lo), code(hi));
    }
    Some(made)
}

/// The operand of a clamp, or of the maximum and minimum that make one, and its bounds.
fn bounds(seen: &Seen<'_>, v: Value) -> Option<(Value, f64, f64)> {
    let node = seen.node(v);
    if let (Op::Clamp(clamp), &[x]) = (&node.op, node.inputs.as_slice()) {
        return Some((x, clamp.lo.0, clamp.hi.0));
    }
    let (x, hi) = seen.with_number(v, BinaryFn::Min)?;
    let (inner, lo) = seen.with_number(x, BinaryFn::Max)?;
    (seen.read_once(x) && lo <= hi).then_some((inner, lo, hi))
}

pub(super) fn dequantized(seen: &Seen<'_>, v: Value) -> Option<Dequantized> {
    let pair = seen.binary(v, BinaryFn::Mul)?;
    orders(pair).into_iter().find_map(|[number, scale]| {
        if seen.graph.ty(v).dtype != DType::F32 || seen.graph.ty(number) != seen.graph.ty(v) {
            return None;
        }
        let float = seen.node(number);
        let (Op::Cast(_), &[mut integer]) = (&float.op, float.inputs.as_slice()) else {
            return None;
        };
        let mut zero = 0;
        if let Some([codes, by]) = seen.binary(integer, BinaryFn::Sub) {
            if seen.graph.ty(codes) != seen.graph.ty(integer) {
                return None;
            }
            (integer, zero) = (codes, whole(seen, by)?);
        }
        let wide = seen.node(integer);
        let codes = match (&wide.op, wide.inputs.as_slice()) {
            (Op::Cast(_), &[codes]) if seen.graph.ty(integer).dtype == DType::I32 => codes,
            (_, _) => integer,
        };
        let (least, greatest) = seen.graph.ty(codes).dtype.int_range()?;
        let known = is_code(seen.graph.ty(codes).dtype) && (least..=greatest).contains(&zero);
        known.then_some(Dequantized { codes, zero, scale })
    })
}

fn scalar(rw: &mut Rewriter<'_>, value: f64) -> Result<Value, CompileError> {
    let tensor = Tensor::from_f64s(TensorType::new(DType::F32, &[]), &[value])
        .expect("invariant: one value fits a scalar");
    rw.add(Const { tensor }, &[])
}

/// A convolution whose operands are codes.
fn conv(
    seen: &Seen<'_>,
    rw: &mut Rewriter<'_>,
    made: &Quantized,
) -> Result<Option<Value>, CompileError> {
    let node = seen.node(made.numbers);
    let (Op::Conv(op), &[x, w, ref bias @ ..]) = (&node.op, node.inputs.as_slice()) else {
        return Ok(None);
    };
    let alone = op.activation.is_none() && seen.read_once(made.numbers);
    let Some(found) = alone.then(|| Codes::of(seen, x, w, 0)).flatten() else {
        return Ok(None);
    };
    let bias = bias.first().map(|bias| rw.value(*bias));
    let [scale, moved] = found.factors(rw, made, bias)?;
    let new = QuantizedConv {
        groups: op.groups,
        ..found.conv(op.window(), made)
    };
    let x = rw.value(found.x.codes);
    let codes = rw.leaf(found.w.codes)?;
    rw.add(new, &[x, codes, scale, moved]).map(Some)
}

/// Codes that are multiplied with codes of weights.
struct Codes {
    x: Dequantized,
    x_scale: f64,
    w: Dequantized,
    /// The weights' axis of channels, how many they are, and whether each has its scale.
    channels: Dim,
    each: bool,
}

impl Codes {
    /// Those of two operands, the channels of the second on this axis.
    fn of(seen: &Seen<'_>, x: Value, w: Value, axis: usize) -> Option<Codes> {
        let graph = seen.graph;
        let (x, own) = (dequantized(seen, x)?, dequantized(seen, w)?);
        let x_scale = one_scale(seen, x.scale)?;
        // One scale for all, or one for each channel of the result.
        let channels = graph.ty(w).shape[axis].clone();
        let spread = &graph.ty(own.scale).shape;
        // A scale of fewer axes is of the last ones.
        let missing = graph.ty(w).rank().checked_sub(spread.rank())?;
        let others = |(i, n): (usize, &Dim)| i + missing == axis || n.is_one();
        let each = axis
            .checked_sub(missing)
            .is_some_and(|own| spread[own] == channels)
            && spread.iter().enumerate().all(others);
        let of_all = spread.iter().all(Dim::is_one);
        let weights = is_weight(graph, own.codes) && is_weight(graph, own.scale);
        (weights && (each || of_all)).then_some(Codes {
            x,
            x_scale,
            w: own,
            channels,
            each: !of_all,
        })
    }

    /// What sums are multiplied with and what is added, one number for each channel.
    fn factors(
        &self,
        rw: &mut Rewriter<'_>,
        made: &Quantized,
        bias: Option<Value>,
    ) -> Result<[Value; 2], CompileError> {
        let flat = match self.each {
            false => Vec::new(),
            true => vec![self.channels.clone()],
        };
        let scale = rw.leaf(self.w.scale)?;
        let scale = rw.add(Reshape { shape: flat.into() }, &[scale])?;
        let factor = scalar(rw, self.x_scale / made.to.scale)?;
        let scale = rw.add(Binary { f: BinaryFn::Mul }, &[scale, factor])?;
        let moved = match bias {
            Some(bias) => {
                let step = scalar(rw, made.to.scale)?;
                rw.add(Binary { f: BinaryFn::Div }, &[bias, step])?
            }
            None => scalar(rw, 0.0)?,
        };
        let mut both = [scale, moved];
        for value in &mut both {
            if rw.new_graph().ty(*value).rank() == 0 {
                let shape = vec![self.channels.clone()].into();
                *value = rw.add(Expand { shape }, &[*value])?;
            }
        }
        Ok(both)
    }

    /// The operator of these windows, without groups.
    fn conv(&self, window: Window, made: &Quantized) -> QuantizedConv {
        QuantizedConv {
            stride: window.stride,
            pad_before: window.pad_before,
            pad_after: window.pad_after,
            dilation: window.dilation,
            groups: 1,
            x_zero: self.x.zero,
            w_zero: self.w.zero,
            y_zero: made.to.zero,
            lo: made.lo,
            hi: made.hi,
            to: made.to.dtype,
        }
    }
}

/// A product of matrices of numbers, with what is added to each row.
struct Product {
    x: Value,
    w: Value,
    bias: Option<Value>,
}

impl Product {
    fn of(seen: &Seen<'_>, v: Value) -> Option<Product> {
        let node = seen.node(v);
        if !seen.read_once(v) {
            return None;
        }
        match (&node.op, node.inputs.as_slice()) {
            (Op::Linear(Linear { activation: None }), &[x, w, ref bias @ ..]) => Some(Product {
                x,
                w,
                bias: bias.first().copied(),
            }),
            (Op::MatMul(_), &[x, w]) => Some(Product { x, w, bias: None }),
            (_, _) => {
                let pair = seen.binary(v, BinaryFn::Add)?;
                orders(pair).into_iter().find_map(|[product, bias]| {
                    let ty = |v: Value| seen.graph.ty(v);
                    let of_columns = ty(bias).rank() > 0
                        && ty(bias).shape.last() == ty(v).shape.last()
                        && ty(bias).shape[..ty(bias).rank() - 1]
                            .iter()
                            .all(Dim::is_one);
                    let sum = !matches!(seen.node(product).op, Op::Binary(_))
                        && ty(product) == ty(v)
                        && of_columns;
                    let found = sum.then(|| Product::of(seen, product)).flatten()?;
                    found.bias.is_none().then_some(Product {
                        bias: Some(bias),
                        ..found
                    })
                })
            }
        }
    }
}

/// A product whose operands are codes, of few rows: a convolution with one window for each row.
fn product(
    seen: &Seen<'_>,
    rw: &mut Rewriter<'_>,
    made: &Quantized,
) -> Result<Option<Value>, CompileError> {
    /// Rows at most: products of more share what they read of the weights.
    const FEW: usize = 4;
    let graph = seen.graph;
    let Some(Product { x, w, bias }) = Product::of(seen, made.numbers) else {
        return Ok(None);
    };
    // Weights `[n, k]` are often turned on their way.
    let (own, turned) = match (&seen.node(w).op, seen.node(w).inputs.as_slice()) {
        (Op::Transpose(t), &[own]) if t.perm == [1, 0] => (own, true),
        (_, _) => (w, false),
    };
    let rank = graph.ty(x).rank();
    if graph.ty(w).rank() != 2 || rank == 0 {
        return Ok(None);
    }
    let Some(found) = Codes::of(seen, x, own, usize::from(!turned)) else {
        return Ok(None);
    };
    let (rows, depth) = graph.ty(x).shape.split_at(rank - 1);
    let rows = rows.iter().try_fold(1, |rows, n| Some(rows * n.known()?));
    let Some(rows) = rows.filter(|rows| (1..=FEW).contains(rows)) else {
        return Ok(None);
    };
    let (one, depth) = (Dim::Known(1), depth[0].clone());
    let shaped = |rw: &mut Rewriter<'_>, v: Value, shape: &[&Dim]| {
        let shape: Vec<Dim> = shape.iter().map(|n| (*n).clone()).collect();
        rw.add(
            Reshape {
                shape: shape.into(),
            },
            &[v],
        )
    };
    let bias = match bias {
        Some(bias) => {
            let bias = rw.value(bias);
            Some(shaped(rw, bias, &[&found.channels])?)
        }
        None => None,
    };
    let factors = found.factors(rw, made, bias)?;
    let x = rw.value(found.x.codes);
    let x = shaped(rw, x, &[&Dim::Known(rows), &depth, &one])?;
    let mut codes = rw.leaf(found.w.codes)?;
    if !turned {
        codes = rw.add(Transpose { perm: vec![1, 0] }, &[codes])?;
    }
    let codes = shaped(rw, codes, &[&found.channels, &depth, &one])?;
    let new = found.conv(Window::new(1), made);
    let y = rw.add(new, &[x, codes, factors[0], factors[1]])?;
    let shape = graph.ty(made.numbers).shape.clone();
    rw.add(Reshape { shape }, &[y]).map(Some)
}

/// An operator that moves numbers, or takes the greatest: of codes the same.
fn moved(
    seen: &Seen<'_>,
    rw: &mut Rewriter<'_>,
    made: &Quantized,
) -> Result<Option<Value>, CompileError> {
    let node = seen.node(made.numbers);
    let moves = match &node.op {
        Op::Pool(pool) => pool.f == PoolFn::Max,
        Op::Resize(resize) => resize.mode == ResizeMode::Nearest,
        Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Concat(_) => true,
        _ => false,
    };
    let full = made.to.dtype.int_range();
    if !moves || Some((made.lo, made.hi)) != full || node.outputs.len() != 1 {
        return Ok(None);
    }
    let found: Option<Vec<(Value, Scheme)>> = node
        .inputs
        .iter()
        .map(|v| {
            let x = dequantized(seen, *v)?;
            let scheme = Scheme {
                scale: one_scale(seen, x.scale)?,
                zero: x.zero,
                dtype: seen.graph.ty(x.codes).dtype,
            };
            Some((x.codes, scheme))
        })
        .collect();
    let Some(found) = found else {
        return Ok(None);
    };
    let mut codes = Vec::with_capacity(found.len());
    for (x, scheme) in found {
        let x = rw.value(x);
        codes.push(match scheme == made.to {
            true => x,
            false => again(rw, x, scheme, made.to)?,
        });
    }
    rw.add(node.op.clone(), &codes).map(Some)
}

/// Codes of one scheme as those of another.
fn again(rw: &mut Rewriter<'_>, x: Value, from: Scheme, to: Scheme) -> Result<Value, CompileError> {
    let (least, greatest) = to.dtype.int_range().expect("invariant: codes are integers");
    let mut y = rw.add(Cast { to: DType::F32 }, &[x])?;
    let mut step = |rw: &mut Rewriter<'_>, f: BinaryFn, by: f64| {
        let by = scalar(rw, by)?;
        y = rw.add(Binary { f }, &[y, by])?;
        Ok::<Value, CompileError>(y)
    };
    step(rw, BinaryFn::Sub, from.zero as f64)?;
    step(rw, BinaryFn::Mul, from.scale)?;
    let scaled = step(rw, BinaryFn::Div, to.scale)?;
    let rounded = rw.add(Unary { f: UnaryFn::Round }, &[scaled])?;
    let zero = scalar(rw, to.zero as f64)?;
    let moved = rw.add(Binary { f: BinaryFn::Add }, &[rounded, zero])?;
    let bounds = Clamp {
        lo: Real(least as f64),
        hi: Real(greatest as f64),
    };
    let bounded = rw.add(bounds, &[moved])?;
    rw.add(Cast { to: to.dtype }, &[bounded])
}
