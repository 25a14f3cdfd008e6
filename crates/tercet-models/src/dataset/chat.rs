//! Conversations written as a model's own chat template writes them, and where their answers are.
//!
//! Only answers are learnt, with what ends them. Where they are is found in this order:
//!
//! 1. The template says it, by `{% generation %}` blocks.
//! 2. By prefixes: the conversation up to an answer, with the generation prompt, must be a
//!    beginning of the conversation up to and with the answer, and that a beginning of the whole.
//!    What lies between is the answer, with the end of the turn but without white space behind
//!    that.
//! 3. Some templates write an answer differently where it is not the last one (they drop its
//!    reasoning). Then its words are put between two marks, which must come back around the same
//!    text; the end of the turn is the special token that follows.
//!
//! Where none holds, the line is refused rather than learnt wrongly.

use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use super::error::{DataError, LineError};
use super::records::{Chat, Message, Role};
use super::template::{Limits, Rendered, Template, TemplateError, Value};
use crate::gguf::Gguf;
use crate::hf::{HfFolder, read_optional_json};
use crate::mmap::read_small;
use crate::open::ModelFiles;
use crate::tokenizer::Tokenizer;

/// What a model without a template gets: ChatML.
const CHATML: &str = "{{ before }}{% for message in messages %}\
    {{ '<|im_start|>' + message.role + '\\n' }}\
    {% if message.role == 'assistant' %}\
    {% generation %}{{ message.content + end_of_turn }}{% endgeneration %}\
    {% else %}{{ message.content + end_of_turn }}{% endif %}\
    {{ '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Messages of a conversation at most: prefixes are rendered for each answer.
const MAX_MESSAGES: usize = 1000;
const MAX_TEMPLATE_FILE: u64 = super::template::MAX_TEMPLATE_BYTES as u64;

/// An answer in a rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Where it is, in bytes.
    pub range: Range<usize>,
    /// Whether the range has what ends the turn; if not, a special token right behind it does.
    pub has_end: bool,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// The text, special tokens written out.
    pub text: String,
    /// The answers, in order.
    pub answers: Vec<Answer>,
}

/// The chat template of a model.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    template: Template,
    /// Of conversations with tools, where the model has one of its own for them.
    with_tools: Option<Template>,
    source: String,
    variables: Vec<(String, Value)>,
    now: i64,
    note: Option<String>,
}

impl ChatTemplate {
    /// The template of a model: of a folder `chat_template.jinja`, `chat_template.json` or `chat_template` of
    /// `tokenizer_config.json` (of several the one called `default`, else the first; where there are tools,
    /// `tool_use`), of a GGUF file `tokenizer.chat_template`. A model that has none gets ChatML, and [`Self::note`]
    /// says so.
    ///
    /// # Errors
    /// [`crate::Error`]: the files cannot be read, or [`crate::Error::Data`] when the template is
    /// refused.
    pub fn of(files: &ModelFiles, tokenizer: &Tokenizer) -> Result<ChatTemplate, crate::Error> {
        let source = match files {
            ModelFiles::Hf(folder) => of_folder(folder)?,
            ModelFiles::Gguf(gguf) => of_gguf(gguf, tokenizer)?,
        };
        let mut template = match source.plain {
            Some(plain) => ChatTemplate::new(&plain, &source.tokens)?,
            None => ChatTemplate::chatml(tokenizer, &source.tokens)?,
        };
        if let Some(source) = source.with_tools {
            template.with_tools = Some(Template::parse(&source).map_err(DataError::from)?);
            template.source = source;
        }
        Ok(template)
    }

