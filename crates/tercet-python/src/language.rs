//! Language models: text as an iterator of pieces.
//!
//! Each text is written by a thread of its own, over a compiled model that is lent from the model's pool. Python's
//! thread waits without its lock and looks for Ctrl-C meanwhile; a reader that leaves ends the text.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tercet::{DType, Device};
use tercet_models::constraint::{ConstraintError, Grammar, Grammars};
use tercet_models::{
    Decoder, DecoderOptions, Event, Finish, Generator, ModelError, ModelFiles, Products, Sampling,
    SamplingOptions, Tokenizer, WriteOptions, Written, write,
};

use crate::array;
use crate::errors;
use crate::graph::PyGraph;

/// How often Ctrl-C is looked for while a piece is awaited.
const LOOK: Duration = Duration::from_millis(50);

struct Shared {
    files: ModelFiles,
    tokenizer: Tokenizer,
    device: Device,
    dtype: DType,
    products: Products,
    context: usize,
    eos: Vec<u32>,
    vocab: usize,
    /// Made when a text is first constrained.
    grammars: OnceLock<Result<Grammars, ConstraintError>>,
    /// Compiled models that write no text now.
    idle: Mutex<Vec<Generator>>,
}

/// A language model with its tokenizer.
#[pyclass(name = "LanguageModel", module = "tercet", frozen)]
pub(crate) struct PyLanguageModel {
    shared: Arc<Shared>,
}

impl Shared {
    fn decoder(&self) -> Result<Decoder, tercet_models::Error> {
        self.files.decoder(|spec| DecoderOptions {
            context: self.context,
            chunk: 512.min(self.context),
            dtype: self.dtype,
            products: self.products,
            sampling: Some(Sampling::GREEDY),
            ..DecoderOptions::new(spec)
        })
    }

    /// A compiled model with an empty cache, from the pool or new.
    fn take(&self) -> Result<Generator, tercet_models::Error> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(generator) = idle.pop() {
            return Ok(generator);
        }
        drop(idle);
        Ok(self.decoder()?.generator(&self.device)?)
    }

    fn give_back(&self, mut generator: Generator) {
        generator.reset();
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(generator);
    }
}

impl PyLanguageModel {
    pub(crate) fn open(
        files: ModelFiles,
        device: Device,
        (dtype, products): (DType, Products),
        context: Option<usize>,
    ) -> Result<PyLanguageModel, tercet_models::Error> {
        let spec = files.decoder_spec()?;
        let shared = Shared {
            tokenizer: files.tokenizer()?,
            context: context.unwrap_or(spec.context),
            eos: spec.eos.to_vec(),
            vocab: spec.vocab,
            files,
            device,
            dtype,
            grammars: OnceLock::new(),
            products,
            idle: Mutex::default(),
        };
        Ok(PyLanguageModel {
            shared: Arc::new(shared),
        })
    }
}

#[pymethods]
impl PyLanguageModel {
    /// Writes after a prompt: an iterator of pieces of text. Without a temperature the likeliest token is taken.
    ///
    /// Penalties of presence and frequency look at what was written, that of repetition at the prompt, too; a bias of
    /// minus infinity forbids a token. Nothing is compiled for any of them.
    ///
    /// The text is JSON of `json_schema` (a dictionary, or its JSON), what `regex` matches as a whole, or of `grammar`, in
    /// Lark's notation.
    #[pyo3(signature = (prompt, max_tokens=128, *, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0,
        presence_penalty=0.0, frequency_penalty=0.0, logit_bias=None, json_schema=None, regex=None,
        grammar=None, seed=0, stop=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn generate(
        &self,
        prompt: &str,
        max_tokens: usize,
        temperature: f64,
        top_k: usize,
        top_p: f64,
        min_p: f64,
        repetition_penalty: f64,
        presence_penalty: f64,
        frequency_penalty: f64,
        logit_bias: Option<BTreeMap<u32, f32>>,
        json_schema: Option<&Bound<'_, PyAny>>,
        regex: Option<String>,
        grammar: Option<String>,
        seed: u64,
        stop: Option<Vec<String>>,
    ) -> PyResult<PyGeneration> {
        let sampling = SamplingOptions {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias: logit_bias.into_iter().flatten().collect(),
            ..SamplingOptions::default()
        };
        let checked = sampling.check(self.shared.vocab);
        checked.map_err(|e| PyValueError::new_err(tercet::one_line(&e)))?;
        let request = Request {
            prompt: self
                .shared
                .tokenizer
                .encode(prompt, true)
                .map_err(errors::model)?,
            max_tokens,
            grammar: grammar_of(json_schema, regex, grammar)?,
            stop: stop.unwrap_or_default(),
            sampling,
            seed,
        };
        PyGeneration::start(Arc::clone(&self.shared), request)
    }

