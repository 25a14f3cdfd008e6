//! Conversations rendered by a model's chat template, with the byte ranges of the assistant's
//! answers.
//!
//! Training uses only the answers and their end-of-turn tokens. Each answer is located by the first
//! method that succeeds:
//!
//! 1. The template marks answers with `{% generation %}` blocks.
//! 2. Prefixes: the conversation before the answer, rendered with the generation prompt, must be a
//!    prefix of the conversation up to and including the answer. The latter must be a prefix of the
//!    whole conversation. The text between the two prefixes is the answer with its end of turn,
//!    without trailing white space.
//! 3. Marks: some templates render an answer differently if it is not the last one (they drop its
//!    reasoning). The answer's content is wrapped in two marker characters, which must reappear
//!    around the same text. The end of the turn is the special token that follows.
//!
//! If no method succeeds, the line is an error, because a wrong range would corrupt training.

use std::ops::Range;
use std::time::SystemTime;

use super::error::{DataError, LineError};
use super::records::{ChatMessage, ChatRecord, Role};
use super::template::{RenderedTemplate, Template, TemplateError, TemplateLimits, TemplateValue};
use super::template_files::{ChatTemplateError, TemplateFiles};
use crate::tokenizer::Tokenizer;

/// The fallback template for models without one: ChatML.
const CHATML: &str = "{{ before }}{% for message in messages %}\
    {{ '<|im_start|>' + message.role + '\\n' }}\
    {% if message.role == 'assistant' %}\
    {% generation %}{{ message.content + end_of_turn }}{% endgeneration %}\
    {% else %}{{ message.content + end_of_turn }}{% endif %}\
    {{ '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Maximum number of messages per conversation, because a prefix is rendered for each answer.
const MAX_MESSAGES: usize = 1000;

/// The location of an answer in a rendered conversation.
///
/// ```
/// # use tercet_text::dataset::template::TemplateValue;
/// # use tercet_text::dataset::{ChatMessage, ChatRecord, ChatTemplate, Role};
/// # let source = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}\
/// #     {{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
/// # let template = ChatTemplate::new(source, &[])?;
/// # let question = ChatMessage::new(Role::User, "2 + 2?");
/// # let answer = ChatMessage::new(Role::Assistant, "4");
/// # let chat = ChatRecord { messages: vec![question, answer], tools: TemplateValue::None };
/// use tercet_text::dataset::AnswerSpan;
/// let rendered = template.conversation(&chat)?;
/// let AnswerSpan { range, has_end } = rendered.answers[0].clone();
/// assert_eq!((&rendered.text[range], has_end), ("4", true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerSpan {
    /// The answer's range in the text, in bytes.
    pub range: Range<usize>,
    /// Whether the range includes the end of the turn. If not, a special token directly after the
    /// answer ends the turn.
    pub has_end: bool,
}

/// A rendered conversation.
///
/// ```
/// # use tercet_text::dataset::template::TemplateValue;
/// # use tercet_text::dataset::{ChatMessage, ChatRecord, ChatTemplate, Role};
/// # let source = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}\
/// #     {{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
/// # let template = ChatTemplate::new(source, &[])?;
/// # let question = ChatMessage::new(Role::User, "2 + 2?");
/// # let answer = ChatMessage::new(Role::Assistant, "4");
/// # let chat = ChatRecord { messages: vec![question, answer], tools: TemplateValue::None };
/// use tercet_text::dataset::RenderedConversation;
/// let rendered: RenderedConversation = template.conversation(&chat)?;
/// assert_eq!((rendered.text.as_str(), rendered.answers.len()), ("2 + 2?4", 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedConversation {
    /// The rendered text, including special tokens as text.
    pub text: String,
    /// Byte ranges of the text that come from the messages and tools, ascending. Special tokens that
    /// they spell are ordinary text ([`Tokenizer::encode_mixed_with_spans`]).
    pub literal: Vec<Range<usize>>,
    /// The answers, in order.
    pub answers: Vec<AnswerSpan>,
}

