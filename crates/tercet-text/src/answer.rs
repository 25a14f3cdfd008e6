//! Answers of language models, taken apart: thoughts, text, and calls of tools.
//!
//! How a model writes thoughts and calls is derived from its own chat template
//! ([`AnswerFormat::from_template`]): the template renders a conversation with and without a
//! thought, with one call and with two. The differences are the markers. A table has the formats of
//! templates that hide them. [`AnswerParser`] reads answers of a format, in pieces or whole.
//!
//! Calls are read in three forms: objects of JSON with a name and arguments, names followed by
//! arguments (JSON, or literals as in Python), and tags around each argument.

mod arguments;
mod derive;
mod format;
#[cfg(feature = "grammar")]
mod grammar;
mod head;
mod known;
mod machine;
mod marker;
mod prompt;

use std::sync::Arc;

use serde_json::Value;

use crate::tokenizer::Tokenizer;

use self::format::{CallFormat, ThoughtTags, all_thoughts};
#[cfg(feature = "grammar")]
pub use self::grammar::{CallTexts, lark_text};
pub use self::machine::AnswerParser;
pub use self::prompt::with_tool_prompt;

/// A part of an answer, in the order in which the model writes it.
///
/// ```
/// use tercet_text::answer::{AnswerEvent, AnswerFormat, AnswerParser};
/// let mut parser = AnswerParser::new(&AnswerFormat::default(), &[], "<think>");
/// assert_eq!(parser.push("So"), [AnswerEvent::Thought("So".into())]);
/// assert_eq!(parser.push("</think>\n\nYes"), [AnswerEvent::Text("Yes".into())]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerEvent {
    /// A piece of a thought.
    Thought(String),
    /// A piece of the text.
    Text(String),
    /// A call begins.
    Call {
        /// The id of the call.
        id: String,
        /// The name of the tool.
        name: String,
    },
    /// A piece of the JSON of the last call's arguments.
    Arguments(String),
}

/// A tool that an answer may call.
///
/// ```
/// use tercet_text::answer::AnswerTool;
/// let schema = serde_json::json!({"type": "object", "properties": {"city": {"type": "string"}}});
/// let tool = AnswerTool::new("weather", Some(schema));
/// assert_eq!(tool.name, "weather");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerTool {
    /// The name of the tool.
    pub name: String,
    /// The JSON schema of its arguments. It tells texts from numbers if a model writes both
    /// without quotes.
    pub parameters: Option<Value>,
}

impl AnswerTool {
    /// A tool with this name and this schema of its arguments.
    #[must_use]
    pub fn new(name: &str, parameters: Option<Value>) -> AnswerTool {
        AnswerTool {
            name: name.to_string(),
            parameters,
        }
    }

    /// The tool of the JSON of a function, with `name` and `parameters`.
    ///
    /// # Errors
    /// The position of the first byte that is not JSON.
    pub fn from_json(function: &str) -> Result<AnswerTool, serde_json::Error> {
        let function: Value = serde_json::from_str(function)?;
        let name = function.get("name").and_then(Value::as_str);
        let parameters = function.get("parameters").cloned();
        Ok(AnswerTool::new(name.unwrap_or_default(), parameters))
    }

    /// The schema of an argument.
    fn property(&self, key: &str) -> Option<&Value> {
        let schema = self.parameters.as_ref()?;
        let found = schema.get("properties")?.get(key)?;
        match found.get("$ref").and_then(Value::as_str) {
            Some(place) => schema.pointer(place.strip_prefix('#')?),
            None => Some(found),
        }
    }
}

/// A call of a tool.
///
/// ```
/// use tercet_text::answer::{AnswerFormat, AnswerParser, AnswerTool, ToolCall};
/// let text = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
/// let parser = AnswerParser::new(&AnswerFormat::default(), &[AnswerTool::new("now", None)], "");
/// let ToolCall { name, arguments, .. } = &parser.parse(text).calls[0];
/// assert_eq!((name.as_str(), arguments.as_str()), ("now", "{}"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The id of the call.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments: a JSON object, or its start if the answer was cut.
    pub arguments: String,
}

