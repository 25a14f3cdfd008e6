//! Language models: text as an iterator of pieces.
//!
//! Each text is written by a thread of its own, over a compiled model that is lent from the model's pool. Python's
//! thread waits without its lock and looks for Ctrl-C meanwhile; a reader that leaves ends the text.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tercet::{DType, Device};
use tercet_models::{
    Decoder, DecoderOptions, Event, Finish, Generator, ModelFiles, Products, Sampling, Tokenizer,
    WriteOptions, Written, write,
};

use crate::array;
use crate::errors::{self, ModelError};
use crate::graph::PyGraph;

/// How often Ctrl-C is looked for while a piece is awaited.
const LOOK: Duration = Duration::from_millis(50);

/// How a compiled model chooses tokens.
#[derive(Clone, Copy, PartialEq)]
struct Choice {
    temperature: f64,
    top_k: usize,
    top_p: f64,
}

struct Shared {
    files: ModelFiles,
    tokenizer: Tokenizer,
    device: Device,
    dtype: DType,
    products: Products,
    context: usize,
    eos: Vec<u32>,
    vocab: usize,
    /// Compiled models that write no text now.
    idle: Mutex<Vec<(Choice, Generator)>>,
}

/// A language model with its tokenizer.
#[pyclass(name = "LanguageModel", module = "tercet", frozen)]
pub(crate) struct PyLanguageModel {
    shared: Arc<Shared>,
}

impl Shared {
    fn decoder(&self, choice: Choice) -> Result<Decoder, tercet_models::Error> {
        self.files.decoder(|spec| DecoderOptions {
            context: self.context,
            chunk: 512.min(self.context),
            dtype: self.dtype,
            products: self.products,
            sampling: Some(Sampling {
                temperature: choice.temperature,
                top_k: choice.top_k,
                top_p: choice.top_p,
                ..Sampling::GREEDY
            }),
            ..DecoderOptions::new(spec)
        })
    }

    /// A compiled model for this choice, from the pool or new.
    fn take(&self, choice: Choice) -> Result<Generator, tercet_models::Error> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = idle.iter().position(|(c, _)| *c == choice) {
            return Ok(idle.swap_remove(at).1);
        }
        // One that chooses otherwise holds a cache that another may have.
        idle.pop();
        drop(idle);
        Ok(self.decoder(choice)?.generator(&self.device)?)
    }

    fn give_back(&self, choice: Choice, mut generator: Generator) {
        generator.reset();
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((choice, generator));
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
            products,
            idle: Mutex::default(),
        };
        Ok(PyLanguageModel {
            shared: Arc::new(shared),
        })
    }

    fn checked(&self, temperature: f64, top_k: usize, top_p: f64) -> PyResult<Choice> {
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(PyValueError::new_err(format!(
                "a temperature of {temperature}; expected 0 or more"
            )));
        }
        if !(0.0..=1.0).contains(&top_p) {
            return Err(PyValueError::new_err(format!(
                "a top_p of {top_p}; expected a number from 0 to 1"
            )));
        }
        Ok(Choice {
            temperature,
            top_k,
            top_p,
        })
    }
}

#[pymethods]
impl PyLanguageModel {
    /// Writes after a prompt: an iterator of pieces of text. Without a temperature the likeliest token is taken.
    #[pyo3(signature = (prompt, max_tokens=128, *, temperature=0.0, top_k=0, top_p=1.0, seed=0, stop=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn generate(
        &self,
        prompt: &str,
        max_tokens: usize,
        temperature: f64,
        top_k: usize,
        top_p: f64,
        seed: u64,
        stop: Option<Vec<String>>,
    ) -> PyResult<PyGeneration> {
        let choice = self.checked(temperature, top_k, top_p)?;
        let request = Request {
            prompt: self
                .shared
                .tokenizer
                .encode(prompt, true)
                .map_err(errors::model)?,
            max_tokens,
            stop: stop.unwrap_or_default(),
            choice,
            seed,
        };
        PyGeneration::start(Arc::clone(&self.shared), request)
    }

    /// The logits of the token after these, an array of the size of the vocabulary.
    fn logits<'py>(&self, py: Python<'py>, tokens: Vec<u32>) -> PyResult<Bound<'py, PyAny>> {
        let greedy = Choice {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
        };
        let logits = py.detach(|| -> Result<Vec<f32>, tercet_models::Error> {
            let mut generator = self.shared.take(greedy)?;
            let fed = generator.feed(&tokens).map(|_| ());
            let logits = fed.and_then(|()| generator.logits());
            self.shared.give_back(greedy, generator);
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
        let greedy = Choice {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
        };
        let decoder = py
            .detach(|| self.shared.decoder(greedy))
            .map_err(errors::model)?;
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

struct Request {
    prompt: Vec<u32>,
    max_tokens: usize,
    stop: Vec<String>,
    choice: Choice,
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
        let mut generator = shared.take(request.choice)?;
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
        shared.give_back(request.choice, generator);
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
                Err(ModelError::new_err(
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
