//! A conversation that a language model answers, as the routes of all protocols build it.

mod draft;
mod encoded_images;
mod params;
mod template_input;
pub(crate) mod tools;

use std::path::Path;
use std::sync::Arc;

use axum::http::StatusCode;
use tercet_models::answer::{AnswerParser, with_tool_prompt};
#[cfg(feature = "grammar")]
use tercet_models::constraint::Grammar;
use tercet_models::dataset::ChatMessage;
use tercet_models::dataset::template::{RenderedTemplate, TemplateValue};
use tercet_models::{Image, ModelError};

use crate::answer_stream::AnswerStream;
use crate::error::ApiError;
use crate::fields::JsonFields;
use crate::http::AppState;
use crate::language::{ServedLanguageModel, context_error};
use crate::models::SelectedLanguage;
use crate::queue_ticket::take_terms;
use crate::request_log::RequestRecord;
use crate::thought_budget::ThoughtLimit;

pub(crate) use draft::{MessageDraft, call_value, join_parts};
pub(crate) use encoded_images::EncodedImages;
pub(crate) use params::{CompletionParams, MAX_STOPS, checked_stops, clamped};
use template_input::{render_changed, with_field};
pub(crate) use tools::{ToolChoice, ToolSet, ToolSpec};

/// Maximum messages of a conversation.
pub(crate) const MAX_MESSAGES: usize = 1000;

/// A request for answers to a conversation.
pub(crate) struct ConversationRequest {
    pub(crate) messages: Vec<ChatMessage>,
    /// Files of the images of the messages, in their order, until they are decoded.
    pub(crate) encoded: Vec<Vec<u8>>,
    /// Images of the messages, in their order.
    pub(crate) images: Vec<Image>,
    pub(crate) tools: Option<ToolSet>,
    /// Further variables of the chat template.
    pub(crate) variables: Vec<(String, TemplateValue)>,
    /// Text with which the answer begins; the response does not repeat it.
    pub(crate) prefill: String,
    pub(crate) params: CompletionParams,
}

/// A conversation as the model reads it.
pub(crate) struct PreparedConversation {
    /// Tokens up to the start of the answer.
    pub(crate) prompt: Vec<u32>,
    images: Arc<[Image]>,
    /// Parser of thoughts and calls.
    pub(crate) answers: AnswerParser,
    pub(crate) params: CompletionParams,
}

/// Takes the field `model` and the terms of the request, and selects the model; the record of the request
/// has both.
///
/// # Errors
/// 404 for an unknown model; 400 without a name, if several models are served, and for wrong terms; 504 if
/// the model is not loaded in time.
pub(crate) async fn select_language(
    app: &AppState,
    fields: &mut JsonFields,
    record: &RequestRecord,
) -> Result<SelectedLanguage, ApiError> {
    take_terms(fields, record)?;
    let asked = fields.text("model")?;
    let selected = app.in_time(record, app.models.language(asked.as_deref()));
    let selected = selected.await?;
    record.set_model(asked.as_deref(), &selected.name);
    Ok(selected)
}

impl ConversationRequest {
    /// Decodes the images, on another thread.
    ///
    /// # Errors
    /// 400 if a file is no PNG, JPEG, WebP or GIF file.
    pub(crate) async fn decoded(mut self) -> Result<ConversationRequest, ApiError> {
        if self.encoded.is_empty() {
            return Ok(self);
        }
        let encoded = std::mem::take(&mut self.encoded);
        let decode = move || {
            let one = |(at, file): (usize, &Vec<u8>)| {
                let name = format!("image {}", at + 1);
                Image::decode(file, Path::new(&name))
            };
            let files = encoded.iter().enumerate();
            files.map(one).collect::<Result<Vec<Image>, _>>()
        };
        let images = tokio::task::spawn_blocking(decode).await;
        let images = images.map_err(|_| ApiError::worker_lost())?;
        self.images = images.map_err(|e| ApiError::bad_request(tercet::one_line(&e)))?;
        Ok(self)
    }

