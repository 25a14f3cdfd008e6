//! `preprocessor_config.json`: checks that the folder's audio features equal the implemented ones.

use serde_json::{Map, Value};

use super::super::{ConfigError, ConfigFields, ensure};
use super::SpeechSpec;

/// Sample rate, in Hz.
pub const RATE: usize = 16_000;
/// Frame length, in samples.
pub const FRAME: usize = 400;
/// Distance between the starts of consecutive frames, in samples.
pub const HOP: usize = 160;

/// Fields that are derived from others, or describe the file.
const WITHOUT_INFLUENCE: &[&str] = &[
    "feature_extractor_type",
    "image_processor_type",
    "mel_filters",
    "processor_class",
    "return_attention_mask",
];

/// Rejects a folder whose features differ from Whisper's: log-mel bands of 400-sample frames with a
/// hop of 160 samples at 16 kHz. The window must have the length that the encoder of `spec` reads.
///
/// # Errors
/// [`ConfigError`] names the field.
pub(crate) fn checked_features(
    json: &Map<String, Value>,
    spec: &SpeechSpec,
) -> Result<(), ConfigError> {
    let fields = ConfigFields::new(json, "").of_class("WhisperFeatureExtractor");
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
