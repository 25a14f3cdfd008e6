//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, Role};

use super::response::{CompletionKind, CompletionRenderer, ResponseEnvelope};
use super::sampling::{take_params, take_thought_limit};
use crate::answer_stream::stream_response;
use crate::audio_parts;
use crate::conversation::{
    CompletionParams, ConversationRequest, EncodedImages, MAX_MESSAGES, ToolSet, call_value,
    effort_variables, join_parts, select_language, thinking_variables,
};
use crate::error::{ApiError, json_response};
use crate::fields::{JsonFields, wrong};
use crate::http::AppState;
use crate::language::ServedLanguageModel;
use crate::request_log::RequestRecord;

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
    let selected = select_language(&app, &mut fields, &record).await?;
    let (language, adapter) = (&selected.model, selected.adapter);
    audio_parts::write_down((&app, &record), &mut fields, "messages").await?;
    let request = parse(fields, language, &record)?;
    let request = request.decoded().await?;
    let prepared = request.prepare(language)?;
    let params = &prepared.params;
    let frame = ResponseEnvelope {
        choice_count: params.n,
        per_prompt: params.n,
        usage: params.usage,
        seed: params.seed,
        logprobs: params.top_logprobs.is_some(),
        details: params.details,
        prompts: if params.details.ids {
            vec![prepared.token_ids(language)]
        } else {
            Vec::new()
        },
        ..ResponseEnvelope::new(CompletionKind::Chat, &selected.name, prepared.prompt.len())
    };
    let mut answers = prepared.start(&app, (language, adapter), &record).await?;
    match params.stream {
        true => stream_response(answers, CompletionRenderer::new(frame)).await,
        false => Ok(json_response(
            &frame.full_response(answers.collect().await?),
        )),
    }
}

/// Parses the fields of a conversation, except `model`.
pub(crate) fn parse(
    mut fields: JsonFields,
    language: &ServedLanguageModel,
    record: &RequestRecord,
) -> Result<ConversationRequest, ApiError> {
    let mut reader = MessageReader {
        record,
        takes_text: language.answers.takes_argument_text(),
        images: EncodedImages::new(language),
    };
    let messages = reader.messages(fields.need("messages")?)?;
    let encoded = reader.images.into_files();
    let tools = ToolSet::take(&mut fields, record)?;
    let variables = template_variables(&mut fields)?;
    let thought_tokens = take_thought_limit(&mut fields)?;
    let params = take_params(fields, CompletionKind::Chat, record)?;
    let params = CompletionParams {
        thought_tokens,
        ..params
    };
    Ok(ConversationRequest {
        messages,
        encoded,
        images: Vec::new(),
        tools,
        variables,
        prefill: String::new(),
        params,
    })
}

/// Parses messages.
struct MessageReader<'a> {
    record: &'a RequestRecord,
    /// Whether templates get the arguments of calls as JSON text.
    takes_text: bool,
    images: EncodedImages,
}

