//! Rules of operators that move data.

use super::Simplification;

pub(super) const RULES: &[Simplification] = &[];
