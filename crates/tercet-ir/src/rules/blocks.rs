//! Blocks: what they are made of, each part legalized in turn.

use super::{Applied, Rule};
use crate::error::OpError;
use crate::graph::Value;
use crate::legalize::Builder;
use crate::ops::blocks::{Block, Compose};
use crate::ops::{Op, OpKind};
use crate::types::Shape;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "attention_block_as_products_and_attention",
        on: OpKind::AttentionBlock,
        apply: block,
    },
    Rule {
        name: "transformer_layer_as_block_products_and_norms",
        on: OpKind::TransformerLayer,
        apply: block,
    },
];

impl Compose for Builder<'_> {
    type Part = Value;
    type Error = OpError;

    fn apply(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<Vec<Value>, OpError> {
        self.add_all(op, operands)
    }

    fn dims(&self, part: &Value) -> Shape {
        self.shape(*part)
    }
}

fn block(b: &mut Builder<'_>, op: &Op, inputs: &[Value]) -> Applied {
    let y = match op {
        Op::AttentionBlock(o) => o.compose(b, inputs)?,
        Op::TransformerLayer(o) => o.compose(b, inputs)?,
        _ => return Ok(None),
    };
    Ok(Some(vec![y]))
}
