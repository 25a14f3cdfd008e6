//! The events of answers, which each protocol renders into its own wire format.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tercet_models::answer::{AnswerEvent, AnswerParser};
use tercet_models::{FinishReason, Tokenizer};

use crate::error::ApiError;
use crate::language::{ResponseEvent, ResponseReceiver, ServedLanguageModel};
use crate::logprobs::TokenLogprob;
use crate::request_log::RequestRecord;

/// A piece of an answer, with the details of its tokens that the request asks for.
#[derive(Debug, Default)]
pub(crate) struct AnswerPiece {
    pub(crate) events: Vec<AnswerEvent>,
    pub(crate) scores: Vec<TokenLogprob>,
    pub(crate) tokens: Vec<u32>,
    /// A row for each token.
    pub(crate) logits: Vec<f32>,
}

/// The end of an answer.
#[derive(Clone, Debug)]
pub(crate) struct AnswerEnd {
    pub(crate) finish: FinishReason,
    /// Number of generated tokens.
    pub(crate) tokens: usize,
    /// Number of prompt tokens that a cache had.
    pub(crate) cached: usize,
    /// The stop string that ended the answer.
    pub(crate) stop: Option<String>,
    /// Whether the answer calls tools.
    pub(crate) has_calls: bool,
    /// Number of tokens of the thoughts, as the tokenizer reads them.
    pub(crate) thought_tokens: usize,
    /// When the first token was generated.
    pub(crate) first_text: Option<Instant>,
}

/// A part of an answer.
#[derive(Debug)]
pub(crate) enum AnswerPart {
    Piece(AnswerPiece),
    End(AnswerEnd),
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct WholeAnswer {
    /// Events in their order; equal kinds in a row are one event.
    pub(crate) piece: AnswerPiece,
    pub(crate) end: AnswerEnd,
}

/// The answers of a request, as they are generated. Dropping the stream cancels them.
pub(crate) struct AnswerStream {
    responses: ResponseReceiver,
    /// An event that was received before the response started.
    first: Option<(usize, ResponseEvent)>,
    parsed: VecDeque<(usize, AnswerPart)>,
    choices: Vec<ChoiceState>,
    finished: usize,
    generated_tokens: usize,
    tokenizer: Arc<Tokenizer>,
    record: Arc<RequestRecord>,
}

/// State of one answer.
struct ChoiceState {
    /// Parser of thoughts and calls, for conversations.
    parser: Option<AnswerParser>,
    has_calls: bool,
    thought: String,
    first_text: Option<Instant>,
    /// Details of tokens without text so far.
    pending: AnswerPiece,
}

impl AnswerStream {
    /// The answers of `count` completions, each parsed by a copy of `parser`.
    pub(crate) fn new(
        responses: ResponseReceiver,
        (count, parser): (usize, Option<&AnswerParser>),
        (language, record): (&ServedLanguageModel, &Arc<RequestRecord>),
    ) -> AnswerStream {
        let choice = |_| ChoiceState {
            parser: parser.cloned(),
            has_calls: false,
            thought: String::new(),
            first_text: None,
            pending: AnswerPiece::default(),
        };
        AnswerStream {
            responses,
            first: None,
            parsed: VecDeque::new(),
            choices: (0..count).map(choice).collect(),
            finished: 0,
            generated_tokens: 0,
            tokenizer: Arc::clone(&language.tokenizer),
            record: Arc::clone(record),
        }
    }

    /// Total tokens of the finished answers.
    pub(crate) fn generated_tokens(&self) -> usize {
        self.generated_tokens
    }

    /// Waits for the first event.
    ///
    /// # Errors
    /// If generation fails before any text.
    async fn wait_for_first(&mut self) -> Result<(), ApiError> {
        match self.responses.recv().await {
            Some((_, ResponseEvent::Failed(refusal))) => Err(refusal),
            None => Err(ApiError::worker_lost()),
            first => {
                self.first = first;
                Ok(())
            }
        }
    }

    /// The next part, with the index of its answer; `None` after the last answer.
    ///
    /// # Errors
    /// If one of the answers fails.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, AnswerPart)>, ApiError> {
        loop {
            if let Some(part) = self.parsed.pop_front() {
                return Ok(Some(part));
            }
            if self.finished == self.choices.len() {
                return Ok(None);
            }
            let event = match self.first.take() {
                Some(first) => Some(first),
                None => self.responses.recv().await,
            };
            match event {
                Some((index, event)) => self.handle(index, event)?,
                None => return Err(ApiError::worker_lost()),
            }
        }
    }

    fn handle(&mut self, index: usize, event: ResponseEvent) -> Result<(), ApiError> {
        let choice = &mut self.choices[index];
        choice.first_text.get_or_insert_with(Instant::now);
        match event {
            ResponseEvent::Token(token, logits) => {
                choice.pending.tokens.push(token);
                choice.pending.logits.extend(logits);
            }
            ResponseEvent::Text(text, scores) => {
                choice.pending.scores.extend(scores);
                let events = match &mut choice.parser {
                    Some(parser) => parser.push(&text),
                    None => vec![AnswerEvent::Text(text)],
                };
                if !events.is_empty() {
                    let piece = choice.piece(events);
                    self.parsed.push_back((index, AnswerPart::Piece(piece)));
                }
            }
            ResponseEvent::Done {
                finish,
                tokens,
                cached,
                stop,
            } => {
                let events = choice.parser.as_mut().map(AnswerParser::finish);
                let piece = choice.piece(events.unwrap_or_default());
                if !piece.is_empty() {
                    self.parsed.push_back((index, AnswerPart::Piece(piece)));
                }
                let end = AnswerEnd {
                    finish,
                    tokens,
                    cached,
                    stop,
                    has_calls: choice.has_calls,
                    thought_tokens: token_count(&self.tokenizer, &choice.thought).min(tokens),
                    first_text: choice.first_text,
                };
                self.parsed.push_back((index, AnswerPart::End(end)));
                self.finished += 1;
                self.generated_tokens += tokens;
                self.record.set_generated_tokens(self.generated_tokens);
                self.record.add_cached_tokens(cached);
            }
            ResponseEvent::Failed(refusal) => return Err(refusal),
        }
        Ok(())
    }

