//! Language models: loading, arguments of `generate` and `chat`, tokenization. Module `generation`
//! has the results, `conversation` the messages of `chat`.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use tercet::{DType, Device, Tensor};
use tercet_models::answer::{AnswerFormat, AnswerParser};
use tercet_models::constraint::{ConstraintError, Grammar, GrammarCompiler};
use tercet_models::dataset::ChatTemplate;
use tercet_models::{
    CacheFormat, ContextFit, ContextRequest, Error, Generator, LanguageModel, LanguageModelOptions,
    MatmulPrecision, ModelError, ModelFiles, SamplingOptions, Tokenizer, end_ids,
};

use crate::conversation::{self, Conversation};
use crate::generation::{GenerationArgs, PromptArgs, PyGeneration};
use crate::graph::PyGraph;
use crate::sampling::{drawn_seed, with_further_arguments};
use crate::texts::{adapter_of, stops_of, texts_of, tokens_of};
use crate::{array, errors, html};

/// A model and the data that its generations share.
pub(crate) struct SharedLanguageModel {
    pub(crate) files: ModelFiles,
    pub(crate) tokenizer: Arc<Tokenizer>,
    device: Device,
    dtype: DType,
    matmul_precision: MatmulPrecision,
    fit: ContextFit,
    eos: Vec<u32>,
    pub(crate) vocab: usize,
    /// Whether the model accepts images.
    pub(crate) has_vision: bool,
    /// Paths of adapters by their names.
    adapters: BTreeMap<String, PathBuf>,
    /// Created when a generation first uses a constraint.
    grammars: OnceLock<Result<GrammarCompiler, ConstraintError>>,
    /// Compiled models that are not generating, by adapter.
    idle: Mutex<HashMap<Option<String>, Vec<LanguageModel>>>,
}

/// A language model with its tokenizer.
#[pyclass(name = "LanguageModel", module = "tercet", frozen)]
pub(crate) struct PyLanguageModel {
    shared: Arc<SharedLanguageModel>,
}

impl SharedLanguageModel {
    /// Options of a compiled model with an adapter: a name, or a path.
    fn options(&self, adapter: Option<&str>) -> Result<LanguageModelOptions, Error> {
        let options = LanguageModelOptions::new()
            .device(self.device.clone())
            .context_fit(self.fit.clone())
            .chunk(512)
            .dtype(self.dtype)
            .matmul_precision(self.matmul_precision)
            .tokenizer(Arc::clone(&self.tokenizer));
        let Some(name) = adapter else {
            return Ok(options);
        };
        let path = self.adapters.get(name);
        let path = path.map_or_else(|| PathBuf::from(name), PathBuf::clone);
        if !path.exists() {
            let known: Vec<&str> = self.adapters.keys().map(String::as_str).collect();
            return Err(ModelError::Unsupported(format!(
                "`{name}` is neither an adapter of load(adapters=) nor a path; known names: {}",
                known.join(", ")
            ))
            .into());
        }
        Ok(options.adapter(path, 1.0))
    }

