//! Tables of kernel variants. Each row of a table describes one variant: which problems it
//! supports, what it costs on a device, and how it is emitted.
//!
//! [`run`] evaluates every row of a table. [`run`] then selects the variant that the device's
//! [`TuningTable`](crate::TuningTable) names for the problem, otherwise the cheapest one. It
//! records the selection with its reasons ([`VariantSelection`]) for the command `explain`.
//!
//! Next: `lowerings/matmul/gemv.rs` is an example of a table of variants.

use std::borrow::Cow;

use tercet_ir::{CompileError, SwitchError, VariantFamily, VariantName};

use tercet_program::{FORBIDDEN, VariantSelection};

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

/// A forced variant that does not support a problem of its family.
#[derive(Clone, Debug)]
pub(crate) struct UnmetForce {
    family: &'static str,
    error: SwitchError,
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

/// Emits a variant that a lowering selects without a table, so that the variant is recorded, and
/// replaced if a driver refuses one of its kernels.
pub(crate) fn run_alone(
    e: &mut LoweringCtx<'_>,
    family: &'static str,
    variant: (&'static str, f64),
    emit: impl FnOnce(&mut LoweringCtx<'_>) -> Result<(), CompileError>,
) -> Result<(), CompileError> {
    let is_forced = e.caps.device.switches.forced(family) == Some(variant.0);
    let taken = VariantSelection {
        node: e.site().node,
        op: e.cursor.op,
        variant,
        detail: None,
        from_tuning_table: false,
        family,
        is_forced,
        kernels: Vec::new(),
        others: Vec::new(),
    };
    e.record_variant(taken);
    let selection = Some(e.draft.variants.len() - 1);
    let before = std::mem::replace(&mut e.cursor.variant, selection);
    let emitted = emit(e);
    e.cursor.variant = before;
    emitted
}
