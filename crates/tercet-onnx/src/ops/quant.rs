//! To come.
use super::Entry;
pub(crate) const TABLE: &[Entry] = &[];
