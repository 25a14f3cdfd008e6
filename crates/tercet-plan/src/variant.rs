//! Variants of a kernel: rows of a table that say what each takes, what it costs on a device, and how it is emitted.
//!
//! [`run`] asks every row of a table, takes the one that the device's [`Tuning`](crate::Tuning) names for the problem, else
//! the one that costs least, and keeps what was [`Taken`] and why for `explain`.
//!
//! Next: `families/matmul/gemv.rs` for a table.

use std::borrow::Cow;
use std::fmt;

use tercet_ir::{CompileError, NodeId};

use crate::emit::Emit;

/// Why a variant does not take a problem.
pub(crate) enum Refusal {
    /// What it needs, in a few words.
    Needs(Cow<'static, str>),
    /// Planning fails whatever is taken.
    Error(CompileError),
}

impl From<CompileError> for Refusal {
    fn from(e: CompileError) -> Refusal {
        Refusal::Error(e)
    }
}

/// Refuses a problem for this reason where it does not have what is needed.
pub(crate) fn needs(holds: bool, what: &'static str) -> Result<(), Refusal> {
    match holds {
        true => Ok(()),
        false => Err(Refusal::Needs(what.into())),
    }
}

/// A way to compute a problem of a family.
pub(crate) struct Variant<P> {
    /// Its name, which tells it from the others of the table.
    pub(crate) name: &'static str,
    /// Whether it computes this problem on this device.
    pub(crate) supports: fn(&mut Emit<'_>, &P) -> Result<(), Refusal>,
    /// About how many seconds it takes, for problems that it supports.
    pub(crate) cost: fn(&mut Emit<'_>, &P) -> Result<f64, CompileError>,
    /// Emits it, for problems that it supports.
    pub(crate) emit: fn(&mut Emit<'_>, &P) -> Result<(), CompileError>,
}

/// The variant that was taken for a node, and the others.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The node of the graph as it was given.
    pub node: NodeId,
    /// Its operator.
    pub op: &'static str,
    /// The variant, and the seconds that it is expected to take.
    pub variant: (&'static str, f64),
    /// Which of several of this variant, such as the name of a tiling.
    pub detail: Option<String>,
    /// It was named by a table of measurements.
    pub measured: bool,
    /// The others: the seconds expected, or what they need.
    pub others: Vec<(&'static str, Result<f64, Cow<'static, str>>)>,
}

/// Without the node, so that what layers have in common is one line: `few_rows_streamed (cost 21 us; few_rows_held 26 us;
/// row needs one row)`.
impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |seconds: f64| format!("{:.3} us", Digits(seconds * 1e6));
        let (name, seconds) = self.variant;
        let why = if self.measured { "measured, " } else { "" };
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

/// A number with so many digits that count.
struct Digits(f64);

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = f.precision().unwrap_or(3) as i32;
        let whole = self.0.abs().max(1e-9).log10().floor() as i32 + 1;
        let decimals = (wanted - whole).clamp(0, 3) as usize;
        write!(f, "{:.decimals$}", self.0)
    }
}

impl Emit<'_> {
    /// Keeps which variant of a kernel was taken.
    pub(crate) fn took(&mut self, taken: Taken) {
        self.draft.variants.push(taken);
    }

    /// Says which of several of the variant taken last it is.
    pub(crate) fn took_as(&mut self, detail: String) {
        if let Some(taken) = self.draft.variants.last_mut() {
            taken.detail = Some(detail);
        }
    }
}

/// Emits the variant of a table that `measured` names, where it supports the problem, else the one that costs least; of
/// equal cost the first.
///
/// # Errors
/// Those of the variants.
///
/// # Panics
/// When no variant supports the problem: a bug of the family.
pub(crate) fn run<P>(
    e: &mut Emit<'_>,
    table: &[Variant<P>],
    measured: Option<&str>,
    p: &P,
) -> Result<(), CompileError> {
    let mut costs = Vec::with_capacity(table.len());
    for v in table {
        costs.push(match (v.supports)(e, p) {
            Ok(()) => Ok((v.cost)(e, p)?),
            Err(Refusal::Needs(what)) => Err(what),
            Err(Refusal::Error(error)) => return Err(error),
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
        unreachable!("invariant: some variant supports every problem of its family")
    };
    let others = table.iter().zip(&costs).enumerate();
    let others = others.filter(|(other, _)| *other != at);
    let taken = Taken {
        node: e.site().node,
        op: e.cursor.op,
        variant: (table[at].name, seconds),
        detail: None,
        measured: named.is_some(),
        others: others
            .map(|(_, (v, cost))| (v.name, cost.clone()))
            .collect(),
    };
    e.took(taken);
    (table[at].emit)(e, p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_says_why() {
        let taken = Taken {
            node: NodeId(3),
            op: "mat_mul",
            variant: ("few_rows_streamed", 20.96e-6),
            detail: None,
            measured: false,
            others: vec![
                ("few_rows_held", Ok(126.2e-6)),
                ("row", Err("one row".into())),
                ("wide", Ok(1.5e-9)),
            ],
        };
        let text = "few_rows_streamed (cost 21.0 us; few_rows_held 126 us; row needs one row; wide 0.002 us)";
        assert_eq!(taken.to_string(), text);
        let measured = Taken {
            detail: Some("of 4".to_string()),
            measured: true,
            others: Vec::new(),
            ..taken
        };
        assert_eq!(
            measured.to_string(),
            "few_rows_streamed of 4 (measured, cost 21.0 us)"
        );
    }
}
