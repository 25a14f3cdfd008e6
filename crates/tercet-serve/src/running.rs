//! Running requests, each in a slot of the generator.

use std::collections::HashMap;
use std::io::Write;

use tercet_models::{BatchEventKind, FinishReason, IncrementalDetokenizer, SequenceId, Tokenizer};

use crate::engine::{QueuedRequest, ResponseSender};
use crate::error::ApiError;
use crate::generator::LanguageGenerator;
use crate::language::{ResponseEvent, TokenDetails};
use crate::logprobs::LogprobStream;
use crate::metrics::count;
use crate::queue_ticket::QueueTicket;
use crate::read_history::ReadHistory;

/// The generator, and the request of each of its sequences.
pub(crate) struct RunningRequests<'t> {
    generator: LanguageGenerator,
    tokenizer: &'t Tokenizer,
    by_sequence: HashMap<SequenceId, RunningRequest<'t>>,
    history: ReadHistory,
    /// Tokens of a whole prompt chunk; cached prefixes have a multiple of them.
    chunk: usize,
}

struct RunningRequest<'t> {
    ticket: QueueTicket,
    detokenizer: IncrementalDetokenizer<'t>,
    prompt: Vec<u32>,
    /// Tokens after the prompt.
    tokens: Vec<u32>,
    adapter: Option<usize>,
    /// Whether tokens of the prompt stand for images.
    has_images: bool,
    /// Prompt tokens that a cache had, from the first run on.
    cached_tokens: Option<usize>,
    /// Tokens of the prompt that are computed or cached.
    prompt_done: usize,
    prompt_tokens: usize,
    /// Tokens of the prompt that follow as generated tokens.
    forced: usize,
    /// Tokens generated so far.
    generated_tokens: usize,
    scores: Option<LogprobStream<'t>>,
    details: TokenDetails,
    responses: ResponseSender,
}

/// How a request ends.
enum RequestOutcome {
    Finish(FinishReason),
    Failed(ApiError),
    /// The client has disconnected.
    ClientDisconnected,
    /// The deadline is exceeded.
    DeadlineExceeded,
}