    /// Renders the conversation, and constrains the answer as its tools and its format ask for.
    ///
    /// # Errors
    /// - The chat template rejects the messages, or their text exceeds the context.
    /// - Tools and format cannot be combined, or need the feature `grammar`.
    pub(crate) fn prepare(
        mut self,
        language: &ServedLanguageModel,
    ) -> Result<PreparedConversation, ApiError> {
        let rendered = self.render(language)?;
        let prompt = self.tokens(&rendered, language)?;
        let mut text = rendered.text;
        let has_free_thoughts = match &self.tools {
            Some(tools) => constrain(&mut self.params, tools, (language, &text))?,
            None => false,
        };
        let callable = self.tools.as_ref().map(ToolSet::callable);
        // Other constraints start at the first token, so such an answer has thoughts only if the prompt opens one.
        if self.params.is_constrained() && !has_free_thoughts {
            let parser = AnswerParser::new(&language.answers, &[], &text);
            self.params.is_constrained_after_thought = parser.open_thought().is_some();
            if !self.params.is_constrained_after_thought {
                text.clear();
            }
        }
        let answers = AnswerParser::new(&language.answers, &callable.unwrap_or_default(), &text);
        let is_single = self.tools.as_ref().is_some_and(|tools| tools.single);
        self.params.spelled = language.answers.special_tokens(&language.tokenizer);
        Ok(PreparedConversation {
            prompt,
            images: self.images.into(),
            answers: answers.with_single_call(is_single),
            params: self.params,
        })
    }

    /// The tokens of a rendered conversation.
    ///
    /// # Errors
    /// 400 if the images do not fit the context.
    pub(crate) fn tokens(
        &self,
        rendered: &RenderedTemplate,
        language: &ServedLanguageModel,
    ) -> Result<Vec<u32>, ApiError> {
        match &language.images {
            None => {
                let prompt = (language.tokenizer).encode_mixed(&rendered.text, &rendered.literal);
                prompt.map_err(|e| ApiError::failed(&e))
            }
            Some(reader) => {
                let text = (&*rendered.text, &*rendered.literal, &*self.images);
                let prompt = reader.read(text, (&language.tokenizer, false), language.context);
                prompt.map_err(|e| image_error(&e))
            }
        }
    }

    /// The text up to the start of the answer. Only the text of the chat template spells special
    /// tokens; those in messages and tools are ordinary text. If the template does not show tools, a
    /// system prompt does.
    ///
    /// # Errors
    /// 400 if the template rejects the messages, or the text exceeds the context.
    pub(crate) fn render(
        &self,
        language: &ServedLanguageModel,
    ) -> Result<RenderedTemplate, ApiError> {
        let mut variables = self.variables.clone();
        // The answer goes on with text, so the template must not open a thought.
        if !self.prefill.is_empty() {
            variables.extend(thinking_variables(false));
        }
        let key = language.answers.thought_key();
        let messages: Vec<ChatMessage> = (self.messages.iter())
            .map(|message| with_thought_key(message, key))
            .collect();
        let render = |messages: &[ChatMessage], shown: &TemplateValue| {
            let in_parts: Vec<ChatMessage>;
            let messages = match &language.images {
                None => messages,
                // The templates of models that take images expect messages in parts.
                Some(_) => {
                    in_parts = messages.iter().map(in_text_parts).collect();
                    &in_parts
                }
            };
            let rendered = (language.template).render_with(messages, shown, true, &variables);
            rendered.map_err(|e| template_error(&tercet::one_line(&e)))
        };
        let none = TemplateValue::None;
        let mut rendered = match &self.tools {
            Some(tools) if !language.answers.has_tools() => {
                let told = with_tool_prompt(&messages, &tools.functions());
                render_changed((&told, &none), render)?
            }
            Some(tools) => render_changed((&messages, &tools.for_template()?), render)?,
            None => render_changed((&messages, &none), render)?,
        };
        if !self.prefill.is_empty() {
            let start = rendered.text.len();
            rendered.text += &self.prefill;
            rendered.literal.push(start..rendered.text.len());
        }
        language.check_bytes(rendered.text.len())?;
        Ok(rendered)
    }
}

