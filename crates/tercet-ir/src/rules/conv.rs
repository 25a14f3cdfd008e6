//! Decompositions of convolutions into im2col and matmuls.

use tercet_tensor::{DType, Dim};

use super::util::ValueResult;
use super::{LegalizeRule, RuleResult};
use crate::attr::FloatAttr;
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{
    Clamp, Conv, ConvTranspose, DotGeneral, Im2Col, Op, OpKind, Pad, PadMode, QuantizedConv, Window,
};
use crate::scalar::{BinaryFn, UnaryFn};

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "conv_as_columns_and_matmul",
        on: OpKind::Conv,
        apply: conv,
    },
    LegalizeRule {
        name: "conv_transpose_as_conv_of_spread_elements",
        on: OpKind::ConvTranspose,
        apply: conv_transpose,
    },
    LegalizeRule {
        name: "conv_weight_grad_as_columns_and_product",
        on: OpKind::ConvWeightGrad,
        apply: conv_weight_grad,
    },
    LegalizeRule {
        name: "quantized_conv_as_conv_of_whole_floats",
        on: OpKind::QuantizedConv,
        apply: quantized_conv,
    },
];

/// Int8 values minus their zero points, as F32. Sums are exact below 2^24 and rounded like other
/// F32 sums beyond.
fn quantized_conv(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::QuantizedConv(o), &[x, w, scale, bias]) = (op, inputs) else {
        return Ok(None);
    };
    let mut number = |codes: Value, zero: i64| {
        let floats = b.cast(codes, DType::F32)?;
        let zero = b.scalar(DType::F32, zero as f64)?;
        b.binary(BinaryFn::Sub, floats, zero)
    };
    let (x, w) = (number(x, o.x_zero)?, number(w, o.w_zero)?);
    let sum = match row_by_row(b, o, x, w)? {
        Some(sum) => sum,
        None => b.add(Conv::new(o.window(), o.groups, None), &[x, w])?,
    };
    let mut of_channels = vec![Dim::Known(1); b.shape(sum).rank() - 1];
    of_channels[0] = b.shape(sum)[1].clone();
    let scale = b.reshape(scale, of_channels.clone())?;
    let bias = b.reshape(bias, of_channels)?;
    let scaled = b.binary(BinaryFn::Mul, sum, scale)?;
    let moved = b.binary(BinaryFn::Add, scaled, bias)?;
    let code = b.unary(UnaryFn::Round, moved)?;
    let zero = b.scalar(DType::F32, o.y_zero as f64)?;
    let code = b.binary(BinaryFn::Add, code, zero)?;
    let bounds = Clamp {
        lo: FloatAttr(o.lo as f64),
        hi: FloatAttr(o.hi as f64),
    };
    let code = b.add(bounds, &[code])?;
    Ok(Some(vec![b.cast(code, o.to)?]))
}

/// If each batch entry is one window of one element, as for recognized int8 matmuls, computes that
/// matmul.
fn row_by_row(
    b: &mut LegalizeBuilder<'_>,
    o: &QuantizedConv,
    x: Value,
    w: Value,
) -> Result<Option<Value>, crate::OpError> {
    let (x_shape, w_shape) = (b.shape(x), b.shape(w));
    let one = |shape: &[Dim]| shape[2..].iter().all(Dim::is_one);
    if o.groups != 1 || !o.window().is_identity() || !one(&x_shape) || !one(&w_shape) {
        return Ok(None);
    }
    let x = b.reshape(x, x_shape[..2].to_vec())?;
    let w = b.reshape(w, w_shape[..2].to_vec())?;
    let w = b.transpose(w, &[1, 0])?;
    let y = b.matmul(x, w)?;
    let mut shape = x_shape.to_vec();
    shape[1] = w_shape[0].clone();
    b.reshape(y, shape).map(Some)
}

