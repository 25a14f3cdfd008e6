//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;
use tercet_models::answer::{AnswerParser, with_tool_prompt};
#[cfg(feature = "grammar")]
use tercet_models::constraint::Grammar;
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, Role};

use super::response::{CompletionKind, ResponseEnvelope};
use super::sampling::CompletionParams;
use super::streaming;
use super::tools::ToolSet;
use crate::error::ApiError;
use crate::fields::{JsonFields, wrong};
use crate::http::AppState;
use crate::language::ServedLanguageModel;
use crate::models::SelectedLanguage;
use crate::request_log::RequestRecord;

/// Maximum messages of a conversation.
const MAX_MESSAGES: usize = 1000;

/// Fields of messages that change a response in other servers, and the JSON values at which they do
/// not. All other unknown fields, such as those that clients copy from earlier answers, are ignored.
const NEUTRAL_IN_MESSAGES: [(&str, &str); 8] = [
    ("attachments", "[[]]"),
    ("audio", "[{}]"),
    ("files", "[[]]"),
    ("function_call", r#"[{}, "none", "auto"]"#),
    ("images", "[[]]"),
    ("partial", "[false]"),
    ("prefix", "[false]"),
    ("videos", "[[]]"),
];

pub(crate) async fn handle(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let mut fields = JsonFields::parse(&body)?;
    let asked = fields.text("model")?;
    let SelectedLanguage {
        name,
        model: language,
        adapter,
    } = app.models.language(asked.as_deref())?;
    record.set_model(asked.as_deref(), &name);
    let takes_text = language.answers.takes_argument_text();
    let messages = messages(fields.need("messages")?, (record.as_ref(), takes_text))?;
    let tools = ToolSet::take(&mut fields, &record)?;
    let variables = template_variables(&mut fields)?;
    let mut wanted = CompletionParams::take(fields, CompletionKind::Chat, &record)?;
    let (prompt, mut text) = tokens(language, &messages, tools.as_ref(), &variables)?;
    let has_free_thoughts = match &tools {
        Some(tools) => constrain(&mut wanted, tools, (language, &text))?,
        None => false,
    };
    let callable = tools.as_ref().map(ToolSet::callable).unwrap_or_default();
    // Other constraints start at the first token, so such an answer has no thoughts.
    if wanted.is_constrained() && !has_free_thoughts {
        text.clear();
    }
    let answers = AnswerParser::new(&language.answers, &callable, &text);
    let is_single = tools.as_ref().is_some_and(|tools| tools.single);
    wanted.spelled = language.answers.special_tokens(&language.tokenizer);
    let frame = ResponseEnvelope {
        choice_count: wanted.n,
        usage: wanted.usage,
        seed: wanted.seed,
        logprobs: wanted.top_logprobs.is_some(),
        answers: Some(answers.with_single_call(is_single)),
        details: wanted.details,
        prompts: if wanted.details.ids {
            vec![prompt.clone()]
        } else {
            Vec::new()
        },
        ..ResponseEnvelope::new(CompletionKind::Chat, &name, prompt.len())
    };
    record.set_prompt_tokens(prompt.len());
    let room = language.context.saturating_sub(prompt.len());
    let pieces = language.start(wanted.requests(&prompt, room), adapter, &app.metrics);
    let pieces = pieces.await?;
    match wanted.stream {
        true => streaming::stream(frame, pieces, record).await,
        false => streaming::collect_response(&frame, pieces, &record).await,
    }
}

/// Constrains the answer to a tool call, if `tool_choice` requires one. Otherwise an answer with a
/// `response_format` may be a call, too, and calls of strict tools match their schemas. Returns whether
/// thoughts may precede the answer. `text` is that of the prompt.
#[cfg(feature = "grammar")]
fn constrain(
    wanted: &mut CompletionParams,
    tools: &ToolSet,
    (language, text): (&ServedLanguageModel, &str),
) -> Result<bool, ApiError> {
    if let Some(required) = tools.grammar(language)? {
        if let Some((field @ "grammar", _)) = wanted.grammar {
            return Err(ApiError::bad_request(format!(
                "field `{field}` cannot be combined with a `tool_choice` that requires a call"
            )));
        }
        // The response format applies to answers that are no calls.
        wanted.grammar = Some(("tools", required));
        return Ok(false);
    }
    match wanted.grammar.take() {
        Some((field @ "response_format", Grammar::JsonSchema(schema))) => {
            let grammar = tools.call_or_json(&schema, &language.answers)?;
            wanted.grammar = Some((field, grammar));
            Ok(false)
        }
        Some((field, other)) => {
            if tools.strict_grammar(language, text)?.is_some() {
                return Err(ApiError::bad_request(format!(
                    "field `{field}` cannot be combined with `strict` tools; set `strict` to false"
                )));
            }
            wanted.grammar = Some((field, other));
            Ok(false)
        }
        None => {
            let strict = tools.strict_grammar(language, text)?;
            wanted.grammar = strict.map(|grammar| ("tools", grammar));
            Ok(true)
        }
    }
}

#[cfg(not(feature = "grammar"))]
fn constrain(
    _: &mut CompletionParams,
    tools: &ToolSet,
    _: (&ServedLanguageModel, &str),
) -> Result<bool, ApiError> {
    tools.check()?;
    Ok(false)
}

/// Parses the messages. With `takes_text`, templates get the arguments of calls as JSON text.
fn messages(
    value: Value,
    (record, takes_text): (&RequestRecord, bool),
) -> Result<Vec<ChatMessage>, ApiError> {
    let Value::Array(items) = value else {
        return Err(wrong("messages", &value, "a list of messages"));
    };
    if items.is_empty() || items.len() > MAX_MESSAGES {
        return Err(ApiError::bad_request(format!(
            "field `messages` has {} messages; expected 1 to {MAX_MESSAGES}",
            items.len()
        )));
    }
    let message = |item| message(item, (record, takes_text));
    items.into_iter().map(message).collect()
}

fn message(
    value: Value,
    (record, takes_text): (&RequestRecord, bool),
) -> Result<ChatMessage, ApiError> {
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
        Some(calls) if *known == Role::Assistant => tool_calls(calls, (record, takes_text))?,
        Some(Value::Array(calls)) if calls.is_empty() => Vec::new(),
        Some(_) => {
            let message = "field `tool_calls` of a message is for the role `assistant`";
            return Err(ApiError::bad_request(message));
        }
        None => Vec::new(),
    };
    let mut refusal = fields.text("refusal")?.filter(|text| !text.is_empty());
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => parts
            .into_iter()
            .map(|item| part(item, record))
            .collect::<Result<String, ApiError>>()?,
        Some(other) => {
            return Err(wrong(
                "content",
                &other,
                "a text, or a list of parts of type `text`",
            ));
        }
        None if !calls.is_empty() => String::new(),
        // The text of a refused answer.
        None if *known == Role::Assistant && refusal.is_some() => {
            refusal.take().unwrap_or_default()
        }
        None => return Err(ApiError::bad_request("field `content` is missing")),
    };
    fields.put("refusal", refusal.map(Value::String));
    fields.neutral_json(&NEUTRAL_IN_MESSAGES)?;
    if *known == Role::Assistant {
        // Some clients have this name of `reasoning_content`.
        let thought = fields.take("reasoning").filter(Value::is_string);
        let named = fields.take("reasoning_content").or(thought);
        fields.put("reasoning_content", named);
    }
    let mut shown = vec![("content", TemplateValue::text(&content))];
    let texts: &[&str] = match *known {
        Role::Tool => &["tool_call_id", "name"],
        // Templates of models that think read the thoughts of earlier answers.
        Role::Assistant => &["name", "reasoning_content"],
        Role::System | Role::Developer | Role::User => &["name"],
    };
    let reasoning = fields.text("reasoning")?.filter(|text| !text.is_empty());
    if let (Some(text), Role::Assistant) = (&reasoning, *known) {
        shown.push(("reasoning_content", TemplateValue::text(text)));
    }
    for &name in texts {
        if let Some(text) = fields.text(name)? {
            shown.push((name, TemplateValue::text(&text)));
        }
    }
    fields.ignore_rest((record, "messages."));
    if !calls.is_empty() {
        shown.push(("tool_calls", TemplateValue::list(calls)));
    }
    Ok(ChatMessage::from_fields(*known, shown))
}