impl PreparedConversation {
    /// Token ids of the prompt as the tokenizer has them.
    pub(crate) fn token_ids(&self, language: &ServedLanguageModel) -> Vec<u32> {
        match &language.images {
            Some(reader) => reader.to_tokenizer_ids(&self.prompt),
            None => self.prompt.clone(),
        }
    }

    /// Starts the answers.
    ///
    /// # Errors
    /// The prompt exceeds the context, a grammar is invalid, or the queue is full.
    pub(crate) async fn start(
        &self,
        app: &AppState,
        (language, adapter): (&Arc<ServedLanguageModel>, Option<usize>),
        record: &Arc<RequestRecord>,
    ) -> Result<AnswerStream, ApiError> {
        record.set_prompt_tokens(self.prompt.len());
        #[cfg(feature = "grammar")]
        if let Some((field, grammar)) = &self.params.grammar {
            for note in grammar.notes() {
                record.add_ignored(&format!("{field}{}", note.path));
            }
        }
        let room = language.context.saturating_sub(self.prompt.len());
        let mut requests = self.params.requests(&self.prompt, room);
        for request in &mut requests {
            request.images = Arc::clone(&self.images);
        }
        let is_before_constraint = self.params.is_constrained_after_thought;
        let limit = self.params.thought_tokens;
        if let Some(tokens) = limit.or(is_before_constraint.then_some(usize::MAX)) {
            for request in &mut requests {
                request.thoughts = Some(ThoughtLimit {
                    tokens,
                    parser: self.answers.clone(),
                    is_before_constraint,
                });
            }
        }
        let responses = language
            .start(requests, adapter, app.ticket(record))
            .await?;
        let parsed = (self.params.n, Some(&self.answers));
        Ok(AnswerStream::new(responses, parsed, (language, record)))
    }
}

/// The error of a template that refuses messages.
fn template_error(problem: &str) -> ApiError {
    const REFUSED: &str = "the chat template rejects the messages";
    ApiError::bad_request(match problem.starts_with(REFUSED) {
        true => problem.to_string(),
        false => format!("{REFUSED}: {problem}"),
    })
}

/// A message with its thoughts also in the field `key` that the template reads. gpt-oss reads those before calls in
/// `thinking`, and refuses this field beside a content.
fn with_thought_key(message: &ChatMessage, key: &str) -> ChatMessage {
    const GIVEN: &str = "reasoning_content";
    const BEFORE_CALLS: &str = "thinking";
    let fields = message.fields();
    let Some(thought) = fields.get(GIVEN) else {
        return message.clone();
    };
    let is_only_call = fields.get("tool_calls").is_some() && message.content().is_empty();
    let keys = [(key, key != GIVEN), (BEFORE_CALLS, is_only_call)];
    let keys = keys.into_iter().filter(|(_, is_read)| *is_read);
    keys.fold(message.clone(), |message, (key, _)| {
        with_field(&message, message.role(), (key, thought.clone()))
    })
}

/// A message whose text is a part.
fn in_text_parts(message: &ChatMessage) -> ChatMessage {
    let fields = message.fields();
    let Some(text) = fields.get("content").and_then(TemplateValue::as_text) else {
        return message.clone();
    };
    let part = TemplateValue::map(vec![
        ("type", TemplateValue::text("text")),
        ("text", TemplateValue::text(text)),
    ]);
    let mut kept = vec![("content", TemplateValue::list(vec![part]))];
    let others = fields.as_map().unwrap_or_default().iter();
    let others = others.filter(|(name, _)| !["role", "content"].contains(&&**name));
    kept.extend(others.map(|(name, value)| (&**name, value.clone())));
    ChatMessage::from_fields(message.role(), kept)
}

