//! The record of a selected kernel variant, for the command `explain`.

use std::borrow::Cow;
use std::fmt;

use tercet_ir::NodeId;

use crate::program::KernelId;

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
pub const FORBIDDEN: &str = "forbidden";

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