/// Parses the tool calls of an assistant message to their values for the template. Chat templates
/// expect the arguments as objects; their numbers keep all digits.
fn tool_calls(
    value: Value,
    (record, takes_text): (&RequestRecord, bool),
) -> Result<Vec<TemplateValue>, ApiError> {
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
        fields.ignore_rest((record, "messages.tool_calls."));
        let name = function.text("name")?;
        let name =
            name.ok_or_else(|| ApiError::bad_request("field `name` of a call is missing"))?;
        let arguments = function.text("arguments")?.unwrap_or_default();
        function.ignore_rest((record, "messages.tool_calls.function."));
        let object = match arguments.trim().is_empty() {
            true => "{}",
            false => arguments.as_str(),
        };
        let parsed = serde_json::from_str::<serde_json::Map<String, Value>>(object);
        let (Ok(_), Ok(value)) = (parsed, TemplateValue::from_json(object)) else {
            let expected = "a JSON object in a string";
            return Err(wrong("arguments", &Value::String(arguments), expected));
        };
        let value = match takes_text {
            true => TemplateValue::text(object),
            false => value,
        };
        let entries = |all: Vec<(&str, TemplateValue)>| TemplateValue::map(all);
        let function = entries(vec![
            ("name", TemplateValue::text(&name)),
            ("arguments", value),
        ]);
        let call = vec![
            ("id", TemplateValue::text(&id)),
            ("type", TemplateValue::text("function")),
            ("function", function),
        ];
        Ok(entries(call))
    };
    items.into_iter().map(call).collect()
}

