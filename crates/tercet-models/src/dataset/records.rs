//! What lines of a data file say.

use std::path::{Path, PathBuf};

use super::error::{DataError, LineError};
use super::lines::{Lines, read_text};
use super::template::Value;
use crate::gguf::clip;

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The whole file is one document. (Blank lines stand between paragraphs and inside code, so
    /// they do not part documents; for many documents there is JSONL.)
    Text,
    /// Each line that is not blank is a JSON object.
    JsonLines,
}

impl Format {
    /// By the name of a file: `.jsonl`, `.ndjson` and `.json` are [`Format::JsonLines`], all
    /// others are text.
    #[must_use]
    pub fn of(path: &Path) -> Format {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        match extension.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" | "json" => Format::JsonLines,
            _ => Format::Text,
        }
    }
}

/// What is to be learnt, which says what fields lines must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The next token: `{"text": ...}`, or `{"messages": [{"role": ..., "content": ...}, ...]}` with
    /// `tools` beside it where the template takes them. Where both are, `messages` counts.
    Language,
    /// A label: `{"text": ..., "label": ...}`, an integer or a string.
    Labels,
    /// Which texts belong together: `{"anchor": ..., "positive": ...}`, or `query` and `positive`, or
    /// `sentence1` and `sentence2`.
    Pairs,
}

/// The role of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// Every role, in declaration order.
    pub const ALL: [Role; 5] = [
        Role::System,
        Role::Developer,
        Role::User,
        Role::Assistant,
        Role::Tool,
    ];

    /// The name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// A message of a conversation, with all fields that its line has: templates may look at
/// others than the two.
#[derive(Clone, Debug)]
pub struct Message {
    role: Role,
    fields: Value,
}

impl Message {
    /// A message of two fields.
    #[must_use]
    pub fn new(role: Role, content: &str) -> Message {
        let fields = Value::map(vec![
            ("role", Value::text(role.name())),
            ("content", Value::text(content)),
        ]);
        Message { role, fields }
    }

    /// A message in parts, as templates of models that see read it: so many pictures, then the text.
    #[must_use]
    pub fn of_parts(role: Role, pictures: usize, text: &str) -> Message {
        let picture = || Value::map(vec![("type", Value::text("image"))]);
        let mut parts: Vec<Value> = (0..pictures).map(|_| picture()).collect();
        parts.push(Value::map(vec![
            ("type", Value::text("text")),
            ("text", Value::text(text)),
        ]));
        Message::of_fields(role, vec![("content", Value::list(parts))])
    }

    /// A message of these fields, beside its role: `content`, and what templates look at besides, as `tool_calls`.
    #[must_use]
    pub fn of_fields(role: Role, fields: Vec<(&str, Value)>) -> Message {
        let role_field = ("role", Value::text(role.name()));
        let fields = Value::map([vec![role_field], fields].concat());
        Message { role, fields }
    }

    /// Who says it.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// What is said, of a message in parts the first text; empty where there are only calls of tools.
    #[must_use]
    pub fn content(&self) -> &str {
        let Some(content) = self.fields.get("content") else {
            return "";
        };
        let parts = content.as_list().unwrap_or_default();
        let first = || parts.iter().find_map(|part| part.get("text")?.as_text());
        content.as_text().or_else(first).unwrap_or("")
    }

    /// All fields, as templates see them.
    #[must_use]
    pub fn fields(&self) -> &Value {
        &self.fields
    }

    /// The same message, with other words.
    #[must_use]
    pub fn with_content(&self, content: &str) -> Message {
        let entries = self.fields.as_map().unwrap_or(&[]).iter();
        let mut entries: Vec<_> = entries.map(|(k, v)| (k.to_string(), v.clone())).collect();
        entries.push(("content".to_owned(), Value::text(content)));
        Message {
            role: self.role,
            fields: Value::map(entries),
        }
    }
}

/// A conversation.
#[derive(Clone, Debug)]
pub struct Chat {
    /// The messages in order; at least one.
    pub messages: Vec<Message>,
    /// The field `tools`, or [`Value::None`].
    pub tools: Value,
}

/// A label of a text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Label {
    Int(i64),
    Name(String),
}

