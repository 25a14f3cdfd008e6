//! Generated texts of language models, as iterators of text pieces.
//!
//! A separate thread generates each text, with a compiled model from the model's pool.

use std::sync::Arc;

use pyo3::prelude::*;
use tercet_models::constraint::Grammar;
use tercet_models::{
    FinishReason, GenerateEvent, GenerateOptions, Generation, ModelError, SamplingOptions, generate,
};

use crate::language::SharedLanguageModel;
use crate::stream::ResultStream;

/// Arguments of a generation.
pub(crate) struct GenerationArgs {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    /// End-of-text tokens.
    pub(crate) eos: Vec<u32>,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingOptions,
    pub(crate) grammar: Option<Grammar>,
    pub(crate) seed: u64,
}

/// A text that is being generated: an iterator of text pieces.
#[pyclass(name = "Generation", module = "tercet", frozen)]
pub(crate) struct PyGeneration {
    stream: ResultStream<String, Generation>,
    seed: u64,
}

fn written(
    shared: &SharedLanguageModel,
    request: &GenerationArgs,
    send: &mut dyn FnMut(Option<String>) -> bool,
) -> Result<Generation, tercet_models::Error> {
    let mut generator = shared.acquire_generator()?;
    generator.set_sampling(&request.sampling)?;
    if let Some(grammar) = &request.grammar {
        let grammars = shared.grammars().map_err(ModelError::from)?;
        let constraint = grammars.constraint(grammar).map_err(ModelError::from)?;
        generator.set_constraint(Some(Box::new(constraint)))?;
    }
    generator.set_seed(request.seed);
    generator.skip_logits();
    generator.run_ahead();
    let options = GenerateOptions {
        max_tokens: request.max_tokens,
        stop: &request.stop,
        eos: &request.eos,
    };
    let written = generate(
        &mut generator,
        &shared.tokenizer,
        &request.prompt,
        &options,
        &mut |event| match event {
            GenerateEvent::Prompt(_) | GenerateEvent::Text("", _) => send(None),
            GenerateEvent::Text(text, _) => send(Some(text.to_string())),
        },
    );
    shared.release_generator(generator);
    written
}

impl PyGeneration {
    pub(crate) fn start(
        shared: Arc<SharedLanguageModel>,
        request: GenerationArgs,
    ) -> PyResult<PyGeneration> {
        let seed = request.seed;
        let work =
            move |send: &mut dyn FnMut(Option<String>) -> bool| written(&shared, &request, send);
        let stream = ResultStream::start("tercet-generate", work)?;
        Ok(PyGeneration { stream, seed })
    }
}

#[pymethods]
impl PyGeneration {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.stream.next(py)
    }

    /// Returns the remaining text as one string.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = String::new();
        while let Some(piece) = self.stream.next(py)? {
            text += &piece;
        }
        Ok(text)
    }

    /// Stops the generation.
    fn close(&self, py: Python<'_>) {
        self.stream.close(py);
    }

    /// The seed of the generation.
    #[getter]
    fn seed(&self) -> u64 {
        self.seed
    }

    /// The generated tokens, after the generation has finished.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> Option<Vec<u32>> {
        self.stream.at_end(py, |written| written.tokens.clone())
    }

    /// Why the generation finished: "end", "stop", "length" or "context"; `None` before that, or
    /// after `close()`.
    #[getter]
    fn finish_reason(&self, py: Python<'_>) -> Option<&'static str> {
        let finish = self.stream.at_end(py, |written| written.finish)?;
        match finish {
            FinishReason::End => Some("end"),
            FinishReason::Stop => Some("stop"),
            FinishReason::Length => Some("length"),
            FinishReason::Context => Some("context"),
            FinishReason::Cancelled => None,
        }
    }
}
