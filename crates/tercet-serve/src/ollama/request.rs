//! Requests of `/api/chat` and `/api/generate`.

use serde_json::{Value, json};
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, Role};

use crate::conversation::{
    CompletionParams, ConversationRequest, EncodedImages, MAX_MESSAGES, MessageDraft, ToolSet,
    call_value, checked_stops, clamped, effort_variables, json_format, thinking_variables,
};
use crate::error::ApiError;
use crate::fields::{JsonFields, unsupported, wrong};
use crate::fill_in_middle::FillInMiddle;
use crate::language::ServedLanguageModel;
use crate::openai::sampling::{MAX_TOP_LOGPROBS, take_extensions};
use crate::request_log::RequestRecord;

/// The default sampling options of this API.
const DEFAULTS: [(&str, &str); 5] = [
    ("temperature", "0.8"),
    ("top_k", "40"),
    ("top_p", "0.9"),
    ("repeat_penalty", "1.1"),
    ("repeat_last_n", "64"),
];

/// What `/api/generate` continues.
pub(super) enum GenerateInput {
    /// A request without a prompt only loads the model.
    Nothing,
    Conversation(Box<ConversationRequest>),
    /// A prompt that no template formats.
    Tokens(Vec<u32>, Box<CompletionParams>),
}

/// Parses a request of `/api/chat`, except `model`. `None` without messages: such a request only loads
/// the model.
pub(super) fn chat(
    mut fields: JsonFields,
    language: &ServedLanguageModel,
    record: &RequestRecord,
) -> Result<Option<ConversationRequest>, ApiError> {
    let takes_text = language.answers.takes_argument_text();
    let items = fields.list("messages", "messages")?;
    if items.len() > MAX_MESSAGES {
        let message = format!(
            "field `messages` has {} messages; at most {MAX_MESSAGES} are supported",
            items.len()
        );
        return Err(ApiError::bad_request(message).with_param("messages"));
    }
    let mut drafts = Vec::new();
    let mut images = EncodedImages::new(language);
    for (at, item) in items.into_iter().enumerate() {
        let fields = JsonFields::nested(item, &format!("messages[{at}]"))?;
        drafts.push(message(fields, (takes_text, &mut images), record)?);
    }
    let tools = ToolSet::take(&mut fields, record)?;
    let (params, variables) = params(&mut fields, record)?;
    fields.ignore_rest((record, ""));
    if drafts.is_empty() {
        return Ok(None);
    }
    let is_prefill = |last: &mut MessageDraft| {
        last.role == Role::Assistant && last.calls.is_empty() && !last.content.is_empty()
    };
    let prefill = drafts.pop_if(is_prefill).map(|last| last.content);
    Ok(Some(ConversationRequest {
        messages: drafts.into_iter().map(MessageDraft::into_message).collect(),
        encoded: images.into_files(),
        images: Vec::new(),
        tools,
        variables,
        prefill: prefill.unwrap_or_default(),
        params,
    }))
}

fn message(
    mut fields: JsonFields,
    (takes_text, images): (bool, &mut EncodedImages),
    record: &RequestRecord,
) -> Result<MessageDraft, ApiError> {
    let role = fields.need_text("role")?;
    let known = [
        Role::System,
        Role::User,
        Role::Assistant,
        Role::Tool,
        Role::Developer,
    ];
    let Some(role) = known.into_iter().find(|known| known.name() == role) else {
        let expected = "one of system, user, assistant, tool";
        return Err(fields.wrong("role", &Value::String(role), expected));
    };
    let mut draft = MessageDraft::new(role, &fields.text("content")?.unwrap_or_default());
    draft.images = take_images(&mut fields, images)?;
    let thought = fields.text("thinking")?;
    match role {
        Role::Assistant => draft.reasoning = thought.unwrap_or_default(),
        Role::Tool => {
            let name = fields.text("tool_name")?;
            draft.name = fields.text("name")?.or(name);
            draft.call_id = fields.text("tool_call_id")?;
        }
        Role::System | Role::Developer | Role::User => {}
    }
    for (at, call) in fields.list("tool_calls", "calls")?.into_iter().enumerate() {
        let path = fields.path_of(&format!("tool_calls[{at}]"));
        let mut call = JsonFields::nested(call, &path)?;
        let id = call.text("id")?.unwrap_or_default();
        let function = call.object("function")?;
        let mut function = function.ok_or_else(|| call.missing("function"))?;
        let name = function.need_text("name")?;
        let arguments = match function.take("arguments") {
            Some(Value::String(text)) => text,
            Some(value) => value.to_string(),
            None => String::new(),
        };
        draft
            .calls
            .push(call_value((&id, &name), &arguments, takes_text));
        function.ignore_rest((record, "messages.tool_calls.function."));
        call.ignore_rest((record, "messages.tool_calls."));
    }
    fields.ignore_rest((record, "messages."));
    Ok(draft)
}

