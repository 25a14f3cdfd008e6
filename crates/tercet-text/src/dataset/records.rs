//! The records of a data file.

use std::path::{Path, PathBuf};

use super::error::{DataError, LineError};
use super::lines::{JsonLineReader, read_text};
use super::template::TemplateValue;
use tercet_files::clip;

/// The format of a data file.
///
/// ```
/// use std::path::Path;
/// use tercet_text::dataset::RecordFormat;
/// assert_eq!(RecordFormat::from_path(Path::new("data.jsonl")), RecordFormat::JsonLines);
/// assert_eq!(RecordFormat::from_path(Path::new("book.txt")), RecordFormat::Text);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFormat {
    /// The whole file is one document. Blank lines do not separate documents, because they also
    /// occur between paragraphs and inside code. Use JSONL for several documents.
    Text,
    /// Each non-blank line is a JSON object.
    JsonLines,
}

impl RecordFormat {
    /// The format by file extension: `.jsonl`, `.ndjson` and `.json` are [`RecordFormat::JsonLines`]; all
    /// other files are text.
    #[must_use]
    pub fn from_path(path: &Path) -> RecordFormat {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        match extension.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" | "json" => RecordFormat::JsonLines,
            _ => RecordFormat::Text,
        }
    }
}

/// The training task, which determines the fields that lines must have.
///
/// ```
/// # let name = format!("tercet-doc-dataset-task-{}.jsonl", std::process::id());
/// # let path = std::env::temp_dir().join(name);
/// use tercet_text::dataset::{DatasetRecord, DatasetTask, ReadLimits, RecordReader};
/// std::fs::write(&path, r#"{"sentence1": "a", "sentence2": "b"}"#)?;
/// let mut reader = RecordReader::open(&path, DatasetTask::Pairs, ReadLimits::default())?;
/// let record = reader.next().ok_or("the file is empty")??;
/// assert!(matches!(record, (1, DatasetRecord::Pair { anchor, .. }) if anchor == "a"));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetTask {
    /// Next-token prediction: `{"text": ...}`, or `{"messages": [{"role": ..., "content": ...},
    /// ...]}` with optional `tools` for templates that support them. If both fields are present,
    /// `messages` is used.
    Language,
    /// Classification: `{"text": ..., "label": ...}`, with an integer or a string as label.
    Labels,
    /// Text pairs: `{"anchor": ..., "positive": ...}`, or `query` and `positive`, or `sentence1`
    /// and `sentence2`.
    Pairs,
}

/// The role of a message.
///
/// ```
/// use tercet_text::dataset::Role;
/// assert_eq!(Role::Assistant.name(), "assistant");
/// assert!(Role::ALL.contains(&Role::Tool));
/// ```
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

    /// The role's name in files.
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

/// A message of a conversation, with all fields of its line: templates may read fields other than
/// role and content.
///
/// ```
/// use tercet_text::dataset::{ChatMessage, Role};
/// let message = ChatMessage::from_parts(Role::User, 1, "What is this?");
/// assert_eq!((message.role(), message.content()), (Role::User, "What is this?"));
/// assert_eq!(message.with_content("Hi").content(), "Hi");
/// ```
#[derive(Clone, Debug)]
pub struct ChatMessage {
    role: Role,
    fields: TemplateValue,
}

impl ChatMessage {
    /// A message with a role and a content.
    #[must_use]
    pub fn new(role: Role, content: &str) -> ChatMessage {
        let fields = TemplateValue::map(vec![
            ("role", TemplateValue::text(role.name())),
            ("content", TemplateValue::text(content)),
        ]);
        ChatMessage { role, fields }
    }

    /// A message in parts, for templates of vision-language models: `pictures` images, then the
    /// text.
    #[must_use]
    pub fn from_parts(role: Role, pictures: usize, text: &str) -> ChatMessage {
        let picture = || TemplateValue::map(vec![("type", TemplateValue::text("image"))]);
        let mut parts: Vec<TemplateValue> = (0..pictures).map(|_| picture()).collect();
        parts.push(TemplateValue::map(vec![
            ("type", TemplateValue::text("text")),
            ("text", TemplateValue::text(text)),
        ]));
        ChatMessage::from_fields(role, vec![("content", TemplateValue::list(parts))])
    }

