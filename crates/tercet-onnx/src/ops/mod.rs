//! The operators: one table, by theme. An entry says from which version of its domain to which it holds, and how a node
//! of it is imported.

mod attention;
mod bits;
pub(crate) mod constant;
mod control;
mod conv;
mod deform;
mod det;
mod elementwise;
mod flex;
mod grid;
mod index;
mod learned;
mod legacy;
mod linear;
mod linear_attention;
mod loss;
mod microsoft;
mod norm;
mod optimizer;
mod patches;
mod pool_indices;
mod quant;
mod rearrange;
mod recurrent;
mod reduce;
mod resize;
mod resize_weights;
mod roi;
mod selected;
mod sequence;
mod shape;
mod signal;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::call::{ImportNode, NodeOutputs};

/// What is done with a node whose operands are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConstOperandPolicy {
    /// It is evaluated.
    Folded,
    /// The operator looks at its operands itself, or has another answer each time.
    Unfolded,
}

/// How a node is imported.
pub(crate) type NodeImportFn = fn(&mut ImportNode<'_, '_>) -> NodeOutputs;

/// An operator in a range of versions.
pub(crate) struct OpsetEntry {
    pub(crate) domain: &'static str,
    pub(crate) name: &'static str,
    pub(crate) since: i64,
    pub(crate) until: i64,
    pub(crate) const_policy: ConstOperandPolicy,
    pub(crate) import: NodeImportFn,
}

/// An operator of ONNX's own domain, from a version on.
pub(crate) const fn op(name: &'static str, since: i64, import: NodeImportFn) -> OpsetEntry {
    OpsetEntry {
        domain: "",
        name,
        since,
        until: NEWEST,
        const_policy: ConstOperandPolicy::Folded,
        import,
    }
}

impl OpsetEntry {
    /// Up to a version.
    pub(crate) const fn until(self, until: i64) -> OpsetEntry {
        OpsetEntry { until, ..self }
    }

    /// Of another domain.
    pub(crate) const fn in_domain(self, domain: &'static str) -> OpsetEntry {
        OpsetEntry { domain, ..self }
    }

    /// Looking at known operands itself.
    pub(crate) const fn without_folding(self) -> OpsetEntry {
        OpsetEntry {
            const_policy: ConstOperandPolicy::Unfolded,
            ..self
        }
    }
}

/// The newest version of ONNX's operators that the table was made for.
pub(crate) const NEWEST: i64 = 27;

const TABLES: &[&[OpsetEntry]] = &[
    constant::TABLE,
    // Before the entries that hold from the next version on.
    legacy::TABLE,
    elementwise::DIRECT,
    elementwise::TABLE,
    shape::TABLE,
    reduce::TABLE,
    conv::TABLE,
    norm::TABLE,
    grid::TABLE,
    index::TABLE,
    linear::TABLE,
    loss::TABLE,
    microsoft::TABLE,
    microsoft::ATTENTION,
    microsoft::EMBEDDING,
    microsoft::FUSED,
    microsoft::PACKED,
    microsoft::QUANTIZED,
    control::TABLE,
    attention::TABLE,
    resize::TABLE,
    quant::TABLE,
    rearrange::TABLE,
    recurrent::TABLE,
    signal::TABLE,
    selected::TABLE,
    sequence::TABLE,
    bits::TABLE,
    deform::TABLE,
    det::TABLE,
    pool_indices::TABLE,
    roi::TABLE,
    flex::TABLE,
    linear_attention::TABLE,
    optimizer::TABLE,
    learned::TABLE,
    patches::TABLE,
];

/// The domain by the name that it has here.
pub(crate) fn domain(name: &str) -> &str {
    match name {
        "ai.onnx" => "",
        other => other,
    }
}

/// The entry of an operator at a version of its domain.
pub(crate) fn find(domain: &str, name: &str, opset: i64) -> Option<&'static OpsetEntry> {
    type Index = HashMap<(&'static str, &'static str), Vec<&'static OpsetEntry>>;
    static INDEX: LazyLock<Index> = LazyLock::new(|| {
        let mut index = Index::new();
        for entry in TABLES.iter().flat_map(|t| t.iter()) {
            index
                .entry((entry.domain, entry.name))
                .or_default()
                .push(entry);
        }
        index
    });
    let entries = INDEX.get(&(domain, name))?;
    entries
        .iter()
        .find(|e| (e.since..=e.until).contains(&opset))
        .copied()
}
