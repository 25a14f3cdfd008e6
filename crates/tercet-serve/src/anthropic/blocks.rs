//! Content blocks of messages.

use std::collections::HashMap;

use serde_json::{Value, json};
use tercet_models::dataset::Role;

use crate::conversation::{EncodedImages, MessageDraft, call_value};
use crate::error::ApiError;
use crate::fields::{JsonFields, wrong};
use crate::request_log::RequestRecord;

/// Reads the messages of a conversation. Results of tools, which are blocks of the user, become
/// messages.
pub(super) struct MessageBlocks<'a> {
    drafts: Vec<MessageDraft>,
    /// Names of the called tools by the ids of the calls.
    called: HashMap<String, String>,
    images: EncodedImages,
    record: &'a RequestRecord,
    /// Whether the chat template takes the arguments of calls as text.
    takes_text: bool,
}

impl MessageBlocks<'_> {
    pub(super) fn new(
        record: &RequestRecord,
        takes_text: bool,
        images: EncodedImages,
    ) -> MessageBlocks<'_> {
        MessageBlocks {
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

    /// Notes the fields that remain.
    pub(super) fn ignore(&self, fields: JsonFields, of: &str) {
        fields.ignore_rest((self.record, of));
    }

    /// Reads the system prompt.
    ///
    /// # Errors
    /// 400 with the path of a block that is no text.
    pub(super) fn system(&mut self, value: Value) -> Result<(), ApiError> {
        let text = self.texts(value, "system")?;
        if !text.is_empty() {
            self.drafts.push(MessageDraft::new(Role::System, &text));
        }
        Ok(())
    }

    /// Reads the content of a message.
    ///
    /// # Errors
    /// 400 with the path of a block that is not supported or has a wrong value.
    pub(super) fn message(
        &mut self,
        role: Role,
        content: Value,
        path: &str,
    ) -> Result<(), ApiError> {
        let blocks = match content {
            Value::String(text) => {
                self.drafts.push(MessageDraft::new(role, &text));
                return Ok(());
            }
            Value::Array(blocks) => blocks,
            other => return Err(wrong(path, &other, "a text or a list of blocks")),
        };
        let mut draft = MessageDraft::new(role, "");
        let mut has_results = false;
        for (at, block) in blocks.into_iter().enumerate() {
            let mut fields = JsonFields::nested(block, &format!("{path}[{at}]"))?;
            let kind = fields.need_text("type")?;
            match (kind.as_str(), role) {
                ("text", _) => {
                    let text = fields.need_text("text")?;
                    // Blocks of an answer continue each other; those of a user are separate texts.
                    if role != Role::Assistant && !draft.content.is_empty() {
                        draft.content.push('\n');
                    }
                    draft.content += &text;
                }
                ("document", Role::User) => {
                    let text = self.document(&mut fields)?;
                    if !draft.content.is_empty() {
                        draft.content.push('\n');
                    }
                    draft.content += &text;
                }
                ("image", Role::User) if self.images.is_taken() => {
                    self.image(&mut fields)?;
                    draft.images += 1;
                }
                ("tool_result", Role::User) => {
                    if !draft.content.is_empty() || draft.images > 0 {
                        let next = MessageDraft::new(role, "");
                        self.drafts.push(std::mem::replace(&mut draft, next));
                    }
                    let result = self.result(&mut fields)?;
                    self.drafts.push(result);
                    has_results = true;
                }
                ("tool_use", Role::Assistant) => {
                    let (id, name) = (fields.need_text("id")?, fields.need_text("name")?);
                    let input = fields.object_value("input")?.unwrap_or_else(|| json!({}));
                    let call = call_value((&id, &name), &input.to_string(), self.takes_text);
                    draft.calls.push(call);
                    self.called.insert(id, name);
                }
                ("thinking", Role::Assistant) => {
                    draft.reasoning += &fields.need_text("thinking")?
                }
                ("search_result", Role::User) => {
                    let text = self.search_result(&mut fields)?;
                    if !draft.content.is_empty() {
                        draft.content.push('\n');
                    }
                    draft.content += &text;
                }
                // Blocks of tools that Anthropic runs, and thoughts that only Anthropic can read.
                (kind, Role::Assistant) if is_of_anthropic(kind) => {
                    self.record.add_ignored(&format!("messages.content.{kind}"));
                    continue;
                }
                _ => return Err(unknown_block(&fields, kind, role)),
            }
            fields.take("signature");
            self.ignore(fields, "messages.content.");
        }
        if !has_results || !draft.content.is_empty() || draft.images > 0 {
            self.drafts.push(draft);
        }
        Ok(())
    }

    /// Adds an image.
    fn image(&mut self, fields: &mut JsonFields) -> Result<(), ApiError> {
        let path = fields.path_of("source");
        let mut source = JsonFields::nested(fields.need("source")?, &path)?;
        let kind = source.need_text("type")?;
        if kind != "base64" {
            let expected = "`base64`; the server loads no images from other servers";
            return Err(source.wrong("type", &Value::String(kind), expected));
        }
        let data = source.need_text("data")?;
        self.images.add_base64(&data, &source.path_of("data"))
    }

    fn result(&mut self, fields: &mut JsonFields) -> Result<MessageDraft, ApiError> {
        let id = fields.need_text("tool_use_id")?;
        let path = fields.path_of("content");
        let before = self.images.count();
        let text = match fields.take("content") {
            None => String::new(),
            Some(Value::Array(blocks)) if self.images.is_taken() => {
                let blocks = self.without_images(blocks, &path)?;
                self.texts(Value::Array(blocks), &path)?
            }
            Some(content) => self.texts(content, &path)?,
        };
        let name = self.called.get(&id).cloned();
        let mut draft = MessageDraft::result(&text, &id, name);
        draft.images = self.images.count() - before;
        Ok(draft)
    }

    /// Adds the images of blocks, and returns the other blocks.
    fn without_images(&mut self, blocks: Vec<Value>, path: &str) -> Result<Vec<Value>, ApiError> {
        let mut others = Vec::new();
        for (at, block) in blocks.into_iter().enumerate() {
            if block.get("type").is_some_and(|kind| kind == "image") {
                let mut fields = JsonFields::nested(block, &format!("{path}[{at}]"))?;
                self.image(&mut fields)?;
            } else {
                others.push(block);
            }
        }
        Ok(others)
    }

    /// The text of a result of a search: its title, its source and its texts.
    fn search_result(&self, fields: &mut JsonFields) -> Result<String, ApiError> {
        let content = fields.need("content")?;
        let text = self.texts(content, &fields.path_of("content"))?;
        let head = [fields.text("title")?, fields.text("source")?];
        let lines = head.into_iter().flatten().chain([text]);
        Ok(lines.collect::<Vec<String>>().join("\n"))
    }

    /// The text of a document.
    fn document(&self, fields: &mut JsonFields) -> Result<String, ApiError> {
        let path = fields.path_of("source");
        let mut source = JsonFields::nested(fields.need("source")?, &path)?;
        let kind = source.need_text("type")?;
        let text = match kind.as_str() {
            "text" => source.need_text("data")?,
            "content" => {
                let content = source.need("content")?;
                self.texts(content, &source.path_of("content"))?
            }
            _ => {
                let expected = "`text` or `content`; the model reads text only";
                return Err(source.wrong("type", &Value::String(kind), expected));
            }
        };
        let title = fields.text("title")?.filter(|title| !title.is_empty());
        Ok(match title {
            Some(title) => format!("{title}\n{text}"),
            None => text,
        })
    }

    /// Reads a text, or blocks of text.
    fn texts(&self, value: Value, path: &str) -> Result<String, ApiError> {
        let blocks = match value {
            Value::String(text) => return Ok(text),
            Value::Array(blocks) => blocks,
            other => return Err(wrong(path, &other, "a text or a list of blocks")),
        };
        let mut texts = Vec::new();
        for (at, block) in blocks.into_iter().enumerate() {
            let mut fields = JsonFields::nested(block, &format!("{path}[{at}]"))?;
            let kind = fields.need_text("type")?;
            match kind.as_str() {
                "text" => texts.push(fields.need_text("text")?),
                "search_result" => texts.push(self.search_result(&mut fields)?),
                "document" => texts.push(self.document(&mut fields)?),
                _ => {
                    let expected = "`text`; the model reads text only";
                    return Err(fields.wrong("type", &Value::String(kind), expected));
                }
            }
            self.ignore(fields, "messages.content.");
        }
        Ok(texts.join("\n"))
    }
}

/// Whether a block of an answer is about a tool that Anthropic runs, or is a thought that only Anthropic can read.
fn is_of_anthropic(kind: &str) -> bool {
    let is_result = kind.ends_with("_tool_result") && kind != "tool_result";
    is_result || ["server_tool_use", "redacted_thinking"].contains(&kind)
}

fn unknown_block(fields: &JsonFields, kind: String, role: Role) -> ApiError {
    let expected = match role {
        Role::Assistant => "`text`, `thinking` or `tool_use` in a message of the role `assistant`",
        Role::User => {
            "`text`, `document` or `tool_result` in a message of the role `user`; the model reads text only"
        }
        Role::System | Role::Developer | Role::Tool => "`text`",
    };
    fields.wrong("type", &Value::String(kind), expected)
}
