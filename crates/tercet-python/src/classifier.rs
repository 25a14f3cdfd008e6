//! Classification of texts and tokens, and relevance scores of text pairs.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tercet::{DType, Device};
use tercet_models::{ClassHead, EncoderOptions, ModelError, ModelFiles, Scoring, TextClassifier};

use crate::encoder::should_continue;
use crate::texts::{TextArgs, texts_of};
use crate::{errors, html};

/// A text or token classifier with its tokenizer.
#[pyclass(name = "Classifier", module = "tercet", frozen)]
pub(crate) struct PyClassifier {
    classifier: Mutex<TextClassifier>,
    head: ClassHead,
    max_len: usize,
}

/// A token, its class and its score.
type ScoredTokenClass = (String, String, f32);

impl PyClassifier {
    /// Whether an encoder is a classifier: it has a classification head, and its folder is not
    /// configured for embeddings.
    pub(crate) fn is(files: &ModelFiles) -> bool {
        let embeds = files.sentence().is_ok_and(|said| said.stated);
        !embeds && files.class_head().is_ok()
    }

    /// Compiles the encoder for texts of at most `context` tokens [default: the model's maximum].
    pub(crate) fn open(
        files: &ModelFiles,
        device: &Device,
        dtype: DType,
        context: Option<usize>,
    ) -> Result<PyClassifier, tercet_models::Error> {
        let options = EncoderOptions {
            dtype,
            max_tokens: context,
            ..EncoderOptions::default()
        };
        let classifier = files.classifier(device, &options)?;
        Ok(PyClassifier {
            max_len: classifier.max_tokens(),
            classifier: Mutex::new(classifier),
            head: files.class_head()?,
        })
    }

    /// Calls `f` with the classifier, without the GIL; Ctrl-C cancels the call.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        (scoring, cut): (Scoring, bool),
        f: impl FnOnce(&mut TextClassifier, &mut dyn FnMut(usize) -> bool) -> Result<T, ModelError>
        + Send,
    ) -> PyResult<T> {
        let mut interrupt = None;
        let done = py.detach(|| {
            let own = self.classifier.lock();
            let mut classifier = own.unwrap_or_else(PoisonError::into_inner);
            classifier.set_scoring(scoring);
            classifier.set_truncating(cut);
            f(&mut classifier, &mut |_| should_continue(&mut interrupt))
        });
        match interrupt {
            Some(e) => Err(e),
            None => done.map_err(errors::model),
        }
    }

    fn unsupported<T>(reason: &str) -> PyResult<T> {
        Err(errors::model(ModelError::Unsupported(reason.to_string())))
    }
}

/// The only result, or the list of all.
fn one_or_all<'py>(
    py: Python<'py>,
    mut rows: Vec<Bound<'py, PyAny>>,
    is_one: bool,
) -> PyResult<Bound<'py, PyAny>> {
    match (is_one, rows.len()) {
        (true, 1) => Ok(rows.remove(0)),
        _ => Ok(PyList::new(py, rows)?.into_any()),
    }
}

#[pymethods]
impl PyClassifier {
    /// Returns the class scores of each text as a dictionary of labels, in the order of `labels`; one
    /// text gives one dictionary. A text of more than `max_len` tokens is an error, or is truncated if
    /// `truncate` is true.
    #[pyo3(signature = (texts, *, truncate=false))]
    fn classify<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        truncate: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        if self.head.per_token {
            return Self::unsupported("the model is a token classifier; use classify_tokens()");
        }
        let TextArgs { texts, is_one } = texts_of("texts", texts)?;
        let how = (self.head.scoring, truncate);
        let scores = self.with(py, how, |of, progress| {
            of.classify_with_progress(&texts, progress)
        })?;
        let rows = scores.into_iter().map(|scores| {
            let row = PyDict::new(py);
            let mut named = self.head.labels.iter().zip(scores);
            named.try_for_each(|(label, score)| row.set_item(label, score))?;
            Ok(row.into_any())
        });
        one_or_all(py, rows.collect::<PyResult<_>>()?, is_one)
    }

    /// Returns the tokens of each text with their most likely class and its score, without special
    /// tokens; one text gives one list.
    #[pyo3(signature = (texts, *, truncate=false))]
    fn classify_tokens<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        truncate: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        if !self.head.per_token {
            return Self::unsupported("the model is a text classifier; use classify()");
        }
        let TextArgs { texts, is_one } = texts_of("texts", texts)?;
        let how = (self.head.scoring, truncate);
        let found = self.with(py, how, |of, progress| {
            of.classify_tokens_with_progress(&texts, progress)
        })?;
        let labels = &self.head.labels;
        let rows = found.into_iter().map(|tokens| {
            let tokens = tokens.into_iter();
            let class = tokens.map(|t| (t.token, labels[t.label.class].clone(), t.label.score));
            Ok(PyList::new(py, class.collect::<Vec<ScoredTokenClass>>())?.into_any())
        });
        one_or_all(py, rows.collect::<PyResult<_>>()?, is_one)
    }

    /// Returns the positions and scores of documents, ranked by relevance to the query, best first.
    /// `top_n` limits the number of results. The model must have one class (a cross-encoder).
    #[pyo3(signature = (query, documents, *, top_n=None, truncate=false))]
    fn rerank(
        &self,
        py: Python<'_>,
        query: &str,
        documents: &Bound<'_, PyAny>,
        top_n: Option<usize>,
        truncate: bool,
    ) -> PyResult<Vec<(usize, f32)>> {
        let documents = texts_of("documents", documents)?.texts;
        if self.head.per_token {
            return Self::unsupported(
                "the model is a token classifier; reranking requires a cross-encoder with one class",
            );
        }
        let how = (self.head.ranking, truncate);
        let scores = self.with(py, how, |of, progress| {
            of.rerank_with_progress(query, &documents, progress)
        })?;
        let mut order: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
        // The sort is stable: documents with equal scores stay in input order.
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        order.truncate(top_n.unwrap_or(usize::MAX));
        Ok(order)
    }

    /// Names of the classes.
    #[getter]
    fn labels(&self) -> Vec<String> {
        self.head.labels.clone()
    }

    /// Maximum tokens of a text, or of a text pair.
    #[getter]
    fn max_len(&self) -> usize {
        self.max_len
    }

    fn _repr_html_(&self) -> String {
        let rows = [
            ("labels", self.head.labels.join(", ")),
            ("max_len", self.max_len.to_string()),
        ];
        html::record("tercet.Classifier", &rows)
    }

    fn __repr__(&self) -> String {
        let of = if self.head.per_token {
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
