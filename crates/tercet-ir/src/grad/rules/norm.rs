//! Gradients of norms over lines. With `n` the normalized line, `s` its inverse deviation and `g =
//! dy gamma`, the cotangent of a line is `s (g - n mean(g n))`. For a norm that subtracts the mean,
//! the mean of `g` is subtracted too.

use crate::attr::FloatAttr;
use crate::error::OpError;
use crate::grad::{Vjp, VjpResult};
use crate::graph::Value;
use crate::ops::{LayerNorm, RmsNorm};

pub(crate) fn layer_norm(op: &LayerNorm, v: &mut Vjp<'_>) -> VjpResult {
    let axes: Vec<usize> = (op.axis..v.rank(v.x(0))).collect();
    normed(v, &axes, op.eps, true)
}

pub(crate) fn rms_norm(op: &RmsNorm, v: &mut Vjp<'_>) -> VjpResult {
    let last = v.rank(v.x(0)) - 1;
    normed(v, &[last], op.eps, false)
}

fn normed(v: &mut Vjp<'_>, axes: &[usize], eps: FloatAttr, centred: bool) -> VjpResult {
    let (x, gamma, dy) = (v.x(0), v.x(1), v.dy(0)?);
    let dtype = v.dtype(x);
    let dy = v.widen(dy)?;
    let mut sums = Vec::new();
    if v.needs_cotangent(0) || v.needs_cotangent(1) {
        let mut x = v.widen(x)?;
        if centred {
            let mean = v.reduce_mean(x, axes, true)?;
            x = v.sub(x, mean)?;
        }
        let squares = v.mul(x, x)?;
        let variance = v.reduce_mean(squares, axes, true)?;
        let sum = v.shifted(variance, eps.0)?;
        let scale = v.rsqrt(sum)?;
        let unit = v.mul(x, scale)?;
        if v.needs_cotangent(0) {
            let gamma = match v.dtype(gamma) == v.dtype(x) {
                true => gamma,
                // Gamma is broadcast before it is widened, so that its reader can fuse the
                // conversion.
                false => {
                    let whole = v.shape(x);
                    let spread = v.broadcast_to_shape(gamma, whole)?;
                    v.widen(spread)?
                }
            };
            let g = v.mul(dy, gamma)?;
            let along = v.mul(g, unit)?;
            let along = v.reduce_mean(along, axes, true)?;
            let part = v.mul(unit, along)?;
            let mut rest = v.sub(g, part)?;
            if centred {
                let mean = v.reduce_mean(g, axes, true)?;
                rest = v.sub(rest, mean)?;
            }
            let dx = v.mul(rest, scale)?;
            let dx = v.in_dtype(dx, dtype)?;
            v.accumulate(0, dx)?;
        }
        if v.needs_cotangent(1) {
            let weighed = v.mul(dy, unit)?;
            sums.push((1, summed(v, 1, weighed)?));
        }
    }
    if v.needs_cotangent(2) {
        sums.push((2, summed(v, 2, dy)?));
    }
    // All sums are added to the graph before any node that reads one of them; otherwise fusion
    // could not merge the sums.
    for (operand, sum) in sums {
        let dtype = v.dtype(v.x(operand));
        let sum = v.in_dtype(sum, dtype)?;
        v.accumulate(operand, sum)?;
    }
    Ok(())
}

/// The sum over all lines, for an operand that all lines share.
fn summed(v: &mut Vjp<'_>, operand: usize, all: Value) -> Result<Value, OpError> {
    let shape = v.shape(v.x(operand));
    v.summed_to(all, &shape)
}
