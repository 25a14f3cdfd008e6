//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;
use tercet_models::dataset::template::TemplateValue as Shown;
use tercet_models::dataset::{ChatMessage, Role};

use super::response::{CompletionKind, ResponseEnvelope};
use super::sampling::CompletionParams;
use super::streaming;
use super::tools::ToolSet;
use crate::error::ApiError;
use crate::fields::{JsonFields, wrong};
use crate::http::AppState;
use crate::language::LanguageModel;

/// Maximum messages of a conversation.
const MAX_MESSAGES: usize = 1000;

pub(crate) async fn handle(
    State(app): State<Arc<AppState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let mut fields = JsonFields::parse(&body)?;
    let name = fields
        .text("model")?
        .ok_or_else(|| ApiError::bad_request("field `model` is missing"))?;
    let (language, adapter) = app.models.language(&name)?;
    let messages = messages(fields.need("messages")?)?;
    let tools = ToolSet::take(&mut fields, language)?;
    let mut wanted = CompletionParams::take(fields, CompletionKind::Chat)?;
    if let Some(tools) = &tools {
        constrain(&mut wanted, tools)?;
    }
    let prompt = tokens(language, &messages, tools.as_ref())?;
    let frame = ResponseEnvelope {
        choice_count: wanted.n,
        usage: wanted.usage,
        seed: wanted.seed,
        logprobs: wanted.top_logprobs.is_some(),
        calls: tools.as_ref().map(ToolSet::calls),
        ..ResponseEnvelope::new(CompletionKind::Chat, &name, prompt.len())
    };
    let room = language.context.saturating_sub(prompt.len());
    let pieces = language.start(wanted.requests(&prompt, room), adapter, &app.metrics);
    let pieces = pieces.await?;
    match wanted.stream {
        true => streaming::stream(frame, pieces).await,
        false => streaming::collect_response(&frame, pieces).await,
    }
}

/// Constrains the answer to a tool call, if `tool_choice` requires one.
#[cfg(feature = "grammar")]
fn constrain(wanted: &mut CompletionParams, tools: &ToolSet) -> Result<(), ApiError> {
    let Some(grammar) = tools.grammar() else {
        return Ok(());
    };
    match wanted.grammar.replace(("tools", grammar)) {
        Some((field, _)) => Err(ApiError::bad_request(format!(
            "field `{field}` cannot be combined with a `tool_choice` that requires a call"
        ))),
        None => Ok(()),
    }
}

#[cfg(not(feature = "grammar"))]
fn constrain(_: &mut CompletionParams, tools: &ToolSet) -> Result<(), ApiError> {
    tools.check()
}

fn messages(value: Value) -> Result<Vec<ChatMessage>, ApiError> {
    let Value::Array(items) = value else {
        return Err(wrong("messages", &value, "a list of messages"));
    };
    if items.is_empty() || items.len() > MAX_MESSAGES {
        return Err(ApiError::bad_request(format!(
            "field `messages` has {} messages; expected 1 to {MAX_MESSAGES}",
            items.len()
        )));
    }
    items.into_iter().map(message).collect()
}

fn message(value: Value) -> Result<ChatMessage, ApiError> {
    let mut fields = JsonFields::from_value(value, "a message")?;
    let role = fields.text("role")?.unwrap_or_default();
    let Some(known) = Role::ALL.iter().find(|r| r.name() == role) else {
        let names: Vec<&str> = Role::ALL.iter().map(|r| r.name()).collect();
        return Err(wrong(
            "role",
            &Value::String(role),
            &format!("one of {}", names.join(", ")),
        ));
    };
    let calls = match fields.take("tool_calls") {
        Some(calls) if *known == Role::Assistant => tool_calls(calls)?,
        Some(Value::Array(calls)) if calls.is_empty() => Vec::new(),
        Some(_) => {
            let message = "field `tool_calls` of a message is for the role `assistant`";
            return Err(ApiError::bad_request(message));
        }
        None => Vec::new(),
    };
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => parts
            .into_iter()
            .map(part)
            .collect::<Result<String, ApiError>>()?,
        Some(other) => {
            return Err(wrong(
                "content",
                &other,
                "a text, or a list of parts of type `text`",
            ));
        }
        None if !calls.is_empty() => String::new(),
        None => return Err(ApiError::bad_request("field `content` is missing")),
    };
    fields.neutral(&[("refusal", &[Value::String(String::new())])])?;
    let mut shown = vec![("content", Shown::text(&content))];
    if *known == Role::Tool {
        for name in ["tool_call_id", "name"] {
            if let Some(text) = fields.text(name)? {
                shown.push((name, Shown::text(&text)));
            }
        }
    }
    fields.finish()?;
    if !calls.is_empty() {
        shown.push(("tool_calls", Shown::list(calls)));
    }
    Ok(ChatMessage::from_fields(*known, shown))
}