impl<'t> RunningRequests<'t> {
    pub(crate) fn new(
        generator: LanguageGenerator,
        tokenizer: &'t Tokenizer,
        chunk: usize,
    ) -> RunningRequests<'t> {
        RunningRequests {
            generator,
            tokenizer,
            by_sequence: HashMap::new(),
            history: ReadHistory::default(),
            chunk: chunk.max(1),
        }
    }

    /// The number of requests of each API key.
    pub(crate) fn keys(&self) -> HashMap<Option<usize>, usize> {
        let mut keys = HashMap::new();
        for text in self.by_sequence.values() {
            *keys.entry(text.ticket.order.key).or_default() += 1;
        }
        keys
    }

    /// Drops all requests.
    pub(crate) fn abort_all(&mut self) {
        self.by_sequence.clear();
        self.generator.slots.reset();
    }

    /// Saves the prefixes of the slots, so that a model that is loaded later finds them.
    pub(crate) fn save_prefixes(&mut self) {
        self.generator.slots.save_prefixes();
    }

    /// Starts the new requests, ends requests that are disconnected or past their deadline, and
    /// runs one step for the others.
    pub(crate) fn turn(&mut self, new: Vec<QueuedRequest>) {
        new.into_iter().for_each(|job| self.begin(job));
        let given_up = self.by_sequence.iter().filter_map(|(id, text)| {
            let left = text
                .responses
                .is_closed()
                .then_some(RequestOutcome::ClientDisconnected);
            let late = text
                .ticket
                .is_late()
                .then_some(RequestOutcome::DeadlineExceeded);
            Some((*id, left.or(late)?))
        });
        let ended: Vec<(SequenceId, RequestOutcome)> = given_up.collect();
        ended.into_iter().for_each(|(id, how)| self.end(id, how));
        let before = self.generator.slots.fallback_precision();
        match self.generator.slots.step() {
            Ok(events) => {
                for event in events {
                    if let Some(how) = self.handle_event(event.sequence, event.kind) {
                        self.end(event.sequence, how);
                    }
                }
            }
            Err(e) => {
                let ids: Vec<SequenceId> = self.by_sequence.keys().copied().collect();
                for id in ids {
                    self.end(id, RequestOutcome::Failed(ApiError::failed(&e)));
                }
                self.generator.slots.reset();
            }
        }
        // The generator fell back to another precision, which stays in use. Print that once.
        if self.generator.slots.fallback_precision() != before {
            let message = self.generator.slots.fallback_message().unwrap_or_default();
            // If standard error is closed or its disk is full, the note is lost.
            let _ = writeln!(std::io::stderr(), "note: {message}");
        }
    }

    fn begin(&mut self, job: QueuedRequest) {
        let QueuedRequest {
            sequence,
            images,
            forced,
            stop,
            spelled,
            top_logprobs: likeliest,
            details,
            ticket,
            responses: replies,
        } = job;
        ticket.count_start();
        let prompt_tokens = sequence.prompt.len() + forced;
        let first = sequence.prompt.last().copied().filter(|_| forced > 0);
        let scores = likeliest.map(|count| LogprobStream::new(self.tokenizer, (count, first)));
        let go_on = &mut || !replies.is_closed() && !ticket.is_late();
        match self.generator.set_images(&images, go_on) {
            Ok(true) => {}
            Ok(false) if replies.is_closed() => return ticket.count_cancelled(),
            Ok(false) => {
                replies.send(ResponseEvent::Failed(ticket.late()));
                return;
            }
            Err(e) => {
                replies.send(ResponseEvent::Failed(ApiError::failed(&e)));
                return;
            }
        }
        let (prompt, adapter) = (sequence.prompt.clone(), sequence.adapter);
        match self.generator.slots.start(sequence) {
            Ok(id) => {
                let text = RunningRequest {
                    ticket,
                    detokenizer: IncrementalDetokenizer::new(self.tokenizer, &stop)
                        .with_spelled(spelled),
                    prompt,
                    tokens: Vec::new(),
                    adapter,
                    has_images: !images.is_empty(),
                    cached_tokens: None,
                    prompt_done: 0,
                    prompt_tokens,
                    forced,
                    generated_tokens: 0,
                    details,
                    scores,
                    responses: replies,
                };
                self.by_sequence.insert(id, text);
            }
            // Sending fails if the client has disconnected.
            Err(e) => {
                replies.send(ResponseEvent::Failed(ApiError::failed(&e)));
            }
        }
    }

    /// Forwards a generator event to the client. Returns how the request ends, if it does.
    fn handle_event(&mut self, id: SequenceId, happened: BatchEventKind) -> Option<RequestOutcome> {
        let text = self.by_sequence.get_mut(&id)?;
        match happened {
            BatchEventKind::Prompt(done) => {
                // The first run computes at most a chunk after the cached prefix.
                let cached = done.saturating_sub(1) / self.chunk * self.chunk;
                text.cached_tokens.get_or_insert(cached);
                text.prompt_done = done;
                None
            }
            BatchEventKind::Token(token) => {
                text.tokens.push(token);
                let is_forced = text.forced > 0;
                match is_forced {
                    true => text.forced -= 1,
                    false => text.generated_tokens += 1,
                }
                let logits = match text.scores.is_some() || text.details.logits {
                    true => self
                        .generator
                        .slots
                        .logits(id)
                        .map(Option::unwrap_or_default),
                    false => Ok(Vec::new()),
                };
                let told = match logits {
                    Ok(logits) => text.tell(token, logits, is_forced),
                    Err(e) => Err(ApiError::failed(&e)),
                };
                if let Err(refusal) = told {
                    return Some(RequestOutcome::Failed(refusal));
                }
                if is_forced {
                    return None;
                }
                match text.detokenizer.push(token) {
                    Ok((piece, stopped)) => match (text.send(piece), stopped) {
                        (false, _) => Some(RequestOutcome::ClientDisconnected),
                        (true, true) => Some(RequestOutcome::Finish(FinishReason::Stop)),
                        (true, false) => {
                            let loops = text.detokenizer.is_looping();
                            loops.then_some(RequestOutcome::Finish(FinishReason::End))
                        }
                    },
                    Err(e) => Some(RequestOutcome::Failed(ApiError::failed(&e))),
                }
            }
            BatchEventKind::Ended(finish) => Some(RequestOutcome::Finish(finish)),
            BatchEventKind::Failed(e) => Some(RequestOutcome::Failed(failure(&e))),
        }
    }

    /// Frees the slot of a request and sends its outcome.
    fn end(&mut self, id: SequenceId, how: RequestOutcome) {
        self.generator.slots.cancel(id);
        let Some(text) = self.by_sequence.remove(&id) else {
            return;
        };
        let metrics = &text.ticket.metrics;
        count(&metrics.cached_tokens, text.cached_tokens.unwrap_or(0));
        count(
            &metrics.reread_tokens,
            text.record_in(&mut self.history, id),
        );
        count(&metrics.prompt_tokens, text.prompt_tokens);
        count(&metrics.generated_tokens, text.generated_tokens);
        text.end(how);
    }
}

