//! The field `input` of the Responses API: a text, or items that become messages.

use std::collections::HashMap;

use serde_json::Value;
use tercet_models::dataset::Role;

use crate::conversation::{EncodedImages, MAX_MESSAGES, MessageDraft, call_value, join_parts};
use crate::error::ApiError;
use crate::fields::{JsonFields, unsupported, wrong};
use crate::request_log::RequestRecord;

/// Reads items. Thoughts, text and calls of one answer are separate items; they become one message.
pub(super) struct ResponseInput<'a> {
    drafts: Vec<MessageDraft>,
    /// Names of the called tools by the ids of the calls.
    called: HashMap<String, String>,
    images: EncodedImages,
    record: &'a RequestRecord,
    /// Whether the chat template takes the arguments of calls as text.
    takes_text: bool,
}

impl ResponseInput<'_> {
    pub(super) fn new(
        record: &RequestRecord,
        takes_text: bool,
        images: EncodedImages,
    ) -> ResponseInput<'_> {
        ResponseInput {
            drafts: Vec::new(),
            called: HashMap::new(),
            images,
            record,
            takes_text,
        }
    }

    /// The messages, and the files of their images.
    pub(super) fn into_drafts(self) -> (Vec<MessageDraft>, Vec<Vec<u8>>) {
        (self.drafts, self.images.into_files())
    }

    /// Reads the field.
    ///
    /// # Errors
    /// 400 with the path of an item that is not supported or has a wrong value.
    pub(super) fn read(&mut self, value: Value) -> Result<(), ApiError> {
        match value {
            Value::String(text) => {
                self.drafts.push(MessageDraft::new(Role::User, &text));
                Ok(())
            }
            Value::Array(items) => {
                if items.is_empty() || items.len() > MAX_MESSAGES {
                    let message = format!(
                        "field `input` has {} items; expected 1 to {MAX_MESSAGES}",
                        items.len()
                    );
                    return Err(ApiError::bad_request(message).with_param("input"));
                }
                let mut items = items.into_iter().enumerate();
                items.try_for_each(|(at, item)| self.item(item, &format!("input[{at}]")))
            }
            other => Err(wrong("input", &other, "a text or a list of items")),
        }
    }

    fn item(&mut self, item: Value, path: &str) -> Result<(), ApiError> {
        let mut fields = JsonFields::nested(item, path)?;
        let kind = fields.text("type")?.unwrap_or_else(|| "message".into());
        match kind.as_str() {
            "message" => self.message(&mut fields)?,
            "function_call" => {
                let (id, name) = (fields.need_text("call_id")?, fields.need_text("name")?);
                let arguments = fields.text("arguments")?.unwrap_or_default();
                let call = call_value((&id, &name), &arguments, self.takes_text);
                self.called.insert(id, name);
                self.answer(|_| true).calls.push(call);
            }
            "function_call_output" => {
                let id = fields.need_text("call_id")?;
                let output = fields.need("output")?;
                let before = self.images.count();
                let text = self.content(output, &fields.path_of("output"), false)?;
                let name = self.called.get(&id).cloned();
                let mut draft = MessageDraft::result(&text, &id, name);
                draft.images = self.images.count() - before;
                self.drafts.push(draft);
            }
            "reasoning" => self.reasoning(&mut fields)?,
            "item_reference" => {
                let remedy = "responses are not stored: send the item itself";
                return Err(unsupported(path, remedy));
            }
            _ => {
                let expected = "`message`, `function_call`, `function_call_output` or `reasoning`";
                return Err(fields.wrong("type", &Value::String(kind), expected));
            }
        }
        fields.ignore_rest((self.record, "input."));
        Ok(())
    }

    /// The answer that items belong to: the last message, if it is one that `takes` them.
    fn answer(&mut self, takes: impl Fn(&MessageDraft) -> bool) -> &mut MessageDraft {
        let last = self.drafts.last();
        if !last.is_some_and(|last| last.role == Role::Assistant && takes(last)) {
            self.drafts.push(MessageDraft::new(Role::Assistant, ""));
        }
        let last = self.drafts.len() - 1;
        &mut self.drafts[last]
    }

    fn message(&mut self, fields: &mut JsonFields) -> Result<(), ApiError> {
        let role = fields.need_text("role")?;
        let known = [Role::System, Role::Developer, Role::User, Role::Assistant];
        let Some(role) = known.into_iter().find(|known| known.name() == role) else {
            let expected = "one of system, developer, user, assistant";
            return Err(fields.wrong("role", &Value::String(role), expected));
        };
        let content = fields.need("content")?;
        let before = self.images.count();
        let path = fields.path_of("content");
        let text = self.content(content, &path, role == Role::Assistant)?;
        let images = self.images.count() - before;
        match role {
            Role::Assistant if images > 0 => {
                let path = fields.path_of("content");
                return Err(unsupported(&path, "answers of the model have no images"));
            }
            Role::Assistant => {
                let is_open =
                    |last: &MessageDraft| last.content.is_empty() && last.calls.is_empty();
                self.answer(is_open).content = text;
            }
            role => {
                let mut draft = MessageDraft::new(role, &text);
                draft.images = images;
                self.drafts.push(draft);
            }
        }
        Ok(())
    }

    /// Reads thoughts: their text, or their summary if the text is missing.
    fn reasoning(&mut self, fields: &mut JsonFields) -> Result<(), ApiError> {
        let mut texts = [String::new(), String::new()];
        for (name, text) in ["content", "summary"].into_iter().zip(&mut texts) {
            let path = fields.path_of(name);
            for (at, part) in fields.list(name, "parts")?.into_iter().enumerate() {
                let mut part = JsonFields::nested(part, &format!("{path}[{at}]"))?;
                *text += &part.need_text("text")?;
            }
        }
        let [content, summary] = texts;
        let thought = if content.is_empty() { summary } else { content };
        if !thought.is_empty() {
            let is_open = |last: &MessageDraft| last.content.is_empty() && last.calls.is_empty();
            self.answer(is_open).reasoning += &thought;
        }
        Ok(())
    }

    /// Reads a text, or the texts of parts.
    fn content(&mut self, value: Value, path: &str, is_answer: bool) -> Result<String, ApiError> {
        let parts = match value {
            Value::String(text) => return Ok(text),
            Value::Array(parts) => parts,
            other => return Err(wrong(path, &other, "a text or a list of parts")),
        };
        let part = |(at, part)| {
            let mut fields = JsonFields::nested(part, &format!("{path}[{at}]"))?;
            let kind = fields.need_text("type")?;
            if kind == "input_image" && self.images.is_taken() {
                let url = fields.need_text("image_url")?;
                self.images.add_url(&url, &fields.path_of("image_url"))?;
                fields.ignore_rest((self.record, "input.content."));
                return Ok(String::new());
            }
            let name = match kind.as_str() {
                "input_text" | "output_text" | "text" => "text",
                "refusal" => "refusal",
                _ => {
                    let expected =
                        "`input_text`, `output_text` or `refusal`; the model reads text only";
                    return Err(fields.wrong("type", &Value::String(kind), expected));
                }
            };
            let text = fields.need_text(name)?;
            fields.ignore_rest((self.record, "input.content."));
            Ok(text)
        };
        let texts = parts.into_iter().enumerate().map(part);
        let texts: Vec<String> = texts.collect::<Result<_, ApiError>>()?;
        Ok(join_parts(texts, is_answer))
    }
}
