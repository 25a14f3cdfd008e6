//! `preprocessor_config.json`: that the features of the folder are those that are computed.

use serde_json::{Map, Value};

use super::super::{ConfigError, Fields, ensure};
use super::SpeechSpec;

/// Samples of a second.
pub(crate) const RATE: usize = 16_000;
/// Samples of a frame.
pub(crate) const FRAME: usize = 400;
/// Samples from one frame to the next.
pub(crate) const HOP: usize = 160;

/// What is computed from the others, or describes the file.
const WITHOUT_INFLUENCE: &[&str] = &[
    "feature_extractor_type",
    "image_processor_type",
    "mel_filters",
    "processor_class",
    "return_attention_mask",
];

/// Refuses a folder whose features are others than those of Whisper at this specification: log-mel, frames of 400 samples at
/// 16 kHz each 160 after the one before, windows as long as the encoder reads.
///
/// # Errors
/// [`ConfigError`] names the field.
pub(crate) fn checked_features(
    json: &Map<String, Value>,
    spec: &SpeechSpec,
) -> Result<(), ConfigError> {
    let fields = Fields::new(json, "");
    let samples = spec.frames() * HOP;
    for (name, want) in [
        ("feature_size", spec.mels),
        ("hop_length", HOP),
        ("n_fft", FRAME),
        ("n_samples", samples),
        ("nb_max_frames", spec.frames()),
        ("sampling_rate", RATE),
    ] {
        fields.only(name, &want.to_string(), |v| v.as_u64() == Some(want as u64))?;
    }
    fields.only("padding_side", "\"right\"", |v| v.as_str() == Some("right"))?;
    for name in ["dither", "padding_value"] {
        fields.only(name, "0", |v| v.as_f64() == Some(0.0))?;
    }
    if let Some(seconds) = fields.opt_size("chunk_length")? {
        ensure(seconds.saturating_mul(RATE) == samples, || {
            format!(
                "`chunk_length` = {seconds}, but the encoder reads {} frames of 10 ms",
                spec.frames()
            )
        })?;
    }
    fields.finish(&[WITHOUT_INFLUENCE])
}
