//! Compiles WGSL kernels to SPIR-V, and caches SPIR-V and driver pipelines on disk.
//!
//! [`lower`] compiles WGSL to SPIR-V for both GPU executors. [`ModuleCache`] caches the result in a
//! folder, keyed by source text, so that later processes skip the compilation. [`PipelineFile`]
//! stores the pipelines that a driver compiles from SPIR-V; only the same driver can use them.
//!
//! | file | content |
//! |---|---|
//! | `lower.rs`, `layout.rs` | WGSL to SPIR-V; removal of decorations that validators reject |
//! | `float_controls.rs` | execution modes that preserve signed zeros, infinities and NaN |
//! | `modules.rs` | folder of SPIR-V modules |
//! | `pipeline_cache_file.rs` | driver pipeline-cache file |
//! | `files.rs` | reading and replacing files; eviction by folder size |
//!
//! Invariants:
//!
//! - A file is used only if its digest matches, because devices run its content without checks.
//! - It must also match its key: source, options and lowering version, or device and driver.
//! - It must belong to this user. Any other file is ignored.
//! - Files are replaced atomically by a rename, so writers may be killed or run concurrently. At
//!   worst the work is repeated.
//! - A cache folder that cannot be written is not an error.

pub mod files;
mod float_controls;
mod layout;
mod lower;
mod modules;
mod pipeline_cache_file;

pub use float_controls::FloatControls;
pub use lower::{ENTRY, LowerError, RuntimeChecks, SubgroupUsage, lower, uses};
pub use modules::{ModuleCache, ModuleCounts};
pub use pipeline_cache_file::{DriverIdentity, PipelineFile};