/// For F16 and BF16, the parts are computed in F32 if there are several, because the fused operator
/// rounds once.
fn conv(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::Conv(o), &[x, w, ref bias @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    // Kernels do not support this activation, so it becomes a separate node.
    if o.activation == Some(UnaryFn::Relu6) {
        let plain = Conv {
            activation: None,
            ..o.clone()
        };
        let y = b.add(plain, inputs)?;
        return Ok(Some(vec![b.unary(UnaryFn::Relu6, y)?]));
    }
    let (x, w) = match o.activation.is_some() || !bias.is_empty() {
        true => (b.widen(x)?, b.widen(w)?),
        false => (x, w),
    };
    let types = [b.ty(x).clone(), b.ty(w).clone()];
    let plain = Conv {
        activation: None,
        ..o.clone()
    };
    let Ok(shape) = Op::from(plain).infer(&[&types[0], &types[1]]) else {
        return Ok(None);
    };
    let shape = shape[0].shape.clone();
    let Some(y) = product(b, o, x, w)? else {
        return Ok(None);
    };
    let mut y = b.reshape(y, shape.clone())?;
    if let Some(&bias) = bias.first() {
        let bias = b.widen(bias)?;
        let mut of_channels = vec![Dim::Known(1); shape.rank() - 1];
        of_channels[0] = shape[1].clone();
        let bias = b.reshape(bias, of_channels)?;
        y = b.binary(BinaryFn::Add, y, bias)?;
    }
    if let Some(f) = o.activation {
        y = b.unary(f, y)?;
    }
    Ok(Some(vec![b.cast(y, dtype)?]))
}

/// The sums, `[N, groups, channels of a group, windows]`.
fn product(
    b: &mut LegalizeBuilder<'_>,
    o: &Conv,
    x: Value,
    w: Value,
) -> Result<Option<Value>, crate::OpError> {
    let (x_shape, w_shape) = (b.shape(x), b.shape(w));
    let kernel: Vec<usize> = w_shape[2..].iter().filter_map(Dim::known).collect();
    let columns = columns(b, x, &kernel, o.window())?;
    let groups = Dim::Known(o.groups);
    let numel = |dims: &[Dim]| dims.iter().try_fold(Dim::Known(1), |n, d| n.checked_mul(d));
    let (Some(own), Some(depth)) = (w_shape[0].div_exact(&groups), numel(&w_shape[1..])) else {
        return Ok(None);
    };
    let windows = b.shape(columns)[2].clone();
    let columns = b.reshape(
        columns,
        vec![x_shape[0].clone(), groups.clone(), depth.clone(), windows],
    )?;
    let w = b.reshape(w, vec![groups, own, depth])?;
    b.matmul(w, columns).map(Some)
}

/// The windows as columns (im2col); the operand itself if each window is one element.
fn columns(b: &mut LegalizeBuilder<'_>, x: Value, kernel: &[usize], window: Window) -> ValueResult {
    let shape = b.shape(x);
    let windows = shape[2..]
        .iter()
        .try_fold(Dim::Known(1), |n, d| n.checked_mul(d));
    match windows {
        Some(windows) if kernel.iter().all(|k| *k == 1) && window.is_identity() => {
            b.reshape(x, vec![shape[0].clone(), shape[1].clone(), windows])
        }
        _ => b.add(Im2Col::new(kernel.to_vec(), window), &[x]),
    }
}

/// A convolution with reversed weights, over the elements with zeros between them.
fn conv_transpose(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::ConvTranspose(o), &[x, w, ref bias @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let kernel: Vec<usize> = b.shape(w)[2..].iter().filter_map(Dim::known).collect();
    if let Some(y) = apart(b, o, x, w, bias.first().copied(), &kernel)? {
        return Ok(Some(vec![y]));
    }
    let Some((x, window)) = spread(b, o, x, &kernel)? else {
        return Ok(None);
    };
    let Some(w) = turned(b, o, w)? else {
        return Ok(None);
    };
    let conv = Conv::new(window, o.groups, None);
    let operands: Vec<Value> = [x, w].into_iter().chain(bias.first().copied()).collect();
    b.add(conv, &operands).map(|y| Some(vec![y]))
}

/// If no two elements add to the same result: a 1x1 convolution whose output channels are the taps
/// of each channel.
fn apart(
    b: &mut LegalizeBuilder<'_>,
    o: &ConvTranspose,
    x: Value,
    w: Value,
    bias: Option<Value>,
    kernel: &[usize],
) -> Result<Option<Value>, crate::OpError> {
    let none = |sizes: &[usize]| sizes.iter().all(|n| *n == 0);
    let whole = none(&o.pad_before) && none(&o.pad_after) && none(&o.output_padding);
    let one = |n: &usize| *n == 1;
    if !whole || o.stride != kernel || o.groups != 1 || !o.dilation.iter().all(one) {
        return Ok(None);
    }
    let (x_shape, w_shape) = (b.shape(x), b.shape(w));
    let taps = Dim::Known(kernel.iter().product());
    let Some(rows) = w_shape[1].checked_mul(&taps) else {
        return Ok(None);
    };
    let w = b.reshape(w, vec![w_shape[0].clone(), rows.clone()])?;
    let w = b.transpose(w, &[1, 0])?;
    let axes = kernel.len();
    let ones = vec![Dim::Known(1); axes];
    let w = b.reshape(w, [vec![rows.clone(), w_shape[0].clone()], ones].concat())?;
    let mut operands = vec![x, w];
    if let Some(bias) = bias {
        let bias = b.reshape(bias, vec![w_shape[1].clone(), Dim::Known(1)])?;
        let bias = b.expand(bias, vec![w_shape[1].clone(), taps])?;
        operands.push(b.reshape(bias, vec![rows])?);
    }
    let y = b.add(Conv::new(Window::new(axes), 1, None), &operands)?;
    let known = kernel.iter().map(|k| Dim::Known(*k));
    let split = x_shape[..1].iter().cloned().chain([w_shape[1].clone()]);
    let split: Vec<Dim> = split
        .chain(known)
        .chain(x_shape[2..].iter().cloned())
        .collect();
    let y = b.reshape(y, split)?;
    let pairs = (0..axes).flat_map(|i| [2 + axes + i, 2 + i]);
    let perm: Vec<usize> = [0, 1].into_iter().chain(pairs).collect();
    let y = b.transpose(y, &perm)?;
    let mut joined = vec![x_shape[0].clone(), w_shape[1].clone()];
    for (n, k) in x_shape[2..].iter().zip(kernel) {
        let Some(n) = n.checked_mul(&Dim::Known(*k)) else {
            return Ok(None);
        };
        joined.push(n);
    }
    b.reshape(y, joined).map(Some)
}

/// Inserts `stride - 1` zeros after each element of `x`. Returns it with the padding and dilation of the
/// convolution that computes the transposed one.
fn spread(
    b: &mut LegalizeBuilder<'_>,
    o: &ConvTranspose,
    x: Value,
    kernel: &[usize],
) -> Result<Option<(Value, Window)>, crate::OpError> {
    let mut x = x;
    let axes = kernel.len();
    let mut window = Window::new(axes).with_dilation(&o.dilation);
    for (i, &taps) in kernel.iter().enumerate() {
        let (axis, stride) = (2 + i, o.stride[i]);
        if stride > 1 {
            let shape = b.shape(x);
            let mut apart = shape.to_vec();
            apart.insert(axis + 1, Dim::Known(1));
            x = b.reshape(x, apart)?;
            let rank = shape.rank() + 1;
            let mut after = vec![0; rank];
            after[axis + 1] = stride - 1;
            let zeros = Pad {
                before: vec![0; rank],
                after,
                mode: PadMode::Constant,
                value: FloatAttr(0.0),
            };
            x = b.add(zeros, &[x])?;
            let mut joined = shape.into_dims();
            let Some(size) = joined[axis].checked_mul(&Dim::Known(stride)) else {
                return Ok(None);
            };
            joined[axis] = size;
            x = b.reshape(x, joined)?;
        }
        let reach = ((taps - 1) * o.dilation[i]) as i64;
        let before = reach - o.pad_before[i] as i64;
        let after =
            reach + o.output_padding[i] as i64 - o.pad_after[i] as i64 - (stride as i64 - 1);
        // Crops results outside the requested padding.
        let (start, cut) = ((-before).max(0), after.min(0));
        if start > 0 || cut < 0 {
            let end = if cut < 0 { cut } else { i64::MAX };
            x = b.slice(x, axis, start, end, 1)?;
        }
        window.pad_before[i] = before.max(0) as usize;
        window.pad_after[i] = after.max(0) as usize;
    }
    Ok(Some((x, window)))
}

/// Weights `[C, O / groups, ..]` as `[O, C / groups, ..]`, with each tap axis reversed.
fn turned(
    b: &mut LegalizeBuilder<'_>,
    o: &ConvTranspose,
    w: Value,
) -> Result<Option<Value>, crate::OpError> {
    let shape = b.shape(w);
    let groups = Dim::Known(o.groups);
    let Some(channels) = shape[0].div_exact(&groups) else {
        return Ok(None);
    };
    let Some(all) = shape[1].checked_mul(&groups) else {
        return Ok(None);
    };
    let taps = &shape[2..];
    let apart = [&[groups, channels.clone(), shape[1].clone()], taps].concat();
    let joined = [&[all, channels], taps].concat();
    let rank = apart.len();
    let mut w = b.reshape(w, apart)?;
    let perm: Vec<usize> = [0, 2, 1].into_iter().chain(3..rank).collect();
    w = b.transpose(w, &perm)?;
    for axis in 3..rank {
        w = b.slice(w, axis, -1, i64::MIN, -1)?;
    }
    b.reshape(w, joined).map(Some)
}

/// Windows as columns (im2col), followed by a matmul over windows and the batch.
fn conv_weight_grad(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::ConvWeightGrad(o), &[x, dy]) = (op, inputs) else {
        return Ok(None);
    };
    let (of_x, of_dy) = (b.shape(x), b.shape(dy));
    let numel = |dims: &[Dim]| dims.iter().try_fold(Dim::Known(1), |n, d| n.checked_mul(d));
    let groups = Dim::Known(o.groups);
    let taps = Dim::Known(o.kernel.iter().product());
    let own = of_x[1].div_exact(&groups);
    let (Some(own), Some(each), Some(windows)) =
        (own, of_dy[1].div_exact(&groups), numel(&of_dy[2..]))
    else {
        return Ok(None);
    };
    let Some(depth) = own.checked_mul(&taps) else {
        return Ok(None);
    };
    let batch = of_x[0].clone();
    let columns = b.add(Im2Col::new(o.kernel.clone(), o.window()), &[x])?;
    let shape = vec![batch.clone(), groups.clone(), depth, windows.clone()];
    let columns = b.reshape(columns, shape)?;
    let dy = b.reshape(dy, vec![batch, groups, each, windows])?;
    let axes = DotGeneral {
        lhs_contract: vec![0, 3],
        rhs_contract: vec![0, 3],
        lhs_batch: vec![1],
        rhs_batch: vec![1],
    };
    let dw = b.add(axes, &[dy, columns])?;
    let kernel = o.kernel.iter().map(|k| Dim::Known(*k));
    let shape: Vec<Dim> = [of_dy[1].clone(), own].into_iter().chain(kernel).collect();
    b.reshape(dw, shape).map(|dw| Some(vec![dw]))
}
