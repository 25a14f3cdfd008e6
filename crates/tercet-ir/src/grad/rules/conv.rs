//! Gradients of convolutions. The cotangent of the operand is the transposed convolution of the
//! result's cotangent; for transposed convolutions it is the convolution. The cotangent of the
//! weights sums over the batch and the windows.

use tercet_tensor::{Dim, Shape, Tensor, TensorType};

use super::matmul::before_activation;
use crate::error::OpError;
use crate::grad::build::numel;
use crate::grad::{NoGradient, Vjp, VjpResult};
use crate::graph::Value;
use crate::ops::{Conv, ConvTranspose, ConvWeightGrad, Im2Col, Window};

pub(crate) fn conv(op: &Conv, v: &mut Vjp<'_>) -> VjpResult {
    let operands = v.operands();
    let (x, w) = (operands[0], operands[1]);
    let plain = Conv {
        activation: None,
        ..op.clone()
    };
    let pre = |v: &mut Vjp<'_>| v.add(plain, &operands);
    let Some(dz) = before_activation(v, op.activation, pre)? else {
        return Ok(());
    };
    if v.needs_cotangent(0) {
        let sizes = v.shape(x);
        let dx = windows_added(v, dz, w, &op.window(), op.groups, &sizes[2..])?;
        v.accumulate(0, dx)?;
    }
    if v.needs_cotangent(1) {
        let dw = window_weight_grad(v, dz, x, w, &op.window(), op.groups)?;
        v.accumulate(1, dw)?;
    }
    give_bias(v, dz)
}

pub(crate) fn conv_transpose(op: &ConvTranspose, v: &mut Vjp<'_>) -> VjpResult {
    let (mut x, w, dy) = (v.x(0), v.x(1), v.dy(0)?);
    let window = op.window();
    if v.shape(x)[2..].contains(&Dim::Known(0)) {
        for (i, operand) in [x, w].into_iter().enumerate() {
            let none = v.zeros_like(operand)?;
            v.accumulate(i, none)?;
        }
        return give_bias(v, dy);
    }
    // Padding of the result may contain whole windows to which no element contributes.
    let beyond: Vec<usize> = (0..op.stride.len())
        .map(|axis| op.output_padding[axis] / op.stride[axis])
        .collect();
    if v.needs_cotangent(0) {
        let mut dx = v.conv(dy, w, None, window.clone(), op.groups)?;
        for (axis, &beyond) in beyond.iter().enumerate().filter(|(_, n)| **n > 0) {
            dx = v.slice_axis(dx, 2 + axis, 0, -(beyond as i64), 1)?;
        }
        v.accumulate(0, dx)?;
    }
    if v.needs_cotangent(1) {
        for (axis, &beyond) in beyond.iter().enumerate() {
            x = v.zeros_around(x, 2 + axis, 0, beyond)?;
        }
        let dw = window_weight_grad(v, x, dy, w, &window, op.groups)?;
        v.accumulate(1, dw)?;
    }
    give_bias(v, dy)
}

/// The sum over all axes except the channels.
fn give_bias(v: &mut Vjp<'_>, dy: Value) -> VjpResult {
    if !v.needs_cotangent(2) {
        return Ok(());
    }
    let axes: Vec<usize> = (0..v.rank(dy)).filter(|axis| *axis != 1).collect();
    let db = v.reduce_sum(dy, &axes, false)?;
    Ok(v.accumulate(2, db)?)
}

/// The cotangent of weights `[A, B / groups, ..]`. Each weight's cotangent sums the products of
/// values `at [N, A, windows..]` and the elements of `read [N, B, ..]` that each window covers.
fn window_weight_grad(
    v: &mut Vjp<'_>,
    at: Value,
    read: Value,
    w: Value,
    window: &Window,
    groups: usize,
) -> Result<Value, NoGradient> {
    let kernel: Vec<usize> = v.shape(w)[2..].iter().filter_map(Dim::known).collect();
    let op = ConvWeightGrad::new(kernel, window.clone(), groups);
    Ok(v.add(op, &[read, at])?)
}

/// The operator is linear in `x` and in `dy`. The cotangents of both are computed by a convolution
/// (transposed for `x`) whose weights are the cotangent of `dw`.
pub(crate) fn conv_weight_grad(op: &ConvWeightGrad, v: &mut Vjp<'_>) -> VjpResult {
    let (x, dy, dw) = (v.x(0), v.x(1), v.dy(0)?);
    if v.needs_cotangent(0) {
        let sizes = v.shape(x);
        let dx = windows_added(v, dy, dw, &op.window(), op.groups, &sizes[2..])?;
        v.accumulate(0, dx)?;
    }
    if v.needs_cotangent(1) {
        let ddy = v.conv(x, dw, None, op.window(), op.groups)?;
        v.accumulate(1, ddy)?;
    }
    Ok(())
}