/// Returns the text of a message part.
fn part(value: Value, record: &RequestRecord) -> Result<String, ApiError> {
    let mut fields = JsonFields::from_value(value, "a part of a message")?;
    let kind = fields.text("type")?.unwrap_or_default();
    // A refusal of an earlier answer.
    let is_refusal = kind == "refusal";
    if kind != "text" && !is_refusal {
        return Err(wrong(
            "type",
            &Value::String(kind),
            "`text`; other message parts are not supported",
        ));
    }
    let name = if is_refusal { "refusal" } else { "text" };
    let text = fields
        .text(name)?
        .ok_or_else(|| ApiError::bad_request(format!("field `{name}` is missing")))?;
    fields.ignore_rest((record, "messages.content."));
    Ok(text)
}

/// Takes the variables of the chat template that a request sets.
fn template_variables(fields: &mut JsonFields) -> Result<Vec<(String, TemplateValue)>, ApiError> {
    let mut all: Vec<(String, TemplateValue)> = Vec::new();
    if let Some(effort) = fields.text("reasoning_effort")? {
        if effort == "none" {
            all.push(("enable_thinking".into(), TemplateValue::Bool(false)));
        }
        all.push(("reasoning_effort".into(), TemplateValue::text(&effort)));
    }
    if let Some(thinks) = fields.truth("enable_thinking")? {
        all.push(("enable_thinking".into(), TemplateValue::Bool(thinks)));
    }
    match fields.take("chat_template_kwargs") {
        None => {}
        Some(Value::Object(map)) => {
            for (name, value) in map {
                let json = value.to_string();
                let value = TemplateValue::from_json(&json).map_err(|e| ApiError::failed(&e))?;
                all.push((name, value));
            }
        }
        Some(other) => return Err(wrong("chat_template_kwargs", &other, "an object")),
    }
    Ok(all)
}

/// Returns the tokens of a conversation up to the start of the answer, and their text. Only the
/// text of the chat template spells special tokens; those in messages and tools are ordinary text.
/// If the template does not show tools, a system prompt does.
fn tokens(
    language: &ServedLanguageModel,
    messages: &[ChatMessage],
    tools: Option<&ToolSet>,
    variables: &[(String, TemplateValue)],
) -> Result<(Vec<u32>, String), ApiError> {
    let shown = match tools {
        Some(tools) => tools.for_template()?,
        None => TemplateValue::None,
    };
    let render = |messages: &[ChatMessage], shown: &TemplateValue| {
        let rendered = (language.template).render_with(messages, shown, true, variables);
        let rendered = rendered.map_err(|e| {
            ApiError::bad_request(format!(
                "the chat template rejects the messages: {}",
                tercet::one_line(&e)
            ))
        })?;
        language.check_bytes(rendered.text.len())?;
        Ok::<_, ApiError>(rendered)
    };
    let rendered = match tools {
        Some(tools) if !language.answers.has_tools() => {
            let told = with_tool_prompt(messages, &tools.functions());
            render(&told, &TemplateValue::None)?
        }
        Some(_) | None => render(messages, &shown)?,
    };
    let tokens = (language.tokenizer).encode_mixed(&rendered.text, &rendered.literal);
    let tokens = tokens.map_err(|e| ApiError::failed(&e))?;
    Ok((tokens, rendered.text))
}
