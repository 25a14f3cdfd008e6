//! Why speech was not recognized.

/// Why speech was not recognized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpeechError {
    /// There are no samples.
    #[error("the recording has no samples")]
    Empty,
    /// A sample is not a number.
    #[error("sample {at} of the recording is not a finite number")]
    NotFinite {
        /// Its place, from 0 on.
        at: usize,
    },
    /// The recording is longer than what is kept.
    #[error(
        "the recording is longer than {most_seconds} s, the most that is taken; cut it into parts"
    )]
    TooLong {
        /// The most that is taken.
        most_seconds: usize,
    },
    /// A language that the model has no token of.
    #[error("the model does not know the language `{language}`; it knows {known}")]
    UnknownLanguage {
        /// What was asked for.
        language: String,
        /// Codes of those that it knows.
        known: String,
    },
    /// A task that the model has no token of.
    #[error("the model has no token of the task `{task}`")]
    UnknownTask {
        /// What was asked for.
        task: String,
    },
    /// Language or task were chosen for a model of English alone.
    #[error("the model knows English alone: neither language nor task can be chosen")]
    EnglishOnly,
    /// Language or task were chosen for a model that has no tokens for them.
    #[error("the model has no tokens of languages and tasks: neither can be chosen")]
    OneLanguage,
    /// An option that cannot be.
    #[error("{0}")]
    Option(String),
    /// The model does not say how a text begins.
    #[error("generation_config.json has no `{field}`, which {purpose} needs")]
    NoToken {
        /// What is missing.
        field: &'static str,
        /// What needs it.
        purpose: &'static str,
    },
}