impl MessageReader<'_> {
    fn messages(&mut self, value: Value) -> Result<Vec<ChatMessage>, ApiError> {
        let Value::Array(items) = value else {
            return Err(wrong("messages", &value, "a list of messages"));
        };
        if items.is_empty() || items.len() > MAX_MESSAGES {
            let found = items.len();
            let message =
                format!("field `messages` has {found} messages; expected 1 to {MAX_MESSAGES}");
            return Err(ApiError::bad_request(message).with_param("messages"));
        }
        let items = items.into_iter().enumerate();
        items
            .map(|(at, item)| self.message(item, &format!("messages[{at}]")))
            .collect()
    }

    fn message(&mut self, value: Value, path: &str) -> Result<ChatMessage, ApiError> {
        let (record, takes_text) = (self.record, self.takes_text);
        let mut fields = JsonFields::nested(value, path)?;
        let role = fields.text("role")?.unwrap_or_default();
        let Some(known) = Role::ALL.iter().find(|r| r.name() == role) else {
            let names: Vec<&str> = Role::ALL.iter().map(|r| r.name()).collect();
            let expected = format!("one of {}", names.join(", "));
            return Err(fields.wrong("role", &Value::String(role), &expected));
        };
        let calls = match fields.take("tool_calls") {
            Some(calls) if *known == Role::Assistant => {
                tool_calls(calls, &fields.path_of("tool_calls"), (record, takes_text))?
            }
            Some(Value::Array(calls)) if calls.is_empty() => Vec::new(),
            Some(_) => {
                let path = fields.path_of("tool_calls");
                let message = format!("field `{path}` is for the role `assistant`");
                return Err(ApiError::bad_request(message).with_param(&path));
            }
            None => Vec::new(),
        };
        let mut refusal = fields.text("refusal")?.filter(|text| !text.is_empty());
        let content = match fields.take("content") {
            Some(Value::String(text)) => TemplateValue::text(&text),
            Some(Value::Array(parts)) => {
                self.parts(parts, &fields.path_of("content"), *known == Role::Assistant)?
            }
            Some(other) => {
                let expected = "a text, or a list of parts of type `text`";
                return Err(fields.wrong("content", &other, expected));
            }
            None if !calls.is_empty() => TemplateValue::text(""),
            // The text of a refused answer.
            None if *known == Role::Assistant && refusal.is_some() => {
                TemplateValue::text(&refusal.take().unwrap_or_default())
            }
            None => return Err(fields.missing("content")),
        };
        fields.put("refusal", refusal.map(Value::String));
        fields.neutral_json(&NEUTRAL_IN_MESSAGES)?;
        if *known == Role::Assistant {
            // Some clients have this name of `reasoning_content`.
            let thought = fields.take("reasoning").filter(Value::is_string);
            let named = fields.take("reasoning_content").or(thought);
            fields.put("reasoning_content", named);
        }
        let mut shown = vec![("content", content)];
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

    /// Parses the parts of a message: one text, or a list of parts if there are images.
    fn parts(
        &mut self,
        parts: Vec<Value>,
        path: &str,
        is_answer: bool,
    ) -> Result<TemplateValue, ApiError> {
        let before = self.images.count();
        let mut texts = Vec::new();
        let mut values = Vec::new();
        for (at, item) in parts.into_iter().enumerate() {
            let part = self.part(item, &format!("{path}[{at}]"))?;
            values.push(match &part {
                Some(text) => TemplateValue::map(vec![
                    ("type", TemplateValue::text("text")),
                    ("text", TemplateValue::text(text)),
                ]),
                None => TemplateValue::map(vec![("type", TemplateValue::text("image"))]),
            });
            texts.extend(part);
        }
        match self.images.count() > before {
            true => Ok(TemplateValue::list(values)),
            false => Ok(TemplateValue::text(&join_parts(texts, is_answer))),
        }
    }

    /// The text of a part; `None` for an image, which is added to the images.
    fn part(&mut self, value: Value, path: &str) -> Result<Option<String>, ApiError> {
        let mut fields = JsonFields::nested(value, path)?;
        let kind = fields.text("type")?.unwrap_or_default();
        if kind == "image_url" && self.images.is_taken() {
            let url = match fields.need("image_url")? {
                Value::String(url) => url,
                url => {
                    let mut inner = JsonFields::nested(url, &fields.path_of("image_url"))?;
                    let url = inner.need_text("url")?;
                    inner.ignore_rest((self.record, "messages.content.image_url."));
                    url
                }
            };
            fields.ignore_rest((self.record, "messages.content."));
            self.images.add_url(&url, &format!("{path}.image_url"))?;
            return Ok(None);
        }
        // A refusal of an earlier answer.
        let is_refusal = kind == "refusal";
        if kind != "text" && !is_refusal {
            let expected = match self.images.is_taken() {
                true => "`text` or `image_url`",
                false => "`text`; the model takes no other parts of messages",
            };
            return Err(fields.wrong("type", &Value::String(kind), expected));
        }
        let name = if is_refusal { "refusal" } else { "text" };
        let text = fields.need_text(name)?;
        fields.ignore_rest((self.record, "messages.content."));
        Ok(Some(text))
    }
}

/// Parses the tool calls of an assistant message to their values for the template. Chat templates
/// expect the arguments as objects; their numbers keep all digits.
fn tool_calls(
    value: Value,
    path: &str,
    (record, takes_text): (&RequestRecord, bool),
) -> Result<Vec<TemplateValue>, ApiError> {
    let Value::Array(items) = value else {
        return Err(wrong(path, &value, "a list of calls"));
    };
    let call = |(at, item)| {
        let mut fields = JsonFields::nested(item, &format!("{path}[{at}]"))?;
        let id = fields.text("id")?.unwrap_or_default();
        let kind = fields.text("type")?.unwrap_or_else(|| "function".into());
        if kind != "function" {
            return Err(fields.wrong("type", &Value::String(kind), "`function`"));
        }
        let function = fields.object("function")?;
        let mut function = function.ok_or_else(|| fields.missing("function"))?;
        fields.ignore_rest((record, "messages.tool_calls."));
        let name = function.need_text("name")?;
        let arguments = match function.take("arguments") {
            Some(object @ Value::Object(_)) => object.to_string(),
            given => {
                function.put("arguments", given);
                function.text("arguments")?.unwrap_or_default()
            }
        };
        function.ignore_rest((record, "messages.tool_calls.function."));
        Ok(call_value((&id, &name), &arguments, takes_text))
    };
    items.into_iter().enumerate().map(call).collect()
}

/// Takes the variables of the chat template that a request sets.
fn template_variables(fields: &mut JsonFields) -> Result<Vec<(String, TemplateValue)>, ApiError> {
    let mut all: Vec<(String, TemplateValue)> = Vec::new();
    if let Some(effort) = fields.text("reasoning_effort")? {
        all.extend(effort_variables(&effort));
    }
    if let Some(thinks) = fields.truth("enable_thinking")? {
        all.extend(thinking_variables(thinks));
    }
    // As GLM, DeepSeek and Kimi take it.
    if let Some(mut thinking) = fields.object("thinking")? {
        match thinking.need_text("type")?.as_str() {
            "enabled" | "adaptive" => all.extend(thinking_variables(true)),
            "disabled" => all.extend(thinking_variables(false)),
            kind => {
                let expected = "`enabled` or `disabled`";
                return Err(thinking.wrong("type", &kind.into(), expected));
            }
        }
    }
    // As OpenRouter takes it.
    if let Some(mut reasoning) = fields.object("reasoning")? {
        if let Some(effort) = reasoning.text("effort")? {
            all.extend(effort_variables(&effort));
        }
        if let Some(thinks) = reasoning.truth("enabled")? {
            all.extend(thinking_variables(thinks));
        }
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
