//! Language models: opening, and generation that streams text to a callback.

use std::ffi::{c_char, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tercet::Device;
use tercet_models::constraint::{ConstraintError, Grammar, GrammarCompiler};
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, ChatTemplate, DataError, Role};
use tercet_models::{
    CacheFormat, ContextFit, ContextRequest, DecoderOptions, FinishReason, GenerateEvent,
    GenerateOptions, Generation, Generator, ModelError, ModelFamily, ModelFiles, Sampling,
    SamplingOptions, Tokenizer, end_ids, generate,
};

use crate::boundary::{CallbackLock, Caller, OptionsStruct, terminated};
use crate::device::{TercetDevice, device_of};
use crate::error::{CallError, TercetError, TercetStatus};
use crate::handles::{self, HandleObject};
use crate::model::{TercetModelOptions, files_of};

/// A compiled language model with its tokenizer.
pub struct TercetGenerator {
    _opaque: (),
}

/// A generated text.
pub struct TercetGeneration {
    _opaque: (),
}

/// A message of a conversation.
#[repr(C)]
pub struct TercetMessage {
    /// "system", "developer", "user", "assistant" or "tool".
    pub role: *const c_char,
    /// Text of the message.
    pub content: *const c_char,
}

/// Options of a generation. All zeros, except `struct_size`, are the defaults: greedy decoding until the model ends the
/// text or the context is full.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TercetGenerateOptions {
    /// `sizeof(TercetGenerateOptions)`.
    pub struct_size: usize,
    /// Maximum number of tokens to generate; 0 for no limit but the context.
    pub max_tokens: usize,
    /// Divisor of the logits; 0 for greedy decoding.
    pub temperature: f64,
    /// Keeps only this number of most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of tokens with at least this total probability; 0 and 1 keep all.
    pub top_p: f64,
    /// Minimum probability relative to the most likely token; 0 keeps all.
    pub min_p: f64,
    /// Repetition penalty; 0 and 1 disable it.
    pub repetition_penalty: f64,
    /// Subtracted from the logit of each token that was generated before.
    pub presence_penalty: f64,
    /// Subtracted from the logit of a token once for each time it was generated.
    pub frequency_penalty: f64,
    /// Seed of sampling.
    pub seed: u64,
    /// Texts that end the generation and are not part of the result; NULL if `stop_count` is 0.
    pub stop: *const *const c_char,
    /// Number of texts in `stop`.
    pub stop_count: usize,
    /// JSON schema that the text must match, or NULL. At most one of the three constraints may be set.
    pub json_schema: *const c_char,
    /// Regular expression that the whole text must match, or NULL.
    pub regex: *const c_char,
    /// Grammar of the text in GBNF or Lark notation, or NULL.
    pub grammar: *const c_char,
    /// If not 0, the tokens that end a text are ignored.
    pub ignore_end: i32,
    /// Must be 0.
    pub reserved: i32,
}

// SAFETY: all fields are numbers and raw pointers.
unsafe impl OptionsStruct for TercetGenerateOptions {}

/// Progress of a generation. The text is valid during the callback.
#[repr(C)]
pub struct TercetGenerateEvent {
    /// New text, UTF-8 in whole characters with a zero byte at the end; empty while the prompt is processed.
    pub text: *const c_char,
    /// Bytes of the text, without the zero byte.
    pub text_bytes: usize,
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of tokens of the prompt that are processed.
    pub prompt_done: usize,
    /// Number of generated tokens.
    pub tokens: usize,
}

/// Called on the thread of the call, after each part of the prompt and each token. Generation stops if it returns
/// false. It must not throw or jump out of the call. It may call the library, except functions of the same generator
/// other than `tercet_generator_stop`.
pub type TercetGenerateCallback =
    Option<unsafe extern "C" fn(event: *const TercetGenerateEvent, user: *mut c_void) -> bool>;

/// Why a generation ended.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TercetFinish {
    /// The model ended the text.
    End = 0,
    /// A stop text was generated.
    Stop = 1,
    /// The maximum number of tokens was reached.
    Length = 2,
    /// The context is full.
    Context = 3,
    /// The callback or `tercet_generator_stop` stopped it.
    Cancelled = 4,
}

/// The contents of a generation. The pointers are valid until the generation is freed.
#[repr(C)]
pub struct TercetGenerationView {
    /// The text, UTF-8 with a zero byte at the end.
    pub text: *const c_char,
    /// Bytes of the text, without the zero byte.
    pub text_bytes: usize,
    /// Ids of the generated tokens.
    pub tokens: *const u32,
    /// Number of generated tokens.
    pub token_count: usize,
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// A TercetFinish.
    pub finish: i32,
}

