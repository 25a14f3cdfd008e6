//! QDQ fusion: int8 values that are dequantized, computed with and quantized again.
//!
//! Exporters write `quantize(f(dequantize(x)))`. A convolution becomes an int8 convolution, and so
//! does a matmul with few rows. Operators that only move or compare numbers are applied to the int8
//! values directly. If the result has another scale, it is requantized.

use tercet_tensor::{DType, Dim, Tensor, TensorType};

use super::super::rewrite::Rewriter;
use super::super::view::is_weight;
use super::{MatchContext, orders};
use crate::attr::FloatAttr;
use crate::error::CompileError;
use crate::graph::{Node, Value};
use crate::ops::{
    Binary, Cast, Clamp, Const, Expand, Linear, Op, PoolFn, QuantizedConv, Reshape, ResizeMode,
    Transpose, Unary, Window,
};
use crate::scalar::{BinaryFn, UnaryFn};

/// The quantization parameters of int8 values.
#[derive(Clone, Copy, Debug, PartialEq)]
struct QuantParams {
    scale: f64,
    zero: i64,
    dtype: DType,
}

/// Floats that are dequantized int8 values: `(codes - zero) * scale`.
pub(super) struct DequantizedValue {
    pub(super) codes: Value,
    pub(super) zero: i64,
    pub(super) scale: Value,
}

/// Int8 values that are quantized floats: `clamp(round(numbers / scale) + zero)`. A preceding clamp
/// of the floats is expressed as bounds of the int8 values.
struct QuantizedValue {
    numbers: Value,
    to: QuantParams,
    lo: i64,
    hi: i64,
}

/// The replacement of the node, if it ends a quantization of a result computed from int8 values.
pub(super) fn recognize(
    seen: &MatchContext<'_>,
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

/// The integer that all elements of a constant equal.
fn as_integer(seen: &MatchContext<'_>, v: Value) -> Option<i64> {
    let n = seen.splat(v)?;
    (n.fract() == 0.0 && n.abs() <= 65_536.0).then_some(n as i64)
}

/// The scale, if it is a single number.
fn one_scale(seen: &MatchContext<'_>, v: Value) -> Option<f64> {
    seen.splat(v).filter(|s| s.is_finite() && *s > 0.0)
}

fn quantized(seen: &MatchContext<'_>, node: &Node) -> Option<QuantizedValue> {
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
                Some((alone(rounded)?, as_integer(seen, zero)?))
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
    let mut made = QuantizedValue {
        numbers,
        to: QuantParams {
            scale,
            zero,
            dtype: to,
        },
        lo: least,
        hi: greatest,
    };
    // Rounding is monotonic, so a bound of floats is also a bound of int8 values.
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

/// The operand and bounds of a clamp, or of the equivalent maximum and minimum.
fn bounds(seen: &MatchContext<'_>, v: Value) -> Option<(Value, f64, f64)> {
    let node = seen.node(v);
    if let (Op::Clamp(clamp), &[x]) = (&node.op, node.inputs.as_slice()) {
        return Some((x, clamp.lo.0, clamp.hi.0));
    }
    let (x, hi) = seen.with_number(v, BinaryFn::Min)?;
    let (inner, lo) = seen.with_number(x, BinaryFn::Max)?;
    (seen.read_once(x) && lo <= hi).then_some((inner, lo, hi))
}

pub(super) fn dequantized(seen: &MatchContext<'_>, v: Value) -> Option<DequantizedValue> {
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
            (integer, zero) = (codes, as_integer(seen, by)?);
        }
        let wide = seen.node(integer);
        let codes = match (&wide.op, wide.inputs.as_slice()) {
            (Op::Cast(_), &[codes]) if seen.graph.ty(integer).dtype == DType::I32 => codes,
            (_, _) => integer,
        };
        let (least, greatest) = seen.graph.ty(codes).dtype.int_range()?;
        let known = is_code(seen.graph.ty(codes).dtype) && (least..=greatest).contains(&zero);
        known.then_some(DequantizedValue { codes, zero, scale })
    })
}

fn scalar(rw: &mut Rewriter<'_>, value: f64) -> Result<Value, CompileError> {
    let tensor = Tensor::from_f64s(TensorType::new(DType::F32, &[]), &[value])
        .expect("invariant: one value fits a scalar");
    rw.add(Const { tensor }, &[])
}