/// What a line says.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Record {
    /// A document.
    Text(String),
    /// A conversation.
    Chat(Chat),
    /// A text and its label.
    Labelled { text: String, label: Label },
    /// Two texts that belong together.
    Pair { anchor: String, positive: String },
}

impl Record {
    fn kind(&self) -> &'static str {
        match self {
            Record::Text(_) => "a text",
            Record::Chat(_) => "a conversation",
            Record::Labelled { .. } => "a labelled text",
            Record::Pair { .. } => "a pair",
        }
    }
}

/// Bounds of what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// Bytes of a line of JSON.
    pub line_bytes: usize,
    /// Bytes of a file of plain text.
    pub text_bytes: u64,
}

impl Default for ReadLimits {
    /// Lines of 16 MiB, texts of 1 GiB.
    fn default() -> ReadLimits {
        ReadLimits {
            line_bytes: 16 << 20,
            text_bytes: 1 << 30,
        }
    }
}

/// The records of a file, each with the number of its line from 1, read as they are asked for. After
/// an error there are no more.
///
/// A byte-order mark, `\r\n`, blank lines and a last line without an end are fine.
#[derive(Debug)]
pub struct Records {
    path: PathBuf,
    task: Task,
    limits: ReadLimits,
    source: Source,
    first: Option<(&'static str, u64)>,
}

#[derive(Debug)]
enum Source {
    Text,
    Lines(Box<Lines>),
    Done,
}

impl Records {
    /// Opens a file; its name says how it is read ([`Format::of`]). Labels and pairs are JSONL by
    /// any name.
    ///
    /// # Errors
    /// [`DataError::File`], [`DataError::Empty`].
    pub fn open(
        path: impl AsRef<Path>,
        task: Task,
        limits: ReadLimits,
    ) -> Result<Records, DataError> {
        let path = path.as_ref().to_path_buf();
        let lines = Lines::open(&path, limits.line_bytes)?;
        let source = match (Format::of(&path), task) {
            (Format::JsonLines, _) | (Format::Text, Task::Labels | Task::Pairs) => {
                Source::Lines(Box::new(lines))
            }
            (Format::Text, Task::Language) => Source::Text,
        };
        Ok(Records {
            path,
            task,
            limits,
            source,
            first: None,
        })
    }

    /// The next record and its line.
    fn record(&mut self) -> Result<Option<(u64, Record)>, DataError> {
        let lines = match &mut self.source {
            Source::Done => return Ok(None),
            Source::Text => {
                self.source = Source::Done;
                let text = read_text(&self.path, self.limits.text_bytes)?;
                let blank = text.trim().is_empty();
                return Ok((!blank).then_some((1, Record::Text(text))));
            }
            Source::Lines(lines) => lines,
        };
        while let Some(text) = lines.next_line()? {
            if text.trim().is_empty() {
                continue;
            }
            let record = parse(&text, self.task).map_err(|e| lines.error(e))?;
            let (found, line) = (record.kind(), lines.line);
            match self.first {
                None => self.first = Some((found, line)),
                Some((first, first_line)) if first != found => {
                    return Err(lines.error(LineError::MixedKinds {
                        found,
                        first,
                        first_line,
                    }));
                }
                Some(_) => {}
            }
            return Ok(Some((line, record)));
        }
        Ok(None)
    }
}

impl Iterator for Records {
    type Item = Result<(u64, Record), DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.record().transpose();
        if !matches!(record, Some(Ok(_))) {
            self.source = Source::Done;
        }
        record
    }
}

fn parse(text: &str, task: Task) -> Result<Record, LineError> {
    let value: Value = serde_json::from_str(text).map_err(|source| LineError::NotJson {
        column: source.column(),
        source,
    })?;
    let Value::Map(_) = value else {
        let hint = match value {
            Value::List(_) => " (JSONL, not a JSON array)",
            _ => "",
        };
        let found = value.kind();
        return Err(LineError::NotAnObject { found, hint });
    };
    match task {
        Task::Language if value.get("messages").is_some() => Ok(Record::Chat(chat(&value)?)),
        Task::Language if value.get("text").is_some() => Ok(Record::Text(string(&value, "text")?)),
        Task::Language => Err(no_known_field(&value, "`text`, `messages`")),
        Task::Labels => labelled(&value),
        Task::Pairs => pair(&value),
    }
}

