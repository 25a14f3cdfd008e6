//! Kernels in WGSL as SPIR-V, and the files that keep what is slow to make from one process to the next.
//!
//! [`lower`] is how WGSL becomes SPIR-V for both players. [`Modules`] does it once for each text: what it
//! gives lies in a folder, and the next process reads it from there. [`PipelineFile`] keeps what a driver
//! makes of SPIR-V, which is of use to the same driver only.
//!
//! | file | what |
//! |---|---|
//! | `lower.rs`, `layout.rs` | WGSL to SPIR-V; what drivers must not see of it |
//! | `modules.rs` | the folder of modules |
//! | `blob.rs` | the file of a driver's pipelines |
//! | `files.rs` | reading and replacing files, the size of a folder |
//!
//! Invariants: a file is used only if it is whole (its digest is that of its bytes), was made for exactly this
//! (text, options and version of the lowering, or device and driver), and is this user's own: devices run it
//! without checks. Anything else is as good as no file. Files appear whole, by renaming, so that writers may be
//! killed or write at once; nothing is lost by it but time. A folder that cannot be written is no error.

mod blob;
pub mod files;
mod layout;
mod lower;
mod modules;

pub use blob::{Identity, PipelineFile};
pub use lower::{Checks, ENTRY, LowerError, Uses, lower, uses};
pub use modules::{Counts, Modules};
