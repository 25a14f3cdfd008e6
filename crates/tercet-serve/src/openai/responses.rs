//! `POST /v1/responses`: OpenAI's Responses API without stored state. A request has the whole
//! conversation, and no response can be read again.

mod input;
mod items;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, Role};

use self::input::ResponseInput;
use self::items::{ResponseFrame, ResponseRenderer};
use super::sampling::{MAX_TOP_LOGPROBS, take_extensions};
use crate::answer_stream::stream_response;
use crate::audio_parts;
use crate::conversation::{
    CompletionParams, ConversationRequest, EncodedImages, MessageDraft, ToolChoice, ToolSet,
    ToolSpec, clamped, effort_variables, json_format, select_language,
};
use crate::error::{ApiError, json_response};
use crate::fields::{JsonFields, unsupported, wrong};
use crate::http::AppState;
use crate::language::ServedLanguageModel;
use crate::request_log::RequestRecord;

/// Fields that change a response and are not supported, with the JSON values at which they do not, and
/// a remedy.
const REFUSED: [(&str, &str, &str); 5] = [
    (
        "previous_response_id",
        r#"[""]"#,
        "responses are not stored: send the whole conversation as `input`",
    ),
    (
        "conversation",
        "[{}]",
        "conversations are not stored: send the whole conversation as `input`",
    ),
    ("background", "[false]", "leave it out, or set it to false"),
    (
        "prompt",
        "[{}]",
        "prompts are not stored: send their text as `instructions` or `input`",
    ),
    (
        "truncation",
        r#"["disabled"]"#,
        "leave it out, or set it to `disabled`",
    ),
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
    let language = &selected.model;
    audio_parts::write_down((&app, &record), &mut fields, "input").await?;
    let (request, echo) = parse(fields, language, &record)?;
    let request = request.decoded().await?;
    let prepared = request.prepare(language)?;
    let mut frame = ResponseFrame::new(&selected.name, echo, prepared.prompt.len());
    frame.logprobs = prepared.params.top_logprobs.is_some();
    let renderer = ResponseRenderer::new(frame);
    let of = (language, selected.adapter);
    let mut answers = prepared.start(&app, of, &record).await?;
    match prepared.params.stream {
        true => stream_response(answers, renderer).await,
        false => {
            let answer = answers.collect_one().await?;
            Ok(json_response(&renderer.whole(answer)))
        }
    }
}

/// Parses the fields except `model`. The second value has the fields that the response repeats.
fn parse(
    mut fields: JsonFields,
    language: &ServedLanguageModel,
    record: &RequestRecord,
) -> Result<(ConversationRequest, Value), ApiError> {
    for (name, neutral, remedy) in REFUSED {
        let values: Vec<Value> = serde_json::from_str(neutral).unwrap_or_default();
        if fields
            .take(name)
            .is_some_and(|found| !values.contains(&found))
        {
            return Err(unsupported(name, remedy));
        }
    }
    let instructions = fields.text("instructions")?;
    let (messages, encoded) = messages(&mut fields, instructions.as_deref(), language, record)?;
    let shown_tools = fields.take("tools").unwrap_or_else(|| json!([]));
    let shown_choice = fields.take("tool_choice").unwrap_or_else(|| json!("auto"));
    let parallel = fields.truth("parallel_tool_calls")?.unwrap_or(true);
    let (tools, choice) = choice(
        shown_choice.clone(),
        tools(shown_tools.clone(), record)?,
        record,
    )?;
    let mut params = CompletionParams::new();
    params.max_tokens = fields.count("max_output_tokens")?.map(clamped);
    let shown_max = params.max_tokens;
    let shown_format = text_format(&mut fields, &mut params, record)?;
    let (variables, shown_reasoning) = reasoning(&mut fields, record)?;
    let top_logprobs = fields.count("top_logprobs")?.map(clamped);
    if let Some(count) = top_logprobs.filter(|count| *count > MAX_TOP_LOGPROBS) {
        let expected = format!("a whole number from 0 to {MAX_TOP_LOGPROBS}");
        return Err(wrong("top_logprobs", &count.into(), &expected));
    }
    for name in fields.texts("include")? {
        match name.as_str() {
            "message.output_text.logprobs" => {
                params.top_logprobs = Some(top_logprobs.unwrap_or(0));
            }
            other => record.add_ignored(&format!("include.{other}")),
        }
    }
    take_extensions(&mut fields, &mut params)?;
    params.stream = fields.truth("stream")?.unwrap_or(false);
    let metadata = fields.take("metadata").unwrap_or_else(|| json!({}));
    if !metadata.is_object() {
        return Err(wrong("metadata", &metadata, "an object"));
    }
    let mut echo = json!({
        "instructions": instructions, "max_output_tokens": shown_max, "metadata": metadata,
        "parallel_tool_calls": parallel, "reasoning": shown_reasoning,
        "temperature": params.sampling.temperature, "top_p": params.sampling.top_p,
        "text": {"format": shown_format}, "tool_choice": shown_choice, "tools": shown_tools,
        "top_logprobs": top_logprobs.unwrap_or(0), "truncation": "disabled",
    });
    for name in ["user", "safety_identifier", "prompt_cache_key"] {
        if let Some(value) = fields.take(name) {
            record.add_ignored(name);
            echo[name] = value;
        }
    }
    fields.take("stream_options");
    fields.ignore_rest((record, ""));
    let request = ConversationRequest {
        messages,
        encoded,
        images: Vec::new(),
        tools: ToolSet::new(tools, choice, !parallel)?,
        variables,
        prefill: String::new(),
        params,
    };
    Ok((request, echo))
}

