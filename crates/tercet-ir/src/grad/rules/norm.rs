//! Norms over lines: with `n` the line at unit scale and `s` its inverse deviation, the cotangent of a line is
//! `s (g - n mean(g n))` of `g = dy gamma`, less the mean of `g` where the line was centred.

use crate::attr::Real;
use crate::error::OpError;
use crate::grad::{Ruled, Vjp};
use crate::graph::Value;
use crate::ops::{LayerNorm, RmsNorm};

pub(crate) fn layer_norm(op: &LayerNorm, v: &mut Vjp<'_>) -> Ruled {
    let axes: Vec<usize> = (op.axis..v.rank(v.x(0))).collect();
    normed(v, &axes, op.eps, true)
}

pub(crate) fn rms_norm(op: &RmsNorm, v: &mut Vjp<'_>) -> Ruled {
    let last = v.rank(v.x(0)) - 1;
    normed(v, &[last], op.eps, false)
}

fn normed(v: &mut Vjp<'_>, axes: &[usize], eps: Real, centred: bool) -> Ruled {
    let (x, gamma, dy) = (v.x(0), v.x(1), v.dy(0)?);
    let dtype = v.dtype(x);
    let dy = v.widen(dy)?;
    let mut sums = Vec::new();
    if v.wants(0) || v.wants(1) {
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
        if v.wants(0) {
            let gamma = match v.dtype(gamma) == v.dtype(x) {
                true => gamma,
                // Spread before it is widened, so that it is widened where it is read.
                false => {
                    let whole = v.shape(x);
                    let spread = v.spread(gamma, whole)?;
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
            v.give(0, dx)?;
        }
        if v.wants(1) {
            let weighed = v.mul(dy, unit)?;
            sums.push((1, summed(v, 1, weighed)?));
        }
    }
    if v.wants(2) {
        sums.push((2, summed(v, 2, dy)?));
    }
    // What reads the sums stands after all of them, so that they may be computed together.
    for (operand, sum) in sums {
        let dtype = v.dtype(v.x(operand));
        let sum = v.in_dtype(sum, dtype)?;
        v.give(operand, sum)?;
    }
    Ok(())
}

/// The sum over all lines, for an operand that is the same for them.
fn summed(v: &mut Vjp<'_>, operand: usize, all: Value) -> Result<Value, OpError> {
    let shape = v.shape(v.x(operand));
    v.summed_to(all, &shape)
}