/// Takes the images of a message, and returns their number.
fn take_images(fields: &mut JsonFields, images: &mut EncodedImages) -> Result<usize, ApiError> {
    let path = fields.path_of("images");
    let files = fields.list("images", "images")?;
    if !files.is_empty() && !images.is_taken() {
        return Err(unsupported(&path, "the model reads text only"));
    }
    let count = files.len();
    for (at, file) in files.into_iter().enumerate() {
        let path = format!("{path}[{at}]");
        match file {
            Value::String(data) => images.add_base64(&data, &path)?,
            other => return Err(wrong(&path, &other, "a file in base64")),
        }
    }
    Ok(count)
}

/// Parses a request of `/api/generate`, except `model`.
pub(super) fn generate(
    mut fields: JsonFields,
    language: &ServedLanguageModel,
    record: &RequestRecord,
) -> Result<GenerateInput, ApiError> {
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let suffix = fields.text("suffix")?.unwrap_or_default();
    let system = fields.text("system")?.filter(|text| !text.is_empty());
    let is_raw = fields.truth("raw")?.unwrap_or(false);
    let mut images = EncodedImages::new(language);
    let count = take_images(&mut fields, &mut images)?;
    for (name, neutral, remedy) in [
        (
            "template",
            json!(""),
            "start the server with --chat-template-file, or send `raw`",
        ),
        ("context", json!([]), "send the conversation to /api/chat"),
    ] {
        if fields.take(name).is_some_and(|found| found != neutral) {
            return Err(unsupported(name, remedy));
        }
    }
    let (mut params, variables) = params(&mut fields, record)?;
    fields.ignore_rest((record, ""));
    if prompt.is_empty() && suffix.is_empty() {
        return Ok(GenerateInput::Nothing);
    }
    language.check_bytes(prompt.len() + suffix.len())?;
    if count > 0 && (is_raw || !suffix.is_empty()) {
        let remedy = "leave out `raw` and `suffix`, or the images";
        return Err(unsupported("images", remedy));
    }
    if !suffix.is_empty() {
        let tokens = FillInMiddle::for_field("suffix", &language.tokenizer)?;
        params.stop_tokens.clone_from(&tokens.ends);
        let prompt = tokens.prompt(&language.tokenizer, (&prompt, &suffix), &[])?;
        return Ok(GenerateInput::Tokens(prompt, Box::new(params)));
    }
    if is_raw {
        let prompt = language.tokenizer.encode(&prompt, true);
        let prompt = prompt.map_err(|e| ApiError::failed(&e))?;
        return Ok(GenerateInput::Tokens(prompt, Box::new(params)));
    }
    let system = system.map(|text| ChatMessage::new(Role::System, &text));
    let mut user = MessageDraft::new(Role::User, &prompt);
    user.images = count;
    let user = user.into_message();
    Ok(GenerateInput::Conversation(Box::new(ConversationRequest {
        messages: system.into_iter().chain([user]).collect(),
        encoded: images.into_files(),
        images: Vec::new(),
        tools: None,
        variables,
        prefill: String::new(),
        params,
    })))
}

/// Parses the fields that both routes have.
fn params(
    fields: &mut JsonFields,
    record: &RequestRecord,
) -> Result<(CompletionParams, Vec<(String, TemplateValue)>), ApiError> {
    let mut params = CompletionParams::new();
    match fields.take("format") {
        None => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(Value::String(text)) if text == "json" => {
            json_format(&mut params, "format", json!({"type": "object"}))?;
        }
        Some(schema @ Value::Object(_)) => json_format(&mut params, "format", schema)?,
        Some(other) => return Err(wrong("format", &other, "`json` or a JSON schema")),
    }
    options(fields, &mut params, record)?;
    params.stream = fields.truth("stream")?.unwrap_or(true);
    let top = fields.count("top_logprobs")?.map_or(0, clamped);
    if top > MAX_TOP_LOGPROBS {
        let expected = format!("a whole number from 0 to {MAX_TOP_LOGPROBS}");
        return Err(wrong("top_logprobs", &top.into(), &expected));
    }
    if fields.truth("logprobs")?.unwrap_or(false) {
        params.top_logprobs = Some(top);
    }
    let variables = match fields.take("think") {
        None => Vec::new(),
        Some(Value::Bool(thinks)) => thinking_variables(thinks).into(),
        Some(Value::String(effort)) => effort_variables(&effort),
        Some(other) => return Err(wrong("think", &other, "true, false, or an effort")),
    };
    Ok((params, variables))
}

/// Parses `options`.
fn options(
    fields: &mut JsonFields,
    params: &mut CompletionParams,
    record: &RequestRecord,
) -> Result<(), ApiError> {
    let options = fields.object("options")?;
    let mut options = match options {
        Some(options) => options,
        None => JsonFields::nested(json!({}), "options")?,
    };
    for (name, default) in DEFAULTS {
        let default = serde_json::from_str(default).ok();
        let value = options.take(name).or(default);
        options.put(name, value);
    }
    params.stop = checked_stops("options.stop", options.texts("stop")?)?;
    // Negative values mean the rest of the context.
    let count = options.take("num_predict");
    let is_negative = |count: &Value| count.as_i64().is_some_and(|n| n < 0);
    let count = count.filter(|count| !is_negative(count));
    options.put("num_predict", count);
    params.max_tokens = options.count("num_predict")?.map(clamped);
    take_extensions(&mut options, params)?;
    options.ignore_rest((record, "options."));
    Ok(())
}