    /// Takes a compiled model with an empty KV cache from the pool, or compiles a new one.
    pub(crate) fn acquire(&self, adapter: Option<&str>) -> Result<LanguageModel, Error> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let key = adapter.map(str::to_string);
        if let Some(model) = idle.get_mut(&key).and_then(Vec::pop) {
            return Ok(model);
        }
        drop(idle);
        self.options(adapter)?.open_files(&self.files)
    }

    pub(crate) fn release(&self, adapter: Option<&str>, mut model: LanguageModel) {
        model.generator_mut().reset();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let key = adapter.map(str::to_string);
        idle.entry(key).or_default().push(model);
    }

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
        let of = (&*self.tokenizer, self.vocab);
        with_further_arguments(sampling, further, of, &self.eos)
    }

    /// The prompt of `generate`: a text, or token ids.
    fn prompt(&self, prompt: &Bound<'_, PyAny>) -> PyResult<PromptArgs> {
        if !prompt.is_instance_of::<PyString>() {
            let tokens = tokens_of("prompt", prompt, self.vocab)?;
            return Ok(PromptArgs::Tokens(tokens));
        }
        let text: String = prompt.extract()?;
        let tokens = self.tokenizer.encode(&text, true);
        tokens.map(PromptArgs::Tokens).map_err(errors::model)
    }

    /// The prompt of a conversation up to the start of the answer, and the format and the parser of the
    /// answer. A constraint starts at the first token, so such an answer has no thoughts.
    fn conversation(
        &self,
        conversation: Conversation,
        is_constrained: bool,
    ) -> PyResult<(PromptArgs, AnswerFormat, AnswerParser)> {
        let template = ChatTemplate::from_model(&self.files, &self.tokenizer);
        let template = template.map_err(errors::model)?;
        let format = AnswerFormat::from_template(&template);
        let template = template.with_variables(conversation.variables.iter().cloned());
        let rendered = conversation.rendered(&template, &format)?;
        let tools = conversation.tools.as_ref().map(|tools| &tools.tools[..]);
        let before = if is_constrained {
            ""
        } else {
            rendered.text.as_str()
        };
        let parser = AnswerParser::new(&format, tools.unwrap_or_default(), before);
        if self.has_vision {
            let prompt = PromptArgs::Images {
                text: rendered.text,
                literal: rendered.literal,
                images: conversation.images,
            };
            return Ok((prompt, format, parser));
        }
        let tokens = (self.tokenizer).encode_mixed(&rendered.text, &rendered.literal);
        let tokens = tokens.map_err(errors::model)?;
        Ok((PromptArgs::Tokens(tokens), format, parser))
    }
}

