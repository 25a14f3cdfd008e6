//! Options of a transcription.

use std::fmt;

use super::SpeechError;

/// Task of a speech model.
///
/// ```
/// use tercet_models::speech::SpeechTask;
/// assert_eq!(SpeechTask::Translate.to_string(), "translate");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpeechTask {
    /// Text in the spoken language.
    Transcribe,
    /// Text translated to English.
    Translate,
}

impl SpeechTask {
    /// Task name in the models' configuration.
    pub fn name(self) -> &'static str {
        match self {
            SpeechTask::Transcribe => "transcribe",
            SpeechTask::Translate => "translate",
        }
    }
}

impl fmt::Display for SpeechTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Options of a transcription.
///
/// ```
/// use tercet_models::speech::SpeechOptions;
/// let language = Some("en".to_string());
/// let options = SpeechOptions { language, timestamps: true, ..SpeechOptions::with_fallback() };
/// assert_eq!(options.temperatures.len(), 6);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechOptions {
    /// Language code such as `en`. `None` detects the language if the model is multilingual.
    pub language: Option<String>,
    /// Task of the model; `None` uses the model's default.
    pub task: Option<SpeechTask>,
    /// Enables timestamp tokens; audio longer than a window always uses them.
    pub timestamps: bool,
    /// Prompts each window with the text of the previous windows.
    pub condition_on_previous: bool,
    /// Temperatures of the fallback, in order. The next temperature is tried if the text of a
    /// window fails the limits below. 0 is greedy decoding.
    pub temperatures: Vec<f64>,
    /// Maximum zlib compression ratio of the tokens; a higher ratio fails (repetitive text).
    pub max_compression_ratio: Option<f64>,
    /// Minimum mean natural log probability of the tokens; a lower value fails.
    pub min_log_probability: Option<f64>,
    /// Maximum no-speech probability. A window with a higher probability is skipped, unless its
    /// mean log probability reaches `min_log_probability`.
    pub max_no_speech_probability: Option<f64>,
    /// Seed of sampling at temperatures above 0.
    pub seed: u64,
}

impl Default for SpeechOptions {
    /// Defaults of `generate` in transformers: the model's language and task, no timestamps,
    /// temperature 0, no limits.
    fn default() -> SpeechOptions {
        SpeechOptions {
            language: None,
            task: None,
            timestamps: false,
            condition_on_previous: false,
            temperatures: vec![0.0],
            max_compression_ratio: None,
            min_log_probability: None,
            max_no_speech_probability: None,
            seed: 0,
        }
    }
}

impl SpeechOptions {
    /// Temperature fallback from 0 to 1 in steps of 0.2, with the limits that transformers
    /// recommends for long audio: compression ratio 1.35, log probability -1, no-speech probability
    /// 0.6.
    pub fn with_fallback() -> SpeechOptions {
        SpeechOptions {
            temperatures: (0..6).map(|i| f64::from(i) / 5.0).collect(),
            max_compression_ratio: Some(1.35),
            min_log_probability: Some(-1.0),
            max_no_speech_probability: Some(0.6),
            ..SpeechOptions::default()
        }
    }

    /// Checks that all options are within their ranges.
    pub(super) fn check(&self) -> Result<(), SpeechError> {
        if self.temperatures.is_empty() {
            let reason = "no temperatures; expected at least one, 0 for greedy decoding";
            return Err(SpeechError::Option(reason.into()));
        }
        let bad = |t: &&f64| !(t.is_finite() && **t >= 0.0);
        if let Some(t) = self.temperatures.iter().find(bad) {
            let reason =
                format!("temperature {t} is out of range; expected a number of at least 0");
            return Err(SpeechError::Option(reason));
        }
        let limits = [
            ("compression", self.max_compression_ratio),
            ("log probability", self.min_log_probability),
            ("no speech", self.max_no_speech_probability),
        ];
        match limits.iter().find(|(_, x)| x.is_some_and(f64::is_nan)) {
            Some((name, _)) => {
                let reason = format!("the limit {name} is not a number");
                Err(SpeechError::Option(reason))
            }
            None => Ok(()),
        }
    }
}
