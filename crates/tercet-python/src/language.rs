//! Language models: loading, arguments of `generate` and `chat`, tokenization. Module `generation`
//! has the results.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tercet::{DType, Device};
use tercet_models::constraint::{ConstraintError, Grammar, GrammarCompiler};
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, ChatTemplate, DataError, Role};
use tercet_models::{
    ContextFit, ContextRequest, Decoder, DecoderOptions, Generator, MatmulPrecision, ModelFiles,
    Sampling, SamplingOptions, Tokenizer, end_ids,
};

use crate::array;
use crate::errors;
use crate::generation::{GenerationArgs, PyGeneration};
use crate::graph::PyGraph;
use crate::sampling::{drawn_seed, with_further_arguments};

/// A model and the data that its generations share.
pub(crate) struct SharedLanguageModel {
    files: ModelFiles,
    pub(crate) tokenizer: Tokenizer,
    device: Device,
    dtype: DType,
    matmul_precision: MatmulPrecision,
    context: usize,
    eos: Vec<u32>,
    pub(crate) vocab: usize,
    /// Created when a generation first uses a constraint.
    grammars: OnceLock<Result<GrammarCompiler, ConstraintError>>,
    /// Compiled models that are not generating.
    idle: Mutex<Vec<Generator>>,
}

/// A language model with its tokenizer.
#[pyclass(name = "LanguageModel", module = "tercet", frozen)]
pub(crate) struct PyLanguageModel {
    shared: Arc<SharedLanguageModel>,
}

impl SharedLanguageModel {
    fn decoder(&self) -> Result<Decoder, tercet_models::Error> {
        self.files.decoder(|spec| DecoderOptions {
            context: self.context,
            chunk: 512.min(self.context),
            dtype: self.dtype,
            matmul_precision: self.matmul_precision,
            sampling: Some(Sampling::GREEDY),
            ..DecoderOptions::new(spec)
        })
    }

    /// Takes a compiled model with an empty KV cache from the pool, or compiles a new one.
    pub(crate) fn acquire_generator(&self) -> Result<Generator, tercet_models::Error> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(generator) = idle.pop() {
            return Ok(generator);
        }
        drop(idle);
        Ok(self.decoder()?.generator(&self.device)?)
    }

    pub(crate) fn release_generator(&self, mut generator: Generator) {
        generator.reset();
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(generator);
    }
}

