//! The operator table, split by theme. An entry has an operator, its range of opset versions and
//! its import function.

mod attention;
mod bits;
pub(crate) mod constant;
mod control;
mod conv;
mod data_dependent;
mod deform_conv;
mod det;
mod elementwise;
mod flex;
mod grid;
mod index;
mod legacy;
mod linear;
mod linear_attention;
mod loss;
mod microsoft;
mod ml;
mod ngrams;
mod norm;
mod optimizer;
pub(crate) mod padded;
mod patches;
mod pool_indices;
mod quant;
mod rearrange;
mod recurrent;
mod reduce;
mod resize;
mod resize_weights;
mod roi;
mod sequence;
mod shape;
mod signal;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::call::{ImportNode, NodeOutputs};

/// How nodes with constant operands are imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConstOperandPolicy {
    /// Evaluated at import time (constant folding).
    Folded,
    /// Not folded, because the importer inspects constant operands itself or the result is random.
    Unfolded,
}

/// The import function of an operator.
pub(crate) type NodeImportFn = fn(&mut ImportNode<'_, '_>) -> NodeOutputs;

/// An operator in a range of opset versions.
pub(crate) struct OpsetEntry {
    pub(crate) domain: &'static str,
    pub(crate) name: &'static str,
    pub(crate) since: i64,
    pub(crate) until: i64,
    pub(crate) const_policy: ConstOperandPolicy,
    pub(crate) import: NodeImportFn,
}

/// An operator of the standard domain, from a version on.
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
    /// Sets the last version of the entry.
    pub(crate) const fn until(self, until: i64) -> OpsetEntry {
        OpsetEntry { until, ..self }
    }

    /// Sets the domain of the entry.
    pub(crate) const fn in_domain(self, domain: &'static str) -> OpsetEntry {
        OpsetEntry { domain, ..self }
    }

    /// Disables constant folding for the entry.
    pub(crate) const fn without_folding(self) -> OpsetEntry {
        OpsetEntry {
            const_policy: ConstOperandPolicy::Unfolded,
            ..self
        }
    }
}

/// The newest opset version that the table covers.
pub(crate) const NEWEST: i64 = 28;

const TABLES: &[&[OpsetEntry]] = &[
    constant::TABLE,
    // The entries of old operator versions come first, because the entries of the other tables hold
    // from the next version on.
    legacy::TABLE,
    elementwise::DIRECT,
    elementwise::TABLE,
    shape::TABLE,
    reduce::TABLE,
    conv::TABLE,
    norm::TABLE,
    ngrams::TABLE,
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
    data_dependent::TABLE,
    sequence::TABLE,
    bits::TABLE,
    deform_conv::TABLE,
    det::TABLE,
    pool_indices::TABLE,
    roi::TABLE,
    flex::TABLE,
    linear_attention::TABLE,
    optimizer::TABLE,
    ml::TABLE,
    patches::TABLE,
];

/// The canonical name of a domain.
pub(crate) fn domain(name: &str) -> &str {
    match name {
        "ai.onnx" => "",
        other => other,
    }
}

/// The entry of an operator for a version of its domain.
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
