//! Decomposition of low-rank adapter (LoRA) matmuls: three matmuls and a sum.

use super::util::accumulate_dtype;
use super::{LegalizeRule, RuleResult};
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{IndexMap, Map, MapArg, MapStep, Op, OpKind};
use crate::scalar::{BinaryFn, ScalarOp};

pub(super) const RULES: &[LegalizeRule] = &[LegalizeRule {
    name: "lora_matmul_as_products_and_sum",
    on: OpKind::LoraMatMul,
    apply: lora_matmul,
}];

/// Multiplies by the low-rank matrices first: `(x a) b` is cheap compared with `x w`. The sum is
/// computed in the wide dtype and rounded once.
fn lora_matmul(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::LoraMatMul(o), &[x, w, down, up]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let to = accumulate_dtype(dtype);
    let y = b.matmul(x, w)?;
    let low = b.matmul(x, down)?;
    let correction = b.matmul(low, up)?;
    let shape = b.shape(y);
    let step = |op: ScalarOp, args: &[MapArg]| MapStep::new(op, args);
    let (binary, at) = (ScalarOp::Binary, MapArg::Step);
    let body = vec![
        step(ScalarOp::Cast(to), &[MapArg::Input(0)]),
        step(ScalarOp::Cast(to), &[MapArg::Input(1)]),
        step(ScalarOp::Const(to, o.scale), &[]),
        step(binary(BinaryFn::Mul), &[at(1), at(2)]),
        step(binary(BinaryFn::Add), &[at(0), at(3)]),
        step(ScalarOp::Cast(dtype), &[at(4)]),
    ];
    let map = Map {
        inputs: vec![IndexMap::identity(shape.rank()); 2],
        shape,
        body,
        results: vec![5],
    };
    Ok(Some(vec![b.add(map, &[y, correction])?]))
}