/// Multiplies each element of `x [N, A, windows..]` by `w [A, B / groups, taps..]`, and adds the
/// products to the elements that its window covers, along axes of these sizes. Contributions to
/// padding are dropped, and uncovered elements are 0.
pub(super) fn windows_added(
    v: &mut Vjp<'_>,
    x: Value,
    w: Value,
    window: &Window,
    groups: usize,
    sizes: &[Dim],
) -> Result<Value, NoGradient> {
    let (of_x, of_w) = (v.shape(x), v.shape(w));
    let mut cut = Window {
        pad_after: vec![0; sizes.len()],
        ..window.clone()
    };
    let mut missing = vec![0; sizes.len()];
    let mut cropped = false;
    let mut is_covered = true;
    for (axis, n) in sizes.iter().enumerate() {
        let taps = of_w[2 + axis].known().unwrap_or(1);
        let reach = (taps - 1) * window.dilation[axis] + 1;
        let before = window.pad_before[axis];
        let all = of_x[2 + axis]
            .checked_mul(&Dim::Known(window.stride[axis]))
            .and_then(|n| n.checked_add(&Dim::Known(reach)));
        let wanted = n.checked_add(&Dim::Known(before + window.stride[axis]));
        let (Some(all), Some(wanted)) = (all, wanted) else {
            return Err(NoGradient::because("the extent of its windows overflows"));
        };
        let less = |a: &Dim, b: &Dim| a.checked_sub(b).and_then(|d| d.known());
        match (less(&wanted, &all), less(&all, &wanted)) {
            (Some(more), _) => missing[axis] = more,
            (None, Some(beyond)) => cut.pad_after[axis] = beyond,
            // The last window ends at most one stride before the end of the padded axis. The result
            // is that long, and its end is cropped.
            (None, None) => {
                missing[axis] = window.stride[axis] - 1;
                cropped = true;
            }
        }
        // Whether any window covers an element of the operand.
        let reached = all
            .known()
            .is_none_or(|all| all > before + window.stride[axis]);
        is_covered &= reached && of_x[2 + axis] != Dim::Known(0) && *n != Dim::Known(0);
    }
    if !is_covered {
        let channels = of_w[1].checked_mul(&Dim::Known(groups));
        let channels =
            channels.ok_or_else(|| NoGradient::because("the number of channels overflows"))?;
        let shape: Shape = [of_x[0].clone(), channels]
            .into_iter()
            .chain(sizes.iter().cloned())
            .collect();
        let ty = v.ty(x).with_shape(shape);
        return Ok(v.filled(&ty, 0.0)?);
    }
    // Elements that no window covers are at the end of an axis. The uncovered elements are fewer
    // than the stride, unless windows begin beyond the operand.
    let most = window.stride.iter().zip(&window.dilation);
    let most = most.map(|(stride, dilation)| stride.max(dilation) - 1);
    let own: Vec<usize> = missing.iter().zip(most).map(|(n, m)| *n.min(&m)).collect();
    let mut y = v.conv_transpose(x, w, None, cut, &own, groups)?;
    for (axis, (&missing, own)) in missing.iter().zip(own).enumerate() {
        y = v.zeros_around(y, 2 + axis, 0, missing - own)?;
    }
    if cropped {
        let mut kept = v.shape(y).into_dims();
        kept.splice(2.., sizes.iter().cloned());
        let first = v.first_element(kept.len())?;
        y = v.dynamic_slice(y, first, kept)?;
    }
    Ok(y)
}

/// Adds the cotangents of columns to the elements that were read.
pub(crate) fn im2_col(op: &Im2Col, v: &mut Vjp<'_>) -> VjpResult {
    let (x, dy) = (v.x(0), v.dy(0)?);
    let windows = op.windows(v.ty(x));
    let windows = windows.map_err(|e| NoGradient::because(e.to_string()))?;
    let dx = columns_added(v, dy, &op.kernel, &op.window(), &windows, x)?;
    Ok(v.accumulate(0, dx)?)
}

/// Adds im2col columns `[N, C taps, windows]` (in any shape with these elements) to the elements of
/// `x [N, C, ..]` from which each was read.
pub(super) fn columns_added(
    v: &mut Vjp<'_>,
    columns: Value,
    kernel: &[usize],
    window: &Window,
    windows: &[Dim],
    x: Value,
) -> Result<Value, NoGradient> {
    let shape = v.shape(x);
    let taps: usize = kernel.iter().product();
    let lines = numel(&shape[..2])?;
    let apart: Vec<Dim> = [lines, Dim::Known(taps)]
        .into_iter()
        .chain(windows.to_vec())
        .collect();
    let columns = v.shaped(columns, apart)?;
    let dtype = v.dtype(x);
    let w = each_tap(v, dtype, kernel)?;
    let sums = windows_added(v, columns, w, window, 1, &shape[2..])?;
    Ok(v.shaped(sums, shape)?)
}

/// Weights `[taps, 1, taps..]` of a transposed convolution: channel `t` has a 1 at tap `t` and
/// zeros elsewhere.
fn each_tap(v: &mut Vjp<'_>, dtype: crate::DType, kernel: &[usize]) -> Result<Value, OpError> {
    let taps: usize = kernel.iter().product();
    let mut weights = vec![0.0; taps * taps];
    (0..taps).for_each(|t| weights[t * taps + t] = 1.0);
    let ty = TensorType::new(dtype, &[&[taps, 1], kernel].concat());
    let weights = Tensor::from_f64s(ty, &weights).expect("invariant: as many values as elements");
    v.constant(weights)
}
