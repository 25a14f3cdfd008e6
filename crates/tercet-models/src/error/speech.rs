//! Errors of speech recognition.

/// Error of speech recognition.
///
/// ```
/// use tercet_models::speech::SpeechError;
/// let error = SpeechError::UnknownTask { task: "summarize".to_string() };
/// assert_eq!(error.to_string(), "the model has no token for the task `summarize`");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpeechError {
    /// The audio has no samples.
    #[error("the recording has no samples")]
    Empty,
    /// A sample is not a finite number.
    #[error("sample {at} of the recording is not a finite number")]
    NotFinite {
        /// Index of the sample, counted from 0.
        at: usize,
    },
    /// The audio exceeds the maximum length.
    #[error("the recording is longer than the maximum of {max_seconds} s; split it into parts")]
    TooLong {
        /// Maximum length in seconds.
        max_seconds: usize,
    },
    /// The model has no token for the requested language.
    #[error("the model does not support the language `{language}`; expected one of: {known}")]
    UnknownLanguage {
        /// Requested language.
        language: String,
        /// Language codes that the model supports.
        known: String,
    },
    /// The model has no token for the requested task.
    #[error("the model has no token for the task `{task}`")]
    UnknownTask {
        /// Requested task.
        task: String,
    },
    /// A language or task was requested from an English-only model.
    #[error("the model supports English alone: neither language nor task can be set")]
    EnglishOnly,
    /// A language or task was requested from a model without such tokens.
    #[error("the model has no language or task tokens: neither language nor task can be set")]
    OneLanguage,
    /// An option is out of range.
    #[error("{0}")]
    Option(String),
    /// The model's configuration lacks a required token id.
    #[error("generation_config.json has no `{field}`, which is required for {purpose}")]
    NoToken {
        /// Name of the missing field.
        field: &'static str,
        /// Purpose of the field.
        purpose: &'static str,
    },
}
