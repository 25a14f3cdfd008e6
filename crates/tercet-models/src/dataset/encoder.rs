//! Labelled texts and pairs for encoders, in batches padded to their longest text.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tercet::Tensor;

use super::error::DataError;
use super::records::{Label, ReadLimits, Record, Records, Task};
use super::split::{check_share, held_out};
use crate::tokenizer::{Batch, Tokenizer};

/// The inputs of an encoder.
#[derive(Clone, Debug)]
pub struct EncoderBatch {
    /// Token ids, I32 `[b, s]`.
    pub ids: Tensor,
    /// Segments of texts, I32 `[b, s]`.
    pub type_ids: Tensor,
    /// True for tokens, false for padding, Bool `[b, s]`.
    pub mask: Tensor,
}

impl EncoderBatch {
    /// Tokenizes texts, each cut at `max_len` tokens, special ones included.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`], [`DataError::Tensor`].
    pub fn new<T: AsRef<str>>(
        tokenizer: &Tokenizer,
        texts: &[T],
        max_len: usize,
    ) -> Result<EncoderBatch, DataError> {
        let Batch {
            rows,
            row_len,
            ids,
            mask,
            type_ids,
        } = tokenizer.encode_batch(texts, max_len)?;
        let shape = [rows, row_len];
        // Ids are below 2^31: vocabularies are.
        let signed = |ids: Vec<u32>| -> Vec<i32> { ids.into_iter().map(|id| id as i32).collect() };
        Ok(EncoderBatch {
            ids: Tensor::from_slice(&shape, &signed(ids))?,
            type_ids: Tensor::from_slice(&shape, &signed(type_ids))?,
            mask: Tensor::from_bools(&shape, &mask)?,
        })
    }
}

/// Texts with labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelledTexts {
    texts: Vec<String>,
    /// Places in `names`.
    labels: Vec<usize>,
    names: Vec<Label>,
}

impl LabelledTexts {
    /// Reads a file of `{"text": ..., "label": ...}`. `names` are the labels that a model knows
    /// already, in its order; without them they are those of the file, integers by size, strings
    /// by the alphabet.
    ///
    /// # Errors
    /// [`DataError`]: `Line` with the number of the line that was refused, `MixedLabels`,
    /// `UnknownLabel`, `OneLabel`, `Empty`, `File`.
    pub fn read(
        path: impl AsRef<Path>,
        names: Option<&[Label]>,
        limits: ReadLimits,
    ) -> Result<LabelledTexts, DataError> {
        let path = path.as_ref();
        let mut texts = Vec::new();
        let mut labels: Vec<Label> = Vec::new();
        for record in Records::open(path, Task::Labels, limits)? {
            let (line, Record::Labelled { text, label }) = record? else {
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
                let found: BTreeSet<&Label> = labels.iter().collect();
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

    /// The number of texts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// A text by its place.
    #[must_use]
    pub fn text(&self, at: usize) -> Option<&str> {
        self.texts.get(at).map(String::as_str)
    }

    /// The labels; class `i` is `names()[i]`.
    #[must_use]
    pub fn names(&self) -> &[Label] {
        &self.names
    }

    /// The classes of the texts, as places in [`Self::names`].
    #[must_use]
    pub fn classes(&self) -> &[usize] {
        &self.labels
    }

    /// The inputs for these texts, and their classes, I32 `[b]`. Which texts is said by an
    /// [`Order`](super::Order) over [`Self::len`] items; numbers beyond it are left out.
    ///
    /// # Errors
    /// As [`EncoderBatch::new`].
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

    /// Takes out a held-out part, as [`Corpus::split`](super::Corpus::split) does; equal texts go
    /// together. Both parts have all names.
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

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Label::Int(label) => label.fmt(f),
            Label::Name(label) => crate::gguf::clip(label).fmt(f),
        }
    }
}

fn check_label(
    path: &Path,
    line: u64,
    label: &Label,
    first: Option<&Label>,
    names: Option<&[Label]>,
) -> Result<(), DataError> {
    let path: PathBuf = path.to_path_buf();
    if let Some(names) = names {
        if names.contains(label) {
            return Ok(());
        }
        let known: Vec<String> = names.iter().take(20).map(Label::to_string).collect();
        return Err(DataError::UnknownLabel {
            path,
            line,
            label: label.to_string(),
            known: known.join(", "),
        });
    }
    let found = match (label, first) {
        (Label::Int(_), Some(Label::Name(_))) => "an integer",
        (Label::Name(_), Some(Label::Int(_))) => "a string",
        _ => return Ok(()),
    };
    Err(DataError::MixedLabels { path, line, found })
}

/// Which texts are held out; `None` for a share of 0.
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
        what: "texts that do not differ",
    };
    Ok(Some(held.ok_or_else(too_few)?))
}

/// Pairs of texts that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPairs {
    /// Anchor and positive.
    pairs: Vec<(String, String)>,
}

impl TextPairs {
    /// Reads a file of pairs ([`Task::Pairs`]).
    ///
    /// # Errors
    /// [`DataError`]: `Line` with the number of the line that was refused, `Empty`, `File`.
    pub fn read(path: impl AsRef<Path>, limits: ReadLimits) -> Result<TextPairs, DataError> {
        let path = path.as_ref();
        let mut pairs = Vec::new();
        for record in Records::open(path, Task::Pairs, limits)? {
            if let (_, Record::Pair { anchor, positive }) = record? {
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

    /// The number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The pairs, anchor and positive.
    #[must_use]
    pub fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }

    /// The inputs for the anchors and for the positives of these pairs: row `i` of both is a pair.
    /// Which pairs is said by an [`Order`](super::Order) over [`Self::len`] items with
    /// [`Last::Short`](super::Last::Short), so that no pair stands against itself; numbers
    /// beyond it are left out.
    ///
    /// # Errors
    /// As [`EncoderBatch::new`].
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

    /// Takes out a held-out part, as [`Corpus::split`](super::Corpus::split) does; pairs with the
    /// same anchor go together.
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
