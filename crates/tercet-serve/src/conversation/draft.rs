//! Messages under construction.

use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, Role};

/// A message whose parts a protocol sends one by one.
#[derive(Debug)]
pub(crate) struct MessageDraft {
    pub(crate) role: Role,
    pub(crate) content: String,
    /// Number of images, which precede the text.
    pub(crate) images: usize,
    /// The thoughts before an answer.
    pub(crate) reasoning: String,
    /// Calls of tools ([`call_value`]).
    pub(crate) calls: Vec<TemplateValue>,
    /// Name of the speaker, or of the tool of a result.
    pub(crate) name: Option<String>,
    /// The call of a result.
    pub(crate) call_id: Option<String>,
}

impl MessageDraft {
    pub(crate) fn new(role: Role, content: &str) -> MessageDraft {
        MessageDraft {
            role,
            content: content.to_string(),
            images: 0,
            reasoning: String::new(),
            calls: Vec::new(),
            name: None,
            call_id: None,
        }
    }

    /// The result of a call.
    pub(crate) fn result(content: &str, call_id: &str, name: Option<String>) -> MessageDraft {
        MessageDraft {
            name,
            call_id: Some(call_id.to_string()),
            ..MessageDraft::new(Role::Tool, content)
        }
    }

    /// The message as chat templates read it.
    pub(crate) fn into_message(self) -> ChatMessage {
        let text = TemplateValue::text(&self.content);
        let content = match self.images {
            0 => text,
            count => {
                let image = || TemplateValue::map(vec![("type", TemplateValue::text("image"))]);
                let mut parts: Vec<TemplateValue> = (0..count).map(|_| image()).collect();
                parts.push(TemplateValue::map(vec![
                    ("type", TemplateValue::text("text")),
                    ("text", text),
                ]));
                TemplateValue::list(parts)
            }
        };
        let mut fields = vec![("content", content)];
        if !self.reasoning.is_empty() {
            fields.push(("reasoning_content", TemplateValue::text(&self.reasoning)));
        }
        for (field, text) in [("tool_call_id", &self.call_id), ("name", &self.name)] {
            if let Some(text) = text {
                fields.push((field, TemplateValue::text(text)));
            }
        }
        if !self.calls.is_empty() {
            fields.push(("tool_calls", TemplateValue::list(self.calls)));
        }
        ChatMessage::from_fields(self.role, fields)
    }
}

/// A call of a tool as chat templates read it. `arguments` is the JSON of an object, which templates
/// get as an object, or as text with `takes_text`; numbers keep all digits. `None` if the arguments
/// are no JSON object.
pub(crate) fn call_value(
    (id, name): (&str, &str),
    arguments: &str,
    takes_text: bool,
) -> Option<TemplateValue> {
    let object = match arguments.trim().is_empty() {
        true => "{}",
        false => arguments,
    };
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(object).ok()?;
    let value = TemplateValue::from_json(object).ok()?;
    let arguments = match takes_text {
        true => TemplateValue::text(object),
        false => value,
    };
    let function = TemplateValue::map(vec![
        ("name", TemplateValue::text(name)),
        ("arguments", arguments),
    ]);
    Some(TemplateValue::map(vec![
        ("id", TemplateValue::text(id)),
        ("type", TemplateValue::text("function")),
        ("function", function),
    ]))
}
