//! Tables of kernel variants. Each row of a table describes one variant: which problems it
//! supports, what it costs on a device, and how it is emitted.
//!
//! [`run`] evaluates every row of a table. [`run`] then selects the variant that the device's
//! [`TuningTable`](crate::TuningTable) names for the problem, otherwise the cheapest one. It
//! records the selection with its reasons ([`VariantSelection`]) for the command `explain`.
//!
//! Next: `lowerings/matmul/gemv.rs` is an example of a table of variants.

use std::borrow::Cow;
use std::fmt;

use tercet_ir::{CompileError, NodeId};

use crate::emit::LoweringCtx;

/// Reason why a variant does not apply to a problem.
pub(crate) enum VariantRejection {
    /// The unmet requirement, in a few words.
    Needs(Cow<'static, str>),
    /// A planning error that no other variant can avoid.
    Error(CompileError),
}

impl From<CompileError> for VariantRejection {
    fn from(e: CompileError) -> VariantRejection {
        VariantRejection::Error(e)
    }
}

/// `Ok` if the requirement holds, otherwise a rejection with this reason.
pub(crate) fn needs(holds: bool, what: &'static str) -> Result<(), VariantRejection> {
    match holds {
        true => Ok(()),
        false => Err(VariantRejection::Needs(what.into())),
    }
}

/// A kernel variant: one algorithm for a problem of a lowering.
pub(crate) struct KernelVariant<P> {
    /// Name of the variant, unique within its table.
    pub(crate) name: &'static str,
    /// Whether the variant supports this problem on this device.
    pub(crate) supports: fn(&mut LoweringCtx<'_>, &P) -> Result<(), VariantRejection>,
    /// Estimated time in seconds for a supported problem.
    pub(crate) cost: fn(&mut LoweringCtx<'_>, &P) -> Result<f64, CompileError>,
    /// Emits the kernels for a supported problem.
    pub(crate) emit: fn(&mut LoweringCtx<'_>, &P) -> Result<(), CompileError>,
}

/// The variant selected for a node, and the rejected ones.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantSelection {
    /// The node in the source graph.
    pub node: NodeId,
    /// Name of the node's operator.
    pub op: &'static str,
    /// The selected variant and its estimated time in seconds.
    pub variant: (&'static str, f64),
    /// Configuration of the selected variant, such as the name of a tiling.
    pub detail: Option<String>,
    /// True if the autotuning table named this variant.
    pub from_tuning_table: bool,
    /// The other variants: estimated time in seconds, or the unmet requirement.
    pub others: Vec<(&'static str, Result<f64, Cow<'static, str>>)>,
}

/// Prints the selection without the node, so that equal selections of several layers give equal
/// lines: `few_rows_streamed (cost 21 us; few_rows_held 26 us; row needs one row)`.
impl fmt::Display for VariantSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |seconds: f64| format!("{:.3} us", SignificantDigits(seconds * 1e6));
        let (name, seconds) = self.variant;
        let why = if self.from_tuning_table {
            "measured, "
        } else {
            ""
        };
        write!(f, "{name}")?;
        if let Some(detail) = &self.detail {
            write!(f, " {detail}")?;
        }
        write!(f, " ({why}cost {}", us(seconds))?;
        for (name, other) in &self.others {
            match other {
                Ok(seconds) => write!(f, "; {name} {}", us(*seconds))?,
                Err(needs) => write!(f, "; {name} needs {needs}")?,
            }
        }
        write!(f, ")")
    }
}

/// Prints a time or cost with a fixed number of significant digits.
struct SignificantDigits(f64);

impl fmt::Display for SignificantDigits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = f.precision().unwrap_or(3) as i32;
        let whole = self.0.abs().max(1e-9).log10().floor() as i32 + 1;
        let decimals = (wanted - whole).clamp(0, 3) as usize;
        write!(f, "{:.decimals$}", self.0)
    }
}

impl LoweringCtx<'_> {
    /// Records the selected variant of a kernel.
    pub(crate) fn record_variant(&mut self, taken: VariantSelection) {
        self.draft.variants.push(taken);
    }

    /// Records the configuration of the variant selected last.
    pub(crate) fn record_variant_detail(&mut self, detail: String) {
        if let Some(taken) = self.draft.variants.last_mut() {
            taken.detail = Some(detail);
        }
    }
}

/// Emits the variant that `measured` names, if it supports the problem. Otherwise emits the
/// cheapest supported variant; the first one wins ties.
///
/// # Errors
/// The errors of the variants.
///
/// # Panics
/// If no variant supports the problem, which is a bug of the lowering.
pub(crate) fn run<P>(
    e: &mut LoweringCtx<'_>,
    table: &[KernelVariant<P>],
    measured: Option<&str>,
    p: &P,
) -> Result<(), CompileError> {
    let mut costs = Vec::with_capacity(table.len());
    for v in table {
        costs.push(match (v.supports)(e, p) {
            Ok(()) => Ok((v.cost)(e, p)?),
            Err(VariantRejection::Needs(what)) => Err(what),
            Err(VariantRejection::Error(error)) => return Err(error),
        });
    }
    let able = || {
        costs
            .iter()
            .enumerate()
            .filter_map(|(at, cost)| Some((at, *cost.as_ref().ok()?)))
    };
    let named = measured.and_then(|name| able().find(|(at, _)| table[*at].name == name));
    let least = able().min_by(|a, b| a.1.total_cmp(&b.1));
    let Some((at, seconds)) = named.or(least) else {
        unreachable!("invariant: some variant supports every problem of its lowering")
    };
    let others = table.iter().zip(&costs).enumerate();
    let others = others.filter(|(other, _)| *other != at);
    let taken = VariantSelection {
        node: e.site().node,
        op: e.cursor.op,
        variant: (table[at].name, seconds),
        detail: None,
        from_tuning_table: named.is_some(),
        others: others
            .map(|(_, (v, cost))| (v.name, cost.clone()))
            .collect(),
    };
    e.record_variant(taken);
    (table[at].emit)(e, p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_says_why() {
        let taken = VariantSelection {
            node: NodeId(3),
            op: "mat_mul",
            variant: ("few_rows_streamed", 20.96e-6),
            detail: None,
            from_tuning_table: false,
            others: vec![
                ("few_rows_held", Ok(126.2e-6)),
                ("row", Err("one row".into())),
                ("wide", Ok(1.5e-9)),
            ],
        };
        let text = "few_rows_streamed (cost 21.0 us; few_rows_held 126 us; row needs one row; wide 0.002 us)";
        assert_eq!(taken.to_string(), text);
        let measured = VariantSelection {
            detail: Some("of 4".to_string()),
            from_tuning_table: true,
            others: Vec::new(),
            ..taken
        };
        assert_eq!(
            measured.to_string(),
            "few_rows_streamed of 4 (measured, cost 21.0 us)"
        );
    }
}
