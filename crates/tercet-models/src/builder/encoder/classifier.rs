//! Texts to classes, tokens to classes, pairs of texts to scores.

use tercet::Device;

use super::super::ModelError;
use super::Encoder;
use super::runner::{Longer, Runner, Tokens, all_tokens};
use crate::tokenizer::Tokenizer;
use crate::waits::{Waits, now};

/// What logits become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scoring {
    /// Probabilities that add up to 1: one class applies.
    Softmax,
    /// A probability each: any number of classes apply.
    Sigmoid,
    /// They stay.
    Raw,
}

impl Scoring {
    /// The scores of logits, in place.
    pub fn apply(self, logits: &mut [f32]) {
        match self {
            Scoring::Raw => {}
            Scoring::Sigmoid => logits
                .iter_mut()
                .for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
            Scoring::Softmax => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                logits.iter_mut().for_each(|x| *x = (*x - most).exp());
                let sum: f32 = logits.iter().sum();
                logits.iter_mut().for_each(|x| *x /= sum);
            }
        }
    }
}

/// A class of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Its place among the model's classes.
    pub class: usize,
    /// Its score.
    pub score: f32,
}

impl Label {
    /// The class of the greatest score, the first among equals.
    pub(super) fn likeliest(logits: &[f32], scoring: Scoring) -> Label {
        let mut own = logits.to_vec();
        scoring.apply(&mut own);
        let (class, score) = greatest(&own);
        Label { class, score }
    }
}

/// The class of a token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLabel {
    /// The token as the vocabulary spells it.
    pub token: String,
    /// Its likeliest class.
    pub label: Label,
}

/// A compiled encoder with a head, its tokenizer and the names of its classes.
pub struct Classifier {
    pub(super) runner: Runner,
    pub(super) tokenizer: Tokenizer,
    most: usize,
    longer: Longer,
    pub(super) labels: Vec<String>,
    pub(super) scoring: Scoring,
}

impl Classifier {
    /// Compiles `encoder` (built for [`EncoderOutput::Classes`](super::EncoderOutput) or `TokenClasses` of as many classes
    /// as there are labels) for texts of at most `most` tokens, `batch` of them at once (as
    /// [`Embedder::new`](super::Embedder::new)); longer ones are an error ([`Self::cutting`]).
    ///
    /// # Errors
    /// As [`Encoder::compile`]; [`ModelError::Unsupported`] when the graph gives no logits, or of another number of classes.
    pub fn new(
        encoder: &Encoder,
        tokenizer: Tokenizer,
        device: &Device,
        (batch, most): (Option<usize>, usize),
        labels: Vec<String>,
        scoring: Scoring,
    ) -> Result<Classifier, ModelError> {
        let pad = tokenizer.pad().unwrap_or(0);
        let runner = Runner::new(encoder, device, pad, (batch, most))?;
        if runner.output() != Some("logits") || encoder.width != labels.len() {
            return Err(ModelError::Unsupported(format!(
                "the encoder was not built for logits of {} classes",
                labels.len()
            )));
        }
        Ok(Classifier {
            runner,
            tokenizer,
            most,
            longer: Longer::Refused,
            labels,
            scoring,
        })
    }

    /// Cuts texts that are too long; of a pair the longer one first.
    #[must_use]
    pub fn cutting(mut self, cut: bool) -> Classifier {
        self.set_cutting(cut);
        self
    }

    /// As [`Self::cutting`], from the next texts on.
    pub fn set_cutting(&mut self, cut: bool) {
        self.longer = match cut {
            true => Longer::Cut,
            false => Longer::Refused,
        };
    }

    /// Makes other scores of logits, from the next texts on.
    pub fn set_scoring(&mut self, scoring: Scoring) {
        self.scoring = scoring;
    }

    /// Tokens of the longest text, or pair of texts.
    pub fn most_tokens(&self) -> usize {
        self.most
    }

    /// The names of the classes.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The scores of the classes of each text, in the order of [`Self::labels`]. `progress` as for
    /// [`Embedder::embed`](super::Embedder::embed).
    ///
    /// # Errors
    /// [`ModelError::TextTooLong`]; [`crate::Error`] of the tokenizer or the device.
    pub fn classify<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, crate::Error> {
        let texts = texts.iter().map(|text| (text.as_ref(), None));
        self.scores(texts, progress)
    }

    /// How well each document answers the query: the score of each pair. The model has one class.
    ///
    /// # Errors
    /// As [`Self::classify`]; [`ModelError::Unsupported`] for a model of several classes.
    pub fn rerank<T: AsRef<str>>(
        &mut self,
        query: &str,
        documents: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<f32>, crate::Error> {
        if self.labels.len() != 1 {
            let classes = self.labels.len();
            return Err(ModelError::Unsupported(format!(
                "the model tells {classes} classes; one that ranks has one score"
            ))
            .into());
        }
        let pairs = documents.iter().map(|text| (query, Some(text.as_ref())));
        let all = self.scores(pairs, progress)?;
        Ok(all.into_iter().flatten().collect())
    }

    fn scores<'t>(
        &mut self,
        texts: impl Iterator<Item = (&'t str, Option<&'t str>)>,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, crate::Error> {
        let all = self.tokens(texts)?;
        let (classes, scoring) = (self.labels.len(), self.scoring);
        let mut scores = vec![Vec::new(); all.len()];
        let take = &mut |at: usize, logits: &[f32]| {
            let mut own = logits[..classes].to_vec();
            scoring.apply(&mut own);
            scores[at] = own;
        };
        now((self.runner).run_all(&all, progress, take, Waits::Blocking))?;
        Ok(scores)
    }

    /// The likeliest class of each token, special ones left out, for a model of classes of tokens.
    ///
    /// # Errors
    /// As [`Self::classify`].
    pub fn classify_tokens<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<TokenLabel>>, crate::Error> {
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
                label: Label::likeliest(logits, scoring),
            });
            found[at] = labels.collect();
        };
        now((self.runner).run_all(&all, progress, take, Waits::Blocking))?;
        Ok(found)
    }

    pub(super) fn tokens<'t>(
        &self,
        texts: impl Iterator<Item = (&'t str, Option<&'t str>)>,
    ) -> Result<Vec<Tokens>, crate::Error> {
        let texts: Vec<(&str, Option<&str>)> = texts.collect();
        all_tokens(&self.tokenizer, &texts, (self.most, self.longer))
    }
}

/// The place of the greatest score, the first among equals, and the score.
fn greatest(scores: &[f32]) -> (usize, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    for (class, score) in scores.iter().enumerate() {
        if *score > best.1 {
            best = (class, *score);
        }
    }
    best
}
