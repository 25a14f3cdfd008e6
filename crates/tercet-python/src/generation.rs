//! Texts of language models as iterators of pieces.
//!
//! Each text is written by a thread of its own, over a compiled model that is lent from the model's pool.

use std::sync::Arc;

use pyo3::prelude::*;
use tercet_models::constraint::Grammar;
use tercet_models::{Event, Finish, ModelError, SamplingOptions, WriteOptions, Written, write};

use crate::language::Shared;
use crate::stream::Stream;

/// A text that is asked for.
pub(crate) struct Request {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    /// Tokens that end it.
    pub(crate) eos: Vec<u32>,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingOptions,
    pub(crate) grammar: Option<Grammar>,
    pub(crate) seed: u64,
}

/// A text that is being written: an iterator of its pieces.
#[pyclass(name = "Generation", module = "tercet", frozen)]
pub(crate) struct PyGeneration(Stream<String, Written>);

fn written(
    shared: &Shared,
    request: &Request,
    send: &mut dyn FnMut(Option<String>) -> bool,
) -> Result<Written, tercet_models::Error> {
    let mut generator = shared.take()?;
    generator.set_sampling(&request.sampling)?;
    if let Some(grammar) = &request.grammar {
        let grammars = shared.grammars().map_err(ModelError::from)?;
        let constraint = grammars.constraint(grammar).map_err(ModelError::from)?;
        generator.set_constraint(Some(Box::new(constraint)))?;
    }
    generator.set_seed(request.seed);
    generator.skip_logits();
    generator.run_ahead();
    let options = WriteOptions {
        max_tokens: request.max_tokens,
        stop: &request.stop,
        eos: &request.eos,
    };
    let written = write(
        &mut generator,
        &shared.tokenizer,
        &request.prompt,
        &options,
        &mut |event| match event {
            Event::Prompt(_) | Event::Text("", _) => send(None),
            Event::Text(text, _) => send(Some(text.to_string())),
        },
    );
    shared.give_back(generator);
    written
}

impl PyGeneration {
    pub(crate) fn start(shared: Arc<Shared>, request: Request) -> PyResult<PyGeneration> {
        let work =
            move |send: &mut dyn FnMut(Option<String>) -> bool| written(&shared, &request, send);
        Ok(PyGeneration(Stream::start("tercet-generate", work)?))
    }
}

#[pymethods]
impl PyGeneration {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.0.next(py)
    }

    /// The rest of the text in one piece.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = String::new();
        while let Some(piece) = self.0.next(py)? {
            text += &piece;
        }
        Ok(text)
    }

    /// Ends the text here.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    /// The tokens that were written, once the text has ended.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> Option<Vec<u32>> {
        self.0.at_end(py, |written| written.tokens.clone())
    }

    /// Why the text ended: "end", "stop", "length" or "context"; `None` before, or where it was closed.
    #[getter]
    fn finish_reason(&self, py: Python<'_>) -> Option<&'static str> {
        let finish = self.0.at_end(py, |written| written.finish)?;
        match finish {
            Finish::End => Some("end"),
            Finish::Stop => Some("stop"),
            Finish::Length => Some("length"),
            Finish::Context => Some("context"),
            Finish::Cancelled => None,
        }
    }
}
