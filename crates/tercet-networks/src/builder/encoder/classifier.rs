//! Text classification, token classification and reranking with an encoder.

use std::sync::Arc;

use tercet::Device;

use super::super::ModelError;
use super::Encoder;
use super::runner::{EncoderRunner, EncoderTokens, OverlengthPolicy, all_tokens};
use super::text_reader::EncoderTextReader;
pub use crate::config::outputs::Scoring;
use crate::maybe_async::{WaitMode, block_on_ready};
use tercet_text::tokenizer::Tokenizer;

/// A class and its score.
///
/// ```
/// use tercet_networks::ClassScore;
/// let labels = ["negative", "positive"];
/// let found = ClassScore { class: 1, score: 0.9 };
/// assert_eq!(labels[found.class], "positive");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ClassScore {
    /// Index of the class in the model's label list.
    pub class: usize,
    /// Score of the class.
    pub score: f32,
}

impl ClassScore {
    /// Class with the greatest score, the first among equals.
    pub(super) fn top_class(logits: &[f32], scoring: Scoring) -> ClassScore {
        let mut own = logits.to_vec();
        scoring.apply(&mut own);
        let (class, score) = greatest(&own);
        ClassScore { class, score }
    }
}

/// Predicted class of a token.
///
/// ```
/// use tercet_networks::{ClassScore, TokenLabel};
/// let label = ClassScore { class: 2, score: 0.98 };
/// let found = TokenLabel { token: "Berlin".to_string(), label };
/// assert!(found.label.score > 0.5);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLabel {
    /// Token text as in the vocabulary.
    pub token: String,
    /// Most likely class of the token.
    pub label: ClassScore,
}

/// A compiled encoder with a classification head, its tokenizer and class names.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// # let spec = tercet_networks::EncoderSpec::bert(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
/// #     "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
/// #     "decoder": null,
/// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}"#;
/// # let tokenizer = tercet_text::tokenizer::Tokenizer::from_json(json.as_bytes())?;
/// use tercet::{DType, Device};
/// use tercet_networks::{TextClassifier, Encoder, EncoderOutput, Scoring};
/// let encoder = Encoder::build(&spec, &weights, &EncoderOutput::Classes(2), DType::F32)?;
/// let labels = vec!["negative".to_string(), "positive".to_string()];
/// let (device, most, scoring) = (Device::cpu(), (None, 16), Scoring::Softmax);
/// let mut classifier = TextClassifier::new(&encoder, tokenizer, &device, most, labels, scoring)?;
/// let scores = classifier.classify(&["a b"])?;
/// assert_eq!(scores[0].len(), classifier.labels().len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TextClassifier {
    pub(super) runner: EncoderRunner,
    pub(super) tokenizer: Arc<Tokenizer>,
    max_tokens: usize,
    overlength: OverlengthPolicy,
    pub(super) labels: Vec<String>,
    pub(super) scoring: Scoring,
}

impl TextClassifier {
    /// Compiles `encoder` for texts of at most `most` tokens and batches of `batch` texts (default
    /// as in [`Embedder::new`](super::Embedder::new)). The encoder must be built for
    /// [`EncoderOutput::Classes`](super::EncoderOutput) or `TokenClasses` with one class per label.
    /// Longer texts are an error ([`Self::truncating`]).
    ///
    /// # Errors
    /// Same errors as [`Encoder::compile`]; [`ModelError::Unsupported`] if the graph has no logits or another
    /// number of classes.
    pub fn new(
        encoder: &Encoder,
        tokenizer: Tokenizer,
        device: &Device,
        (batch, most): (Option<usize>, usize),
        labels: Vec<String>,
        scoring: Scoring,
    ) -> Result<TextClassifier, ModelError> {
        let pad = tokenizer.pad().unwrap_or(0);
        let runner = EncoderRunner::new(encoder, device, pad, (batch, most))?;
        if runner.output() != Some("logits") || encoder.width != labels.len() {
            return Err(ModelError::Unsupported(format!(
                "the encoder was not built with logits for {} classes",
                labels.len()
            )));
        }
        Ok(TextClassifier {
            runner,
            tokenizer: Arc::new(tokenizer),
            max_tokens: most,
            overlength: OverlengthPolicy::Error,
            labels,
            scoring,
        })
    }

    /// Enables truncation of texts that are too long; of a pair, the longer text is truncated
    /// first.
    #[must_use]
    pub fn truncating(mut self, cut: bool) -> TextClassifier {
        self.set_truncating(cut);
        self
    }

    /// Same setting as [`Self::truncating`], for later calls.
    pub fn set_truncating(&mut self, cut: bool) {
        self.overlength = OverlengthPolicy::from_truncate(cut);
    }

    /// Sets the scoring for later calls.
    pub fn set_scoring(&mut self, scoring: Scoring) {
        self.scoring = scoring;
    }

