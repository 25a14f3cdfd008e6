//! Unit tests. Most test private functions of the crate.

mod cache_formats;
mod cache_slots;
mod drafts;
mod dry;
mod encoder_batches;
mod entities;
mod factor_parts;
mod family_names;
mod image_orientation;
mod image_prompts;
mod image_resample;
mod known_keys;
mod matmul_precision;
mod moonshine;
mod projection_rows;
mod relative_positions;
mod rope_overrides;
mod sampling;
mod sampling_steps;
mod speech_config;
mod speech_tokens;
mod text_pieces;
mod token_sampler;
mod trainable;
mod weight_transforms;
mod weights;
