//! Unit tests. Most test private functions of the crate.

mod context_fit;
mod model_names;
mod moonshine;
mod passages;
#[cfg(feature = "audio")]
mod resampling;
mod stop_strings;
mod subtitles;
mod whisper_rules;
mod whisper_windows;
