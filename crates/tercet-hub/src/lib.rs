//! Models by name: `ORG/NAME[:QUANT]` of the Hugging Face hub, or of a mirror of it.
//!
//! The cache has the layout that all tools of the hub share, so a model that one tool has downloaded
//! is there for the others.
//!
//! - [`Hub::find`] looks up a model in the cache, and [`Hub::pull`] downloads what is missing.
//! - [`FileSet`] chooses the files of a repository that make up one model: the quantization that fits
//!   the memory, all parts of a split file, the files around safetensors.
//! - Files arrive in parallel ranges. They are written in order, so a file that is not complete is
//!   always a prefix, and their digests are checked before they get their names.
//! - A lock file per contents keeps processes apart. A snapshot gets all files of a model at once.
//!
//! ```no_run
//! use tercet_hub::{Hub, HubSettings, PullEvent, PullOptions};
//!
//! let hub = Hub::new(HubSettings::from_env()?);
//! let model = hub.open("org/model-GGUF", &PullOptions::default(), &|event: PullEvent<'_>| {
//!     if let PullEvent::File { path, bytes, .. } = event {
//!         eprintln!("{path}: {bytes} bytes");
//!     }
//! })?;
//! println!("{}", model.path.display());
//! # Ok::<(), tercet_hub::HubError>(())
//! ```
#![forbid(unsafe_code)]

mod cache;
mod client;
mod error;
mod hub;
mod listing;
mod name;
mod progress;
mod quant;
mod select;
mod settings;
mod transfer;

pub use error::HubError;
pub use hub::{CachedModel, CachedRepo, Hub, PullOptions};
pub use listing::{FileDigest, RepoFile, RepoListing};
pub use name::HubName;
pub use progress::{PullEvent, PullProgress};
pub use select::{FileSet, ModelFormat};
pub use settings::{DEFAULT_ENDPOINT, HubSettings};
