//! Removes the markers of differentiation (`StopGradient`, `Checkpoint`), which execution does not
//! need.

use super::{LegalizeRule, RuleResult};
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{Op, OpKind};

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "stop_gradient_as_its_operand",
        on: OpKind::StopGradient,
        apply: operand,
    },
    LegalizeRule {
        name: "checkpoint_as_its_operand",
        on: OpKind::Checkpoint,
        apply: operand,
    },
];

fn operand(_: &mut LegalizeBuilder<'_>, _: &Op, inputs: &[Value]) -> RuleResult {
    Ok(Some(inputs.to_vec()))
}
