//! Decomposition of the causal convolution into a sum of row products, per channel. Narrower dtypes
//! are computed in F32.

use super::{LegalizeRule, RuleResult};
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{Concat, Op, OpKind};
use crate::scalar::{BinaryFn, UnaryFn};

pub(super) const RULES: &[LegalizeRule] = &[LegalizeRule {
    name: "causal_conv_as_products_of_rows",
    on: OpKind::CausalConv,
    apply: causal_conv,
}];

fn causal_conv(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::CausalConv(op), &[x, w, bias, ref state @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let (dtype, shape) = (b.dtype(x), b.shape(x));
    let Some(taps) = b.shape(w)[0].known() else {
        return Ok(None);
    };
    let first = match state.first() {
        Some(state) => *state,
        None => {
            let zero = b.scalar(dtype, 0.0)?;
            let rows = [shape[0].clone(), (taps - 1).into(), shape[2].clone()];
            b.expand(zero, rows)?
        }
    };
    let all = b.add(Concat { axis: 1 }, &[first, x])?;
    let (wide, w) = (b.widen(all)?, b.widen(w)?);
    let mut sum = b.widen(bias)?;
    for tap in 0..taps {
        let left = (taps - 1 - tap) as i64;
        let end = if left == 0 { i64::MAX } else { -left };
        let rows = b.slice(wide, 1, tap as i64, end, 1)?;
        let factors = b.slice(w, 0, tap as i64, tap as i64 + 1, 1)?;
        let product = b.binary(BinaryFn::Mul, rows, factors)?;
        sum = b.binary(BinaryFn::Add, sum, product)?;
    }
    if op.silu {
        sum = b.unary(UnaryFn::Silu, sum)?;
    }
    let mut results = vec![b.cast(sum, dtype)?];
    if op.carry {
        let behind = taps as i64 - 1;
        results.push(match behind {
            0 => first,
            _ => b.slice(all, 1, -behind, i64::MAX, 1)?,
        });
    }
    Ok(Some(results))
}
