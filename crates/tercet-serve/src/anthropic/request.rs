//! Requests of Anthropic's Messages API.

use serde_json::Value;
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, Role};

use super::blocks::MessageBlocks;
use crate::conversation::{
    CompletionParams, ConversationRequest, EncodedImages, MAX_MESSAGES, MessageDraft, ToolChoice,
    ToolSet, ToolSpec, checked_stops, clamped, effort_variables, json_format, thinking_variables,
};
use crate::error::ApiError;
use crate::fields::{JsonFields, wrong};
use crate::language::ServedLanguageModel;
use crate::openai::sampling::take_extensions;
use crate::request_log::RequestRecord;

/// Parses the fields except `model`.
pub(super) fn parse(
    mut fields: JsonFields,
    language: &ServedLanguageModel,
    record: &RequestRecord,
) -> Result<ConversationRequest, ApiError> {
    let takes_text = language.answers.takes_argument_text();
    let mut blocks = MessageBlocks::new(record, takes_text, EncodedImages::new(language));
    if let Some(system) = fields.take("system") {
        blocks.system(system)?;
    }
    messages(&mut blocks, fields.need("messages")?)?;
    let (drafts, encoded) = blocks.into_drafts();
    let (messages, prefill) = split_prefill(drafts);
    let tools = tools(&mut fields, record)?;
    let mut params = CompletionParams::new();
    let variables = thinking(&mut fields, &mut params, record)?;
    params.max_tokens = fields.count("max_tokens")?.map(clamped);
    let stop = fields.texts("stop_sequences")?;
    params.stop = checked_stops("stop_sequences", stop)?;
    take_extensions(&mut fields, &mut params)?;
    params.stream = fields.truth("stream")?.unwrap_or(false);
    fields.neutral_json(&[("mcp_servers", "[[]]"), ("container", "[]")])?;
    fields.ignore_rest((record, ""));
    Ok(ConversationRequest {
        messages,
        encoded,
        images: Vec::new(),
        tools,
        variables,
        prefill,
        params,
    })
}

fn messages(blocks: &mut MessageBlocks<'_>, value: Value) -> Result<(), ApiError> {
    let Value::Array(items) = value else {
        return Err(wrong("messages", &value, "a list of messages"));
    };
    if items.is_empty() || items.len() > MAX_MESSAGES {
        let message = format!(
            "field `messages` has {} messages; expected 1 to {MAX_MESSAGES}",
            items.len()
        );
        return Err(ApiError::bad_request(message).with_param("messages"));
    }
    for (at, item) in items.into_iter().enumerate() {
        let mut fields = JsonFields::nested(item, &format!("messages[{at}]"))?;
        let role = fields.need_text("role")?;
        let known = [Role::User, Role::Assistant, Role::System];
        let Some(role) = known.into_iter().find(|known| known.name() == role) else {
            return Err(fields.wrong("role", &Value::String(role), "`user` or `assistant`"));
        };
        let content = fields.need("content")?;
        blocks.message(role, content, &fields.path_of("content"))?;
        blocks.ignore(fields, "messages.");
    }
    Ok(())
}

/// Splits off the last message if it is the beginning of the answer.
fn split_prefill(mut drafts: Vec<MessageDraft>) -> (Vec<ChatMessage>, String) {
    let is_prefill = |last: &mut MessageDraft| {
        last.role == Role::Assistant && last.calls.is_empty() && !last.content.is_empty()
    };
    let prefill = drafts.pop_if(is_prefill).map(|last| last.content);
    let messages = drafts.into_iter().map(MessageDraft::into_message);
    (messages.collect(), prefill.unwrap_or_default())
}

/// Parses `tools` and `tool_choice`. Tools that Anthropic defines or runs do not exist here: the model
/// does not see them.
fn tools(fields: &mut JsonFields, record: &RequestRecord) -> Result<Option<ToolSet>, ApiError> {
    let mut tools = Vec::new();
    for (at, item) in fields.list("tools", "tools")?.into_iter().enumerate() {
        let path = format!("tools[{at}]");
        let mut tool = JsonFields::nested(item, &path)?;
        let kind = tool.text("type")?;
        if let Some(kind) = kind.filter(|kind| kind != "custom") {
            record.add_ignored(&format!("tools.{kind}"));
            continue;
        }
        let named = (tool.need_text("name")?, tool.text("description")?);
        let parameters = tool.object_value("input_schema")?;
        let is_strict = tool.truth("strict")?.unwrap_or(false);
        tool.ignore_rest((record, "tools."));
        tools.push(ToolSpec::new(&path, named, parameters, is_strict)?);
    }
    let Some(mut choice) = fields.object("tool_choice")? else {
        return ToolSet::new(tools, Some(ToolChoice::Nothing), false);
    };
    let kind = choice.need_text("type")?;
    let is_single = choice.truth("disable_parallel_tool_use")?.unwrap_or(false);
    let wanted = match kind.as_str() {
        "auto" => Some(ToolChoice::Nothing),
        "any" => Some(ToolChoice::Anything),
        "tool" => Some(ToolChoice::One(choice.need_text("name")?)),
        "none" => None,
        _ => {
            let expected = "`auto`, `any`, `tool` or `none`";
            return Err(choice.wrong("type", &Value::String(kind), expected));
        }
    };
    choice.ignore_rest((record, "tool_choice."));
    ToolSet::new(tools, wanted, is_single)
}

/// Parses `thinking` and `output_config`: variables of the chat template, and the format of the answer.
fn thinking(
    fields: &mut JsonFields,
    params: &mut CompletionParams,
    record: &RequestRecord,
) -> Result<Vec<(String, TemplateValue)>, ApiError> {
    let mut variables = Vec::new();
    if let Some(mut thinking) = fields.object("thinking")? {
        let kind = thinking.need_text("type")?;
        match kind.as_str() {
            "enabled" => variables.extend(thinking_variables(true)),
            "disabled" => variables.extend(thinking_variables(false)),
            "adaptive" => {}
            _ => {
                let expected = "`enabled`, `disabled` or `adaptive`";
                return Err(thinking.wrong("type", &Value::String(kind), expected));
            }
        }
        params.thought_tokens = thinking.count("budget_tokens")?.map(clamped);
        thinking.ignore_rest((record, "thinking."));
    }
    let mut format = fields.object("output_format")?;
    if let Some(mut config) = fields.object("output_config")? {
        let effort = config.text("effort")?;
        variables.extend(effort.as_deref().map(effort_variables).unwrap_or_default());
        format = config.object("format")?.or(format);
        config.ignore_rest((record, "output_config."));
    }
    if let Some(mut format) = format {
        let kind = format.need_text("type")?;
        match kind.as_str() {
            "json_schema" => json_format(params, "output_config.format", format.need("schema")?)?,
            _ => {
                let found = Value::String(kind);
                return Err(format.wrong("type", &found, "`json_schema`"));
            }
        }
    }
    Ok(variables)
}
