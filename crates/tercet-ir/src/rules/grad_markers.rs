//! Marks of differentiation, which execution does not need.

use super::{Applied, Rule};
use crate::graph::Value;
use crate::legalize::Builder;
use crate::ops::{Op, OpKind};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "stop_gradient_as_its_operand",
        on: OpKind::StopGradient,
        apply: operand,
    },
    Rule {
        name: "checkpoint_as_its_operand",
        on: OpKind::Checkpoint,
        apply: operand,
    },
];

fn operand(_: &mut Builder<'_>, _: &Op, inputs: &[Value]) -> Applied {
    Ok(Some(inputs.to_vec()))
}
