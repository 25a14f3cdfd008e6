//! I16 numbers computed in I32, on targets whose kernels have no version for I16.
//!
//! The low 16 bits of wrapping sums and products in I32 are those in I16. Maxima, minima and the
//! order of elements are the same.

use tercet_tensor::{DType, Type};

use super::{LegalizeRule, RuleResult};
use crate::attr::FloatAttr;
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{Clamp, Op, OpKind, PoolFn, ReduceFn, ScanFn};

pub(super) const RULES: &[LegalizeRule] = &[
    rule("arg_max_of_i16_in_i32", OpKind::ArgMax),
    rule("arg_min_of_i16_in_i32", OpKind::ArgMin),
    rule("cum_sum_of_i16_in_i32", OpKind::CumSum),
    rule("matmul_of_i16_in_i32", OpKind::MatMul),
    rule("pool_of_i16_in_i32", OpKind::Pool),
    rule("reduce_of_i16_in_i32", OpKind::Reduce),
    rule("scatter_add_of_i16_in_i32", OpKind::ScatterAdd),
    rule("scatter_elements_of_i16_in_i32", OpKind::ScatterElements),
    rule("scatter_nd_of_i16_in_i32", OpKind::ScatterNd),
    rule("sort_of_i16_in_i32", OpKind::Sort),
    rule("top_k_of_i16_in_i32", OpKind::TopK),
];

const fn rule(name: &'static str, on: OpKind) -> LegalizeRule {
    LegalizeRule {
        name,
        on,
        apply: in_i32,
    }
}

fn in_i32(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let types: Vec<Type> = inputs.iter().map(|v| b.ty(*v).clone()).collect();
    if types.iter().all(|ty| ty.dtype != DType::I16) {
        return Ok(None);
    }
    let Ok(results) = op.infer(&types.iter().collect::<Vec<_>>()) else {
        return Ok(None);
    };
    let mut wide = Vec::with_capacity(inputs.len());
    for (&x, ty) in inputs.iter().zip(&types) {
        wide.push(match ty.dtype {
            DType::I16 => b.cast(x, DType::I32)?,
            _ => x,
        });
    }
    let mut values = b.add_all(op.clone(), &wide)?;
    for (value, ty) in values.iter_mut().zip(&results) {
        if ty.dtype != DType::I16 {
            continue;
        }
        if has_extremes(op, &types[0]) {
            *value = b.add(within_i16(), &[*value])?;
        }
        *value = b.cast(*value, DType::I16)?;
    }
    Ok(Some(values))
}

/// Whether a result may be the maximum or minimum of no elements, which is an extreme of the dtype.
fn has_extremes(op: &Op, x: &Type) -> bool {
    match op {
        Op::Reduce(o) if matches!(o.f, ReduceFn::Max | ReduceFn::Min) => {
            let is_filled = |axis: &usize| x.shape[*axis].known().is_some_and(|n| n > 0);
            !o.axes.iter().all(is_filled)
        }
        Op::CumSum(o) if matches!(o.f, ScanFn::Max | ScanFn::Min) => o.exclusive,
        Op::Pool(o) if matches!(o.f, PoolFn::Max | PoolFn::Min) => {
            let mut pads = o.pad_before.iter().chain(&o.pad_after);
            o.ceil || pads.any(|n| *n > 0)
        }
        _ => false,
    }
}

/// Turns the extremes of I32 into those of I16.
fn within_i16() -> Clamp {
    Clamp {
        lo: FloatAttr(f64::from(i16::MIN)),
        hi: FloatAttr(f64::from(i16::MAX)),
    }
}