/// The object of a `TercetGenerator`.
struct GeneratorObject {
    files: ModelFiles,
    tokenizer: Tokenizer,
    ends: Vec<u32>,
    vocab: usize,
    context: usize,
    generator: CallbackLock<Generator>,
    is_stopped: AtomicBool,
    /// Created when a generation first uses a constraint.
    grammars: OnceLock<Result<GrammarCompiler, ConstraintError>>,
}

/// The object of a `TercetGeneration`.
struct GenerationObject {
    text: Vec<u8>,
    generation: Generation,
    prompt_tokens: usize,
}

impl HandleObject for GeneratorObject {
    const TYPE: &'static str = "TercetGenerator";
    type Opaque = TercetGenerator;
}

impl HandleObject for GenerationObject {
    const TYPE: &'static str = "TercetGeneration";
    type Opaque = TercetGeneration;
}

/// A callback with its argument.
struct EventCallback {
    function: TercetGenerateCallback,
    user: *mut c_void,
    prompt_tokens: usize,
}

impl EventCallback {
    fn call(&self, event: GenerateEvent<'_>) -> bool {
        let Some(function) = self.function else {
            return true;
        };
        let (text, prompt_done, tokens) = match event {
            GenerateEvent::Prompt(done) => ("", done, 0),
            GenerateEvent::Text(text, tokens) => (text, self.prompt_tokens, tokens),
        };
        let owned = terminated(text);
        let event = TercetGenerateEvent {
            text: owned.as_ptr().cast(),
            text_bytes: text.len(),
            prompt_tokens: self.prompt_tokens,
            prompt_done,
            tokens,
        };
        // SAFETY: the caller passed the function for this argument; the event is valid during the call.
        unsafe { function(&raw const event, self.user) }
    }
}

/// The options of a generation in the types of the models.
struct GenerationSettings {
    sampling: SamplingOptions,
    max_tokens: usize,
    stop: Vec<String>,
    grammar: Option<Grammar>,
    seed: u64,
    ignores_end: bool,
}

impl GenerationSettings {
    fn new(
        caller: &Caller,
        options: *const TercetGenerateOptions,
    ) -> Result<GenerationSettings, CallError> {
        let options = caller.options(options, "options")?;
        if options.reserved != 0 {
            return Err(CallError::argument(
                "`options->reserved` is not 0; initialize the whole structure",
            ));
        }
        // Disabled options are 1 in the types of the models and 0 in those of the header.
        let or_one = |value: f64| if value == 0.0 { 1.0 } else { value };
        let sampling = SamplingOptions {
            temperature: options.temperature,
            top_k: options.top_k,
            top_p: or_one(options.top_p),
            min_p: options.min_p,
            repetition_penalty: or_one(options.repetition_penalty),
            presence_penalty: options.presence_penalty,
            frequency_penalty: options.frequency_penalty,
            ..SamplingOptions::default()
        };
        let stop = caller.texts(options.stop, options.stop_count, "options->stop")?;
        Ok(GenerationSettings {
            sampling,
            max_tokens: match options.max_tokens {
                0 => usize::MAX,
                n => n,
            },
            stop: stop.into_iter().map(str::to_string).collect(),
            grammar: grammar_of(caller, &options)?,
            seed: options.seed,
            ignores_end: options.ignore_end != 0,
        })
    }
}

fn invalid_grammar(error: ConstraintError) -> CallError {
    CallError::argument(tercet::one_line(&error))
}

/// The constraint of the options, if any.
fn grammar_of(
    caller: &Caller,
    options: &TercetGenerateOptions,
) -> Result<Option<Grammar>, CallError> {
    let schema = caller.optional_text(options.json_schema, "options->json_schema")?;
    let regex = caller.optional_text(options.regex, "options->regex")?;
    let grammar = caller.optional_text(options.grammar, "options->grammar")?;
    match (schema, regex, grammar) {
        (None, None, None) => Ok(None),
        (Some(schema), None, None) => Grammar::json_schema(schema)
            .map(Some)
            .map_err(invalid_grammar),
        (None, Some(regex), None) => Ok(Some(Grammar::Regex(regex.to_string()))),
        (None, None, Some(grammar)) => Grammar::from_text(grammar)
            .map(Some)
            .map_err(invalid_grammar),
        _ => Err(CallError::argument(
            "`json_schema`, `regex` and `grammar` exclude each other; set only one",
        )),
    }
}

