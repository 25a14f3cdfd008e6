//! Labelled texts and text pairs for encoders, in batches padded to the longest text.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tercet_ir::Tensor;

use super::error::DataError;
use super::records::{DatasetRecord, DatasetTask, ReadLimits, RecordReader, TextLabel};
use super::split::{check_share, held_out};
use crate::tokenizer::{TokenizedBatch, Tokenizer};

/// A batch of encoder inputs.
///
/// ```
/// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
/// #     "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
/// #     "decoder": null,
/// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}"#;
/// # let tokenizer = tercet_text::Tokenizer::from_json(json.as_bytes())?;
/// use tercet_text::dataset::EncoderBatch;
/// let batch = EncoderBatch::new(&tokenizer, &["a b", "b"], 8)?;
/// assert_eq!((batch.ids.shape(), batch.mask.shape()), (&[2, 2][..], &[2, 2][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct EncoderBatch {
    /// Token ids, I32 `[b, s]`.
    pub ids: Tensor,
    /// Segment ids (token types), I32 `[b, s]`.
    pub type_ids: Tensor,
    /// Padding mask, Bool `[b, s]`: true for tokens, false for padding.
    pub mask: Tensor,
}

impl EncoderBatch {
    /// Tokenizes texts, each truncated to `max_len` tokens including special tokens.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`], [`DataError::Tensor`].
    pub fn new<T: AsRef<str>>(
        tokenizer: &Tokenizer,
        texts: &[T],
        max_len: usize,
    ) -> Result<EncoderBatch, DataError> {
        let TokenizedBatch {
            rows,
            row_len,
            ids,
            mask,
            type_ids,
        } = tokenizer.encode_batch(texts, max_len)?;
        let shape = [rows, row_len];
        // Token ids are below 2^31, because vocabulary sizes are.
        let signed = |ids: Vec<u32>| -> Vec<i32> { ids.into_iter().map(|id| id as i32).collect() };
        Ok(EncoderBatch {
            ids: Tensor::from_slice(&shape, &signed(ids))?,
            type_ids: Tensor::from_slice(&shape, &signed(type_ids))?,
            mask: Tensor::from_bools(&shape, &mask)?,
        })
    }
}

/// Labelled texts for classification.
///
/// ```
/// # let name = format!("tercet-doc-labelled-texts-{}.jsonl", std::process::id());
/// # let path = std::env::temp_dir().join(name);
/// use tercet_text::dataset::{LabelledTexts, ReadLimits};
/// std::fs::write(&path, r#"{"text": "good", "label": 1}
/// {"text": "bad", "label": 0}"#)?;
/// let texts = LabelledTexts::read(&path, None, ReadLimits::default())?;
/// assert_eq!((texts.names().len(), texts.classes()), (2, &[1, 0][..]));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelledTexts {
    texts: Vec<String>,
    /// Class of each text, as an index into `names`.
    labels: Vec<usize>,
    names: Vec<TextLabel>,
}

impl LabelledTexts {
    /// Reads a file of `{"text": ..., "label": ...}`. `names` are the labels of an existing model,
    /// in its class order. Without `names`, the labels come from the file: integers in ascending
    /// order, strings in alphabetical order.
    ///
    /// # Errors
    /// [`DataError`]: `Line` with the number of the invalid line, `MixedLabels`, `UnknownLabel`,
    /// `OneLabel`, `Empty`, `File`.
    pub fn read(
        path: impl AsRef<Path>,
        names: Option<&[TextLabel]>,
        limits: ReadLimits,
    ) -> Result<LabelledTexts, DataError> {
        let path = path.as_ref();
        let mut texts = Vec::new();
        let mut labels: Vec<TextLabel> = Vec::new();
        for record in RecordReader::open(path, DatasetTask::Labels, limits)? {
            let (line, DatasetRecord::Labelled { text, label }) = record? else {
                continue;
            };
            check_label(path, line, &label, labels.first(), names)?;
            texts.push(text);
            labels.push(label);
        }
        let Some(first) = labels.first() else {
            let path = path.to_path_buf();
            return Err(DataError::Empty { path });
        };
        let names = match names {
            Some(names) => names.to_vec(),
            None => {
                let found: BTreeSet<&TextLabel> = labels.iter().collect();
                if found.len() < 2 {
                    return Err(DataError::OneLabel {
                        path: path.to_path_buf(),
                        label: first.to_string(),
                    });
                }
                found.into_iter().cloned().collect()
            }
        };
        let place = |label| names.iter().position(|name| name == label);
        let places = labels.iter().filter_map(place).collect();
        Ok(LabelledTexts {
            texts,
            labels: places,
            names,
        })
    }