    /// Waits for all answers.
    ///
    /// # Errors
    /// If one of the answers fails.
    pub(crate) async fn collect(&mut self) -> Result<Vec<WholeAnswer>, ApiError> {
        let new = |_| (AnswerPiece::default(), None);
        let mut answers: Vec<(AnswerPiece, Option<AnswerEnd>)> =
            self.choices.iter().map(new).collect();
        while let Some((index, part)) = self.next().await? {
            let (whole, ended) = &mut answers[index];
            match part {
                AnswerPart::Piece(piece) => whole.add(piece),
                AnswerPart::End(end) => *ended = Some(end),
            }
        }
        let answers = answers.into_iter();
        Ok(answers
            .filter_map(|(piece, end)| Some(WholeAnswer { piece, end: end? }))
            .collect())
    }

    /// Waits for the answer of a request with one completion.
    ///
    /// # Errors
    /// If the answer fails.
    pub(crate) async fn collect_one(&mut self) -> Result<WholeAnswer, ApiError> {
        let mut answers = self.collect().await?;
        answers.pop().ok_or_else(ApiError::worker_lost)
    }
}

fn token_count(tokenizer: &Tokenizer, text: &str) -> usize {
    match text {
        "" => 0,
        text => tokenizer
            .encode_literally(text, false)
            .map_or(0, |tokens| tokens.len()),
    }
}

impl ChoiceState {
    fn piece(&mut self, events: Vec<AnswerEvent>) -> AnswerPiece {
        let is_call = |event: &AnswerEvent| matches!(event, AnswerEvent::Call { .. });
        self.has_calls |= events.iter().any(is_call);
        for event in &events {
            if let AnswerEvent::Thought(text) = event {
                self.thought += text;
            }
        }
        AnswerPiece {
            events,
            ..std::mem::take(&mut self.pending)
        }
    }
}

impl AnswerPiece {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.scores.is_empty() && self.tokens.is_empty()
    }

    fn add(&mut self, piece: AnswerPiece) {
        for event in piece.events {
            match (self.events.last_mut(), event) {
                (Some(AnswerEvent::Text(old)), AnswerEvent::Text(new))
                | (Some(AnswerEvent::Thought(old)), AnswerEvent::Thought(new))
                | (Some(AnswerEvent::Arguments(old)), AnswerEvent::Arguments(new)) => *old += &new,
                (_, event) => self.events.push(event),
            }
        }
        self.scores.extend(piece.scores);
        self.tokens.extend(piece.tokens);
        self.logits.extend(piece.logits);
    }
}

/// Writes answers in the format of a streaming route.
pub(crate) trait AnswerRenderer: Send + 'static {
    /// Media type of the response.
    const MEDIA_TYPE: &'static str = "text/event-stream";

    /// Before the first part.
    fn begin(&mut self) -> String {
        String::new()
    }

    /// A piece of the answer with this index.
    fn piece(&mut self, index: usize, piece: AnswerPiece) -> String;

    /// The end of the answer with this index.
    fn end(&mut self, index: usize, end: &AnswerEnd) -> String;

    /// After all answers, which have this number of tokens.
    fn last(&mut self, tokens: usize) -> String;

    /// Instead of all further parts.
    fn failure(&mut self, error: &ApiError) -> String;
}

/// Streams answers. If generation fails before any text, the error is a normal error response.
///
/// # Errors
/// If generation fails before any text.
pub(crate) async fn stream_response<R: AnswerRenderer>(
    mut answers: AnswerStream,
    renderer: R,
) -> Result<Response, ApiError> {
    answers.wait_for_first().await?;
    answers.record.begin_stream();
    let state = Some(RenderedStream {
        answers,
        renderer,
        has_begun: false,
    });
    let chunks = unfold(state, |state| async move {
        let mut live = state?;
        let (chunk, is_last) = live.next().await;
        let chunk = Ok::<Bytes, std::convert::Infallible>(Bytes::from(chunk));
        Some((chunk, (!is_last).then_some(live)))
    });
    let headers = [
        (header::CONTENT_TYPE, R::MEDIA_TYPE),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, Body::from_stream(chunks)).into_response())
}

/// State of a streamed response.
struct RenderedStream<R> {
    answers: AnswerStream,
    renderer: R,
    has_begun: bool,
}

impl<R: AnswerRenderer> RenderedStream<R> {
    /// The next chunk of the response, and whether it is the last.
    async fn next(&mut self) -> (String, bool) {
        let mut chunk = match self.has_begun {
            false => self.renderer.begin(),
            true => String::new(),
        };
        self.has_begun = true;
        while chunk.is_empty() || !self.answers.parsed.is_empty() {
            let (text, is_last) = match self.answers.next().await {
                Ok(Some((index, AnswerPart::Piece(piece)))) => {
                    (self.renderer.piece(index, piece), false)
                }
                Ok(Some((index, AnswerPart::End(end)))) => (self.renderer.end(index, &end), false),
                Ok(None) => (self.renderer.last(self.answers.generated_tokens()), true),
                Err(refusal) => {
                    self.answers.record.set_error(refusal.logged());
                    (self.renderer.failure(&refusal), true)
                }
            };
            chunk += &text;
            if is_last {
                self.answers.record.complete_stream();
                return (chunk, true);
            }
        }
        (chunk, false)
    }
}
