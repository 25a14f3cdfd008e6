//! Speech recognizers: encoders and decoders of Whisper and Moonshine, as data.
//!
//! [`SpeechSpec`] says what the graph consists of (`config.json`), [`SpeechTokens`] which tokens mean what and which are never
//! written (`generation_config.json`), [`checked_features`] that the features are those that are computed
//! (`preprocessor_config.json`).

mod features;
mod moonshine;
mod spec;
mod tokens;

pub(crate) use features::{FRAME, HOP, RATE, checked_features};
pub use moonshine::MoonshineSpec;
pub(crate) use moonshine::{MOONSHINE, RAW_FRAME, RAW_HOP, STEMS};
pub use spec::SpeechSpec;
pub use tokens::SpeechTokens;

/// The `model_type` of folders of Whisper.
pub(crate) const MODEL_TYPE: &str = "whisper";