fn no_known_field(value: &Value, wanted: &'static str) -> LineError {
    let fields = value.as_map().unwrap_or(&[]).iter().take(20);
    let names: Vec<&str> = fields.map(|(name, _)| &**name).collect();
    let found = match names.is_empty() {
        true => "none".to_owned(),
        false => clip(&names.join(", ")),
    };
    LineError::NoKnownField { wanted, found }
}

fn string(value: &Value, field: &'static str) -> Result<String, LineError> {
    match value.get(field) {
        None => Err(LineError::MissingField { field }),
        Some(Value::Text(text)) => Ok(text.to_string()),
        Some(other) => Err(LineError::WrongType {
            field: field.to_owned(),
            found: other.kind(),
            wanted: "a string",
        }),
    }
}

/// Text with something in it.
fn some_text(value: &Value, field: &'static str) -> Result<String, LineError> {
    let text = string(value, field)?;
    match text.trim().is_empty() {
        true => Err(LineError::NoText { field }),
        false => Ok(text),
    }
}

fn labelled(value: &Value) -> Result<Record, LineError> {
    let label = match value.get("label") {
        None if value.get("text").is_none() => {
            return Err(no_known_field(value, "`text` and `label`"));
        }
        None => return Err(LineError::MissingField { field: "label" }),
        Some(Value::Int(label)) => Label::Int(*label),
        Some(Value::Text(label)) => Label::Name(label.to_string()),
        Some(other) => {
            return Err(LineError::WrongType {
                field: "label".to_owned(),
                found: other.kind(),
                wanted: "an integer or a string",
            });
        }
    };
    let text = some_text(value, "text")?;
    Ok(Record::Labelled { text, label })
}

fn pair(value: &Value) -> Result<Record, LineError> {
    const NAMES: [(&str, &str); 3] = [
        ("anchor", "positive"),
        ("query", "positive"),
        ("sentence1", "sentence2"),
    ];
    let known = NAMES.iter().find(|(first, _)| value.get(first).is_some());
    let Some((first, second)) = known else {
        let wanted = "`anchor` and `positive`, `query` and `positive`, `sentence1` and `sentence2`";
        return Err(no_known_field(value, wanted));
    };
    Ok(Record::Pair {
        anchor: some_text(value, first)?,
        positive: some_text(value, second)?,
    })
}

fn chat(value: &Value) -> Result<Chat, LineError> {
    let wrong = |field: String, found: &Value, wanted| LineError::WrongType {
        field,
        found: found.kind(),
        wanted,
    };
    let found = value.get("messages").unwrap_or(&Value::Undefined);
    let Some(items) = found.as_list() else {
        return Err(wrong("messages".to_owned(), found, "a list of messages"));
    };
    let mut messages = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let at = |field: &str| format!("messages[{index}]{field}");
        let Value::Map(_) = item else {
            return Err(wrong(at(""), item, "an object"));
        };
        let role = item.get("role").unwrap_or(&Value::Undefined);
        let Some(role) = role.as_text() else {
            return Err(wrong(at(".role"), role, "a string"));
        };
        let Some(role) = Role::ALL.into_iter().find(|r| r.name() == role) else {
            let role = clip(role);
            return Err(LineError::UnknownRole { index, role });
        };
        let content = item.get("content").unwrap_or(&Value::Undefined);
        let only_calls = role == Role::Assistant && item.get("tool_calls").is_some();
        match content {
            Value::Text(_) => {}
            Value::None | Value::Undefined if only_calls => {}
            other => return Err(wrong(at(".content"), other, "a string")),
        }
        let fields = item.clone();
        messages.push(Message { role, fields });
    }
    if messages.is_empty() {
        return Err(LineError::NoMessages);
    }
    if !messages.iter().any(|m| m.role == Role::Assistant) {
        return Err(LineError::NoAnswer);
    }
    let tools = value.get("tools").cloned().unwrap_or(Value::None);
    Ok(Chat { messages, tools })
}
