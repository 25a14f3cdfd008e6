//! Decompositions of composite blocks into their operators; each operator is legalized in turn.

use tercet_tensor::Shape;

use super::{LegalizeRule, RuleResult};
use crate::error::OpError;
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::blocks::{ComposedOp, OpComposer};
use crate::ops::{Op, OpKind};

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "attention_block_as_products_and_attention",
        on: OpKind::AttentionBlock,
        apply: block,
    },
    LegalizeRule {
        name: "transformer_layer_as_block_products_and_norms",
        on: OpKind::TransformerLayer,
        apply: block,
    },
];

impl OpComposer for LegalizeBuilder<'_> {
    type Part = Value;
    type Error = OpError;

    fn apply(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<Vec<Value>, OpError> {
        self.add_all(op, operands)
    }

    fn dims(&self, part: &Value) -> Shape {
        self.shape(*part)
    }
}

fn block(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let y = match op {
        Op::AttentionBlock(o) => o.compose(b, inputs)?,
        Op::TransformerLayer(o) => o.compose(b, inputs)?,
        _ => return Ok(None),
    };
    Ok(Some(vec![y]))
}