/// The chat template of a model.
///
/// ```
/// use tercet_text::dataset::template::TemplateValue;
/// use tercet_text::dataset::{ChatMessage, ChatTemplate, Role};
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
/// let template = ChatTemplate::new(source, &[])?;
/// let messages = [ChatMessage::new(Role::User, "Hi")];
/// let rendered = template.render(&messages, &TemplateValue::None, false)?;
/// assert_eq!(rendered.text, "<user>Hi");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    template: Template,
    /// The template for conversations with tools, if the model has a separate one.
    with_tools: Option<Template>,
    source: String,
    variables: Vec<(String, TemplateValue)>,
    now: i64,
    warning: Option<String>,
}

impl ChatTemplate {
    /// Loads the chat template of a model.
    ///
    /// A folder has the template in `chat_template.jinja`, in `chat_template.json`, or in
    /// `chat_template` of `tokenizer_config.json`. From a list of templates, `default` is used,
    /// else the first; with tools, `tool_use`. A GGUF file has the template in
    /// `tokenizer.chat_template`. A model without a template gets ChatML, which [`Self::warning`]
    /// reports.
    ///
    /// # Errors
    /// [`ChatTemplateError`]: the files cannot be read, or the template is invalid.
    pub fn from_model<'a>(
        files: impl Into<TemplateFiles<'a>>,
        tokenizer: &Tokenizer,
    ) -> Result<ChatTemplate, ChatTemplateError> {
        let source = files.into().source(tokenizer)?;
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

    /// Like [`Self::from_model`], with this template instead of the model's: the source of a template, or
    /// `chatml`.
    ///
    /// # Errors
    /// The errors of [`Self::from_model`]; [`DataError::UnknownTemplate`] for another name.
    pub fn from_model_with<'a>(
        files: impl Into<TemplateFiles<'a>>,
        tokenizer: &Tokenizer,
        source: &str,
    ) -> Result<ChatTemplate, ChatTemplateError> {
        let tokens = files.into().source(tokenizer)?.tokens;
        let name = source.trim();
        if name.eq_ignore_ascii_case("chatml") {
            let mut template = ChatTemplate::chatml(tokenizer, &tokens)?;
            template.warning = None;
            return Ok(template);
        }
        // A template prints something; names have no braces.
        if !name.contains('{') {
            let name = name.chars().take(64).collect();
            return Err(DataError::UnknownTemplate { name }.into());
        }
        Ok(ChatTemplate::new(source, &tokens)?)
    }

    /// Parses a template with variables such as `("bos_token", "<s>")`.
    ///
    /// # Errors
    /// [`DataError::Template`].
    pub fn new(source: &str, tokens: &[(String, String)]) -> Result<ChatTemplate, DataError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let variables = tokens.iter();
        let variables = variables.map(|(name, token)| (name.clone(), TemplateValue::text(token)));
        Ok(ChatTemplate {
            template: Template::parse(source)?,
            with_tools: None,
            source: source.to_owned(),
            variables: variables.collect(),
            now: now.map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(0)),
            warning: None,
        })
    }

    /// The ChatML template, for models without a template. A turn ends with `<|im_end|>` if that is
    /// a token. Otherwise a turn ends with the model's end-of-sequence token (`eos_token` of
    /// `tokens`), if any.
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
        let variables = variables.map(|(name, text)| (name.to_owned(), TemplateValue::text(text)));
        template.variables.extend(variables);
        template.warning = Some(format!(
            "the model has no chat template: conversations are rendered as ChatML, turns end \
             with `{end}`"
        ));
        Ok(template)
    }

    /// Sets the time that `strftime_now` prints, in seconds since 1970. To resume a training run on
    /// another day, pass the time at which it started.
    #[must_use]
    pub fn at(mut self, now: i64) -> ChatTemplate {
        self.now = now;
        self
    }

    /// The time for `strftime_now`, in seconds since 1970: the creation time of the template,
    /// unless [`Self::at`] was called.
    #[must_use]
    pub fn now(&self) -> i64 {
        self.now
    }

    /// Sets further variables of all renderings, such as `enable_thinking`.
    ///
    /// ```
    /// use tercet_text::dataset::ChatTemplate;
    /// use tercet_text::dataset::template::TemplateValue;
    /// let template = ChatTemplate::new("{{ 'on' if enable_thinking else 'off' }}", &[])?;
    /// let thinking = ("enable_thinking".to_string(), TemplateValue::Bool(true));
    /// let template = template.with_variables([thinking]);
    /// assert_eq!(template.render(&[], &TemplateValue::None, true)?.text, "on");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_variables(
        mut self,
        variables: impl IntoIterator<Item = (String, TemplateValue)>,
    ) -> ChatTemplate {
        let variables = variables.into_iter();
        let literal = variables.map(|(name, value)| (name, value.into_literal()));
        self.variables.extend(literal);
        self
    }

    /// A note for the user about the template, if any.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The source of the template for conversations with tools.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The template for a conversation with these tools.
    fn tool_template(&self, tools: &TemplateValue) -> &Template {
        match &self.with_tools {
            Some(template) if tools.as_list().is_some_and(|tools| !tools.is_empty()) => template,
            Some(_) | None => &self.template,
        }
    }

    /// Renders messages; if `prompt` is set, also the generation prompt of the next answer. The
    /// contents of messages and tools are literal ([`RenderedTemplate::literal`]): only the
    /// template's own text spells special tokens.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn render(
        &self,
        messages: &[ChatMessage],
        tools: &TemplateValue,
        prompt: bool,
    ) -> Result<RenderedTemplate, TemplateError> {
        self.render_with(messages, tools, prompt, &[])
    }

    /// Like [`Self::render`], with further variables of the template, such as `enable_thinking`.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn render_with(
        &self,
        messages: &[ChatMessage],
        tools: &TemplateValue,
        prompt: bool,
        more: &[(String, TemplateValue)],
    ) -> Result<RenderedTemplate, TemplateError> {
        let messages = messages.iter().map(|m| m.fields().clone());
        let messages = TemplateValue::list(messages.collect()).into_literal();
        let variables = self.variables.iter();
        let mut variables: Vec<_> = variables.map(|(k, v)| (k.as_str(), v.clone())).collect();
        variables.extend(
            more.iter()
                .map(|(k, v)| (k.as_str(), v.clone().into_literal())),
        );
        variables.push(("messages", messages));
        variables.push(("tools", tools.clone().into_literal()));
        variables.push(("documents", TemplateValue::None));
        variables.push(("add_generation_prompt", TemplateValue::Bool(prompt)));
        self.tool_template(tools)
            .render(&variables, self.now, TemplateLimits::default())
    }

    /// Renders a conversation and locates its answers.
    ///
    /// # Errors
    /// [`LineError::Template`], [`LineError::AnswerNotFound`], [`LineError::TooManyMessages`],
    /// [`LineError::NoAnswer`].
    pub fn conversation(&self, chat: &ChatRecord) -> Result<RenderedConversation, LineError> {
        let messages = &chat.messages;
        if messages.len() > MAX_MESSAGES {
            let (found, max) = (messages.len(), MAX_MESSAGES);
            return Err(LineError::TooManyMessages { found, max });
        }
        let whole = self.render(messages, &chat.tools, false)?;
        if self.tool_template(&chat.tools).has_generation() {
            let ranges = whole.generated.into_iter();
            let answers = ranges.map(|range| AnswerSpan {
                range,
                has_end: true,
            });
            let answers: Vec<_> = answers.collect();
            return match answers.is_empty() {
                true => Err(LineError::NoAnswer),
                false => Ok(RenderedConversation {
                    text: whole.text,
                    literal: whole.literal,
                    answers,
                }),
            };
        }
        let mut answers: Vec<AnswerSpan> = Vec::new();
        for (index, message) in messages.iter().enumerate() {
            if message.role() != Role::Assistant {
                continue;
            }
            let found = match self.by_prefixes(chat, index, &whole.text) {
                Some(range) => Some(AnswerSpan {
                    range,
                    has_end: true,
                }),
                None => self
                    .by_marks(chat, index, &whole.text)
                    .map(|range| AnswerSpan {
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
            false => Ok(RenderedConversation {
                text: whole.text,
                literal: whole.literal,
                answers,
            }),
        }
    }

    /// Locates an answer as the difference between two prefixes of the conversation. Returns `None`
    /// if the template rejects a partial conversation.
    fn by_prefixes(&self, chat: &ChatRecord, index: usize, whole: &str) -> Option<Range<usize>> {
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
        // Exclude white space after the end of the turn: the model has already stopped there.
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

    /// Locates an answer by two marker characters around its content.
    fn by_marks(&self, chat: &ChatRecord, index: usize, whole: &str) -> Option<Range<usize>> {
        // Use two private-use characters that do not occur in the text.
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