    /// A template from its text, with variables such as `("bos_token", "<s>")`.
    ///
    /// # Errors
    /// [`DataError::Template`].
    pub fn new(source: &str, tokens: &[(String, String)]) -> Result<ChatTemplate, DataError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let variables = tokens.iter();
        let variables = variables.map(|(name, token)| (name.clone(), Value::text(token)));
        Ok(ChatTemplate {
            template: Template::parse(source)?,
            with_tools: None,
            source: source.to_owned(),
            variables: variables.collect(),
            now: now.map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(0)),
            note: None,
        })
    }

    /// ChatML, for models that have no template. A turn ends with `<|im_end|>` where that is a token,
    /// else with the model's own end of sequence (`eos_token` of `tokens`), if it has one.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`].
    pub fn chatml(
        tokenizer: &Tokenizer,
        tokens: &[(String, String)],
    ) -> Result<ChatTemplate, DataError> {
        let spelled = |ids: &[u32]| -> String {
            ids.iter()
                .filter_map(|id| tokenizer.id_to_token(*id))
                .collect()
        };
        let before = spelled(&tokenizer.surrounding()?.0);
        let eos = tokens.iter().find(|(name, _)| name == "eos_token");
        let end = match (tokenizer.token_to_id("<|im_end|>"), eos) {
            (None, Some((_, eos))) => eos.as_str(),
            _ => "<|im_end|>",
        };
        let mut template = ChatTemplate::new(CHATML, tokens)?;
        let variables = [("before", before.as_str()), ("end_of_turn", end)];
        let variables = variables.map(|(name, text)| (name.to_owned(), Value::text(text)));
        template.variables.extend(variables);
        template.note = Some(format!(
            "the model has no chat template: conversations are written as ChatML, turns end with \
             `{end}`"
        ));
        Ok(template)
    }

    /// The same template at another time, in seconds since 1970: what `strftime_now` prints. To go on
    /// with a training on another day, give the time that it began at.
    #[must_use]
    pub fn at(mut self, now: i64) -> ChatTemplate {
        self.now = now;
        self
    }

    /// The time for `strftime_now`, in seconds since 1970: when the template was made, unless
    /// [`Self::at`] was called.
    #[must_use]
    pub fn now(&self) -> i64 {
        self.now
    }

    /// What a user should know about the template.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The text of the template that conversations with tools are written by.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The template for conversations with these tools.
    fn of_tools(&self, tools: &Value) -> &Template {
        match &self.with_tools {
            Some(template) if tools.as_list().is_some_and(|tools| !tools.is_empty()) => template,
            Some(_) | None => &self.template,
        }
    }

    /// Renders messages; with `prompt` also what begins the next answer.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn render(
        &self,
        messages: &[Message],
        tools: &Value,
        prompt: bool,
    ) -> Result<Rendered, TemplateError> {
        let messages = messages.iter().map(|m| m.fields().clone()).collect();
        let variables = self.variables.iter();
        let mut variables: Vec<_> = variables.map(|(k, v)| (k.as_str(), v.clone())).collect();
        variables.push(("messages", Value::list(messages)));
        variables.push(("tools", tools.clone()));
        variables.push(("documents", Value::None));
        variables.push(("add_generation_prompt", Value::Bool(prompt)));
        self.of_tools(tools)
            .render(&variables, self.now, Limits::default())
    }

    /// Renders a conversation and finds its answers.
    ///
    /// # Errors
    /// [`LineError::Template`], [`LineError::AnswerNotFound`], [`LineError::TooManyMessages`],
    /// [`LineError::NoAnswer`].
    pub fn conversation(&self, chat: &Chat) -> Result<Conversation, LineError> {
        let messages = &chat.messages;
        if messages.len() > MAX_MESSAGES {
            let (found, max) = (messages.len(), MAX_MESSAGES);
            return Err(LineError::TooManyMessages { found, max });
        }
        let whole = self.render(messages, &chat.tools, false)?;
        if self.of_tools(&chat.tools).has_generation() {
            let ranges = whole.generated.into_iter();
            let answers = ranges.map(|range| Answer {
                range,
                has_end: true,
            });
            let answers: Vec<_> = answers.collect();
            return match answers.is_empty() {
                true => Err(LineError::NoAnswer),
                false => Ok(Conversation {
                    text: whole.text,
                    answers,
                }),
            };
        }
        let mut answers: Vec<Answer> = Vec::new();
        for (index, message) in messages.iter().enumerate() {
            if message.role() != Role::Assistant {
                continue;
            }
            let found = match self.by_prefixes(chat, index, &whole.text) {
                Some(range) => Some(Answer {
                    range,
                    has_end: true,
                }),
                None => self.by_marks(chat, index, &whole.text).map(|range| Answer {
                    range,
                    has_end: false,
                }),
            };
            let after = answers.last().map_or(0, |answer| answer.range.end);
            match found {
                Some(answer) if answer.range.start >= after => answers.push(answer),
                _ => return Err(LineError::AnswerNotFound { index }),
            }
        }
        match answers.is_empty() {
            true => Err(LineError::NoAnswer),
            false => Ok(Conversation {
                text: whole.text,
                answers,
            }),
        }
    }

    /// An answer as what it adds to the conversation before it. A template that refuses a part of a
    /// conversation gives `None`.
    fn by_prefixes(&self, chat: &Chat, index: usize, whole: &str) -> Option<Range<usize>> {
        let (before, through) = (&chat.messages[..index], &chat.messages[..=index]);
        let before = self.render(before, &chat.tools, true).ok()?.text;
        let through = match through.len() == chat.messages.len() {
            true => whole.to_owned(),
            false => self.render(through, &chat.tools, false).ok()?.text,
        };
        if !(whole.starts_with(&through) && through.starts_with(&before)) {
            return None;
        }
        let answer = &through[before.len()..];
        // White space behind the end of the turn is not what a model writes: it has stopped.
        let content = chat.messages[index].content().trim();
        let found = answer.rfind(content).filter(|_| !content.is_empty());
        let end = found.map_or(0, |at| at + content.len());
        let ended = !answer[end..].trim().is_empty();
        let len = match ended {
            true => answer.trim_end().len(),
            false => answer.len(),
        };
        Some(before.len()..before.len() + len)
    }

    /// An answer by marks around its words.
    fn by_marks(&self, chat: &Chat, index: usize, whole: &str) -> Option<Range<usize>> {
        // Two characters for private use that do not occur.
        let mut free = ('\u{E000}'..='\u{F8FF}').filter(|c| !whole.contains(*c));
        let (open, close) = (free.next()?, free.next()?);
        let content = chat.messages[index].content();
        let words = content.trim();
        if words.is_empty() {
            return None;
        }
        let (start, end) = content.split_once(words)?;
        let marked = format!("{start}{open}{words}{close}{end}");
        let mut messages = chat.messages.clone();
        messages[index] = messages[index].with_content(&marked);
        let marked = self.render(&messages, &chat.tools, false).ok()?.text;
        let (before, rest) = marked.split_once(open)?;
        let (inside, after) = rest.split_once(close)?;
        let same = whole.strip_prefix(before)?.strip_prefix(inside)? == after;
        same.then_some(before.len()..before.len() + inside.len())
    }
}