impl GeneratorObject {
    fn open(
        path: &str,
        device: &Device,
        options: &TercetModelOptions,
    ) -> Result<GeneratorObject, CallError> {
        let (dtype, matmul_precision) = options.precision()?;
        let files = files_of(path, &[ModelFamily::Decoder], "generate text")?;
        let spec = files.decoder_spec()?;
        let cache = Some(CacheFormat::choose(
            &files.weights(),
            device,
            dtype,
            matmul_precision,
        ));
        let request = ContextRequest {
            context: options.context(),
            dtype,
            cache,
            ..ContextRequest::default()
        };
        let context = ContextFit::new(&files, &spec, device, &request)?.context;
        let tokenizer = files.tokenizer()?;
        let decoder = files.decoder(|spec| DecoderOptions {
            context,
            chunk: 512.min(context),
            dtype,
            cache,
            matmul_precision,
            sampling: Some(Sampling::GREEDY),
            ..DecoderOptions::new(spec)
        })?;
        Ok(GeneratorObject {
            ends: end_ids(&spec.eos, &tokenizer),
            vocab: spec.vocab,
            context,
            generator: CallbackLock::new(decoder.generator(device)?),
            is_stopped: AtomicBool::new(false),
            grammars: OnceLock::new(),
            tokenizer,
            files,
        })
    }

    /// The tokens of a conversation up to the start of the answer. Special tokens that messages spell are text.
    fn conversation(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, CallError> {
        let template = ChatTemplate::from_model(&self.files, &self.tokenizer)?;
        let rendered = template.render(messages, &TemplateValue::None, true);
        let rendered = rendered.map_err(DataError::from)?;
        let tokens = self
            .tokenizer
            .encode_mixed(&rendered.text, &rendered.literal);
        Ok(tokens?)
    }

    fn write(
        &self,
        prompt: &[u32],
        settings: &GenerationSettings,
        (function, user): (TercetGenerateCallback, *mut c_void),
    ) -> Result<GenerationObject, CallError> {
        let checked = settings.sampling.check(self.vocab);
        checked.map_err(|e| CallError::argument(tercet::one_line(&e)))?;
        let mut guard = self.generator.lock("generator")?;
        self.is_stopped.store(false, Ordering::Relaxed);
        let generator = &mut *guard.value;
        // A failed or cancelled call may have left tokens and a constraint.
        generator.reset();
        generator.set_sampling(&settings.sampling)?;
        if let Some(grammar) = &settings.grammar {
            let new = || GrammarCompiler::new(&self.tokenizer, &self.ends, self.vocab);
            let grammars = self.grammars.get_or_init(new).as_ref();
            let grammars = grammars.map_err(|e| ModelError::from(e.clone()))?;
            let constraint = grammars.constraint(grammar).map_err(invalid_grammar)?;
            generator.set_constraint(Some(Box::new(constraint)))?;
        }
        generator.set_seed(settings.seed);
        generator.skip_logits();
        generator.run_ahead();
        let callback = EventCallback {
            function,
            user,
            prompt_tokens: prompt.len(),
        };
        let options = GenerateOptions {
            max_tokens: settings.max_tokens,
            stop: &settings.stop,
            eos: if settings.ignores_end {
                &[]
            } else {
                &self.ends
            },
            spelled: &[],
        };
        let mut text = String::new();
        let generation = generate(generator, &self.tokenizer, prompt, &options, &mut |event| {
            if let GenerateEvent::Text(piece, _) = event {
                text += piece;
            }
            callback.call(event) && !self.is_stopped.load(Ordering::Relaxed)
        })?;
        Ok(GenerationObject {
            text: terminated(&text),
            generation,
            prompt_tokens: prompt.len(),
        })
    }
}

/// Opens a language model: a GGUF file, a Hugging Face folder, or the name of a model in a local cache. `options` may
/// be NULL. The weights stay mapped from the files, which must not change while the generator lives.
///
/// Errors: TERCET_STATUS_NOT_FOUND, TERCET_STATUS_MODEL for an invalid file or another kind of model,
/// TERCET_STATUS_UNSUPPORTED, TERCET_STATUS_MEMORY if the requested context does not fit.
///
/// Threads: generations of one generator wait for each other; open several for parallel ones. Free it with
/// `tercet_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_generator_open(
    device: *const TercetDevice,
    path: *const c_char,
    options: *const TercetModelOptions,
    generator: *mut *mut TercetGenerator,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = caller.out_handle(generator, "generator")?;
        let device = device_of(device)?;
        let path = caller.text(path, "path")?;
        let options = caller.options(options, "options")?;
        place.create(GeneratorObject::open(path, &device, &options)?)
    })
}

/// Maximum tokens of prompt and answer of a generator; 0 if `generator` is not a live generator.
#[unsafe(no_mangle)]
pub extern "C" fn tercet_generator_context(generator: *const TercetGenerator) -> usize {
    handles::get::<GeneratorObject>(generator, "generator").map_or(0, |object| object.context)
}

