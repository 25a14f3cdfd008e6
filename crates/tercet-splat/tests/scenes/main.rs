//! Tests of scenes: files, cameras, rendered frames and the parts of a fit.
#![allow(
    clippy::unwrap_used,
    reason = "a failed step of a test ends it; helpers are not test functions to clippy"
)]

mod files;
mod fit;
