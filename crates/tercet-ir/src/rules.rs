//! The rules of legalization, one file per group of operators.
//!
//! A rule decomposes one operator into operators that are closer to the core. Rules are
//! directional: no rule builds an operator that another rule decomposes. Floats narrower than F32
//! are widened for sums, norms and contractions with an epilogue, so that a decomposition rounds at
//! the same places as the fused operator. I16 is widened to I32 for targets whose kernels lack it.

mod attention;
mod blocks;
mod causal_conv;
mod channel_norm;
mod contract;
mod conv;
mod elementwise;
mod grad_markers;
mod lora;
mod narrow_ints;
mod non_zero;
mod norm;
mod recurrent;
mod shape;
mod softmax;
pub(crate) mod spectral;
#[cfg(feature = "splat")]
mod splat;
mod unique;
mod util;

use crate::error::OpError;
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{Op, OpKind};

/// A decomposition of one operator.
///
/// ```
/// use tercet_ir::{OpKind, legalize::LegalizeRule, legalize::RULES};
/// let mut rules = RULES.iter().copied().flatten();
/// let rule: Option<&LegalizeRule> = rules.find(|rule| rule.on == OpKind::Softmax);
/// assert_eq!(rule.map(|rule| rule.name), Some("softmax_as_exp_over_sum"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LegalizeRule {
    /// Name of the rule: the operator and its replacement.
    pub name: &'static str,
    /// The operator that the rule decomposes.
    pub on: OpKind,
    /// The function that returns replacements of the operator's results, or nothing if the rule
    /// does not apply.
    pub apply: fn(&mut LegalizeBuilder<'_>, &Op, &[Value]) -> RuleResult,
}

/// The result of a rule.
pub type RuleResult = Result<Option<Vec<Value>>, OpError>;

/// Every rule, by group, in matching order; the first that applies is used.
pub const RULES: &[&[LegalizeRule]] = &[
    attention::RULES,
    grad_markers::RULES,
    blocks::RULES,
    causal_conv::RULES,
    channel_norm::RULES,
    contract::RULES,
    conv::RULES,
    elementwise::RULES,
    lora::RULES,
    non_zero::RULES,
    norm::RULES,
    shape::RULES,
    recurrent::RULES,
    softmax::RULES,
    spectral::RULES,
    unique::RULES,
    narrow_ints::RULES,
    #[cfg(feature = "splat")]
    splat::RULES,
];
