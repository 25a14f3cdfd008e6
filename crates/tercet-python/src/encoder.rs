//! Sentence encoders: texts to unit vectors.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tercet::{DType, Device, Tensor};
use tercet_models::{Embedder, ModelFiles, Pooling};

use crate::array;
use crate::errors;

/// Texts of a run.
const BATCH: usize = 32;

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
        let bert = files.bert(Pooling::MeanNormalized, dtype)?;
        let said = match files {
            ModelFiles::Hf(folder) => folder.max_seq_length()?,
            ModelFiles::Gguf(_) => None,
        };
        let positions = bert.config.max_positions;
        let max_len = context.or(said).unwrap_or(positions).min(positions);
        let embedder = Embedder::new(&bert, files.tokenizer()?, device, BATCH, max_len)?;
        Ok(PyEncoder {
            width: embedder.width(),
            embedder: Mutex::new(embedder),
            max_len,
        })
    }
}

#[pymethods]
impl PyEncoder {
    /// The embeddings of texts, float32 of shape (texts, width), each of length 1.
    fn embed<'py>(&self, py: Python<'py>, texts: Vec<String>) -> PyResult<Bound<'py, PyAny>> {
        let mut interrupt = None;
        let embeddings = py.detach(|| {
            let mut embedder = self.embedder.lock().unwrap_or_else(PoisonError::into_inner);
            embedder.embed(
                &texts,
                &mut |_| match Python::attach(|py| py.check_signals()) {
                    Ok(()) => true,
                    Err(e) => {
                        interrupt = Some(e);
                        false
                    }
                },
            )
        });
        if let Some(e) = interrupt {
            return Err(e);
        }
        let rows = embeddings.map_err(errors::model)?;
        let tensor = Tensor::from_slice(&[texts.len(), self.width], &rows.concat());
        array::to_numpy(py, &tensor.map_err(errors::tensor)?)
    }

    /// The number of elements of an embedding.
    #[getter]
    fn width(&self) -> usize {
        self.width
    }

    /// Texts are cut at so many tokens.
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