    /// Maximum tokens of a text, or of a pair of texts.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Names of the classes.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Class scores of each text, in the order of [`Self::labels`].
    ///
    /// # Errors
    /// [`ModelError::TextTooLong`]; errors of the tokenizer or the device.
    pub fn classify<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Vec<f32>>, ModelError> {
        self.classify_with_progress(texts, &mut |_| true)
    }

    /// Like [`Self::classify`], with the callback of
    /// [`Embedder::embed_with_progress`](super::Embedder::embed_with_progress).
    ///
    /// # Errors
    /// Same errors as [`Self::classify`].
    pub fn classify_with_progress<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        let texts = texts.iter().map(|text| (text.as_ref(), None));
        self.scores(texts, progress)
    }

    /// Relevance score of each document for the query. Requires a model with one class.
    ///
    /// # Errors
    /// Same errors as [`Self::classify`]; [`ModelError::Unsupported`] for a model with several classes.
    pub fn rerank<T: AsRef<str>>(
        &mut self,
        query: &str,
        documents: &[T],
    ) -> Result<Vec<f32>, ModelError> {
        self.rerank_with_progress(query, documents, &mut |_| true)
    }

    /// Like [`Self::rerank`], with a callback.
    ///
    /// # Errors
    /// Same errors as [`Self::rerank`].
    pub fn rerank_with_progress<T: AsRef<str>>(
        &mut self,
        query: &str,
        documents: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<f32>, ModelError> {
        if self.labels.len() != 1 {
            let classes = self.labels.len();
            return Err(ModelError::Unsupported(format!(
                "the model has {classes} classes; a reranker has exactly 1"
            )));
        }
        let pairs = documents.iter().map(|text| (query, Some(text.as_ref())));
        let all = self.scores(pairs, progress)?;
        Ok(all.into_iter().flatten().collect())
    }

    fn scores<'t>(
        &mut self,
        texts: impl Iterator<Item = (&'t str, Option<&'t str>)>,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        let all = self.tokens(texts)?;
        self.score_rows(&all, progress)
    }

    /// The tokenization of this classifier, for other threads; without its setting of
    /// [`Self::truncating`].
    pub fn text_reader(&self) -> EncoderTextReader {
        EncoderTextReader::new(Arc::clone(&self.tokenizer), self.max_tokens)
    }

    /// Class scores of texts or pairs that [`Self::text_reader`] tokenized. Otherwise like
    /// [`Self::classify_with_progress`].
    ///
    /// # Errors
    /// errors of the device.
    pub fn score_rows(
        &mut self,
        all: &[EncoderTokens],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        let (classes, scoring) = (self.labels.len(), self.scoring);
        let mut scores = vec![Vec::new(); all.len()];
        let take = &mut |at: usize, logits: &[f32]| {
            let mut own = logits[..classes].to_vec();
            scoring.apply(&mut own);
            scores[at] = own;
        };
        block_on_ready((self.runner).run_all(all, progress, take, WaitMode::Blocking))?;
        Ok(scores)
    }

    /// Most likely class of each token without special tokens, for a token classification model.
    ///
    /// # Errors
    /// Same errors as [`Self::classify`].
    pub fn classify_tokens<T: AsRef<str>>(
        &mut self,
        texts: &[T],
    ) -> Result<Vec<Vec<TokenLabel>>, ModelError> {
        self.classify_tokens_with_progress(texts, &mut |_| true)
    }

    /// Like [`Self::classify_tokens`], with a callback.
    ///
    /// # Errors
    /// Same errors as [`Self::classify`].
    pub fn classify_tokens_with_progress<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<TokenLabel>>, ModelError> {
        let all = self.tokens(texts.iter().map(|text| (text.as_ref(), None)))?;
        let (classes, scoring) = (self.labels.len(), self.scoring);
        let tokenizer = &self.tokenizer;
        let special = tokenizer.encode_row("", None, None)?.ids;
        let mut found = vec![Vec::new(); all.len()];
        let take = &mut |at: usize, logits: &[f32]| {
            let ids = &all[at].row.ids;
            let rows = logits.chunks_exact(classes).zip(ids);
            let shown = rows.filter(|(_, id)| !special.contains(id));
            let labels = shown.map(|(logits, id)| TokenLabel {
                token: tokenizer.id_to_token(*id).unwrap_or_default(),
                label: ClassScore::top_class(logits, scoring),
            });
            found[at] = labels.collect();
        };
        block_on_ready((self.runner).run_all(&all, progress, take, WaitMode::Blocking))?;
        Ok(found)
    }

    pub(super) fn tokens<'t>(
        &self,
        texts: impl Iterator<Item = (&'t str, Option<&'t str>)>,
    ) -> Result<Vec<EncoderTokens>, ModelError> {
        let texts: Vec<(&str, Option<&str>)> = texts.collect();
        all_tokens(&self.tokenizer, &texts, (self.max_tokens, self.overlength))
    }
}

/// Index and value of the greatest score, the first among equals.
fn greatest(scores: &[f32]) -> (usize, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    for (class, score) in scores.iter().enumerate() {
        if *score > best.1 {
            best = (class, *score);
        }
    }
    best
}
