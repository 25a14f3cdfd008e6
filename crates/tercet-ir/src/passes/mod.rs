//! Rewrites of graphs.

/// The names of the passes, in the order in which they run.
pub const PIPELINE: &[&str] = &[];
