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

use tercet_ir::{CompileError, NodeId, SwitchError, VariantFamily, VariantName};

use crate::emit::LoweringCtx;
use crate::program::KernelId;

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

/// The family of these tables, which share the names of variants.
pub(crate) fn family<P>(name: &'static str, tables: &[&[KernelVariant<P>]]) -> VariantFamily {
    let mut variants: Vec<String> = Vec::new();
    for v in tables.iter().flat_map(|table| table.iter()) {
        if !variants.iter().any(|known| known == v.name) {
            variants.push(v.name.to_string());
        }
    }
    VariantFamily { name, variants }
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
    /// The family of the variants, as switches name it.
    pub family: &'static str,
    /// True if a switch forces this variant.
    pub is_forced: bool,
    /// The kernels that the variant consists of, except those of a variant nested in it.
    pub kernels: Vec<KernelId>,
    /// The other variants: estimated time in seconds, or the unmet requirement.
    pub others: Vec<(&'static str, Result<f64, Cow<'static, str>>)>,
}

/// Prints the selection without the node, so that equal selections of several layers give equal
/// lines: `few_rows_streamed (cost 21 us; few_rows_held 26 us; row needs one row)`.
impl fmt::Display for VariantSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |seconds: f64| format!("{:.3} us", SignificantDigits(seconds * 1e6));
        let (name, seconds) = self.variant;
        let why = match (self.is_forced, self.from_tuning_table) {
            (true, _) => "forced, ",
            (false, true) => "measured, ",
            (false, false) => "",
        };
        write!(f, "{name}")?;
        if let Some(detail) = &self.detail {
            write!(f, " {detail}")?;
        }
        write!(f, " ({why}cost {}", us(seconds))?;
        for (name, other) in &self.others {
            match other {
                Ok(seconds) => write!(f, "; {name} {}", us(*seconds))?,
                Err(needs) if needs == FORBIDDEN => write!(f, "; {name} {FORBIDDEN}")?,
                Err(needs) => write!(f, "; {name} needs {needs}")?,
            }
        }
        write!(f, ")")
    }
}

/// The reason text of a variant that a switch forbids, or that the driver refused.
pub(crate) const FORBIDDEN: &str = "forbidden";

/// A forced variant that does not support a problem of its family.
#[derive(Clone, Debug)]
pub(crate) struct UnmetForce {
    family: &'static str,
    error: SwitchError,
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

    /// True if switches allow this variant of a family.
    pub(crate) fn may_use(&self, family: &str, variant: &str) -> bool {
        let switches = &self.caps.device.switches;
        let forced = switches.forced(family);
        forced.is_none_or(|name| name == variant) && !switches.is_forbidden(family, variant)
    }

    /// Checks that each forced variant was used, if the program has a problem of its family.
    pub(crate) fn check_forced_variants(&self) -> Result<(), CompileError> {
        let unmet = self.draft.unmet_forces.iter().find(|unmet| {
            let mut taken = self.draft.variants.iter();
            !taken.any(|t| t.is_forced && t.family == unmet.family)
        });
        match unmet {
            Some(unmet) => Err(unmet.error.clone().into()),
            None => Ok(()),
        }
    }

    /// Records the configuration of the variant selected last.
    pub(crate) fn record_variant_detail(&mut self, detail: String) {
        if let Some(taken) = self.draft.variants.last_mut() {
            taken.detail = Some(detail);
        }
    }
}

/// Emits the variant of the family that a switch forces, or else the one that `measured` names, if
/// it supports the problem. Otherwise emits the cheapest supported variant; the first one wins
/// ties. Forbidden variants are never emitted.
///
/// # Errors
/// The errors of the variants, and [`SwitchError::AllForbidden`].
///
/// # Panics
/// If no variant supports the problem, which is a bug of the lowering.
pub(crate) fn run<P>(
    e: &mut LoweringCtx<'_>,
    family: &'static str,
    table: &[KernelVariant<P>],
    measured: Option<&str>,
    p: &P,
) -> Result<(), CompileError> {
    let switches = &e.caps.device.switches;
    let mut costs = Vec::with_capacity(table.len());
    let mut forbidden = Vec::new();
    for v in table {
        costs.push(match (v.supports)(e, p) {
            Ok(()) if switches.is_forbidden(family, v.name) => {
                forbidden.push(v.name);
                Err(Cow::Borrowed(FORBIDDEN))
            }
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
    let by_name = |name: &str| able().find(|(at, _)| table[*at].name == name);
    let forced = switches.forced(family);
    let held = forced.and_then(by_name);
    if let Some(name) = forced
        && held.is_none()
    {
        let rejected = table.iter().zip(&costs).find(|(v, _)| v.name == name);
        let reason = match rejected {
            Some((_, Err(reason))) => reason.to_string(),
            Some((_, Ok(_))) | None => "other operands, for which the family has it".to_string(),
        };
        let available: Vec<&str> = able().map(|(at, _)| table[at].name).collect();
        let error = SwitchError::Unsupported {
            given: VariantName {
                family: family.to_string(),
                variant: name.to_string(),
            },
            node: e.site().node,
            op: e.cursor.op,
            reason,
            available: available.join(", "),
        };
        e.draft.unmet_forces.push(UnmetForce { family, error });
    }
    let named = measured.and_then(by_name);
    let least = able().min_by(|a, b| a.1.total_cmp(&b.1));
    let Some((at, seconds)) = held.or(named).or(least) else {
        assert!(
            !forbidden.is_empty(),
            "invariant: some variant supports every problem of its lowering"
        );
        return Err(CompileError::Switch(SwitchError::AllForbidden {
            family,
            node: e.site().node,
            op: e.cursor.op,
            forbidden: forbidden.join(", "),
        }));
    };
    let others = table.iter().zip(&costs).enumerate();
    let others = others.filter(|(other, _)| *other != at);
    let taken = VariantSelection {
        node: e.site().node,
        op: e.cursor.op,
        variant: (table[at].name, seconds),
        detail: None,
        from_tuning_table: held.is_none() && named.is_some(),
        family,
        is_forced: held.is_some(),
        kernels: Vec::new(),
        others: others
            .map(|(_, (v, cost))| (v.name, cost.clone()))
            .collect(),
    };
    e.record_variant(taken);
    let selection = Some(e.draft.variants.len() - 1);
    let before = std::mem::replace(&mut e.cursor.variant, selection);
    let emitted = (table[at].emit)(e, p);
    e.cursor.variant = before;
    emitted
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
            family: "rows",
            is_forced: false,
            kernels: Vec::new(),
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
