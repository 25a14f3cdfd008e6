//! The messages of a conversation, and their place in the context.

use tercet_models::Image;
use tercet_models::answer::with_tool_prompt;
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, ChatTemplate, Role};

use super::super::generation::PromptEncoder;
use crate::error::CliError;

/// Maximum bytes of the end of a prompt that is kept. The marker of thoughts is far shorter.
const MAX_PROMPT_END: usize = 256;

/// The end of a text, of at most this many bytes.
fn last_bytes(text: &str, most: usize) -> &str {
    let start = text.len().saturating_sub(most);
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[start.unwrap_or(text.len())..]
}

/// A message of the user or an answer.
struct ChatTurn {
    role: Role,
    message: ChatMessage,
    image_count: usize,
}

/// How the model reads the tools.
#[derive(Default)]
pub(super) enum ShownTools {
    #[default]
    None,
    /// The chat template shows them.
    Template(Option<TemplateValue>),
    /// The system prompt shows the JSON of their functions.
    Prompt(Vec<String>),
}

/// Turns that were dropped, with their images.
#[derive(Default)]
struct DroppedTurns {
    turns: Vec<ChatTurn>,
    images: Vec<Image>,
}

/// The messages of a conversation. If the context is full, the oldest turns are dropped; the system
/// prompt stays.
#[derive(Default)]
pub(super) struct ChatTurns {
    system: Option<ChatMessage>,
    tools: ShownTools,
    turns: Vec<ChatTurn>,
    /// The end of the last rendered conversation.
    prompt_end: String,
}

impl ChatTurns {
    /// Sets the system prompt.
    pub(super) fn set_system(&mut self, system: Option<ChatMessage>) {
        self.system = system;
    }

    /// Sets the tools.
    pub(super) fn set_tools(&mut self, tools: ShownTools) {
        self.tools = tools;
    }

    /// Adds a message with its number of images.
    pub(super) fn push(&mut self, role: Role, message: ChatMessage, image_count: usize) {
        self.turns.push(ChatTurn {
            role,
            message,
            image_count,
        });
    }

    /// Removes the last message.
    pub(super) fn pop(&mut self) {
        self.turns.pop();
    }

    /// Removes all messages except the system prompt.
    pub(super) fn clear(&mut self) {
        self.turns.clear();
    }

    /// The end of the text whose tokens [`Self::tokens`] returned last. It tells whether the template
    /// begins a thought.
    pub(super) fn prompt_end(&self) -> &str {
        &self.prompt_end
    }

    /// Number of images of the messages.
    pub(super) fn image_count(&self) -> usize {
        self.turns.iter().map(|turn| turn.image_count).sum()
    }

    /// Tokens of the conversation up to the next answer, and whether turns were dropped, so that the
    /// context has room for at least `room` more tokens. If the last message alone leaves no such room,
    /// the tokens may fill the context or exceed it; no turn is dropped if they exceed it.
    pub(super) fn tokens(
        &mut self,
        encoder: &mut PromptEncoder<'_>,
        template: &ChatTemplate,
        room: usize,
    ) -> Result<(Vec<u32>, bool), CliError> {
        let context = encoder.context();
        let limit = context.saturating_sub(room);
        let ids = self.encode(encoder, template)?;
        if let Some(ids) = ids.as_ref().filter(|ids| ids.len() <= limit) {
            return Ok((ids.clone(), false));
        }
        // Half of the context becomes free. Otherwise every further message would drop a turn, and the
        // whole context would be computed again each time.
        let mut dropped = DroppedTurns::default();
        let kept = self.drop_until(encoder, template, limit.min(context / 2), &mut dropped);
        let fits = kept
            .as_ref()
            .is_ok_and(|ids| ids.as_ref().is_some_and(|ids| ids.len() <= context));
        if !fits {
            self.restore(encoder, dropped);
        }
        match kept? {
            Some(kept) => Ok((kept, fits)),
            None => Ok((ids.unwrap_or_default(), false)),
        }
    }

    /// Drops turns in the middle of an answer, whose tokens so far are `answer`. Returns the token
    /// ids of the remaining conversation followed by `answer`; `None` if they fill the context.
    pub(super) fn tokens_within_answer(
        &mut self,
        encoder: &mut PromptEncoder<'_>,
        template: &ChatTemplate,
        answer: &[u32],
    ) -> Result<Option<Vec<u32>>, CliError> {
        let context = encoder.context();
        let limit = (context / 2).saturating_sub(answer.len());
        let dropped = &mut DroppedTurns::default();
        let ids = self.drop_until(encoder, template, limit, dropped)?;
        let ids = ids.map(|ids| [&ids, answer].concat());
        Ok(ids.filter(|ids| ids.len() < context))
    }

    /// Drops the oldest turns until the conversation has at most `limit` tokens, or only the last
    /// message is left. `None` if no turn can be dropped.
    fn drop_until(
        &mut self,
        encoder: &mut PromptEncoder<'_>,
        template: &ChatTemplate,
        limit: usize,
        dropped: &mut DroppedTurns,
    ) -> Result<Option<Vec<u32>>, CliError> {
        let mut kept = None;
        while let Some(count) = self.oldest() {
            let turns: Vec<ChatTurn> = self.turns.drain(..count).collect();
            let image_count = turns.iter().map(|turn| turn.image_count).sum();
            dropped.images.extend(encoder.take_images(image_count));
            dropped.turns.extend(turns);
            kept = self.encode(encoder, template)?;
            if kept.as_ref().is_some_and(|ids| ids.len() <= limit) {
                break;
            }
        }
        Ok(kept)
    }

    /// Number of messages up to the second one of the user; `None` if there is only one.
    fn oldest(&self) -> Option<usize> {
        let mut turns = self.turns.iter().enumerate().skip(1);
        let (at, _) = turns.find(|(_, turn)| turn.role == Role::User)?;
        Some(at)
    }

    fn restore(&mut self, encoder: &mut PromptEncoder<'_>, dropped: DroppedTurns) {
        self.turns.splice(0..0, dropped.turns);
        encoder.insert_images(dropped.images);
    }

    /// Tokens of the conversation up to the next answer. `None` if they exceed the context and turns
    /// can be dropped.
    fn encode(
        &mut self,
        encoder: &mut PromptEncoder<'_>,
        template: &ChatTemplate,
    ) -> Result<Option<Vec<u32>>, CliError> {
        let turns = self.turns.iter().map(|turn| &turn.message);
        let messages: Vec<ChatMessage> = self.system.iter().chain(turns).cloned().collect();
        let rendered = match &self.tools {
            ShownTools::Prompt(functions) => {
                let messages = with_tool_prompt(&messages, functions);
                template.render(&messages, &TemplateValue::None, true)
            }
            ShownTools::Template(Some(tools)) => template.render(&messages, tools, true),
            ShownTools::Template(None) | ShownTools::None => {
                template.render(&messages, &TemplateValue::None, true)
            }
        };
        let rendered = rendered.map_err(|e| CliError::Template(tercet::one_line(&e)))?;
        self.prompt_end = last_bytes(&rendered.text, MAX_PROMPT_END).to_string();
        let has_older = self.turns.len() > 1;
        if has_older && encoder.has_too_many_bytes(rendered.text.len()) {
            return Ok(None);
        }
        let what = "cannot process the conversation";
        match encoder.encode((&rendered.text, &rendered.literal), false, what) {
            Err(e) if has_older && e.is_context() => Ok(None),
            ids => ids.map(Some),
        }
    }
}