/// What the files of a model say.
struct Source {
    plain: Option<String>,
    with_tools: Option<String>,
    tokens: Vec<(String, String)>,
}

/// The template of a folder, and the one for tools.
pub(crate) fn chat_templates(folder: &HfFolder) -> Result<[Option<String>; 2], crate::Error> {
    let Source {
        plain, with_tools, ..
    } = of_folder(folder)?;
    Ok([plain, with_tools])
}

fn of_folder(folder: &HfFolder) -> Result<Source, crate::Error> {
    const TOKENS: [&str; 6] = [
        "bos_token",
        "eos_token",
        "unk_token",
        "pad_token",
        "sep_token",
        "cls_token",
    ];
    let config = read_optional_json(&folder.dir().join("tokenizer_config.json"))?;
    let config = config.unwrap_or_default();
    let text_of = |value: &serde_json::Value| {
        let text = value.as_str().or_else(|| value.get("content")?.as_str());
        text.map(str::to_owned)
    };
    let tokens = TOKENS.iter().filter_map(|name| {
        let token = text_of(config.get(*name)?)?;
        Some(((*name).to_owned(), token))
    });
    let tokens = tokens.collect();
    let path = folder.dir().join("chat_template.jinja");
    if path.exists() {
        let with_tools = folder
            .dir()
            .join("additional_chat_templates/tool_use.jinja");
        let with_tools = with_tools.exists().then_some(with_tools);
        return Ok(Source {
            plain: Some(template_file(&path)?),
            with_tools: with_tools.map(|path| template_file(&path)).transpose()?,
            tokens,
        });
    }
    // Of models with a processor, whose template goes before that of the tokenizer.
    if let Some(own) = read_optional_json(&folder.dir().join("chat_template.json"))? {
        let found = "something else";
        let plain = own.get("chat_template").and_then(|own| own.as_str());
        let plain = plain.ok_or(DataError::BadTemplateField { found })?;
        return Ok(Source {
            plain: Some(plain.to_owned()),
            with_tools: None,
            tokens,
        });
    }
    let (plain, with_tools) = match config.get("chat_template") {
        None | Some(serde_json::Value::Null) => (None, None),
        Some(serde_json::Value::String(source)) => (Some(source.clone()), None),
        Some(other) => {
            let found = "something else";
            let plain = named(other).ok_or(DataError::BadTemplateField { found })?;
            (Some(plain), called(other, "tool_use"))
        }
    };
    Ok(Source {
        plain,
        with_tools,
        tokens,
    })
}

fn template_file(path: &Path) -> Result<String, crate::Error> {
    let bytes = read_small(path, MAX_TEMPLATE_FILE)?;
    let text = String::from_utf8(bytes).map_err(|_| DataError::BadTemplateField {
        found: "a file that is not UTF-8",
    })?;
    Ok(text)
}

/// Of a list of named templates the default one, else the first.
fn named(list: &serde_json::Value) -> Option<String> {
    let first = || list.as_array()?.first()?.get("template")?.as_str();
    called(list, "default").or_else(|| first().map(str::to_owned))
}

/// Of a list of named templates the one of this name.
fn called(list: &serde_json::Value, name: &str) -> Option<String> {
    let mut all = list.as_array()?.iter();
    let named = |entry: &&serde_json::Value| {
        entry.get("name").and_then(serde_json::Value::as_str) == Some(name)
    };
    all.find(named)?
        .get("template")?
        .as_str()
        .map(str::to_owned)
}

fn of_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Source, crate::Error> {
    const TOKENS: [(&str, &str); 4] = [
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ];
    let meta = gguf.metadata();
    let mut tokens = Vec::new();
    for (name, key) in TOKENS {
        let id = meta.opt_u32(key)?;
        if let Some(token) = id.and_then(|id| tokenizer.id_to_token(id)) {
            tokens.push((name.to_owned(), token));
        }
    }
    let source = meta.opt_str("tokenizer.chat_template")?;
    let with_tools = meta.opt_str("tokenizer.chat_template.tool_use")?;
    Ok(Source {
        plain: source.map(str::to_owned),
        with_tools: with_tools.map(str::to_owned),
        tokens,
    })
}
