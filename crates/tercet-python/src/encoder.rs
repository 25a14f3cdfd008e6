//! Sentence encoders: embeddings of texts.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tercet::{DType, Device, Tensor};
use tercet_models::{Embedder, EncoderOptions, ModelFiles, PoolingMode};

use crate::texts::{TextArgs, texts_of};
use crate::{array, errors, html};

/// A sentence encoder with its tokenizer.
#[pyclass(name = "Encoder", module = "tercet", frozen)]
pub(crate) struct PyEncoder {
    embedder: Mutex<Embedder>,
    width: usize,
    max_len: usize,
}

impl PyEncoder {
    /// Compiles the encoder for texts of at most `context` tokens [default: the model's maximum].
    pub(crate) fn open(
        files: &ModelFiles,
        device: &Device,
        dtype: DType,
        context: Option<usize>,
        pooling: Option<PoolingMode>,
    ) -> Result<PyEncoder, tercet_models::Error> {
        let options = EncoderOptions {
            dtype,
            max_tokens: context,
            pooling,
            ..EncoderOptions::default()
        };
        let embedder = files.embedder(device, &options)?;
        let max_len = embedder.max_tokens();
        Ok(PyEncoder {
            width: embedder.width(),
            embedder: Mutex::new(embedder),
            max_len,
        })
    }
}

/// Returns false after Ctrl-C, and stores its exception in `interrupt`.
pub(crate) fn should_continue(interrupt: &mut Option<PyErr>) -> bool {
    match Python::attach(|py| py.check_signals()) {
        Ok(()) => true,
        Err(e) => {
            *interrupt = Some(e);
            false
        }
    }
}

#[pymethods]
impl PyEncoder {
    /// Returns the embeddings of texts: float32 of shape (texts, width), with unit length if the
    /// model normalizes. One text gives one embedding, of shape (width,). A text of more than
    /// `max_len` tokens is an error, or is truncated if `truncate` is true.
    #[pyo3(signature = (texts, *, truncate=false))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        truncate: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let TextArgs { texts, is_one } = texts_of("texts", texts)?;
        let mut interrupt = None;
        let embeddings = py.detach(|| {
            let mut embedder = self.embedder.lock().unwrap_or_else(PoisonError::into_inner);
            embedder.set_truncating(truncate);
            embedder.embed_with_progress(&texts, &mut |_| should_continue(&mut interrupt))
        });
        if let Some(e) = interrupt {
            return Err(e);
        }
        let rows = embeddings.map_err(errors::model)?;
        let shape: &[usize] = match is_one {
            true => &[self.width],
            false => &[texts.len(), self.width],
        };
        let tensor = Tensor::from_slice(shape, &rows.concat());
        array::to_numpy(py, tensor.map_err(errors::tensor)?)
    }

    /// The same as `embed`, under the name that sentence-transformers uses.
    #[pyo3(signature = (texts, *, truncate=false))]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        truncate: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.embed(py, texts, truncate)
    }

    /// Number of elements of an embedding.
    #[getter]
    fn width(&self) -> usize {
        self.width
    }

    /// Maximum tokens of a text.
    #[getter]
    fn max_len(&self) -> usize {
        self.max_len
    }

    fn _repr_html_(&self) -> String {
        let rows = [("width", self.width), ("max_len", self.max_len)];
        html::record(
            "tercet.Encoder",
            &rows.map(|(name, n)| (name, n.to_string())),
        )
    }

    fn __repr__(&self) -> String {
        format!(
            "<tercet.Encoder: {} dimensions, at most {} tokens>",
            self.width, self.max_len
        )
    }
}