impl RunningRequest<'_> {
    /// Adds the logprob of a token, and sends its details unless it belongs to the prompt.
    fn tell(&mut self, token: u32, logits: Vec<f32>, is_forced: bool) -> Result<(), ApiError> {
        if let Some(scores) = &mut self.scores {
            scores.push(token, &logits)?;
        }
        if self.details != TokenDetails::default() && !is_forced {
            let logits = if self.details.logits {
                logits
            } else {
                Vec::new()
            };
            // If the client has disconnected, the next step notices it.
            self.responses.send(ResponseEvent::Token(token, logits));
        }
        Ok(())
    }

    /// Records the tokens that were read. Returns the number of those that were read before.
    fn record_in(&self, history: &mut ReadHistory, id: SequenceId) -> usize {
        let prompt = self.prompt.iter().take(self.prompt_done);
        // The last generated token is not read.
        let after = self.tokens.iter().take(self.tokens.len().saturating_sub(1));
        let tokens = prompt.chain(after).copied();
        let cached = self.cached_tokens.unwrap_or(0);
        // Equal tokens may stand for different images.
        let images = self.has_images.then_some(id);
        let scope = (&self.ticket.cache_scope, self.adapter, images);
        history.record(scope, tokens, cached)
    }

    /// Sends text. Returns false if the receiver is gone.
    fn send(&mut self, piece: String) -> bool {
        if piece.is_empty() {
            return true;
        }
        let scores = self.scores.as_mut().map(LogprobStream::take_pending);
        self.responses
            .send(ResponseEvent::Text(piece, scores.unwrap_or_default()))
    }

    fn end(mut self, how: RequestOutcome) {
        let (tokens, cached) = (self.generated_tokens, self.cached_tokens.unwrap_or(0));
        let done = |finish, stop| ResponseEvent::Done {
            finish,
            tokens,
            cached,
            stop,
        };
        let (rest, last) = match how {
            // If a stop string matched, the pending text follows it and is not sent.
            RequestOutcome::Finish(FinishReason::Stop) => {
                let stop = self.detokenizer.stop_string().map(str::to_string);
                (String::new(), done(FinishReason::Stop, stop))
            }
            RequestOutcome::Finish(finish) => match self.detokenizer.finish() {
                Ok((rest, true)) => (rest, done(FinishReason::Stop, None)),
                Ok((rest, false)) => (rest, done(finish, None)),
                Err(e) => (String::new(), ResponseEvent::Failed(ApiError::failed(&e))),
            },
            RequestOutcome::Failed(refusal) => (String::new(), ResponseEvent::Failed(refusal)),
            RequestOutcome::ClientDisconnected => return self.ticket.count_cancelled(),
            RequestOutcome::DeadlineExceeded => {
                let late = self.ticket.late();
                (String::new(), ResponseEvent::Failed(late))
            }
        };
        let untold = self
            .scores
            .as_mut()
            .map(LogprobStream::take_pending)
            .unwrap_or_default();
        let is_last = rest.is_empty() && untold.is_empty();
        if !is_last && !self.responses.send(ResponseEvent::Text(rest, untold)) {
            return self.ticket.count_cancelled();
        }
        // Sending fails if the client has disconnected.
        self.responses.send(last);
    }
}

/// The response for a failed sequence. If the grammar allows no further token, the error is that of
/// an invalid request.
fn failure(e: &tercet_models::ModelError) -> ApiError {
    match e {
        tercet_models::ModelError::Constraint(e) => ApiError::bad_request(e.to_string()),
        e => ApiError::failed(e),
    }
}