impl PyLanguageModel {
    /// Loads a decoder, or a vision-language model if `has_vision` is true.
    pub(crate) fn open(
        (files, has_vision): (ModelFiles, bool),
        device: Device,
        (dtype, products): (DType, MatmulPrecision),
        context: Option<usize>,
        adapters: BTreeMap<String, PathBuf>,
    ) -> Result<PyLanguageModel, Error> {
        let spec = match has_vision {
            true => files.vision_language_spec()?.decoder,
            false => files.decoder_spec()?,
        };
        let cache = CacheFormat::choose(&files.weights(), &device, dtype, products);
        let request = ContextRequest {
            context,
            dtype,
            cache: Some(cache),
            ..ContextRequest::default()
        };
        let fit = ContextFit::new(&files, &spec, &device, &request)?;
        let tokenizer = Arc::new(files.tokenizer()?);
        let shared = SharedLanguageModel {
            eos: end_ids(&spec.eos, &tokenizer),
            tokenizer,
            fit,
            vocab: spec.vocab,
            files,
            device,
            dtype,
            has_vision,
            adapters,
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
    /// Generates text after a prompt, which is a text or token ids. Returns an iterator of text
    /// pieces. With temperature 0, the default, decoding is greedy. `None` stands for the default of
    /// an option.
    ///
    /// The presence and frequency penalties apply to generated tokens; the repetition penalty
    /// applies to the prompt too. A logit bias of minus infinity bans a token. None of these
    /// options requires compilation.
    ///
    /// Without a seed one is drawn; the result has it as `seed`. Special tokens that the prompt
    /// spells are recognized. `stop` is a text or several. `adapter` is a name of
    /// `load(adapters=)`, or a path. With `logits=True` the result has the logits of each token.
    ///
    /// Further samplers: `typical_p`, `top_n_sigma`, `xtc_probability`, `xtc_threshold`,
    /// `dry_multiplier`, `dry_base`, `dry_allowed_length`, `dry_penalty_last_n`,
    /// `dry_sequence_breakers`, `dynatemp_range`, `dynatemp_exponent`, `mirostat` (1 or 2),
    /// `mirostat_tau`, `mirostat_eta`; `samplers` is their order. `stop_token_ids` also end the
    /// text, `min_tokens` bans the ends until then, and `ignore_eos` bans them always.
    ///
    /// At most one constraint is allowed: `json_schema` (a dictionary or JSON text), `regex` (must
    /// match the whole text), or `grammar` (Lark notation).
    #[pyo3(signature = (prompt, max_tokens=Some(128), *, temperature=None, top_k=None, top_p=None, min_p=None,
        repetition_penalty=None, presence_penalty=None, frequency_penalty=None, logit_bias=None, json_schema=None,
        regex=None, grammar=None, seed=None, stop=None, adapter=None, logits=false, **further))]
    #[expect(clippy::too_many_arguments, reason = "Python keyword arguments")]
    fn generate(
        &self,
        prompt: &Bound<'_, PyAny>,
        max_tokens: Option<i64>,
        temperature: Option<f64>,
        top_k: Option<i64>,
        top_p: Option<f64>,
        min_p: Option<f64>,
        repetition_penalty: Option<f64>,
        presence_penalty: Option<f64>,
        frequency_penalty: Option<f64>,
        logit_bias: Option<BTreeMap<u32, f32>>,
        json_schema: Option<&Bound<'_, PyAny>>,
        regex: Option<String>,
        grammar: Option<String>,
        seed: Option<i128>,
        stop: Option<&Bound<'_, PyAny>>,
        adapter: Option<&Bound<'_, PyAny>>,
        logits: bool,
        further: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyGeneration> {
        let mut sampling = SamplingOptions {
            temperature: temperature.unwrap_or(0.0),
            top_k: top_k_of(top_k.unwrap_or(0))?,
            top_p: top_p.unwrap_or(1.0),
            min_p: min_p.unwrap_or(0.0),
            repetition_penalty: repetition_penalty.unwrap_or(1.0),
            presence_penalty: presence_penalty.unwrap_or(0.0),
            frequency_penalty: frequency_penalty.unwrap_or(0.0),
            logit_bias: logit_bias.into_iter().flatten().collect(),
            ..SamplingOptions::default()
        };
        let eos = self.shared.with_further_arguments(&mut sampling, further)?;
        self.start(GenerationArgs {
            prompt: self.shared.prompt(prompt)?,
            max_tokens: max_tokens.and_then(limit).unwrap_or(usize::MAX),
            eos,
            grammar: grammar_of(json_schema, regex, grammar)?,
            stop: stops_of(stop)?,
            adapter: adapter_of(adapter)?,
            logits,
            spelled: Arc::default(),
            answers: None,
            sampling,
            seed: drawn_seed(seed)?,
        })
    }

    /// Answers a conversation: a text, a message, or a list of messages. Messages have `role`
    /// (`system`, `user`, `assistant`, ...) and `content`, a text or a list of parts of type `text`
    /// or, for models that accept images, `image_url` or `image`. The model's chat template formats
    /// them (ChatML if the model has none). Special tokens that messages spell are ordinary text.
    ///
    /// `tools` are functions as in OpenAI's API; the calls of the answer are its `tool_calls`, its
    /// thoughts are `reasoning`, and its text without both is `content`. The results are messages of
    /// role `tool`. With `tool_choice="none"` the model sees no tools. `reasoning_effort`,
    /// `enable_thinking` and the entries of `chat_template_kwargs` are variables of the template; the
    /// effort "none" also sets `enable_thinking` to false.
    ///
    /// The answer ends at an end-of-turn token, or after `max_tokens`. All other arguments are those
    /// of `generate`.
    #[pyo3(signature = (messages, max_tokens=None, *, tools=None, tool_choice=None, reasoning_effort=None,
        enable_thinking=None, chat_template_kwargs=None, temperature=None, top_k=None, top_p=None,
        min_p=None, repetition_penalty=None, presence_penalty=None, frequency_penalty=None, logit_bias=None,
        json_schema=None, regex=None, grammar=None, seed=None, stop=None, adapter=None, logits=false, **further))]
    #[expect(clippy::too_many_arguments, reason = "Python keyword arguments")]
    fn chat(
        &self,
        messages: &Bound<'_, PyAny>,
        max_tokens: Option<i64>,
        tools: Option<&Bound<'_, PyAny>>,
        tool_choice: Option<&Bound<'_, PyAny>>,
        reasoning_effort: Option<String>,
        enable_thinking: Option<bool>,
        chat_template_kwargs: Option<&Bound<'_, PyDict>>,
        temperature: Option<f64>,
        top_k: Option<i64>,
        top_p: Option<f64>,
        min_p: Option<f64>,
        repetition_penalty: Option<f64>,
        presence_penalty: Option<f64>,
        frequency_penalty: Option<f64>,
        logit_bias: Option<BTreeMap<u32, f32>>,
        json_schema: Option<&Bound<'_, PyAny>>,
        regex: Option<String>,
        grammar: Option<String>,
        seed: Option<i128>,
        stop: Option<&Bound<'_, PyAny>>,
        adapter: Option<&Bound<'_, PyAny>>,
        logits: bool,
        further: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyGeneration> {
        let mut sampling = SamplingOptions {
            temperature: temperature.unwrap_or(0.0),
            top_k: top_k_of(top_k.unwrap_or(0))?,
            top_p: top_p.unwrap_or(1.0),
            min_p: min_p.unwrap_or(0.0),
            repetition_penalty: repetition_penalty.unwrap_or(1.0),
            presence_penalty: presence_penalty.unwrap_or(0.0),
            frequency_penalty: frequency_penalty.unwrap_or(0.0),
            logit_bias: logit_bias.into_iter().flatten().collect(),
            ..SamplingOptions::default()
        };
        let eos = self.shared.with_further_arguments(&mut sampling, further)?;
        let mut conversation = Conversation::new(messages, self.shared.has_vision)?;
        conversation.tools = conversation::tools_of(tools, tool_choice)?;
        conversation.variables =
            conversation::variables_of(reasoning_effort, enable_thinking, chat_template_kwargs)?;
        let grammar = grammar_of(json_schema, regex, grammar)?;
        let (prompt, format, answers) =
            self.shared.conversation(conversation, grammar.is_some())?;
        let room = match &prompt {
            PromptArgs::Tokens(tokens) => self.shared.fit.context.saturating_sub(tokens.len()),
            PromptArgs::Images { .. } => usize::MAX,
        };
        self.start(GenerationArgs {
            prompt,
            max_tokens: max_tokens.and_then(limit).unwrap_or(room),
            eos,
            grammar,
            stop: stops_of(stop)?,
            adapter: adapter_of(adapter)?,
            logits,
            spelled: format.special_tokens(&self.shared.tokenizer),
            answers: Some(answers),
            sampling,
            seed: drawn_seed(seed)?,
        })
    }

    /// Returns the logits of the next token after `tokens`, as an array of vocabulary size. With
    /// `all=True`, returns those after each token, of shape (tokens, vocabulary). `tokens` may be a
    /// text.
    #[pyo3(signature = (tokens, *, all=false, adapter=None))]
    fn logits<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        all: bool,
        adapter: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let PromptArgs::Tokens(tokens) = self.shared.prompt(tokens)? else {
            return Err(PyTypeError::new_err(
                "tokens are a list of integers, or a text",
            ));
        };
        let adapter = adapter_of(adapter)?;
        let logits = py.detach(|| -> Result<Vec<f32>, Error> {
            let mut model = self.shared.acquire(adapter.as_deref())?;
            let logits = logits_after(model.generator_mut(), &tokens, all);
            self.shared.release(adapter.as_deref(), model);
            Ok(logits?)
        });
        let logits = logits.map_err(errors::model)?;
        let shape: &[usize] = match all {
            true => &[tokens.len(), self.shared.vocab],
            false => &[logits.len()],
        };
        let tensor = Tensor::from_slice(shape, &logits).map_err(errors::tensor)?;
        array::to_numpy(py, tensor)
    }

    /// Tokenizes a text, or each of several texts. If `special` is true, special tokens such as BOS
    /// are added as the model requires.
    #[pyo3(signature = (text, special=true))]
    fn encode<'py>(&self, text: &Bound<'py, PyAny>, special: bool) -> PyResult<Bound<'py, PyList>> {
        let args = texts_of("text", text)?;
        let py = text.py();
        let mut all = Vec::with_capacity(args.texts.len());
        for text in &args.texts {
            let tokens = self.shared.tokenizer.encode(text, special);
            all.push(PyList::new(py, tokens.map_err(errors::model)?)?);
        }
        match (args.is_one, all.len()) {
            (true, 1) => Ok(all.remove(0)),
            _ => PyList::new(py, all),
        }
    }

    /// Converts tokens to text: one token, a list or an array, or several lists.
    fn decode<'py>(&self, tokens: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = tokens.py();
        let list = match tokens.hasattr("tolist")? {
            true => tokens.call_method0("tolist")?,
            false => tokens.clone(),
        };
        let decode = |tokens: &Bound<'py, PyAny>| -> PyResult<String> {
            let tokens = tokens_of("tokens", tokens, u32::MAX as usize)?;
            self.shared.tokenizer.decode(&tokens).map_err(errors::model)
        };
        let Ok(items) = list.try_iter() else {
            return Ok(PyString::new(py, &decode(&list)?).into_any());
        };
        let items: Vec<Bound<'py, PyAny>> = items.collect::<PyResult<_>>()?;
        let is_nested = items.first().is_some_and(|item| item.try_iter().is_ok());
        if is_nested {
            let texts = items
                .iter()
                .map(decode)
                .collect::<PyResult<Vec<String>>>()?;
            return Ok(PyList::new(py, texts)?.into_any());
        }
        let text = decode(PyList::new(py, items)?.as_any())?;
        Ok(PyString::new(py, &text).into_any())
    }

    /// Returns the graph of one run of the model.
    fn graph(&self, py: Python<'_>) -> PyResult<PyGraph> {
        let shared = &self.shared;
        let graph = py.detach(|| shared.options(None)?.decoder_graph(&shared.files));
        Ok(PyGraph::from_graph(graph.map_err(errors::model)?))
    }

    /// Maximum tokens of a sequence, prompt included.
    #[getter]
    fn context(&self) -> usize {
        self.shared.fit.context
    }

    /// Size of the vocabulary.
    #[getter]
    fn vocab(&self) -> usize {
        self.shared.vocab
    }

    /// Whether messages of `chat` may have images.
    #[getter]
    fn has_vision(&self) -> bool {
        self.shared.has_vision
    }

    /// Names of the adapters that `load` got.
    #[getter]
    fn adapters(&self) -> Vec<String> {
        self.shared.adapters.keys().cloned().collect()
    }

    fn _repr_html_(&self) -> String {
        let shared = &self.shared;
        let adapters: Vec<&str> = shared.adapters.keys().map(String::as_str).collect();
        let rows = [
            ("device", shared.device.name().to_string()),
            ("context", shared.fit.context.to_string()),
            ("vocab", shared.vocab.to_string()),
            ("has_vision", shared.has_vision.to_string()),
            ("adapters", adapters.join(", ")),
        ];
        html::record("tercet.LanguageModel", &rows)
    }

    fn __repr__(&self) -> String {
        format!(
            "<tercet.LanguageModel on {}: context {}, vocabulary {}>",
            self.shared.device.name(),
            self.shared.fit.context,
            self.shared.vocab
        )
    }
}

/// Logits after the last token, or after each.
pub(crate) fn logits_after(
    generator: &mut Generator,
    tokens: &[u32],
    all: bool,
) -> Result<Vec<f32>, ModelError> {
    // Rows of logits are read by a run of their own: a generation may have left this generator with
    // run-ahead, which overwrites the logits of a step.
    let (before, rows) = match all {
        true => (&[][..], tokens),
        false => tokens.split_at(tokens.len().saturating_sub(1)),
    };
    if !before.is_empty() {
        generator.forward(before)?;
    }
    let mut logits = Vec::new();
    generator.forward_rows(rows, &mut |row| {
        logits.extend_from_slice(row);
        true
    })?;
    Ok(logits)
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