/// Generates text after a prompt and blocks until it is complete. Special tokens that the prompt spells are recognized.
/// Each call starts with an empty context.
///
/// `options` may be NULL. `callback` gets the text piece by piece with `user`; it may be NULL. `generation` gets the
/// whole text; it may be NULL. Free the generation with `tercet_free`.
///
/// Errors: TERCET_STATUS_ARGUMENT for options out of range or a prompt that exceeds the context,
/// TERCET_STATUS_BUSY in a callback of the same generator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_generate(
    generator: *const TercetGenerator,
    prompt: *const c_char,
    options: *const TercetGenerateOptions,
    callback: TercetGenerateCallback,
    user: *mut c_void,
    generation: *mut *mut TercetGeneration,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = optional_place(caller, generation)?;
        let object = handles::get::<GeneratorObject>(generator, "generator")?;
        let prompt = object
            .tokenizer
            .encode(caller.text(prompt, "prompt")?, true)?;
        let settings = GenerationSettings::new(caller, options)?;
        let written = object.write(&prompt, &settings, (callback, user))?;
        place.map_or(Ok(()), |place| place.create(written))
    })
}

/// Generates the answer to a conversation. The chat template of the model formats the messages (ChatML if the model has
/// none). Special tokens that messages spell are ordinary text. All else is as for `tercet_generate`.
///
/// Errors: those of `tercet_generate`; TERCET_STATUS_ARGUMENT for an unknown role or no message,
/// TERCET_STATUS_MODEL if the template fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_chat(
    generator: *const TercetGenerator,
    messages: *const TercetMessage,
    message_count: usize,
    options: *const TercetGenerateOptions,
    callback: TercetGenerateCallback,
    user: *mut c_void,
    generation: *mut *mut TercetGeneration,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = optional_place(caller, generation)?;
        let object = handles::get::<GeneratorObject>(generator, "generator")?;
        let messages = messages_of(caller, messages, message_count)?;
        let prompt = object.conversation(&messages)?;
        let settings = GenerationSettings::new(caller, options)?;
        let written = object.write(&prompt, &settings, (callback, user))?;
        place.map_or(Ok(()), |place| place.create(written))
    })
}

/// The place of a result that the caller may not want.
fn optional_place(
    caller: &Caller,
    place: *mut *mut TercetGeneration,
) -> Result<Option<crate::boundary::OutPlace<*mut TercetGeneration>>, CallError> {
    match place.is_null() {
        true => Ok(None),
        false => caller.out_handle(place, "generation").map(Some),
    }
}

fn messages_of(
    caller: &Caller,
    messages: *const TercetMessage,
    count: usize,
) -> Result<Vec<ChatMessage>, CallError> {
    let messages = caller.array(messages, count, "messages")?;
    if messages.is_empty() {
        return Err(CallError::argument(
            "`message_count` is 0; expected at least one message",
        ));
    }
    let message = |(at, message): (usize, &TercetMessage)| {
        let name = caller.text(message.role, &format!("messages[{at}].role"))?;
        let content = caller.text(message.content, &format!("messages[{at}].content"))?;
        let Some(role) = Role::ALL.into_iter().find(|role| role.name() == name) else {
            let known: Vec<&str> = Role::ALL.iter().map(|role| role.name()).collect();
            return Err(CallError::argument(format!(
                "`messages[{at}].role` is `{name}`; expected one of {}",
                known.join(", ")
            )));
        };
        Ok(ChatMessage::new(role, content))
    };
    messages.iter().enumerate().map(message).collect()
}

/// Stops the generation that runs on a generator, which then returns its text so far with TERCET_FINISH_CANCELLED.
/// Without a running generation there is no effect.
///
/// Threads: any thread may call it at any time, and a callback too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_generator_stop(
    generator: *const TercetGenerator,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|_| {
        let object = handles::get::<GeneratorObject>(generator, "generator")?;
        object.is_stopped.store(true, Ordering::Relaxed);
        Ok(())
    })
}

/// Reads a generation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_generation_read(
    generation: *const TercetGeneration,
    view: *mut TercetGenerationView,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let empty = TercetGenerationView {
            text: std::ptr::null(),
            text_bytes: 0,
            tokens: std::ptr::null(),
            token_count: 0,
            prompt_tokens: 0,
            finish: TercetFinish::End as i32,
        };
        let view = caller.out(view, empty, "view")?;
        // The table keeps the generation alive until it is freed.
        let object = handles::get::<GenerationObject>(generation, "generation")?;
        let finish = match object.generation.finish {
            FinishReason::End => TercetFinish::End,
            FinishReason::Stop => TercetFinish::Stop,
            FinishReason::Length => TercetFinish::Length,
            FinishReason::Context => TercetFinish::Context,
            FinishReason::Cancelled => TercetFinish::Cancelled,
        };
        view.set(TercetGenerationView {
            text: object.text.as_ptr().cast(),
            text_bytes: object.text.len() - 1,
            tokens: object.generation.tokens.as_ptr(),
            token_count: object.generation.tokens.len(),
            prompt_tokens: object.prompt_tokens,
            finish: finish as i32,
        });
        Ok(())
    })
}