/// The error of a prompt with images.
fn image_error(e: &ModelError) -> ApiError {
    match e {
        ModelError::Context { .. } => ApiError::new(
            StatusCode::BAD_REQUEST,
            "context_length_exceeded",
            match e {
                ModelError::Context { tokens, context } => context_error(*tokens, *context),
                e => tercet::one_line(e),
            },
        ),
        ModelError::Places { .. } | ModelError::Image(_) => {
            ApiError::bad_request(tercet::one_line(e))
        }
        e => ApiError::failed(e),
    }
}

/// Variables of the chat template for an effort of reasoning.
pub(crate) fn effort_variables(effort: &str) -> Vec<(String, TemplateValue)> {
    let mut all = Vec::new();
    if effort == "none" {
        all.extend(thinking_variables(false));
    }
    all.push(("reasoning_effort".into(), TemplateValue::text(effort)));
    all
}

/// The variables of chat templates that turn thoughts on or off: that of Qwen and others, and that of DeepSeek.
pub(crate) fn thinking_variables(thinks: bool) -> [(String, TemplateValue); 2] {
    ["enable_thinking", "thinking"].map(|name| (name.into(), TemplateValue::Bool(thinks)))
}

/// Constrains the answer to the JSON schema of a field.
///
/// # Errors
/// 400 without the feature `grammar`.
#[cfg(feature = "grammar")]
#[allow(
    clippy::unnecessary_wraps,
    reason = "fails without the feature `grammar`"
)]
pub(crate) fn json_format(
    params: &mut CompletionParams,
    field: &'static str,
    schema: serde_json::Value,
) -> Result<(), ApiError> {
    params.grammar = Some((field, Grammar::LenientJsonSchema(schema)));
    Ok(())
}

#[cfg(not(feature = "grammar"))]
pub(crate) fn json_format(
    _: &mut CompletionParams,
    field: &'static str,
    _: serde_json::Value,
) -> Result<(), ApiError> {
    Err(crate::fields::unsupported(
        field,
        "constrained answers need a build with the feature `grammar`",
    ))
}

/// Constrains the answer to a tool call, if `tool_choice` requires one. Otherwise an answer with a
/// format may be a call, too, and calls of strict tools match their schemas. Returns whether thoughts
/// may precede the answer. `text` is that of the prompt.
#[cfg(feature = "grammar")]
fn constrain(
    wanted: &mut CompletionParams,
    tools: &ToolSet,
    (language, text): (&ServedLanguageModel, &str),
) -> Result<bool, ApiError> {
    if let Some(required) = tools.grammar(language)? {
        if let Some((field @ "grammar", _)) = wanted.grammar {
            return Err(ApiError::bad_request(format!(
                "field `{field}` cannot be combined with a `tool_choice` that requires a call"
            )));
        }
        // The response format applies to answers that are no calls.
        wanted.grammar = Some(("tools", required));
        return Ok(false);
    }
    let is_strict = matches!(wanted.grammar, Some((_, Grammar::JsonSchema(_))));
    match wanted.grammar.take() {
        Some((field, Grammar::JsonSchema(schema) | Grammar::LenientJsonSchema(schema)))
            if field != "grammar" =>
        {
            let answer = (field, &schema);
            let grammar = tools.call_or_json(answer, is_strict, language)?;
            wanted.grammar = Some((field, grammar));
            Ok(false)
        }
        Some((field, other)) => {
            if tools.strict_grammar(language, text)?.is_some() {
                return Err(ApiError::bad_request(format!(
                    "field `{field}` cannot be combined with `strict` tools; set `strict` to false"
                )));
            }
            wanted.grammar = Some((field, other));
            Ok(false)
        }
        None => {
            let strict = tools.strict_grammar(language, text)?;
            wanted.grammar = strict.map(|grammar| ("tools", grammar));
            Ok(true)
        }
    }
}

#[cfg(not(feature = "grammar"))]
fn constrain(
    _: &mut CompletionParams,
    tools: &ToolSet,
    _: (&ServedLanguageModel, &str),
) -> Result<bool, ApiError> {
    tools.check()?;
    Ok(false)
}