    /// The logits of the token after these, an array of the size of the vocabulary.
    fn logits<'py>(&self, py: Python<'py>, tokens: Vec<u32>) -> PyResult<Bound<'py, PyAny>> {
        let logits = py.detach(|| -> Result<Vec<f32>, tercet_models::Error> {
            let mut generator = self.shared.take()?;
            let fed = generator.feed(&tokens).map(|_| ());
            let logits = fed.and_then(|()| generator.logits());
            self.shared.give_back(generator);
            Ok(logits?)
        });
        let logits = logits.map_err(errors::model)?;
        let tensor =
            tercet::Tensor::from_slice(&[logits.len()], &logits).map_err(errors::tensor)?;
        array::to_numpy(py, &tensor)
    }

    /// The tokens of a text, with those that begin one for the model unless `special` is false.
    #[pyo3(signature = (text, special=true))]
    fn encode(&self, text: &str, special: bool) -> PyResult<Vec<u32>> {
        self.shared
            .tokenizer
            .encode(text, special)
            .map_err(errors::model)
    }

    /// The text of tokens.
    fn decode(&self, tokens: Vec<u32>) -> PyResult<String> {
        self.shared.tokenizer.decode(&tokens).map_err(errors::model)
    }

    /// The graph that one run of the model computes.
    fn graph(&self, py: Python<'_>) -> PyResult<PyGraph> {
        let decoder = py.detach(|| self.shared.decoder()).map_err(errors::model)?;
        Ok(PyGraph::of(decoder.model.graph))
    }

    /// The most tokens of a text, prompt included.
    #[getter]
    fn context(&self) -> usize {
        self.shared.context
    }

    /// The number of tokens that there are.
    #[getter]
    fn vocab(&self) -> usize {
        self.shared.vocab
    }

    fn __repr__(&self) -> String {
        format!(
            "<tercet.LanguageModel on {}: context {}, vocabulary {}>",
            self.shared.device.name(),
            self.shared.context,
            self.shared.vocab
        )
    }
}

/// What a text has to be, of the three ways to say it.
fn grammar_of(
    json_schema: Option<&Bound<'_, PyAny>>,
    regex: Option<String>,
    grammar: Option<String>,
) -> PyResult<Option<Grammar>> {
    match (json_schema, regex, grammar) {
        (None, None, None) => Ok(None),
        (None, Some(regex), None) => Ok(Some(Grammar::Regex(regex))),
        (None, None, Some(lark)) => Ok(Some(Grammar::Lark(lark))),
        (Some(schema), None, None) => {
            let text: String = match schema.extract() {
                Ok(text) => text,
                Err(_) => {
                    let dumps = schema.py().import("json")?.getattr("dumps")?;
                    dumps.call1((schema,))?.extract()?
                }
            };
            let grammar = Grammar::json_schema(&text);
            grammar
                .map(Some)
                .map_err(|e| PyValueError::new_err(tercet::one_line(&e)))
        }
        _ => Err(PyValueError::new_err(
            "json_schema, regex and grammar exclude each other; give one",
        )),
    }
}

struct Request {
    prompt: Vec<u32>,
    max_tokens: usize,
    stop: Vec<String>,
    sampling: SamplingOptions,
    grammar: Option<Grammar>,
    seed: u64,
}

enum Message {
    Piece(String),
    Done(Result<Written, tercet_models::Error>),
}

/// A text that is being written: an iterator of its pieces.
#[pyclass(name = "Generation", module = "tercet", frozen)]
pub(crate) struct PyGeneration {
    state: Mutex<State>,
}