    /// Number of texts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are no texts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The text at index `at`.
    #[must_use]
    pub fn text(&self, at: usize) -> Option<&str> {
        self.texts.get(at).map(String::as_str)
    }

    /// The labels; class `i` is `names()[i]`.
    #[must_use]
    pub fn names(&self) -> &[TextLabel] {
        &self.names
    }

    /// The class of each text, as an index into [`Self::names`].
    #[must_use]
    pub fn classes(&self) -> &[usize] {
        &self.labels
    }

    /// The inputs of the selected texts, and their classes, I32 `[b]`. An [`BatchSampler`](super::BatchSampler)
    /// over [`Self::len`] items produces the indices. Indices out of range are ignored.
    ///
    /// # Errors
    /// The errors of [`EncoderBatch::new`].
    pub fn batch(
        &self,
        tokenizer: &Tokenizer,
        items: &[usize],
        max_len: usize,
    ) -> Result<(EncoderBatch, Tensor), DataError> {
        let items = items.iter().filter(|at| **at < self.len());
        let items: Vec<usize> = items.copied().collect();
        let texts: Vec<&str> = items.iter().map(|at| self.texts[*at].as_str()).collect();
        let labels: Vec<i32> = items.iter().map(|at| self.labels[*at] as i32).collect();
        let inputs = EncoderBatch::new(tokenizer, &texts, max_len)?;
        Ok((inputs, Tensor::from_slice(&[labels.len()], &labels)?))
    }

    /// Splits off a held-out set, like [`Corpus::split`](super::Corpus::split); equal texts stay
    /// together. The training set and the held-out set both have all label names.
    ///
    /// # Errors
    /// [`DataError::BadShare`]; [`DataError::TooFewToSplit`] unless two texts differ.
    pub fn split(
        self,
        share: f64,
        seed: u64,
    ) -> Result<(LabelledTexts, Option<LabelledTexts>), DataError> {
        let Some(held) = held(&self.texts, share, seed)? else {
            return Ok((self, None));
        };
        let part = |wanted: bool| {
            let items = (0..self.texts.len()).filter(|at| held[*at] == wanted);
            let items = items.map(|at| (self.texts[at].clone(), self.labels[at]));
            let (texts, labels) = items.unzip();
            LabelledTexts {
                texts,
                labels,
                names: self.names.clone(),
            }
        };
        Ok((part(false), Some(part(true))))
    }
}

impl std::fmt::Display for TextLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TextLabel::Int(label) => label.fmt(f),
            TextLabel::Name(label) => tercet_files::clip(label).fmt(f),
        }
    }
}

fn check_label(
    path: &Path,
    line: u64,
    label: &TextLabel,
    first: Option<&TextLabel>,
    names: Option<&[TextLabel]>,
) -> Result<(), DataError> {
    let path: PathBuf = path.to_path_buf();
    if let Some(names) = names {
        if names.contains(label) {
            return Ok(());
        }
        let known: Vec<String> = names.iter().take(20).map(TextLabel::to_string).collect();
        return Err(DataError::UnknownLabel {
            path,
            line,
            label: label.to_string(),
            known: known.join(", "),
        });
    }
    let found = match (label, first) {
        (TextLabel::Int(_), Some(TextLabel::Name(_))) => "an integer",
        (TextLabel::Name(_), Some(TextLabel::Int(_))) => "a string",
        _ => return Ok(()),
    };
    Err(DataError::MixedLabels { path, line, found })
}