impl SharedLanguageModel {
    /// The compiler of grammars to constraints.
    pub(crate) fn grammars(&self) -> Result<&GrammarCompiler, ConstraintError> {
        let new = || GrammarCompiler::new(&self.tokenizer, &self.eos, self.vocab);
        self.grammars
            .get_or_init(new)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Sets the sampling options of further arguments. Returns the tokens that end the text.
    fn with_further_arguments(
        &self,
        sampling: &mut SamplingOptions,
        further: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Vec<u32>> {
        let of = (&self.tokenizer, self.vocab);
        with_further_arguments(sampling, further, of, &self.eos)
    }

    /// Returns the tokens of a conversation up to the start of the answer.
    fn conversation(&self, messages: &[BTreeMap<String, String>]) -> PyResult<Vec<u32>> {
        let messages = messages.iter().map(|fields| self.message(fields));
        let messages = messages.collect::<PyResult<Vec<ChatMessage>>>()?;
        if messages.is_empty() {
            return Err(PyValueError::new_err("the list of messages is empty"));
        }
        let template =
            ChatTemplate::from_model(&self.files, &self.tokenizer).map_err(errors::model)?;
        let rendered = template.render(&messages, &TemplateValue::None, true);
        let rendered = rendered.map_err(|e| errors::model(DataError::from(e)))?;
        let tokens = (self.tokenizer).encode_mixed(&rendered.text, &rendered.literal);
        tokens.map_err(errors::model)
    }

    fn message(&self, fields: &BTreeMap<String, String>) -> PyResult<ChatMessage> {
        if let Some(other) = fields.keys().find(|k| *k != "role" && *k != "content") {
            return Err(PyValueError::new_err(format!(
                "a message has the unknown key `{other}`; expected `role` and `content`"
            )));
        }
        let (Some(role), Some(content)) = (fields.get("role"), fields.get("content")) else {
            return Err(PyValueError::new_err(
                "a message has no `role` or no `content`; both are required",
            ));
        };
        let Some(known) = Role::ALL.iter().find(|known| known.name() == role) else {
            let names: Vec<&str> = Role::ALL.iter().map(|role| role.name()).collect();
            return Err(PyValueError::new_err(format!(
                "a message has the role `{role}`; expected one of {}",
                names.join(", ")
            )));
        };
        Ok(ChatMessage::new(*known, content))
    }
}

impl PyLanguageModel {
    pub(crate) fn open(
        files: ModelFiles,
        device: Device,
        (dtype, products): (DType, MatmulPrecision),
        context: Option<usize>,
    ) -> Result<PyLanguageModel, tercet_models::Error> {
        let spec = files.decoder_spec()?;
        let request = ContextRequest {
            context,
            dtype,
            ..ContextRequest::default()
        };
        let fit = ContextFit::new(&files, &spec, &device, &request)?;
        let tokenizer = files.tokenizer()?;
        let shared = SharedLanguageModel {
            eos: end_ids(&spec.eos, &tokenizer),
            tokenizer,
            context: fit.context,
            vocab: spec.vocab,
            files,
            device,
            dtype,
            grammars: OnceLock::new(),
            matmul_precision: products,
            idle: Mutex::default(),
        };
        Ok(PyLanguageModel {
            shared: Arc::new(shared),
        })
    }
}

#[pymethods]
impl PyLanguageModel {
    /// Generates text after a prompt. Returns an iterator of text pieces. With temperature 0,
    /// decoding is greedy.
    ///
    /// The presence and frequency penalties apply to generated tokens; the repetition penalty
    /// applies to the prompt too. A logit bias of minus infinity bans a token. None of these
    /// options requires compilation.
    ///
    /// Without a seed one is drawn; the result has it as `seed`. Special tokens that the prompt spells are
    /// recognized.
    ///
    /// Further samplers: `typical_p`, `top_n_sigma`, `xtc_probability`, `xtc_threshold`,
    /// `dry_multiplier`, `dry_base`, `dry_allowed_length`, `dry_penalty_last_n`,
    /// `dry_sequence_breakers`, `dynatemp_range`, `dynatemp_exponent`, `mirostat` (1 or 2),
    /// `mirostat_tau`, `mirostat_eta`; `samplers` is their order. `stop_token_ids` also end the text,
    /// `min_tokens` bans the ends until then, and `ignore_eos` bans them always.
    ///
    /// At most one constraint is allowed: `json_schema` (a dictionary or JSON text), `regex` (must
    /// match the whole text), or `grammar` (Lark notation).
    #[pyo3(signature = (prompt, max_tokens=128, *, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0,
        presence_penalty=0.0, frequency_penalty=0.0, logit_bias=None, json_schema=None, regex=None,
        grammar=None, seed=None, stop=None, **further))]
    #[expect(clippy::too_many_arguments, reason = "Python keyword arguments")]
    fn generate(
        &self,
        prompt: &str,
        max_tokens: i64,
        temperature: f64,
        top_k: i64,
        top_p: f64,
        min_p: f64,
        repetition_penalty: f64,
        presence_penalty: f64,
        frequency_penalty: f64,
        logit_bias: Option<BTreeMap<u32, f32>>,
        json_schema: Option<&Bound<'_, PyAny>>,
        regex: Option<String>,
        grammar: Option<String>,
        seed: Option<i128>,
        stop: Option<Vec<String>>,
        further: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyGeneration> {
        let mut sampling = SamplingOptions {
            temperature,
            top_k: top_k_of(top_k)?,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias: logit_bias.into_iter().flatten().collect(),
            ..SamplingOptions::default()
        };
        let eos = self.shared.with_further_arguments(&mut sampling, further)?;
        let prompt = self.shared.tokenizer.encode(prompt, true);
        self.start(GenerationArgs {
            prompt: prompt.map_err(errors::model)?,
            max_tokens: limit(max_tokens).unwrap_or(usize::MAX),
            eos,
            grammar: grammar_of(json_schema, regex, grammar)?,
            stop: stop.unwrap_or_default(),
            sampling,
            seed: drawn_seed(seed)?,
        })
    }

    /// Answers a conversation. Special tokens that messages spell are ordinary text. Messages have `role` (`system`, `user`, `assistant`, ...) and
    /// `content`; the model's chat template formats them (ChatML if the model has none). The answer
    /// ends at an end-of-turn token, or after `max_tokens`. All other arguments are those of
    /// `generate`.
    #[pyo3(signature = (messages, max_tokens=None, *, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0,
        repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=None, json_schema=None,
        regex=None, grammar=None, seed=None, stop=None, **further))]
    #[expect(clippy::too_many_arguments, reason = "Python keyword arguments")]
    fn chat(
        &self,
        messages: Vec<BTreeMap<String, String>>,
        max_tokens: Option<i64>,
        temperature: f64,
        top_k: i64,
        top_p: f64,
        min_p: f64,
        repetition_penalty: f64,
        presence_penalty: f64,
        frequency_penalty: f64,
        logit_bias: Option<BTreeMap<u32, f32>>,
        json_schema: Option<&Bound<'_, PyAny>>,
        regex: Option<String>,
        grammar: Option<String>,
        seed: Option<i128>,
        stop: Option<Vec<String>>,
        further: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyGeneration> {
        let mut sampling = SamplingOptions {
            temperature,
            top_k: top_k_of(top_k)?,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias: logit_bias.into_iter().flatten().collect(),
            ..SamplingOptions::default()
        };
        let eos = self.shared.with_further_arguments(&mut sampling, further)?;
        let prompt = self.shared.conversation(&messages)?;
        let room = self.shared.context.saturating_sub(prompt.len());
        self.start(GenerationArgs {
            prompt,
            max_tokens: max_tokens.and_then(limit).unwrap_or(room),
            eos,
            grammar: grammar_of(json_schema, regex, grammar)?,
            stop: stop.unwrap_or_default(),
            sampling,
            seed: drawn_seed(seed)?,
        })
    }

    /// Returns the logits of the next token after `tokens`, as an array of vocabulary size.
    fn logits<'py>(&self, py: Python<'py>, tokens: Vec<u32>) -> PyResult<Bound<'py, PyAny>> {
        let logits = py.detach(|| -> Result<Vec<f32>, tercet_models::Error> {
            let mut generator = self.shared.acquire_generator()?;
            let fed = generator.forward(&tokens).map(|_| ());
            let logits = fed.and_then(|()| generator.logits());
            self.shared.release_generator(generator);
            Ok(logits?)
        });
        let logits = logits.map_err(errors::model)?;
        let tensor =
            tercet::Tensor::from_slice(&[logits.len()], &logits).map_err(errors::tensor)?;
        array::to_numpy(py, tensor)
    }

    /// Tokenizes a text. If `special` is true, special tokens such as BOS are added as the model
    /// requires.
    #[pyo3(signature = (text, special=true))]
    fn encode(&self, text: &str, special: bool) -> PyResult<Vec<u32>> {
        self.shared
            .tokenizer
            .encode(text, special)
            .map_err(errors::model)
    }

    /// Converts tokens to text.
    fn decode(&self, tokens: Vec<u32>) -> PyResult<String> {
        self.shared.tokenizer.decode(&tokens).map_err(errors::model)
    }

    /// Returns the graph of one run of the model.
    fn graph(&self, py: Python<'_>) -> PyResult<PyGraph> {
        let decoder = py.detach(|| self.shared.decoder()).map_err(errors::model)?;
        Ok(PyGraph::from_graph(decoder.model.graph))
    }

    /// Maximum tokens of a sequence, prompt included.
    #[getter]
    fn context(&self) -> usize {
        self.shared.context
    }

    /// Size of the vocabulary.
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
    fn start(&self, request: GenerationArgs) -> PyResult<PyGeneration> {
        let checked = request.sampling.check(self.shared.vocab);
        checked.map_err(|e| PyValueError::new_err(tercet::one_line(&e)))?;
        PyGeneration::start(Arc::clone(&self.shared), request)
    }
}

/// The number of most likely tokens; -1 stands for all.
fn top_k_of(top_k: i64) -> PyResult<usize> {
    match top_k {
        -1 => Ok(0),
        k => usize::try_from(k)
            .map_err(|_| PyValueError::new_err(format!("top_k is {k}; expected -1 or more"))),
    }
}

/// The maximum number of tokens; negative numbers are no limit.
fn limit(max_tokens: i64) -> Option<usize> {
    usize::try_from(max_tokens).ok()
}

/// The grammar of the output, from at most one of the three constraints.
fn grammar_of(
    json_schema: Option<&Bound<'_, PyAny>>,
    regex: Option<String>,
    grammar: Option<String>,
) -> PyResult<Option<Grammar>> {
    match (json_schema, regex, grammar) {
        (None, None, None) => Ok(None),
        (None, Some(regex), None) => Ok(Some(Grammar::Regex(regex))),
        (None, None, Some(text)) => {
            let grammar = Grammar::from_text(&text);
            grammar
                .map(Some)
                .map_err(|e| PyValueError::new_err(tercet::one_line(&e)))
        }
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
            "json_schema, regex and grammar exclude each other; pass only one",
        )),
    }
}
