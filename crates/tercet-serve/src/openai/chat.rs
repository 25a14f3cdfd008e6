//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};
use tercet_models::dataset::template::Value as Shown;
use tercet_models::dataset::{Message, Role};

use super::answer::{Form, Frame};
use super::deliver;
use super::sampling::Wanted;
use super::tools::{Tools, for_template};
use crate::error::Refusal;
use crate::fields::{Fields, wrong};
use crate::http::App;
use crate::language::Language;

/// Messages of a conversation at most.
const MOST_MESSAGES: usize = 1000;

pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let name = fields
        .text("model")?
        .ok_or_else(|| Refusal::bad("field `model` is missing"))?;
    let (language, adapter) = app.models.language(&name)?;
    let messages = messages(fields.need("messages")?)?;
    let tools = Tools::take(&mut fields, language)?;
    let mut wanted = Wanted::take(fields, Form::Chat)?;
    if let Some(tools) = &tools {
        constrain(&mut wanted, tools)?;
    }
    let prompt = tokens(language, &messages, tools.as_ref())?;
    let frame = Frame {
        texts: wanted.n,
        usage: wanted.usage,
        logprobs: wanted.likeliest.is_some(),
        calls: tools.as_ref().map(Tools::calls),
        ..Frame::new(Form::Chat, &name, prompt.len())
    };
    let room = language.context.saturating_sub(prompt.len());
    let pieces = language.start(wanted.requests(&prompt, room), adapter, &app.metrics);
    let pieces = pieces.await?;
    match wanted.stream {
        true => deliver::stream(frame, pieces).await,
        false => deliver::whole(&frame, pieces).await,
    }
}

/// Makes the answer a call, where it has to be one.
#[cfg(feature = "grammar")]
fn constrain(wanted: &mut Wanted, tools: &Tools) -> Result<(), Refusal> {
    let Some(grammar) = tools.grammar() else {
        return Ok(());
    };
    match wanted.grammar.replace(("tools", grammar)) {
        Some((field, _)) => Err(Refusal::bad(format!(
            "field `{field}` cannot be where `tool_choice` has to call something"
        ))),
        None => Ok(()),
    }
}

#[cfg(not(feature = "grammar"))]
fn constrain(_: &mut Wanted, tools: &Tools) -> Result<(), Refusal> {
    tools.check()
}

fn messages(value: Value) -> Result<Vec<Said>, Refusal> {
    let Value::Array(items) = value else {
        return Err(wrong("messages", &value, "a list of messages"));
    };
    if items.is_empty() || items.len() > MOST_MESSAGES {
        return Err(Refusal::bad(format!(
            "field `messages` has {} messages; expected 1 to {MOST_MESSAGES}",
            items.len()
        )));
    }
    items.into_iter().map(message).collect()
}

/// A message, and the strings in it that its author wrote.
struct Said {
    message: Message,
    texts: Vec<String>,
}

fn message(value: Value) -> Result<Said, Refusal> {
    let mut fields = Fields::of(value, "a message")?;
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
            return Err(Refusal::bad(message));
        }
        None => Vec::new(),
    };
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => parts
            .into_iter()
            .map(part)
            .collect::<Result<String, Refusal>>()?,
        Some(other) => {
            return Err(wrong(
                "content",
                &other,
                "a text, or a list of parts of type `text`",
            ));
        }
        None if !calls.is_empty() => String::new(),
        None => return Err(Refusal::bad("field `content` is missing")),
    };
    fields.neutral(&[("refusal", &[Value::String(String::new())])])?;
    let mut texts = vec![content.clone()];
    let mut shown = vec![("content", Shown::text(&content))];
    if *known == Role::Tool {
        for name in ["tool_call_id", "name"] {
            if let Some(text) = fields.text(name)? {
                shown.push((name, Shown::text(&text)));
                texts.push(text);
            }
        }
    }
    fields.finish()?;
    if !calls.is_empty() {
        texts.extend(calls.iter().map(Value::to_string));
        let calls: Result<Vec<Shown>, Refusal> = calls.iter().map(for_template).collect();
        shown.push(("tool_calls", Shown::list(calls?)));
    }
    let message = Message::of_fields(*known, shown);
    Ok(Said { message, texts })
}

/// Calls that an answer made, with their arguments as objects: templates write them.
fn tool_calls(value: Value) -> Result<Vec<Value>, Refusal> {
    let Value::Array(items) = value else {
        return Err(wrong("tool_calls", &value, "a list of calls"));
    };
    let call = |item| {
        let mut fields = Fields::of(item, "a call of a tool")?;
        let id = fields.text("id")?.unwrap_or_default();
        let kind = fields.text("type")?.unwrap_or_else(|| "function".into());
        if kind != "function" {
            return Err(wrong("type", &Value::String(kind), "`function`"));
        }
        let mut function = Fields::of(fields.need("function")?, "field `function`")?;
        fields.finish()?;
        let name = function.text("name")?;
        let name = name.ok_or_else(|| Refusal::bad("field `name` of a call is missing"))?;
        let arguments = function.text("arguments")?.unwrap_or_default();
        function.finish()?;
        let object = match arguments.trim().is_empty() {
            true => Ok(serde_json::Map::new()),
            false => serde_json::from_str(&arguments),
        };
        let Ok(object) = object else {
            let expected = "a JSON object in a string";
            return Err(wrong("arguments", &Value::String(arguments), expected));
        };
        let function = json!({"name": name, "arguments": object});
        Ok(json!({"id": id, "type": "function", "function": function}))
    };
    items.into_iter().map(call).collect()
}

/// The text of a part of a message.
fn part(value: Value) -> Result<String, Refusal> {
    let mut fields = Fields::of(value, "a part of a message")?;
    let kind = fields.text("type")?.unwrap_or_default();
    if kind != "text" {
        return Err(wrong(
            "type",
            &Value::String(kind),
            "`text`: other parts of messages are not supported",
        ));
    }
    let text = fields
        .text("text")?
        .ok_or_else(|| Refusal::bad("field `text` is missing"))?;
    fields.finish()?;
    Ok(text)
}

/// The tokens of a conversation up to where the answer begins.
///
/// What a message says is read together with what the template puts around it, so a message that spells a special token
/// could end its own turn and begin another: such a message is refused.
fn tokens(
    language: &Language,
    messages: &[Said],
    tools: Option<&Tools>,
) -> Result<Vec<u32>, Refusal> {
    let tokenizer = &language.tokenizer;
    let of_tools = tools.map(Tools::spelled);
    let said = messages.iter().flat_map(|said| &said.texts);
    for text in said.chain(&of_tools) {
        if tokenizer
            .spells_special(text)
            .map_err(|e| Refusal::failed(&e))?
        {
            return Err(Refusal::bad(
                "a message or a tool spells a special token of the model, which could end its turn; leave it out",
            ));
        }
    }
    let messages: Vec<Message> = messages.iter().map(|said| said.message.clone()).collect();
    let shown = match tools {
        Some(tools) => tools.for_template()?,
        None => Shown::None,
    };
    let rendered = language.template.render(&messages, &shown, true);
    let rendered = rendered.map_err(|e| {
        Refusal::bad(format!(
            "the chat template refuses the messages: {}",
            tercet::one_line(&e)
        ))
    })?;
    let untold = tools.and_then(|tools| tools.names().find(|name| !rendered.text.contains(name)));
    if untold.is_some() {
        return Err(Refusal::bad(
            "field `tools` is not supported with this model: its chat template does not write them",
        ));
    }
    tokenizer
        .encode(&rendered.text, false)
        .map_err(|e| Refusal::failed(&e))
}
