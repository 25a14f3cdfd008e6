//! Low-rank adapters (Hu et al., "LoRA: Low-rank adaptation of large language models", 2021): a
//! projection `y = W x` becomes `y = W x + (alpha / rank) B (A x)`.
//!
//! An [`Adapter`] is independent of its file format. The modules of an adapter have Hugging Face
//! names (`model.layers.0.self_attn.q_proj`) without the task prefix `bert.`. The rows of `B` are
//! in Hugging Face order ([`RopeLayout::Halves`](crate::RopeLayout::Halves)). Readers and writers
//! of GGUF adapters, and their application to GGUF models, permute these rows.
//!
//! [`merge`](merge()) adds adapters to the weights of a model.

mod merge;

pub use merge::merge;
pub use tercet_networks::low_rank::{Adapter, AdapterError, LowRank};
