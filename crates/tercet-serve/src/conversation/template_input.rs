//! Messages and tools for chat templates that do not take them as clients send them.
//!
//! Chat templates differ: some know no role `developer`, take system messages at the start only, need ids of calls
//! with nine letters, or a description of each tool. A template refuses such messages, or leaves them out. A refused
//! or incomplete conversation is rendered again with as few changes as help.

use tercet_models::dataset::template::{RenderedTemplate, TemplateValue};
use tercet_models::dataset::{ChatMessage, Role};

use crate::error::ApiError;

/// Which changes an attempt makes: instructions, ids of calls, fields of tools.
const ATTEMPTS: [[bool; 3]; 7] = [
    [true, false, false],
    [false, true, false],
    [false, false, true],
    [true, true, false],
    [true, false, true],
    [false, true, true],
    [true, true, true],
];

/// Length of the ids of calls that Mistral's templates take.
const SHORT_ID: usize = 9;

/// Renders messages and tools. If the template refuses them or leaves out instructions, renders them with changes.
///
/// # Errors
/// The error for the messages as they are, if no change helps.
pub(super) fn render_changed(
    (messages, tools): (&[ChatMessage], &TemplateValue),
    render: impl Fn(&[ChatMessage], &TemplateValue) -> Result<RenderedTemplate, ApiError>,
) -> Result<RenderedTemplate, ApiError> {
    let first = render(messages, tools);
    let is_refused = match &first {
        Ok(rendered) if shows_instructions(&rendered.text, messages) => return first,
        Ok(_) => false,
        Err(_) => true,
    };
    let with_roles = with_plain_roles(messages);
    let with_tools = with_whole_tools(tools);
    for [roles, ids, whole] in ATTEMPTS {
        if !is_refused && (ids || whole) {
            continue;
        }
        let changed = match (roles, &with_roles) {
            (true, Some(changed)) => changed.as_slice(),
            (true, None) => continue,
            (false, _) => messages,
        };
        let shown = match (whole, &with_tools) {
            (true, Some(changed)) => changed,
            (true, None) => continue,
            (false, _) => tools,
        };
        let rendered = match ids {
            true => match with_short_ids(changed) {
                Some(changed) => render(&changed, shown),
                None => continue,
            },
            false => render(changed, shown),
        };
        if rendered.is_ok() {
            return rendered;
        }
    }
    first
}

/// The fields of a message, with a value for one of them.
pub(super) fn with_field(
    message: &ChatMessage,
    role: Role,
    (name, value): (&str, TemplateValue),
) -> ChatMessage {
    let fields = message.fields().as_map().unwrap_or_default().iter();
    let mut kept: Vec<(&str, TemplateValue)> = fields
        .filter(|(key, _)| **key != *"role" && **key != *name)
        .map(|(key, value)| (&**key, value.clone()))
        .collect();
    kept.push((name, value));
    ChatMessage::from_fields(role, kept)
}

fn is_instruction(message: &ChatMessage) -> bool {
    matches!(message.role(), Role::System | Role::Developer)
}

/// Whether a prompt has the texts of all system and developer messages.
fn shows_instructions(prompt: &str, messages: &[ChatMessage]) -> bool {
    let mut instructions = messages.iter().filter(|message| is_instruction(message));
    instructions.all(|message| prompt.contains(message.content().trim()))
}

/// The messages with one system message at the start. Later instructions become the start of the user's next
/// message, or a message of the user. `None` if this changes nothing.
fn with_plain_roles(messages: &[ChatMessage]) -> Option<Vec<ChatMessage>> {
    let leading = messages.iter().take_while(|m| is_instruction(m)).count();
    let (leading, others) = messages.split_at(leading);
    let is_plain = match leading {
        [] => true,
        [only] => only.role() == Role::System,
        _ => false,
    };
    if is_plain && !others.iter().any(is_instruction) {
        return None;
    }
    let mut changed = Vec::with_capacity(messages.len());
    if !leading.is_empty() {
        let texts: Vec<&str> = leading.iter().map(ChatMessage::content).collect();
        changed.push(ChatMessage::new(Role::System, &texts.join("\n\n")));
    }
    let mut before: Vec<&str> = Vec::new();
    for message in others {
        if is_instruction(message) {
            before.push(message.content());
            continue;
        }
        let own = message
            .fields()
            .get("content")
            .and_then(TemplateValue::as_text);
        match (before.is_empty(), own) {
            (true, _) => changed.push(message.clone()),
            (false, Some(own)) if message.role() == Role::User => {
                let text = [before.join("\n\n"), own.to_string()].join("\n\n");
                let content = ("content", TemplateValue::text(&text));
                changed.push(with_field(message, Role::User, content));
                before.clear();
            }
            (false, _) => {
                changed.push(ChatMessage::new(Role::User, &before.join("\n\n")));
                changed.push(message.clone());
                before.clear();
            }
        }
    }
    if !before.is_empty() {
        changed.push(ChatMessage::new(Role::User, &before.join("\n\n")));
    }
    Some(changed)
}

