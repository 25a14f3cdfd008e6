//! Choices of a transcription.

use std::fmt;

use super::SpeechError;

/// What becomes of speech.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Text in the language that is spoken.
    Transcribe,
    /// Text in English.
    Translate,
}

impl Task {
    /// As models name it.
    pub fn name(self) -> &'static str {
        match self {
            Task::Transcribe => "transcribe",
            Task::Translate => "translate",
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Choices of a transcription.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechOptions {
    /// The code of the language that is spoken, as `en`; found out where there is none and the model knows several.
    pub language: Option<String>,
    /// As the model says where there is none.
    pub task: Option<Task>,
    /// Whether timestamps are written; recordings longer than a window always have them.
    pub timestamps: bool,
    /// Whether each window is told the text of those before it.
    pub condition_on_previous: bool,
    /// Temperatures, in order: the next one is tried where a window's text is not good enough by the limits below. 0 takes the
    /// likeliest token.
    pub temperatures: Vec<f64>,
    /// A text whose tokens zlib compresses more than by this is not good enough.
    pub most_compression: Option<f64>,
    /// A text whose tokens are less likely than this, the mean of natural logarithms, is not good enough.
    pub least_log_probability: Option<f64>,
    /// A window that is likelier than this to have no speech is left out, if its text is also less likely than the limit above
    /// where that is set.
    pub most_no_speech: Option<f64>,
    /// Seed of the random numbers for temperatures above 0.
    pub seed: u64,
}

impl Default for SpeechOptions {
    /// As `generate` of transformers: language and task as the model says, no timestamps, temperature 0, no limits.
    fn default() -> SpeechOptions {
        SpeechOptions {
            language: None,
            task: None,
            timestamps: false,
            condition_on_previous: false,
            temperatures: vec![0.0],
            most_compression: None,
            least_log_probability: None,
            most_no_speech: None,
            seed: 0,
        }
    }
}

impl SpeechOptions {
    /// Temperatures from 0 to 1 in steps of 0.2, and the limits that transformers recommends for long recordings: a compression
    /// of 1.35, a mean logarithm of -1, and 0.6 for no speech.
    pub fn with_fallback() -> SpeechOptions {
        SpeechOptions {
            temperatures: (0..6).map(|i| f64::from(i) / 5.0).collect(),
            most_compression: Some(1.35),
            least_log_probability: Some(-1.0),
            most_no_speech: Some(0.6),
            ..SpeechOptions::default()
        }
    }

    /// Refuses numbers that cannot be.
    pub(super) fn check(&self) -> Result<(), SpeechError> {
        if self.temperatures.is_empty() {
            let reason = "no temperatures; give at least one, 0 for the likeliest tokens";
            return Err(SpeechError::Option(reason.into()));
        }
        let bad = |t: &&f64| !(t.is_finite() && **t >= 0.0);
        if let Some(t) = self.temperatures.iter().find(bad) {
            let reason = format!("a temperature of {t}; expected a number of at least 0");
            return Err(SpeechError::Option(reason));
        }
        let limits = [
            ("compression", self.most_compression),
            ("log probability", self.least_log_probability),
            ("no speech", self.most_no_speech),
        ];
        match limits.iter().find(|(_, x)| x.is_some_and(f64::is_nan)) {
            Some((name, _)) => {
                let reason = format!("the limit of {name} is not a number");
                Err(SpeechError::Option(reason))
            }
            None => Ok(()),
        }
    }
}