/// An int8 convolution.
fn conv(
    seen: &MatchContext<'_>,
    rw: &mut Rewriter<'_>,
    made: &QuantizedValue,
) -> Result<Option<Value>, CompileError> {
    let node = seen.node(made.numbers);
    let (Op::Conv(op), &[x, w, ref bias @ ..]) = (&node.op, node.inputs.as_slice()) else {
        return Ok(None);
    };
    let alone = op.activation.is_none() && seen.read_once(made.numbers);
    let Some(found) = alone
        .then(|| QdqMatMulOperand::from_operands(seen, x, w, 0))
        .flatten()
    else {
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

/// The int8 operands of a convolution or matmul.
struct QdqMatMulOperand {
    x: DequantizedValue,
    x_scale: f64,
    w: DequantizedValue,
    /// The number of output channels, and whether each channel has a separate scale.
    channels: Dim,
    each: bool,
}

impl QdqMatMulOperand {
    /// The int8 operands `x` and `w`; `axis` is the output channel axis of `w`.
    fn from_operands(
        seen: &MatchContext<'_>,
        x: Value,
        w: Value,
        axis: usize,
    ) -> Option<QdqMatMulOperand> {
        let graph = seen.graph;
        let (x, own) = (dequantized(seen, x)?, dequantized(seen, w)?);
        let x_scale = one_scale(seen, x.scale)?;
        // Either one scale for all channels, or one scale per channel of the result.
        let channels = graph.ty(w).shape[axis].clone();
        let spread = &graph.ty(own.scale).shape;
        // If the scale has a lower rank, its axes are the last axes of the weights.
        let missing = graph.ty(w).rank().checked_sub(spread.rank())?;
        let others = |(i, n): (usize, &Dim)| i + missing == axis || n.is_one();
        let each = axis
            .checked_sub(missing)
            .is_some_and(|own| spread[own] == channels)
            && spread.iter().enumerate().all(others);
        let of_all = spread.iter().all(Dim::is_one);
        let weights = is_weight(graph, own.codes) && is_weight(graph, own.scale);
        (weights && (each || of_all)).then_some(QdqMatMulOperand {
            x,
            x_scale,
            w: own,
            channels,
            each: !of_all,
        })
    }

    /// The factor of the sums and the addend, one number per channel.
    fn factors(
        &self,
        rw: &mut Rewriter<'_>,
        made: &QuantizedValue,
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

    /// The operator for these windows, without groups.
    fn conv(&self, window: Window, made: &QuantizedValue) -> QuantizedConv {
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

/// A float matmul, with the addend of each row.
struct BiasedMatMul {
    x: Value,
    w: Value,
    bias: Option<Value>,
}

impl BiasedMatMul {
    fn from_value(seen: &MatchContext<'_>, v: Value) -> Option<BiasedMatMul> {
        let node = seen.node(v);
        if !seen.read_once(v) {
            return None;
        }
        match (&node.op, node.inputs.as_slice()) {
            (Op::Linear(Linear { activation: None }), &[x, w, ref bias @ ..]) => {
                Some(BiasedMatMul {
                    x,
                    w,
                    bias: bias.first().copied(),
                })
            }
            (Op::MatMul(_), &[x, w]) => Some(BiasedMatMul { x, w, bias: None }),
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
                    let found = sum
                        .then(|| BiasedMatMul::from_value(seen, product))
                        .flatten()?;
                    found.bias.is_none().then_some(BiasedMatMul {
                        bias: Some(bias),
                        ..found
                    })
                })
            }
        }
    }
}

/// An int8 matmul with few rows, expressed as a convolution with one window per row.
fn product(
    seen: &MatchContext<'_>,
    rw: &mut Rewriter<'_>,
    made: &QuantizedValue,
) -> Result<Option<Value>, CompileError> {
    /// Maximum rows. A matmul with more rows reuses each weight that it has read, so reading int8
    /// weights saves less.
    const MAX_SMALL_M_ROWS: usize = 4;
    let graph = seen.graph;
    let Some(BiasedMatMul { x, w, bias }) = BiasedMatMul::from_value(seen, made.numbers) else {
        return Ok(None);
    };
    // Weights `[n, k]` are often transposed before use.
    let (own, turned) = match (&seen.node(w).op, seen.node(w).inputs.as_slice()) {
        (Op::Transpose(t), &[own]) if t.perm == [1, 0] => (own, true),
        (_, _) => (w, false),
    };
    let rank = graph.ty(x).rank();
    if graph.ty(w).rank() != 2 || rank == 0 {
        return Ok(None);
    }
    let Some(found) = QdqMatMulOperand::from_operands(seen, x, own, usize::from(!turned)) else {
        return Ok(None);
    };
    let (rows, depth) = graph.ty(x).shape.split_at(rank - 1);
    let rows = rows.iter().try_fold(1, |rows, n| Some(rows * n.known()?));
    let Some(rows) = rows.filter(|rows| (1..=MAX_SMALL_M_ROWS).contains(rows)) else {
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

/// Applies an operator that moves numbers or takes their maximum to the int8 values.
fn moved(
    seen: &MatchContext<'_>,
    rw: &mut Rewriter<'_>,
    made: &QuantizedValue,
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
    let found: Option<Vec<(Value, QuantParams)>> = node
        .inputs
        .iter()
        .map(|v| {
            let x = dequantized(seen, *v)?;
            let scheme = QuantParams {
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
            false => requantize(rw, x, scheme, made.to)?,
        });
    }
    rw.add(node.op.clone(), &codes).map(Some)
}

/// Requantizes int8 values to other quantization parameters.
fn requantize(
    rw: &mut Rewriter<'_>,
    x: Value,
    from: QuantParams,
    to: QuantParams,
) -> Result<Value, CompileError> {
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
        lo: FloatAttr(least as f64),
        hi: FloatAttr(greatest as f64),
    };
    let bounded = rw.add(bounds, &[moved])?;
    rw.add(Cast { to: to.dtype }, &[bounded])
}