/// Parses `input`; the instructions are the first message, or the start of it. The second value has the
/// files of the images.
fn messages(
    fields: &mut JsonFields,
    instructions: Option<&str>,
    language: &ServedLanguageModel,
    record: &RequestRecord,
) -> Result<(Vec<ChatMessage>, Vec<Vec<u8>>), ApiError> {
    let takes_text = language.answers.takes_argument_text();
    let mut input = ResponseInput::new(record, takes_text, EncodedImages::new(language));
    input.read(fields.need("input")?)?;
    let (mut drafts, encoded) = input.into_drafts();
    if let Some(text) = instructions.filter(|text| !text.is_empty()) {
        match drafts.first_mut() {
            Some(first) if matches!(first.role, Role::System | Role::Developer) => {
                first.role = Role::System;
                first.content = format!("{text}\n\n{}", first.content);
            }
            _ => drafts.insert(0, MessageDraft::new(Role::System, text)),
        }
    }
    let messages = drafts.into_iter().map(MessageDraft::into_message);
    Ok((messages.collect(), encoded))
}

/// Parses `tools`. Tools that OpenAI runs, or that take text instead of JSON, do not exist here: the
/// model does not see them.
fn tools(value: Value, record: &RequestRecord) -> Result<Vec<ToolSpec>, ApiError> {
    let Value::Array(items) = value else {
        return Err(wrong("tools", &value, "a list of tools"));
    };
    let mut tools = Vec::new();
    for (at, item) in items.into_iter().enumerate() {
        let path = format!("tools[{at}]");
        let mut fields = JsonFields::nested(item, &path)?;
        let kind = fields.need_text("type")?;
        if kind != "function" {
            record.add_ignored(&format!("tools.{kind}"));
            continue;
        }
        let named = (fields.need_text("name")?, fields.text("description")?);
        let parameters = fields.object_value("parameters")?;
        let is_strict = fields.truth("strict")?.unwrap_or(false);
        fields.ignore_rest((record, "tools."));
        tools.push(ToolSpec::new(&path, named, parameters, is_strict)?);
    }
    Ok(tools)
}

/// Parses `tool_choice`; without a choice, calls are disallowed. Allowed tools are those that remain.
fn choice(
    value: Value,
    tools: Vec<ToolSpec>,
    record: &RequestRecord,
) -> Result<(Vec<ToolSpec>, Option<ToolChoice>), ApiError> {
    let expected = "`none`, `auto`, `required`, a function, or allowed tools";
    let mode = |text: &str| match text {
        "none" => Some(None),
        "auto" => Some(Some(ToolChoice::Nothing)),
        "required" => Some(Some(ToolChoice::Anything)),
        _ => None,
    };
    let value = match value {
        Value::String(text) => {
            let choice = mode(&text);
            let choice =
                choice.ok_or_else(|| wrong("tool_choice", &Value::String(text), expected))?;
            return Ok((tools, choice));
        }
        value @ Value::Object(_) => value,
        other => return Err(wrong("tool_choice", &other, expected)),
    };
    let mut fields = JsonFields::nested(value, "tool_choice")?;
    let kind = fields.need_text("type")?;
    match kind.as_str() {
        "function" => {
            let name = fields.need_text("name")?;
            fields.ignore_rest((record, "tool_choice."));
            Ok((tools, Some(ToolChoice::One(name))))
        }
        "allowed_tools" => {
            let text = fields.text("mode")?.unwrap_or_else(|| "auto".into());
            let choice = mode(&text).flatten();
            let choice = choice.ok_or_else(|| {
                fields.wrong("mode", &Value::String(text), "`auto` or `required`")
            })?;
            let mut names = Vec::new();
            for (at, item) in fields.list("tools", "tools")?.into_iter().enumerate() {
                let mut tool = JsonFields::nested(item, &format!("tool_choice.tools[{at}]"))?;
                names.push(tool.need_text("name")?);
            }
            let tools = tools.into_iter();
            let allowed: Vec<ToolSpec> = tools.filter(|tool| names.contains(&tool.name)).collect();
            Ok((allowed, Some(choice)))
        }
        _ => Err(fields.wrong(
            "type",
            &Value::String(kind),
            "`function` or `allowed_tools`",
        )),
    }
}

/// Parses `text`: the format of the answer, which the response repeats.
fn text_format(
    fields: &mut JsonFields,
    params: &mut CompletionParams,
    record: &RequestRecord,
) -> Result<Value, ApiError> {
    let plain = || json!({"type": "text"});
    let Some(mut text) = fields.object("text")? else {
        return Ok(plain());
    };
    let shown = text.take("format");
    text.ignore_rest((record, "text."));
    let Some(shown) = shown else {
        return Ok(plain());
    };
    let mut format = JsonFields::nested(shown.clone(), "text.format")?;
    let kind = format.need_text("type")?;
    let schema = match kind.as_str() {
        "text" => return Ok(shown),
        "json_object" => json!({"type": "object"}),
        "json_schema" => format.need("schema")?,
        _ => {
            let expected = "`text`, `json_object` or `json_schema`";
            return Err(format.wrong("type", &Value::String(kind), expected));
        }
    };
    json_format(params, "text.format", schema)?;
    Ok(shown)
}

/// Parses `reasoning`: variables of the chat template, and the field as the response repeats it.
fn reasoning(
    fields: &mut JsonFields,
    record: &RequestRecord,
) -> Result<(Vec<(String, TemplateValue)>, Value), ApiError> {
    let Some(mut reasoning) = fields.object("reasoning")? else {
        return Ok((Vec::new(), json!({"effort": null, "summary": null})));
    };
    let effort = reasoning.text("effort")?;
    let variables = effort.as_deref().map(effort_variables).unwrap_or_default();
    // Thoughts are part of the response; nothing summarizes them.
    reasoning.ignore_rest((record, "reasoning."));
    Ok((variables, json!({"effort": effort, "summary": null})))
}
