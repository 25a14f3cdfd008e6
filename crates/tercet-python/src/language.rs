//! Language models: what they are asked for. `generation` is what they answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tercet::{DType, Device};
use tercet_models::constraint::{ConstraintError, Grammar, Grammars};
use tercet_models::dataset::template::Value;
use tercet_models::dataset::{ChatTemplate, DataError, Message, Role};
use tercet_models::{
    Decoder, DecoderOptions, Generator, ModelFiles, Products, Sampling, SamplingOptions, Tokenizer,
    turn_ends,
};

use crate::array;
use crate::errors;
use crate::generation::{PyGeneration, Request};
use crate::graph::PyGraph;

/// A model and what texts of it share.
pub(crate) struct Shared {
    files: ModelFiles,
    pub(crate) tokenizer: Tokenizer,
    device: Device,
    dtype: DType,
    products: Products,
    context: usize,
    eos: Vec<u32>,
    pub(crate) vocab: usize,
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
    pub(crate) fn take(&self) -> Result<Generator, tercet_models::Error> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(generator) = idle.pop() {
            return Ok(generator);
        }
        drop(idle);
        Ok(self.decoder()?.generator(&self.device)?)
    }

    pub(crate) fn give_back(&self, mut generator: Generator) {
        generator.reset();
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(generator);
    }
}

impl Shared {
    /// What makes constraints of grammars.
    pub(crate) fn grammars(&self) -> Result<&Grammars, ConstraintError> {
        let new = || Grammars::new(&self.tokenizer, &self.eos, self.vocab);
        self.grammars
            .get_or_init(new)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// The tokens of a conversation up to where the answer begins.
    fn conversation(&self, messages: &[BTreeMap<String, String>]) -> PyResult<Vec<u32>> {
        let messages = messages.iter().map(|fields| self.message(fields));
        let messages = messages.collect::<PyResult<Vec<Message>>>()?;
        if messages.is_empty() {
            return Err(PyValueError::new_err("there is no message"));
        }
        let template = ChatTemplate::of(&self.files, &self.tokenizer).map_err(errors::model)?;
        let rendered = template.render(&messages, &Value::None, true);
        let rendered = rendered.map_err(|e| errors::model(DataError::from(e)))?;
        let tokens = self.tokenizer.encode(&rendered.text, false);
        tokens.map_err(errors::model)
    }

    fn message(&self, fields: &BTreeMap<String, String>) -> PyResult<Message> {
        if let Some(other) = fields.keys().find(|k| *k != "role" && *k != "content") {
            return Err(PyValueError::new_err(format!(
                "a message has `{other}`; it takes `role` and `content`"
            )));
        }
        let (Some(role), Some(content)) = (fields.get("role"), fields.get("content")) else {
            return Err(PyValueError::new_err(
                "a message lacks `role` or `content`; it takes both",
            ));
        };
        let Some(known) = Role::ALL.iter().find(|known| known.name() == role) else {
            let names: Vec<&str> = Role::ALL.iter().map(|role| role.name()).collect();
            return Err(PyValueError::new_err(format!(
                "a message has the role `{role}`; expected one of {}",
                names.join(", ")
            )));
        };
        match self.tokenizer.spells_special(content) {
            Ok(false) => Ok(Message::new(*known, content)),
            Ok(true) => Err(PyValueError::new_err(
                "a message spells a special token of the model, which could end its turn; leave it out",
            )),
            Err(e) => Err(errors::model(e)),
        }
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
        let prompt = self.shared.tokenizer.encode(prompt, true);
        self.start(Request {
            prompt: prompt.map_err(errors::model)?,
            max_tokens,
            eos: self.shared.eos.clone(),
            grammar: grammar_of(json_schema, regex, grammar)?,
            stop: stop.unwrap_or_default(),
            sampling,
            seed,
        })
    }

    /// Answers a conversation: messages with `role` (`system`, `user`, `assistant`, ...) and `content`, written by the
    /// model's chat template (ChatML where it has none). The answer ends where the model ends its turn, or after
    /// `max_tokens`; all else is as with `generate`.
    #[pyo3(signature = (messages, max_tokens=None, *, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0,
        repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=None, json_schema=None,
        regex=None, grammar=None, seed=0, stop=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn chat(
        &self,
        messages: Vec<BTreeMap<String, String>>,
        max_tokens: Option<usize>,
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
        let prompt = self.shared.conversation(&messages)?;
        let room = self.shared.context.saturating_sub(prompt.len());
        self.start(Request {
            prompt,
            max_tokens: max_tokens.unwrap_or(room),
            eos: turn_ends(&self.shared.eos, &self.shared.tokenizer),
            grammar: grammar_of(json_schema, regex, grammar)?,
            stop: stop.unwrap_or_default(),
            sampling,
            seed,
        })
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
        array::to_numpy(py, tensor)
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

impl PyLanguageModel {
    fn start(&self, request: Request) -> PyResult<PyGeneration> {
        let checked = request.sampling.check(self.shared.vocab);
        checked.map_err(|e| PyValueError::new_err(tercet::one_line(&e)))?;
        PyGeneration::start(Arc::clone(&self.shared), request)
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
