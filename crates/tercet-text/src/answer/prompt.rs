//! Tools for models whose chat template has none.

use crate::dataset::template::{Template, TemplateLimits, TemplateValue};
use crate::dataset::{ChatMessage, Role};

const BEFORE: &str = "You can call functions. Their signatures, one JSON object a line:\n<tools>\n";
const AFTER: &str = "\n</tools>\n\nTo call a function, write a JSON object with its name and arguments between \
    <tool_call> tags, and nothing else:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"KEY\": \"VALUE\"}}\n\
    </tool_call>\nYou may write several calls. The results follow between <tool_response> tags. If no \
    function is needed, answer as usual.";

/// Adds tools to a conversation for a template that does not show them.
///
/// The tools are described in the system prompt, each as a line of JSON. Earlier calls are written as
/// the prompt asks for them, and results are messages of the user between `<tool_response>` tags.
/// `tools` are the JSON of each tool's function.
///
/// ```
/// use tercet_text::answer::with_tool_prompt;
/// use tercet_text::dataset::{ChatMessage, Role};
/// let messages = [ChatMessage::new(Role::User, "What time is it?")];
/// let shown = with_tool_prompt(&messages, &["{\"name\": \"now\"}".to_string()]);
/// assert_eq!(shown.len(), 2);
/// assert!(shown[0].content().contains("{\"name\": \"now\"}"));
/// ```
#[must_use]
pub fn with_tool_prompt(messages: &[ChatMessage], tools: &[String]) -> Vec<ChatMessage> {
    let prompt = format!("{BEFORE}{}{AFTER}", tools.join("\n"));
    let mut shown: Vec<ChatMessage> = Vec::new();
    let (first, rest) = match messages.split_first() {
        Some((first, rest)) if matches!(first.role(), Role::System | Role::Developer) => (
            first.with_content(&format!("{}\n\n{prompt}", first.content())),
            rest,
        ),
        _ => (ChatMessage::new(Role::System, &prompt), messages),
    };
    shown.push(first);
    for message in rest {
        let written = match message.role() {
            Role::Tool => {
                let result = message.content();
                let text = format!("<tool_response>\n{result}\n</tool_response>");
                // Templates want the roles by turns: results in a row are one message.
                let joined = shown.last().filter(|last| {
                    last.role() == Role::User && last.content().starts_with("<tool_response>")
                });
                match joined.map(|last| format!("{}\n{text}", last.content())) {
                    Some(joined) => {
                        shown.pop();
                        ChatMessage::new(Role::User, &joined)
                    }
                    None => ChatMessage::new(Role::User, &text),
                }
            }
            _ => match calls(message) {
                Some(text) => ChatMessage::new(Role::Assistant, &text),
                None => message.clone(),
            },
        };
        shown.push(written);
    }
    shown
}

/// The text of an earlier answer with calls.
fn calls(message: &ChatMessage) -> Option<String> {
    let calls = message.fields().get("tool_calls")?.as_list()?;
    if calls.is_empty() {
        return None;
    }
    let mut text = message.content().to_string();
    for call in calls {
        let function = call.get("function").unwrap_or(call);
        let name = function.get("name").and_then(TemplateValue::as_text);
        let name = serde_json::Value::from(name.unwrap_or_default());
        let arguments = match function.get("arguments") {
            Some(arguments) => match arguments.as_text() {
                Some(text) => text.to_string(),
                None => json_of(arguments),
            },
            None => "{}".to_string(),
        };
        if !text.is_empty() {
            text.push('\n');
        }
        text +=
            &format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>");
    }
    Some(text)
}

/// The JSON of a value.
fn json_of(value: &TemplateValue) -> String {
    let template = Template::parse("{{ value | tojson }}");
    let variables = [("value", value.clone())];
    let rendered = template.and_then(|t| t.render(&variables, 0, TemplateLimits::default()));
    rendered.map_or_else(|_| "{}".to_string(), |rendered| rendered.text)
}
