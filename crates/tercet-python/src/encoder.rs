//! Sentence encoders: texts to unit vectors.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tercet::{DType, Device, Tensor};
use tercet_models::{Embedder, EncoderOptions, ModelFiles};

use crate::array;
use crate::errors;

/// A sentence encoder with its tokenizer.
#[pyclass(name = "Encoder", module = "tercet", frozen)]
pub(crate) struct PyEncoder {
    embedder: Mutex<Embedder>,
    width: usize,
    max_len: usize,
}

impl PyEncoder {
    /// Compiles the encoder for texts of up to `context` tokens, or as many as the model says.
    pub(crate) fn open(
        files: &ModelFiles,
        device: &Device,
        dtype: DType,
        context: Option<usize>,
    ) -> Result<PyEncoder, tercet_models::Error> {
        let options = EncoderOptions {
            dtype,
            most: context,
            ..EncoderOptions::default()
        };
        let embedder = files.embedder(device, &options)?;
        let max_len = embedder.most_tokens();
        Ok(PyEncoder {
            width: embedder.width(),
            embedder: Mutex::new(embedder),
            max_len,
        })
    }
}

/// Whether to go on: not after Ctrl-C, whose exception is kept.
pub(crate) fn go_on(interrupt: &mut Option<PyErr>) -> bool {
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
    /// The embeddings of texts, float32 of shape (texts, width), each of length 1 where the model normalizes. A text of more
    /// than `max_len` tokens is an error unless `truncate` says that it is cut.
    #[pyo3(signature = (texts, *, truncate=false))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<String>,
        truncate: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut interrupt = None;
        let embeddings = py.detach(|| {
            let mut embedder = self.embedder.lock().unwrap_or_else(PoisonError::into_inner);
            embedder.set_cutting(truncate);
            embedder.embed(&texts, &mut |_| go_on(&mut interrupt))
        });
        if let Some(e) = interrupt {
            return Err(e);
        }
        let rows = embeddings.map_err(errors::model)?;
        let tensor = Tensor::from_slice(&[texts.len(), self.width], &rows.concat());
        array::to_numpy(py, tensor.map_err(errors::tensor)?)
    }

    /// The number of elements of an embedding.
    #[getter]
    fn width(&self) -> usize {
        self.width
    }

    /// Tokens of the longest text.
    #[getter]
    fn max_len(&self) -> usize {
        self.max_len
    }

    fn __repr__(&self) -> String {
        format!(
            "<tercet.Encoder: {} numbers a text, at most {} tokens>",
            self.width, self.max_len
        )
    }
}