/// The messages with ids of calls of nine letters and digits. Equal ids stay equal. `None` if there are no ids.
fn with_short_ids(messages: &[ChatMessage]) -> Option<Vec<ChatMessage>> {
    let mut has_ids = false;
    let mut changed = Vec::with_capacity(messages.len());
    for message in messages {
        let mut message = message.clone();
        let id = message
            .fields()
            .get("tool_call_id")
            .and_then(TemplateValue::as_text);
        if let Some(id) = id.map(short_id) {
            has_ids = true;
            let id = ("tool_call_id", TemplateValue::text(&id));
            message = with_field(&message, message.role(), id);
        }
        let calls = message
            .fields()
            .get("tool_calls")
            .and_then(TemplateValue::as_list);
        if let Some(calls) = calls {
            has_ids = true;
            let calls = calls.iter().map(|call| {
                let id = call
                    .get("id")
                    .and_then(TemplateValue::as_text)
                    .map(short_id);
                with_entry(call, "id", TemplateValue::text(&id.unwrap_or_default()))
            });
            let calls = ("tool_calls", TemplateValue::list(calls.collect()));
            message = with_field(&message, message.role(), calls);
        }
        changed.push(message);
    }
    has_ids.then_some(changed)
}

/// Nine letters and digits that depend on an id alone.
pub(super) fn short_id(id: &str) -> String {
    if id.len() == SHORT_ID && id.bytes().all(|c| c.is_ascii_alphanumeric()) {
        return id.to_string();
    }
    // FNV-1a.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut rest = id.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    let mut digit = || {
        let digit = char::from_digit((rest % 36) as u32, 36);
        rest /= 36;
        digit.unwrap_or('0')
    };
    (0..SHORT_ID).map(|_| digit()).collect()
}

/// The tools with the fields that OpenAI's API lets clients leave out. `None` if there are no tools.
fn with_whole_tools(tools: &TemplateValue) -> Option<TemplateValue> {
    let tools = tools.as_list()?.iter().map(|tool| {
        let Some(function) = tool.get("function") else {
            return tool.clone();
        };
        let mut function = function.clone();
        if function
            .get("description")
            .and_then(TemplateValue::as_text)
            .is_none()
        {
            function = with_entry(&function, "description", TemplateValue::text(""));
        }
        let given = function
            .get("parameters")
            .filter(|given| given.as_map().is_some());
        let mut parameters = match given {
            Some(given) => given.clone(),
            None => TemplateValue::map::<&str>(Vec::new()),
        };
        let empty = TemplateValue::map::<&str>(Vec::new());
        for (name, value) in [
            ("type", TemplateValue::text("object")),
            ("properties", empty),
        ] {
            if parameters.get(name).is_none() {
                parameters = with_entry(&parameters, name, value);
            }
        }
        let function = with_entry(&function, "parameters", parameters);
        with_entry(tool, "function", function)
    });
    Some(TemplateValue::list(tools.collect()))
}

/// A map with a value for one of its keys, which keeps its place.
fn with_entry(map: &TemplateValue, name: &str, value: TemplateValue) -> TemplateValue {
    let entries = map.as_map().unwrap_or_default();
    let mut changed: Vec<(&str, TemplateValue)> = entries
        .iter()
        .map(|(key, value)| (&**key, value.clone()))
        .collect();
    match changed.iter_mut().find(|(key, _)| *key == name) {
        Some(entry) => entry.1 = value,
        None => changed.push((name, value)),
    }
    TemplateValue::map(changed)
}