    /// A message with a role and these fields: `content` and others that templates read, such as
    /// `tool_calls`.
    #[must_use]
    pub fn from_fields(role: Role, fields: Vec<(&str, TemplateValue)>) -> ChatMessage {
        let role_field = ("role", TemplateValue::text(role.name()));
        let fields = TemplateValue::map([vec![role_field], fields].concat());
        ChatMessage { role, fields }
    }

    /// The role of the speaker.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The text of the message; for a message in parts, the first text. The text is empty if the
    /// message only has tool calls.
    #[must_use]
    pub fn content(&self) -> &str {
        let Some(content) = self.fields.get("content") else {
            return "";
        };
        let parts = content.as_list().unwrap_or_default();
        let first = || parts.iter().find_map(|part| part.get("text")?.as_text());
        content.as_text().or_else(first).unwrap_or("")
    }

    /// All fields, as templates read them.
    #[must_use]
    pub fn fields(&self) -> &TemplateValue {
        &self.fields
    }

    /// The same message with another content.
    #[must_use]
    pub fn with_content(&self, content: &str) -> ChatMessage {
        let entries = self.fields.as_map().unwrap_or(&[]).iter();
        let mut entries: Vec<_> = entries.map(|(k, v)| (k.to_string(), v.clone())).collect();
        entries.push(("content".to_owned(), TemplateValue::text(content)));
        ChatMessage {
            role: self.role,
            fields: TemplateValue::map(entries),
        }
    }
}

/// A conversation.
///
/// ```
/// use tercet_text::dataset::template::TemplateValue;
/// use tercet_text::dataset::{ChatMessage, ChatRecord, Role};
/// let messages = vec![ChatMessage::new(Role::User, "2 + 2?")];
/// let chat = ChatRecord { messages, tools: TemplateValue::None };
/// assert_eq!(chat.messages[0].content(), "2 + 2?");
/// ```
#[derive(Clone, Debug)]
pub struct ChatRecord {
    /// The messages in order; at least one.
    pub messages: Vec<ChatMessage>,
    /// The field `tools`, or [`TemplateValue::None`].
    pub tools: TemplateValue,
}

/// The label of a text.
///
/// ```
/// use tercet_text::dataset::TextLabel;
/// assert_eq!(TextLabel::Name("spam".to_string()).to_string(), "spam");
/// assert!(TextLabel::Int(0) < TextLabel::Int(1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum TextLabel {
    Int(i64),
    Name(String),
}

/// The content of one line.
///
/// ```
/// use tercet_text::dataset::{DatasetRecord, TextLabel};
/// let record = DatasetRecord::Labelled { text: "good".to_string(), label: TextLabel::Int(1) };
/// assert!(matches!(record, DatasetRecord::Labelled { label: TextLabel::Int(1), .. }));
/// ```
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DatasetRecord {
    /// A document.
    Text(String),
    /// A conversation.
    Chat(ChatRecord),
    /// A text and its label.
    Labelled { text: String, label: TextLabel },
    /// A pair of related texts.
    Pair { anchor: String, positive: String },
}

impl DatasetRecord {
    fn kind(&self) -> &'static str {
        match self {
            DatasetRecord::Text(_) => "a text",
            DatasetRecord::Chat(_) => "a conversation",
            DatasetRecord::Labelled { .. } => "a labelled text",
            DatasetRecord::Pair { .. } => "a pair",
        }
    }
}

/// Limits on the size of the input.
///
/// ```
/// use tercet_text::dataset::ReadLimits;
/// let limits = ReadLimits { line_bytes: 1 << 20, ..ReadLimits::default() };
/// assert_eq!(limits.text_bytes, 1 << 30);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// Maximum length of a JSON line, in bytes.
    pub line_bytes: usize,
    /// Maximum size of a plain text file, in bytes.
    pub text_bytes: u64,
}

