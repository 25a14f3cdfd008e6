//! Generated texts of language models, as iterators of text pieces.
//!
//! A separate thread generates each text, with a compiled model from the model's pool.

use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::PyStopAsyncIteration;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tercet::Tensor;
use tercet_models::answer::{AnswerParser, ParsedAnswer};
use tercet_models::constraint::Grammar;
use tercet_models::{
    Error, FinishReason, GenerateEvent, GenerateOptions, Generation, Generator, Image,
    LanguageModel, ModelError, PromptText, SamplingOptions,
};

use crate::language::{SharedLanguageModel, logits_after};
use crate::stream::{ResultStream, in_background};
use crate::{array, html, tool_calls};

/// The prompt of a generation.
pub(crate) enum PromptArgs {
    Tokens(Vec<u32>),
    /// A text with one placeholder for each image. Special tokens in its literal ranges are ordinary
    /// text.
    Images {
        text: String,
        literal: Vec<Range<usize>>,
        images: Vec<Image>,
    },
}

/// Arguments of a generation.
pub(crate) struct GenerationArgs {
    pub(crate) prompt: PromptArgs,
    pub(crate) max_tokens: usize,
    /// End-of-text tokens.
    pub(crate) eos: Vec<u32>,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingOptions,
    pub(crate) grammar: Option<Grammar>,
    pub(crate) seed: u64,
    /// Name or path of an adapter.
    pub(crate) adapter: Option<String>,
    /// Whether the result has the logits of each token.
    pub(crate) logits: bool,
    /// Special tokens that are part of the text.
    pub(crate) spelled: Arc<[u32]>,
    /// Parser of the answer of a conversation.
    pub(crate) answers: Option<AnswerParser>,
}

/// The result of a generation.
struct GeneratedText {
    generation: Generation,
    text: String,
    /// Logits that each token was selected from, `[tokens, vocab]`.
    logits: Option<Tensor>,
}

/// A text that is being generated: an iterator of text pieces.
#[pyclass(name = "Generation", module = "tercet", frozen)]
pub(crate) struct PyGeneration {
    stream: ResultStream<String, GeneratedText>,
    seed: u64,
    answers: Option<AnswerParser>,
}

fn written(
    shared: &SharedLanguageModel,
    request: &GenerationArgs,
    send: &mut dyn FnMut(Option<String>) -> bool,
) -> Result<GeneratedText, Error> {
    let adapter = request.adapter.as_deref();
    let mut model = shared.acquire(adapter)?;
    let written = written_with(&mut model, shared, request, send);
    shared.release(adapter, model);
    written
}

fn written_with(
    model: &mut LanguageModel,
    shared: &SharedLanguageModel,
    request: &GenerationArgs,
    send: &mut dyn FnMut(Option<String>) -> bool,
) -> Result<GeneratedText, Error> {
    let generator = model.generator_mut();
    generator.set_sampling(&request.sampling)?;
    if let Some(grammar) = &request.grammar {
        let grammars = shared.grammars().map_err(ModelError::from)?;
        let constraint = grammars.constraint(grammar).map_err(ModelError::from)?;
        generator.set_constraint(Some(Box::new(constraint)))?;
    }
    generator.set_seed(request.seed);
    let encoded;
    let prompt = match &request.prompt {
        PromptArgs::Tokens(tokens) => tokens,
        PromptArgs::Images {
            text,
            literal,
            images,
        } => {
            let prompt = PromptText {
                text,
                literal,
                images,
                has_special: false,
            };
            let read = (model.prompt_tokenizer()).encode(prompt, &mut |_, _| send(None))?;
            let Some(tokens) = read else {
                let generation = Generation {
                    tokens: Vec::new(),
                    finish: FinishReason::Cancelled,
                };
                return Ok(GeneratedText {
                    generation,
                    text: String::new(),
                    logits: None,
                });
            };
            encoded = tokens;
            &encoded
        }
    };
    let options = GenerateOptions {
        max_tokens: request.max_tokens,
        stop: &request.stop,
        eos: &request.eos,
        spelled: &request.spelled,
    };
    let mut text = String::new();
    let event = &mut |event: GenerateEvent<'_>| match event {
        GenerateEvent::Prompt(_) | GenerateEvent::Text("", _) => send(None),
        GenerateEvent::Text(piece, _) => {
            text += piece;
            send(Some(piece.to_string()))
        }
    };
    let generation = model.generate_tokens(prompt, &options, event, &mut |_, _| None)?;
    let logits = match request.logits {
        true => Some(logits_of(
            model.generator_mut(),
            prompt,
            &generation.tokens,
            shared.vocab,
        )?),
        false => None,
    };
    Ok(GeneratedText {
        generation,
        text,
        logits,
    })
}

