//! The kinds of models.

/// The kinds of models that have a builder.
///
/// ```
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/");
/// # let path = format!("{data}tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
/// use tercet_models::{ModelFamily, ModelFiles};
/// assert_eq!(ModelFiles::open(path)?.family()?, ModelFamily::Decoder);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelFamily {
    /// Decoders of any family of [`DecoderSpec`](crate::DecoderSpec): text generation.
    Decoder,
    /// Text encoders of any family of [`EncoderSpec`](crate::EncoderSpec): embeddings and
    /// classification.
    Encoder,
    /// Vision models of any family of [`VisionSpec`](crate::VisionSpec): image features and
    /// classification, some with a text tower.
    Vision,
    /// Vision-language models of [`VisionLanguageSpec`](crate::VisionLanguageSpec): text generation
    /// from images and text.
    VisionLanguage,
    /// Text-to-text encoder-decoders of [`Seq2SeqSpec`](crate::Seq2SeqSpec).
    TextToText,
    /// Speech recognizers of [`SpeechSpec`](crate::SpeechSpec): transcripts.
    Speech,
}

impl ModelFamily {
    /// The family in a sentence, with its article.
    ///
    /// ```
    /// use tercet_models::ModelFamily;
    /// assert_eq!(ModelFamily::Speech.describe(), "a speech recognizer");
    /// ```
    pub fn describe(self) -> &'static str {
        match self {
            ModelFamily::Decoder => "a text decoder",
            ModelFamily::Encoder => "a text encoder",
            ModelFamily::Vision => "a vision model",
            ModelFamily::VisionLanguage => "a vision-language model",
            ModelFamily::TextToText => "a text-to-text model",
            ModelFamily::Speech => "a speech recognizer",
        }
    }

    /// The types of this crate that run the family.
    pub(crate) fn opened_with(self) -> &'static str {
        match self {
            ModelFamily::Decoder | ModelFamily::VisionLanguage | ModelFamily::TextToText => {
                "`LanguageModel`"
            }
            ModelFamily::Encoder => "`Embedder` or `Classifier`",
            ModelFamily::Vision => "`ImageEmbedder` or `Classifier`",
            ModelFamily::Speech => "`Transcriber`",
        }
    }
}