/// A whole answer.
///
/// ```
/// use tercet_text::answer::{AnswerFormat, AnswerParser};
/// let answer = AnswerParser::new(&AnswerFormat::default(), &[], "").parse("<think>a</think>b");
/// assert_eq!((answer.thought.as_str(), answer.text.as_str()), ("a", "b"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedAnswer {
    /// The thoughts.
    pub thought: String,
    /// The text without thoughts and calls.
    pub text: String,
    /// The calls, in their order.
    pub calls: Vec<ToolCall>,
}

impl ParsedAnswer {
    /// Adds the next event.
    pub fn add(&mut self, event: AnswerEvent) {
        match event {
            AnswerEvent::Thought(text) => self.thought += &text,
            AnswerEvent::Text(text) => self.text += &text,
            AnswerEvent::Call { id, name } => self.calls.push(ToolCall {
                id,
                name,
                arguments: String::new(),
            }),
            AnswerEvent::Arguments(text) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments += &text;
                }
            }
        }
    }
}

/// How a model writes thoughts and calls of tools.
///
/// ```
/// use tercet_text::answer::AnswerFormat;
/// use tercet_text::dataset::ChatTemplate;
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
/// let format = AnswerFormat::from_template(&ChatTemplate::new(source, &[])?);
/// assert!(!format.has_tools()); // the template does not show tools to the model
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerFormat {
    thoughts: Vec<ThoughtTags>,
    /// The field of a message in which the template reads thoughts.
    thought_key: &'static str,
    calls: CallFormat,
    /// Whether the answer consists of messages on channels (gpt-oss).
    has_channels: bool,
    /// Whether the template shows tools to the model.
    has_tools: bool,
    /// Whether the template takes the arguments of calls as JSON text.
    takes_text: bool,
    /// Whether ids of calls must have nine letters and digits.
    has_short_ids: bool,
}

impl Default for AnswerFormat {
    /// Known tags of thoughts, and calls as Hermes and Qwen write them: JSON between `<tool_call>`
    /// tags.
    fn default() -> AnswerFormat {
        AnswerFormat {
            thoughts: all_thoughts(None),
            thought_key: derive::THOUGHT_KEYS[0],
            calls: CallFormat::hermes(),
            has_channels: false,
            has_tools: false,
            takes_text: false,
            has_short_ids: false,
        }
    }
}

impl AnswerFormat {
    /// Whether the template shows tools to the model. If not, [`with_tool_prompt`] does.
    #[must_use]
    pub fn has_tools(&self) -> bool {
        self.has_tools
    }

    /// Whether the template takes the arguments of earlier calls as JSON text instead of objects.
    #[must_use]
    pub fn takes_argument_text(&self) -> bool {
        self.takes_text
    }

    /// The field in which the template reads the thoughts of earlier answers, such as
    /// `reasoning_content` or `thinking`.
    #[must_use]
    pub fn thought_key(&self) -> &'static str {
        self.thought_key
    }

    /// A new id of a call, as the template accepts it.
    fn new_id(&self) -> String {
        match self.has_short_ids {
            true => machine::random_id("", 9),
            false => machine::random_id("call_", 16),
        }
    }

    /// The special tokens of a vocabulary that the markers consist of. They have no text, so that
    /// the text for the parser must spell them
    /// (`IncrementalDetokenizer::with_spelled`).
    #[must_use]
    pub fn special_tokens(&self, tokenizer: &Tokenizer) -> Arc<[u32]> {
        const CHANNELS: &str = "<|channel|><|message|><|constrain|><|start|><|end|>";
        let mut texts: Vec<String> = Vec::new();
        for tags in &self.thoughts {
            texts.extend([tags.open.spelling.clone(), tags.close.spelling.clone()]);
        }
        texts.extend(self.calls.spellings());
        texts.push("<|python_tag|>".to_string());
        if self.has_channels {
            texts.push(CHANNELS.to_string());
        }
        let pieces = texts.iter().flat_map(|text| marker::pieces(text));
        let ids = pieces.filter_map(|piece| tokenizer.token_to_id(piece.text));
        let mut ids: Vec<u32> = ids.filter(|id| tokenizer.is_special(*id)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into()
    }
}