/// The mask of held-out texts; `None` for a share of 0.
fn held<T: std::hash::Hash + Eq>(
    texts: &[T],
    share: f64,
    seed: u64,
) -> Result<Option<Vec<bool>>, DataError> {
    check_share(share)?;
    if share == 0.0 {
        return Ok(None);
    }
    let held = held_out(texts.iter(), share, seed);
    let too_few = || DataError::TooFewToSplit {
        found: texts.len(),
        what: "texts without differences",
    };
    Ok(Some(held.ok_or_else(too_few)?))
}

/// Text pairs for contrastive training of embeddings.
///
/// ```
/// # let name = format!("tercet-doc-text-pairs-{}.jsonl", std::process::id());
/// # let path = std::env::temp_dir().join(name);
/// use tercet_text::dataset::{ReadLimits, TextPairs};
/// std::fs::write(&path, r#"{"query": "capital of France", "positive": "Paris"}"#)?;
/// let pairs = TextPairs::read(&path, ReadLimits::default())?;
/// assert_eq!(pairs.pairs()[0].1, "Paris");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPairs {
    /// Pairs of anchor and positive.
    pairs: Vec<(String, String)>,
}

impl TextPairs {
    /// Reads a file of pairs ([`DatasetTask::Pairs`]).
    ///
    /// # Errors
    /// [`DataError`]: `Line` with the number of the invalid line, `Empty`, `File`.
    pub fn read(path: impl AsRef<Path>, limits: ReadLimits) -> Result<TextPairs, DataError> {
        let path = path.as_ref();
        let mut pairs = Vec::new();
        for record in RecordReader::open(path, DatasetTask::Pairs, limits)? {
            if let (_, DatasetRecord::Pair { anchor, positive }) = record? {
                pairs.push((anchor, positive));
            }
        }
        match pairs.is_empty() {
            true => Err(DataError::Empty {
                path: path.to_path_buf(),
            }),
            false => Ok(TextPairs { pairs }),
        }
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The pairs of anchor and positive.
    #[must_use]
    pub fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }

    /// The inputs of the anchors and of the positives of the selected pairs; row `i` of both is one
    /// pair. An [`BatchSampler`](super::BatchSampler) over [`Self::len`] items with
    /// [`LastBatchPolicy::Short`](super::LastBatchPolicy::Short) produces the indices. A batch then never has a pair
    /// twice, which would be its own negative. Indices out of range are ignored.
    ///
    /// # Errors
    /// The errors of [`EncoderBatch::new`].
    pub fn batch(
        &self,
        tokenizer: &Tokenizer,
        items: &[usize],
        max_len: usize,
    ) -> Result<(EncoderBatch, EncoderBatch), DataError> {
        let pairs = items.iter().filter_map(|at| self.pairs.get(*at));
        let (anchors, positives): (Vec<&str>, Vec<&str>) =
            pairs.map(|(a, p)| (a.as_str(), p.as_str())).unzip();
        Ok((
            EncoderBatch::new(tokenizer, &anchors, max_len)?,
            EncoderBatch::new(tokenizer, &positives, max_len)?,
        ))
    }

    /// Splits off a held-out set, like [`Corpus::split`](super::Corpus::split); pairs with the same
    /// anchor stay together.
    ///
    /// # Errors
    /// [`DataError::BadShare`]; [`DataError::TooFewToSplit`] unless two anchors differ.
    pub fn split(self, share: f64, seed: u64) -> Result<(TextPairs, Option<TextPairs>), DataError> {
        let anchors: Vec<&str> = self
            .pairs
            .iter()
            .map(|(anchor, _)| anchor.as_str())
            .collect();
        let Some(held) = held(&anchors, share, seed)? else {
            return Ok((self, None));
        };
        let part = |wanted: bool| {
            let pairs = self.pairs.iter().zip(&held);
            let pairs = pairs.filter(|(_, held)| **held == wanted);
            TextPairs {
                pairs: pairs.map(|(pair, _)| pair.clone()).collect(),
            }
        };
        Ok((part(false), Some(part(true))))
    }
}
