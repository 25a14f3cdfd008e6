//! Speech recognizers: encoders and decoders of Whisper and Moonshine, as data.
//!
//! [`SpeechSpec`] has the structure of the graph (`config.json`). [`SpeechTokens`] has the special
//! and suppressed tokens (`generation_config.json`). `checked_features` checks that the folder's
//! audio features equal the implemented ones (`preprocessor_config.json`).

mod features;
mod moonshine;
mod spec;
mod tokens;

pub(crate) use features::checked_features;
pub use features::{FRAME, HOP, RATE};
pub use moonshine::MOONSHINE;
pub use moonshine::MoonshineSpec;
pub(crate) use moonshine::{RAW_FRAME, RAW_HOP, STEMS};
pub use spec::SpeechSpec;
pub use tokens::SpeechTokens;

/// The `model_type` of Whisper folders.
pub const MODEL_TYPE: &str = "whisper";
