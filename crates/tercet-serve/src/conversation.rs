//! A conversation that a language model answers, as the routes of all protocols build it.

mod draft;
mod encoded_images;
mod params;
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
use crate::language::ServedLanguageModel;
use crate::models::SelectedLanguage;
use crate::queue_ticket::take_terms;
use crate::request_log::RequestRecord;
use crate::thought_budget::ThoughtLimit;

pub(crate) use draft::{MessageDraft, call_value};
pub(crate) use encoded_images::EncodedImages;
pub(crate) use params::{CompletionParams, MAX_STOPS, checked_stops, clamped};
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
    /// 400 if a file is no PNG or JPEG file.
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
        // Other constraints start at the first token, so such an answer has no thoughts.
        if self.params.is_constrained() && !has_free_thoughts {
            text.clear();
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
            variables.push(thinking_variable(false));
        }
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
            rendered.map_err(|e| {
                ApiError::bad_request(format!(
                    "the chat template rejects the messages: {}",
                    tercet::one_line(&e)
                ))
            })
        };
        let mut rendered = match &self.tools {
            Some(tools) if !language.answers.has_tools() => {
                let told = with_tool_prompt(&self.messages, &tools.functions());
                render(&told, &TemplateValue::None)?
            }
            Some(tools) => render(&self.messages, &tools.for_template()?)?,
            None => render(&self.messages, &TemplateValue::None)?,
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
        let room = language.context.saturating_sub(self.prompt.len());
        let mut requests = self.params.requests(&self.prompt, room);
        for request in &mut requests {
            request.images = Arc::clone(&self.images);
        }
        if let Some(tokens) = self.params.thought_tokens {
            for request in &mut requests {
                let parser = self.answers.clone();
                request.thoughts = Some(ThoughtLimit { tokens, parser });
            }
        }
        let responses = language
            .start(requests, adapter, app.ticket(record))
            .await?;
        let parsed = (self.params.n, Some(&self.answers));
        Ok(AnswerStream::new(responses, parsed, record))
    }
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
    for name in ["name", "tool_call_id", "tool_calls", "reasoning_content"] {
        kept.extend(fields.get(name).map(|value| (name, value.clone())));
    }
    ChatMessage::from_fields(message.role(), kept)
}

/// The error of a prompt with images.
fn image_error(e: &ModelError) -> ApiError {
    match e {
        ModelError::Context { .. } => ApiError::new(
            StatusCode::BAD_REQUEST,
            "context_length_exceeded",
            tercet::one_line(e),
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
        all.push(thinking_variable(false));
    }
    all.push(("reasoning_effort".into(), TemplateValue::text(effort)));
    all
}

/// The variable of the chat template that turns thoughts on or off.
pub(crate) fn thinking_variable(thinks: bool) -> (String, TemplateValue) {
    ("enable_thinking".into(), TemplateValue::Bool(thinks))
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
    params.grammar = Some((field, Grammar::JsonSchema(schema)));
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
    match wanted.grammar.take() {
        Some((field, Grammar::JsonSchema(schema))) if field != "grammar" => {
            let grammar = tools.call_or_json((field, &schema), &language.answers)?;
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