struct State {
    /// `None` once the text has ended, or nobody wants more of it.
    pieces: Option<Receiver<Message>>,
    written: Option<Written>,
}

/// The body of the thread that writes.
fn work(shared: &Shared, request: &Request, pieces: &SyncSender<Message>) {
    let done = || -> Result<Written, tercet_models::Error> {
        let mut generator = shared.take()?;
        generator.set_sampling(&request.sampling)?;
        if let Some(grammar) = &request.grammar {
            let grammars = shared
                .grammars
                .get_or_init(|| Grammars::new(&shared.tokenizer, &shared.eos, shared.vocab));
            let grammars = grammars.as_ref().map_err(|e| ModelError::from(e.clone()))?;
            let constraint = grammars.constraint(grammar).map_err(ModelError::from)?;
            generator.set_constraint(Some(Box::new(constraint)))?;
        }
        generator.set_seed(request.seed);
        generator.skip_logits();
        let options = WriteOptions {
            max_tokens: request.max_tokens,
            stop: &request.stop,
            eos: &shared.eos,
        };
        let written = write(
            &mut generator,
            &shared.tokenizer,
            &request.prompt,
            &options,
            &mut |event| match event {
                // An empty piece only asks whether somebody still listens.
                Event::Prompt(_) => pieces.send(Message::Piece(String::new())).is_ok(),
                Event::Text(text, _) => pieces.send(Message::Piece(text.to_string())).is_ok(),
            },
        );
        shared.give_back(generator);
        written
    };
    // Who has left needs no result.
    let _ = pieces.send(Message::Done(done()));
}

impl PyGeneration {
    fn start(shared: Arc<Shared>, request: Request) -> PyResult<PyGeneration> {
        let (send, receive) = sync_channel(1);
        let thread = std::thread::Builder::new().name("tercet-generate".into());
        thread.spawn(move || work(&shared, &request, &send))?;
        Ok(PyGeneration {
            state: Mutex::new(State {
                pieces: Some(receive),
                written: None,
            }),
        })
    }

    /// The next message, or nothing where Ctrl-C should be looked for.
    fn next(&self) -> Result<Option<Message>, PyErr> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pieces) = &state.pieces else {
            return Ok(Some(Message::Piece(String::new())));
        };
        match pieces.recv_timeout(LOOK) {
            Ok(Message::Done(done)) => {
                state.pieces = None;
                state.written = Some(done.map_err(errors::model)?);
                Ok(None)
            }
            Ok(piece) => Ok(Some(piece)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                state.pieces = None;
                Err(errors::ModelError::new_err(
                    "the thread that writes the text has ended without a result",
                ))
            }
        }
    }

    fn is_over(&self) -> bool {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pieces
            .is_none()
    }
}

#[pymethods]
impl PyGeneration {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        loop {
            if let Err(interrupt) = py.check_signals() {
                self.close(py);
                return Err(interrupt);
            }
            if py.detach(|| self.is_over()) {
                return Ok(None);
            }
            if let Some(Message::Piece(piece)) = py.detach(|| self.next())?
                && !piece.is_empty()
            {
                return Ok(Some(piece));
            }
        }
    }

    /// The rest of the text in one piece.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = String::new();
        while let Some(piece) = self.__next__(py)? {
            text += &piece;
        }
        Ok(text)
    }

    /// Ends the text here.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            self.state
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pieces = None
        });
    }

    /// The tokens that were written, once the text has ended.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> Option<Vec<u32>> {
        py.detach(|| {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.written.as_ref().map(|w| w.tokens.clone())
        })
    }

    /// Why the text ended: "end", "stop", "length" or "context"; `None` before, or where it was closed.
    #[getter]
    fn finish_reason(&self, py: Python<'_>) -> Option<&'static str> {
        let finish = py.detach(|| {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.written.as_ref().map(|w| w.finish)
        });
        finish.and_then(|f| match f {
            Finish::End => Some("end"),
            Finish::Stop => Some("stop"),
            Finish::Length => Some("length"),
            Finish::Context => Some("context"),
            Finish::Cancelled => None,
        })
    }
}
