//! Classes of texts and of their tokens, and pairs of texts by their scores.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tercet::{DType, Device};
use tercet_models::{ClassHead, Classifier, EncoderOptions, ModelError, ModelFiles, Scoring};

use crate::encoder::go_on;
use crate::errors;

/// An encoder that tells classes, with its tokenizer.
#[pyclass(name = "Classifier", module = "tercet", frozen)]
pub(crate) struct PyClassifier {
    classifier: Mutex<Classifier>,
    head: ClassHead,
    max_len: usize,
}

/// A token, its class and the score of that.
type TokenClass = (String, String, f32);

impl PyClassifier {
    /// Whether an encoder is one: it has such a head, and its folder does not say that it embeds.
    pub(crate) fn is(files: &ModelFiles) -> bool {
        let embeds = files.sentence().is_ok_and(|said| said.stated);
        !embeds && files.class_head().is_ok()
    }

    /// Compiles the encoder for texts of up to `context` tokens, or as many as the model says.
    pub(crate) fn open(
        files: &ModelFiles,
        device: &Device,
        dtype: DType,
        context: Option<usize>,
    ) -> Result<PyClassifier, tercet_models::Error> {
        let options = EncoderOptions {
            dtype,
            most: context,
            ..EncoderOptions::default()
        };
        let classifier = files.classifier(device, &options)?;
        Ok(PyClassifier {
            max_len: classifier.most_tokens(),
            classifier: Mutex::new(classifier),
            head: files.class_head()?,
        })
    }

    /// Calls `f` with the classifier, without Python's lock, until Ctrl-C.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        (scoring, cut): (Scoring, bool),
        f: impl FnOnce(
            &mut Classifier,
            &mut dyn FnMut(usize) -> bool,
        ) -> Result<T, tercet_models::Error>
        + Send,
    ) -> PyResult<T> {
        let mut interrupt = None;
        let done = py.detach(|| {
            let own = self.classifier.lock();
            let mut classifier = own.unwrap_or_else(PoisonError::into_inner);
            classifier.set_scoring(scoring);
            classifier.set_cutting(cut);
            f(&mut classifier, &mut |_| go_on(&mut interrupt))
        });
        match interrupt {
            Some(e) => Err(e),
            None => done.map_err(errors::model),
        }
    }

    fn refused<T>(reason: &str) -> PyResult<T> {
        Err(errors::model(ModelError::Unsupported(reason.to_string())))
    }
}

#[pymethods]
impl PyClassifier {
    /// The scores of the classes of each text by their labels, in the order of `labels`. A text of more than `max_len`
    /// tokens is an error unless `truncate` says that it is cut.
    #[pyo3(signature = (texts, *, truncate=false))]
    fn classify<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<String>,
        truncate: bool,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        if self.head.of_tokens {
            return Self::refused("the model tells classes of tokens; ask classify_tokens()");
        }
        let how = (self.head.scoring, truncate);
        let scores = self.with(py, how, |of, progress| of.classify(&texts, progress))?;
        let row = |scores: Vec<f32>| {
            let row = PyDict::new(py);
            let mut named = self.head.labels.iter().zip(scores);
            named.try_for_each(|(label, score)| row.set_item(label, score))?;
            Ok(row)
        };
        scores.into_iter().map(row).collect()
    }

    /// Each token of each text with its likeliest class and the score of that, special tokens left out.
    #[pyo3(signature = (texts, *, truncate=false))]
    fn classify_tokens(
        &self,
        py: Python<'_>,
        texts: Vec<String>,
        truncate: bool,
    ) -> PyResult<Vec<Vec<TokenClass>>> {
        if !self.head.of_tokens {
            return Self::refused("the model tells classes of texts; ask classify()");
        }
        let how = (self.head.scoring, truncate);
        let found = self.with(py, how, |of, progress| of.classify_tokens(&texts, progress))?;
        let labels = &self.head.labels;
        let row = |tokens: Vec<tercet_models::TokenLabel>| {
            let tokens = tokens.into_iter();
            let class = tokens.map(|t| (t.token, labels[t.label.class].clone(), t.label.score));
            class.collect()
        };
        Ok(found.into_iter().map(row).collect())
    }

    /// Places of documents with their scores, those that answer the query best first; only the `top_n` best where it is
    /// given. The model has one class (a cross-encoder).
    #[pyo3(signature = (query, documents, *, top_n=None, truncate=false))]
    fn rerank(
        &self,
        py: Python<'_>,
        query: &str,
        documents: Vec<String>,
        top_n: Option<usize>,
        truncate: bool,
    ) -> PyResult<Vec<(usize, f32)>> {
        if self.head.of_tokens {
            return Self::refused(
                "the model tells classes of tokens; one that ranks has one score",
            );
        }
        let how = (self.head.ranking, truncate);
        let scores = self.with(py, how, |of, progress| {
            of.rerank(query, &documents, progress)
        })?;
        let mut order: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
        // Equal scores stay in their order.
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        order.truncate(top_n.unwrap_or(usize::MAX));
        Ok(order)
    }

    /// The names of the classes.
    #[getter]
    fn labels(&self) -> Vec<String> {
        self.head.labels.clone()
    }

    /// Tokens of the longest text, or pair of texts.
    #[getter]
    fn max_len(&self) -> usize {
        self.max_len
    }

    fn __repr__(&self) -> String {
        let of = if self.head.of_tokens {
            "tokens"
        } else {
            "texts"
        };
        let classes = self.head.labels.len();
        format!(
            "<tercet.Classifier: {classes} classes of {of}, at most {} tokens>",
            self.max_len
        )
    }
}