impl Default for ReadLimits {
    /// Lines of 16 MiB, text files of 1 GiB.
    fn default() -> ReadLimits {
        ReadLimits {
            line_bytes: 16 << 20,
            text_bytes: 1 << 30,
        }
    }
}

/// Lazy iterator over the records of a file, each with its line number from 1. The iterator ends
/// after an error.
///
/// A byte-order mark, `\r\n`, blank lines and a last line without a line end are accepted.
///
/// ```
/// # let name = format!("tercet-doc-record-reader-{}.jsonl", std::process::id());
/// # let path = std::env::temp_dir().join(name);
/// use tercet_text::dataset::{DatasetRecord, DatasetTask, ReadLimits, RecordReader};
/// std::fs::write(&path, r#"{"text": "Hello"}"#)?;
/// for record in RecordReader::open(&path, DatasetTask::Language, ReadLimits::default())? {
///     let (line, record) = record?;
///     assert!(matches!(record, DatasetRecord::Text(text) if line == 1 && text == "Hello"));
/// }
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RecordReader {
    path: PathBuf,
    task: DatasetTask,
    limits: ReadLimits,
    source: RecordSource,
    first: Option<(&'static str, u64)>,
}

#[derive(Debug)]
enum RecordSource {
    Text,
    Lines(Box<JsonLineReader>),
    Done,
}

impl RecordReader {
    /// Opens a file. The file's extension determines the format ([`RecordFormat::from_path`]).
    /// Labels and pairs are always JSONL.
    ///
    /// # Errors
    /// [`DataError::File`], [`DataError::Empty`].
    pub fn open(
        path: impl AsRef<Path>,
        task: DatasetTask,
        limits: ReadLimits,
    ) -> Result<RecordReader, DataError> {
        let path = path.as_ref().to_path_buf();
        let lines = JsonLineReader::open(&path, limits.line_bytes)?;
        let source = match (RecordFormat::from_path(&path), task) {
            (RecordFormat::JsonLines, _)
            | (RecordFormat::Text, DatasetTask::Labels | DatasetTask::Pairs) => {
                RecordSource::Lines(Box::new(lines))
            }
            (RecordFormat::Text, DatasetTask::Language) => RecordSource::Text,
        };
        Ok(RecordReader {
            path,
            task,
            limits,
            source,
            first: None,
        })
    }

    /// The next record and its line number.
    fn record(&mut self) -> Result<Option<(u64, DatasetRecord)>, DataError> {
        let lines = match &mut self.source {
            RecordSource::Done => return Ok(None),
            RecordSource::Text => {
                self.source = RecordSource::Done;
                let text = read_text(&self.path, self.limits.text_bytes)?;
                let blank = text.trim().is_empty();
                return Ok((!blank).then_some((1, DatasetRecord::Text(text))));
            }
            RecordSource::Lines(lines) => lines,
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

impl Iterator for RecordReader {
    type Item = Result<(u64, DatasetRecord), DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.record().transpose();
        if !matches!(record, Some(Ok(_))) {
            self.source = RecordSource::Done;
        }
        record
    }
}

fn parse(text: &str, task: DatasetTask) -> Result<DatasetRecord, LineError> {
    let value: TemplateValue = serde_json::from_str(text).map_err(|source| LineError::NotJson {
        column: source.column(),
        source,
    })?;
    let TemplateValue::Map(_) = value else {
        let hint = match value {
            TemplateValue::List(_) => " (JSONL, not a JSON array)",
            _ => "",
        };
        let found = value.kind();
        return Err(LineError::NotAnObject { found, hint });
    };
    match task {
        DatasetTask::Language if value.get("messages").is_some() => {
            Ok(DatasetRecord::Chat(chat(&value)?))
        }
        DatasetTask::Language if value.get("text").is_some() => {
            Ok(DatasetRecord::Text(string(&value, "text")?))
        }
        DatasetTask::Language => Err(no_known_field(&value, "`text`, `messages`")),
        DatasetTask::Labels => labelled(&value),
        DatasetTask::Pairs => pair(&value),
    }
}

fn no_known_field(value: &TemplateValue, wanted: &'static str) -> LineError {
    let fields = value.as_map().unwrap_or(&[]).iter().take(20);
    let names: Vec<&str> = fields.map(|(name, _)| &**name).collect();
    let found = match names.is_empty() {
        true => "none".to_owned(),
        false => clip(&names.join(", ")),
    };
    LineError::NoKnownField { wanted, found }
}

fn string(value: &TemplateValue, field: &'static str) -> Result<String, LineError> {
    match value.get(field) {
        None => Err(LineError::MissingField { field }),
        Some(TemplateValue::Text(text)) => Ok(text.to_string()),
        Some(other) => Err(LineError::WrongType {
            field: field.to_owned(),
            found: other.kind(),
            wanted: "a string",
        }),
    }
}

/// A text that is not blank.
fn some_text(value: &TemplateValue, field: &'static str) -> Result<String, LineError> {
    let text = string(value, field)?;
    match text.trim().is_empty() {
        true => Err(LineError::NoText { field }),
        false => Ok(text),
    }
}

fn labelled(value: &TemplateValue) -> Result<DatasetRecord, LineError> {
    let label = match value.get("label") {
        None if value.get("text").is_none() => {
            return Err(no_known_field(value, "`text` and `label`"));
        }
        None => return Err(LineError::MissingField { field: "label" }),
        Some(TemplateValue::Int(label)) => TextLabel::Int(*label),
        Some(TemplateValue::Text(label)) => TextLabel::Name(label.to_string()),
        Some(other) => {
            return Err(LineError::WrongType {
                field: "label".to_owned(),
                found: other.kind(),
                wanted: "an integer or a string",
            });
        }
    };
    let text = some_text(value, "text")?;
    Ok(DatasetRecord::Labelled { text, label })
}

fn pair(value: &TemplateValue) -> Result<DatasetRecord, LineError> {
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
    Ok(DatasetRecord::Pair {
        anchor: some_text(value, first)?,
        positive: some_text(value, second)?,
    })
}

fn chat(value: &TemplateValue) -> Result<ChatRecord, LineError> {
    let wrong = |field: String, found: &TemplateValue, wanted| LineError::WrongType {
        field,
        found: found.kind(),
        wanted,
    };
    let found = value.get("messages").unwrap_or(&TemplateValue::Undefined);
    let Some(items) = found.as_list() else {
        return Err(wrong("messages".to_owned(), found, "a list of messages"));
    };
    let mut messages = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let at = |field: &str| format!("messages[{index}]{field}");
        let TemplateValue::Map(_) = item else {
            return Err(wrong(at(""), item, "an object"));
        };
        let role = item.get("role").unwrap_or(&TemplateValue::Undefined);
        let Some(role) = role.as_text() else {
            return Err(wrong(at(".role"), role, "a string"));
        };
        let Some(role) = Role::ALL.into_iter().find(|r| r.name() == role) else {
            let role = clip(role);
            return Err(LineError::UnknownRole { index, role });
        };
        let content = item.get("content").unwrap_or(&TemplateValue::Undefined);
        let only_calls = role == Role::Assistant && item.get("tool_calls").is_some();
        match content {
            TemplateValue::Text(_) => {}
            TemplateValue::None | TemplateValue::Undefined if only_calls => {}
            other => return Err(wrong(at(".content"), other, "a string")),
        }
        let fields = item.clone();
        messages.push(ChatMessage { role, fields });
    }
    if messages.is_empty() {
        return Err(LineError::NoMessages);
    }
    if !messages.iter().any(|m| m.role == Role::Assistant) {
        return Err(LineError::NoAnswer);
    }
    let tools = value.get("tools").cloned().unwrap_or(TemplateValue::None);
    Ok(ChatRecord { messages, tools })
}