/// The logits that tokens after a prompt were selected from, before sampling options. The tokens are
/// run again, since a generation keeps its logits on the device.
fn logits_of(
    generator: &mut Generator,
    prompt: &[u32],
    tokens: &[u32],
    vocab: usize,
) -> Result<Tensor, Error> {
    generator.reset();
    let mut logits = Vec::new();
    if let (Some((last, before)), Some((_, fed))) = (prompt.split_last(), tokens.split_last()) {
        if !before.is_empty() {
            generator.forward(before)?;
        }
        let rows = [&[*last], fed].concat();
        logits = logits_after(generator, &rows, true)?;
    }
    let tensor = Tensor::from_slice(&[tokens.len(), vocab], &logits);
    tensor.map_err(|e| ModelError::Unsupported(tercet::one_line(&e)).into())
}

impl PyGeneration {
    /// The finished answer, taken apart. A text that is no answer is one without thoughts and calls.
    fn answer(&self, py: Python<'_>) -> Option<ParsedAnswer> {
        let text = self.stream.at_end(py, |written| written.text.clone())?;
        Some(match &self.answers {
            Some(parser) => parser.clone().parse(&text),
            None => ParsedAnswer {
                text,
                ..ParsedAnswer::default()
            },
        })
    }

    pub(crate) fn start(
        shared: Arc<SharedLanguageModel>,
        request: GenerationArgs,
    ) -> PyResult<PyGeneration> {
        let (seed, answers) = (request.seed, request.answers.clone());
        let work =
            move |send: &mut dyn FnMut(Option<String>) -> bool| written(&shared, &request, send);
        let stream = ResultStream::start("tercet-generate", work)?;
        Ok(PyGeneration {
            stream,
            seed,
            answers,
        })
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

    fn __aiter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        in_background(slf.as_any(), "_next_piece")
    }

    /// Returns the next piece in a thread of the event loop.
    fn _next_piece(&self, py: Python<'_>) -> PyResult<String> {
        let piece = self.stream.next(py)?;
        piece.ok_or_else(|| PyStopAsyncIteration::new_err(()))
    }

    /// Like `text`, for `await`.
    fn atext<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        in_background(slf.as_any(), "text")
    }

    /// Like `close`, for `await`.
    fn aclose<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        in_background(slf.as_any(), "close")
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
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
        (self.stream).at_end(py, |written| written.generation.tokens.clone())
    }

    /// The logits that each token was selected from, before sampling options, of shape (tokens,
    /// vocabulary): after the generation has finished, if it was started with `logits=True`.
    #[getter]
    fn logits<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let logits = self.stream.at_end(py, |written| written.logits.clone());
        let logits = logits.flatten().map(|logits| array::to_numpy(py, logits));
        logits.transpose()
    }

    /// The calls of tools in the answer of a `chat` with tools, after the generation has finished:
    /// dictionaries as in OpenAI's API, which can be the `tool_calls` of a message.
    #[getter]
    fn tool_calls<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let answer = self.answer(py);
        answer
            .map(|answer| tool_calls::calls(py, &answer.calls))
            .transpose()
    }

    /// The thoughts of the answer of a `chat`, after the generation has finished.
    #[getter]
    fn reasoning(&self, py: Python<'_>) -> Option<String> {
        self.answer(py).map(|answer| answer.thought)
    }

    /// The answer of a `chat` without thoughts and calls, after the generation has finished.
    #[getter]
    fn content(&self, py: Python<'_>) -> Option<String> {
        self.answer(py).map(|answer| answer.text)
    }

    /// Why the generation finished: "end", "stop", "length" or "context"; `None` before that, or
    /// after `close()`.
    #[getter]
    fn finish_reason(&self, py: Python<'_>) -> Option<&'static str> {
        let finish = (self.stream).at_end(py, |written| written.generation.finish)?;
        match finish {
            FinishReason::End => Some("end"),
            FinishReason::Stop => Some("stop"),
            FinishReason::Length => Some("length"),
            FinishReason::Context => Some("context"),
            FinishReason::Cancelled => None,
        }
    }

    fn _repr_html_(&self, py: Python<'_>) -> String {
        let text = self.stream.at_end(py, |written| written.text.clone());
        html::text(&self.__repr__(py), text.as_deref().unwrap_or_default())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let tokens = |written: &GeneratedText| written.generation.tokens.len();
        let state = match self.stream.at_end(py, tokens) {
            Some(count) => tercet::counted(count, "token", "tokens"),
            None => "unfinished".to_string(),
        };
        format!("<tercet.Generation: {state}, seed {}>", self.seed)
    }
}
