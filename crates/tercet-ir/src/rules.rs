//! The rules of legalization, one file per family of operators.
//!
//! A rule turns one operator into others that are nearer to the core. It is directional: no rule
//! builds what another takes apart. Floats narrower than F32 are widened for sums, norms and
//! contractions with an epilogue, so that a decomposition rounds where the fused operator does.

mod attention;
mod barrier;
mod blocks;
mod causal_conv;
mod channel_norm;
mod contract;
mod conv;
mod elementwise;
mod lora;
mod norm;
mod recurrent;
mod shape;
mod softmax;
mod spectral;
#[cfg(feature = "splat")]
mod splat;
mod unique;
mod util;

use crate::error::OpError;
use crate::graph::Value;
use crate::legalize::Builder;
use crate::ops::{Op, OpKind};

/// A decomposition of one operator.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The name: what becomes what.
    pub name: &'static str,
    /// The operator.
    pub on: OpKind,
    /// The values that stand for the operator's results, or nothing when the rule does not apply.
    pub apply: fn(&mut Builder<'_>, &Op, &[Value]) -> Applied,
}

/// What a rule gives.
pub type Applied = Result<Option<Vec<Value>>, OpError>;

/// Every rule, by family; the first that applies is taken.
pub const RULES: &[&[Rule]] = &[
    attention::RULES,
    barrier::RULES,
    blocks::RULES,
    causal_conv::RULES,
    channel_norm::RULES,
    contract::RULES,
    conv::RULES,
    elementwise::RULES,
    lora::RULES,
    norm::RULES,
    shape::RULES,
    recurrent::RULES,
    softmax::RULES,
    spectral::RULES,
    unique::RULES,
    #[cfg(feature = "splat")]
    splat::RULES,
];