/// Parses the tool calls of an assistant message to their values for the template. Chat templates
/// expect the arguments as objects; their numbers keep all digits.
fn tool_calls(value: Value) -> Result<Vec<Shown>, ApiError> {
    let Value::Array(items) = value else {
        return Err(wrong("tool_calls", &value, "a list of calls"));
    };
    let call = |item| {
        let mut fields = JsonFields::from_value(item, "a call of a tool")?;
        let id = fields.text("id")?.unwrap_or_default();
        let kind = fields.text("type")?.unwrap_or_else(|| "function".into());
        if kind != "function" {
            return Err(wrong("type", &Value::String(kind), "`function`"));
        }
        let mut function = JsonFields::from_value(fields.need("function")?, "field `function`")?;
        fields.finish()?;
        let name = function.text("name")?;
        let name =
            name.ok_or_else(|| ApiError::bad_request("field `name` of a call is missing"))?;
        let arguments = function.text("arguments")?.unwrap_or_default();
        function.finish()?;
        let object = match arguments.trim().is_empty() {
            true => "{}",
            false => arguments.as_str(),
        };
        let parsed = serde_json::from_str::<serde_json::Map<String, Value>>(object);
        let (Ok(_), Ok(value)) = (parsed, Shown::from_json(object)) else {
            let expected = "a JSON object in a string";
            return Err(wrong("arguments", &Value::String(arguments), expected));
        };
        let entries = |all: Vec<(&str, Shown)>| Shown::map(all);
        let function = entries(vec![("name", Shown::text(&name)), ("arguments", value)]);
        let call = vec![
            ("id", Shown::text(&id)),
            ("type", Shown::text("function")),
            ("function", function),
        ];
        Ok(entries(call))
    };
    items.into_iter().map(call).collect()
}

/// Returns the text of a message part.
fn part(value: Value) -> Result<String, ApiError> {
    let mut fields = JsonFields::from_value(value, "a part of a message")?;
    let kind = fields.text("type")?.unwrap_or_default();
    if kind != "text" {
        return Err(wrong(
            "type",
            &Value::String(kind),
            "`text`; other message parts are not supported",
        ));
    }
    let text = fields
        .text("text")?
        .ok_or_else(|| ApiError::bad_request("field `text` is missing"))?;
    fields.finish()?;
    Ok(text)
}

/// Returns the tokens of a conversation up to the start of the answer. Only the text of the chat
/// template spells special tokens; those in messages and tools are ordinary text.
fn tokens(
    language: &LanguageModel,
    messages: &[ChatMessage],
    tools: Option<&ToolSet>,
) -> Result<Vec<u32>, ApiError> {
    let shown = match tools {
        Some(tools) => tools.for_template()?,
        None => Shown::None,
    };
    let rendered = language.template.render(messages, &shown, true);
    let rendered = rendered.map_err(|e| {
        ApiError::bad_request(format!(
            "the chat template rejects the messages: {}",
            tercet::one_line(&e)
        ))
    })?;
    language.check_bytes(rendered.text.len())?;
    let untold = tools.and_then(|tools| tools.names().find(|name| !rendered.text.contains(name)));
    if untold.is_some() {
        return Err(ApiError::bad_request(
            "field `tools` is not supported with this model: its chat template does not use them",
        ));
    }
    (language.tokenizer)
        .encode_mixed(&rendered.text, &rendered.literal)
        .map_err(|e| ApiError::failed(&e))
}
