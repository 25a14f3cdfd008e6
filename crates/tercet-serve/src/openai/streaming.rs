//! Delivers the responses of both completion routes: complete, or as a stream of events.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tercet_models::FinishReason;
use tercet_models::answer::AnswerParser;
use tokio::sync::mpsc::UnboundedReceiver;

use super::response::{Delta, ResponseEnvelope, event};
use crate::error::{ApiError, json_response};
use crate::language::ResponseEvent;
use crate::logprobs::TokenLogprob;
use crate::request_log::RequestRecord;

/// Events with the index of their completion.
pub(crate) type ResponseReceiver = UnboundedReceiver<(usize, ResponseEvent)>;

/// Waits for all completions. When the client disconnects, this future and the receiver are
/// dropped, which cancels them.
///
/// # Errors
/// Returns an error if one of the completions fails.
pub(crate) async fn collect_response(
    frame: &ResponseEnvelope,
    mut pieces: ResponseReceiver,
    record: &RequestRecord,
) -> Result<Response, ApiError> {
    let mut texts: Vec<(Delta, Option<FinishReason>)> =
        vec![(Delta::default(), None); frame.choice_count];
    let mut tokens = 0;
    while texts.iter().any(|(_, finish)| finish.is_none()) {
        let Some((index, reply)) = pieces.recv().await else {
            return Err(ApiError::worker_lost());
        };
        let (piece, ended) = &mut texts[index];
        match reply {
            ResponseEvent::Text(text, scores) => {
                piece.text += &text;
                piece.scores.extend(scores);
            }
            ResponseEvent::Token(token, logits) => {
                piece.tokens.push(token);
                piece.logits.extend(logits);
            }
            ResponseEvent::Done(finish, written) => {
                tokens += written;
                *ended = Some(finish);
                if let Some(answers) = &frame.answers {
                    let answer = answers.clone().parse(&piece.text);
                    (piece.thought, piece.text) = (answer.thought, answer.text);
                    piece.calls = answer.calls;
                }
            }
            ResponseEvent::Failed(refusal) => return Err(refusal),
        }
    }
    let texts = texts.into_iter();
    let texts: Vec<(Delta, FinishReason)> = texts
        .filter_map(|(piece, finish)| Some((piece, finish?)))
        .collect();
    record.set_generated_tokens(tokens);
    Ok(json_response(&frame.full_response(&texts, tokens)))
}

/// Streams the completions as server-sent events. If generation fails before any text, the error is
/// a normal error response. A later error is sent as an event, and the stream then ends without
/// `[DONE]`.
///
/// # Errors
/// If generation fails before any text.
pub(crate) async fn stream(
    frame: ResponseEnvelope,
    mut pieces: ResponseReceiver,
    record: Arc<RequestRecord>,
) -> Result<Response, ApiError> {
    let first = match pieces.recv().await {
        Some((_, ResponseEvent::Failed(refusal))) => return Err(refusal),
        None => return Err(ApiError::worker_lost()),
        Some(first) => first,
    };
    let texts = (0..frame.choice_count).map(|_| StreamedChoice {
        answer: frame.answers.clone(),
        call_count: 0,
        pending_logprobs: Vec::new(),
        pending_tokens: Vec::new(),
    });
    record.begin_stream();
    let state = Some(SseStream {
        record,
        choices: texts.collect(),
        frame,
        responses: pieces,
        first: Some(first),
        finished: 0,
        generated_tokens: 0,
    });
    let events = unfold(state, |state| async move {
        let mut live = state?;
        let (events, ended) = live.next().await;
        let events = Ok::<Bytes, std::convert::Infallible>(Bytes::from(events));
        Some((events, (!ended).then_some(live)))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}

/// State of a streamed response.
struct SseStream {
    record: Arc<RequestRecord>,
    frame: ResponseEnvelope,
    responses: ResponseReceiver,
    /// First event, received before the stream started.
    first: Option<(usize, ResponseEvent)>,
    choices: Vec<StreamedChoice>,
    finished: usize,
    /// Tokens of the finished completions.
    generated_tokens: usize,
}

struct StreamedChoice {
    /// Parser of thoughts and calls, for conversations.
    answer: Option<AnswerParser>,
    /// Calls so far.
    call_count: usize,
    pending_logprobs: Vec<TokenLogprob>,
    pending_tokens: Vec<u32>,
}

impl SseStream {
    /// The next events, at least one, and whether they are the last.
    async fn next(&mut self) -> (String, bool) {
        let mut events = match self.first {
            Some(_) => self.frame.beginning(),
            None => String::new(),
        };
        loop {
            let reply = match self.first.take() {
                Some(first) => Some(first),
                None => self.responses.recv().await,
            };
            let (heard, ended) = match reply {
                Some((index, reply)) => self.handle_event(index, reply),
                None => {
                    let lost = ApiError::worker_lost();
                    self.record.set_error(lost.logged());
                    self.record.complete_stream();
                    (event(&lost.body()), true)
                }
            };
            events += &heard;
            if ended || !events.is_empty() {
                return (events, ended);
            }
        }
    }

    fn handle_event(&mut self, index: usize, reply: ResponseEvent) -> (String, bool) {
        let (frame, text) = (&self.frame, &mut self.choices[index]);
        match reply {
            ResponseEvent::Token(token, _) => {
                text.pending_tokens.push(token);
                (String::new(), false)
            }
            ResponseEvent::Text(piece, scores) => {
                text.pending_logprobs.extend(scores);
                let mut delta = Delta::default();
                match &mut text.answer {
                    Some(answer) => delta.add(answer.push(&piece), &mut text.call_count),
                    None => delta.text = piece,
                }
                if delta.is_empty() && text.answer.is_some() {
                    return (String::new(), false);
                }
                let piece = Delta {
                    scores: std::mem::take(&mut text.pending_logprobs),
                    tokens: std::mem::take(&mut text.pending_tokens),
                    ..delta
                };
                (frame.piece(index, &piece), false)
            }
            ResponseEvent::Done(finish, written) => {
                let mut delta = Delta::default();
                if let Some(mut answer) = text.answer.take() {
                    delta.add(answer.finish(), &mut text.call_count);
                }
                let has_calls = text.call_count > 0;
                let piece = Delta {
                    scores: std::mem::take(&mut text.pending_logprobs),
                    tokens: std::mem::take(&mut text.pending_tokens),
                    ..delta
                };
                let mut events = String::new();
                let has_tokens = !piece.scores.is_empty() || !piece.tokens.is_empty();
                if !piece.is_empty() || has_tokens {
                    events += &frame.piece(index, &piece);
                }
                events += &frame.end(index, finish, has_calls);
                self.finished += 1;
                self.generated_tokens += written;
                let all = self.finished == frame.choice_count;
                self.record.set_generated_tokens(self.generated_tokens);
                if all {
                    self.record.complete_stream();
                    events += &frame.last(self.generated_tokens);
                }
                (events, all)
            }
            ResponseEvent::Failed(refusal) => {
                self.record.set_error(refusal.logged());
                self.record.complete_stream();
                (event(&refusal.body()), true)
            }
        }
    }
}
