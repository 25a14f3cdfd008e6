//! Messages under construction.

use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, Role};

/// The text of a message's parts. Those of an answer continue each other; others are separate texts.
pub(crate) fn join_parts(texts: Vec<String>, is_answer: bool) -> String {
    match is_answer {
        true => texts.concat(),
        false => {
            let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
            texts.join("\n")
        }
    }
}

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
/// get as an object, or as text with `takes_text`; numbers keep all digits. Other arguments, such as those
/// of a call that was cut, are a text: the value of `arguments` in an object, if the template takes no text.
pub(crate) fn call_value(
    (id, name): (&str, &str),
    arguments: &str,
    takes_text: bool,
) -> TemplateValue {
    let object = json_object(arguments);
    let parsed = object.as_deref().map(TemplateValue::from_json);
    let arguments = match (parsed, object) {
        (Some(Ok(_)), Some(object)) if takes_text => TemplateValue::text(&object),
        (Some(Ok(value)), _) => value,
        _ if takes_text => TemplateValue::text(arguments),
        _ => TemplateValue::map(vec![("arguments", TemplateValue::text(arguments))]),
    };
    let function = TemplateValue::map(vec![
        ("name", TemplateValue::text(name)),
        ("arguments", arguments),
    ]);
    TemplateValue::map(vec![
        ("id", TemplateValue::text(id)),
        ("type", TemplateValue::text("function")),
        ("function", function),
    ])
}

/// The JSON object of arguments: their text, or the text of a JSON string with an object. No arguments and `null`
/// are an empty object.
fn json_object(arguments: &str) -> Option<String> {
    type Object = serde_json::Map<String, serde_json::Value>;
    let is_object = |text: &str| serde_json::from_str::<Object>(text).is_ok();
    match arguments.trim() {
        "" | "null" => Some("{}".to_string()),
        _ if is_object(arguments) => Some(arguments.to_string()),
        _ => serde_json::from_str::<String>(arguments)
            .ok()
            .filter(|text| is_object(text)),
    }
}
