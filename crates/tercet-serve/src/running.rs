//! The texts that are written now, each in a slot of what writes them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use tercet_models::{Finish, Happened, SequenceId, TextPieces, Tokenizer};

use crate::engine::{Job, Replies};
use crate::error::Refusal;
use crate::language::Reply;
use crate::likely::Scores;
use crate::metrics::{Metrics, count};
use crate::writer::Writer;

/// Slots and whom they write for.
pub(crate) struct Texts<'t> {
    writer: Box<dyn Writer>,
    tokenizer: &'t Tokenizer,
    all: HashMap<SequenceId, Text<'t>>,
}

struct Text<'t> {
    pieces: TextPieces<'t>,
    prompt_tokens: usize,
    /// Tokens so far.
    written: usize,
    until: Instant,
    scores: Option<Scores<'t>>,
    replies: Replies,
    metrics: Arc<Metrics>,
}

/// How a text ends.
enum End {
    Finish(Finish),
    Failed(Refusal),
    /// Whom it was for has left.
    Left,
    /// Its deadline has passed.
    Late,
}

impl<'t> Texts<'t> {
    pub(crate) fn new(writer: Box<dyn Writer>, tokenizer: &'t Tokenizer) -> Texts<'t> {
        Texts {
            writer,
            tokenizer,
            all: HashMap::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Drops all texts.
    pub(crate) fn give_up(&mut self) {
        self.all.clear();
        self.writer.reset();
    }

    /// Begins these texts, ends those that nobody waits for, and takes a step of the others.
    pub(crate) fn turn(&mut self, new: Vec<Job>) {
        new.into_iter().for_each(|job| self.begin(job));
        let now = Instant::now();
        let given_up = self.all.iter().filter_map(|(id, text)| {
            let left = text.replies.is_closed().then_some(End::Left);
            let late = (now >= text.until).then_some(End::Late);
            Some((*id, left.or(late)?))
        });
        let ended: Vec<(SequenceId, End)> = given_up.collect();
        ended.into_iter().for_each(|(id, how)| self.end(id, how));
        let before = self.writer.moved_to();
        match self.writer.step() {
            Ok(events) => {
                for event in events {
                    if let Some(how) = self.hear(event.sequence, event.happened) {
                        self.end(event.sequence, how);
                    }
                }
            }
            Err(e) => {
                let ids: Vec<SequenceId> = self.all.keys().copied().collect();
                for id in ids {
                    self.end(id, End::Failed(Refusal::failed(&e)));
                }
                self.writer.reset();
            }
        }
        // The model stays what it was compiled for then.
        if self.writer.moved_to() != before {
            eprintln!("note: {}", self.writer.note().unwrap_or_default());
        }
    }

    fn begin(&mut self, job: Job) {
        let Job {
            sequence,
            stop,
            likeliest,
            until,
            replies,
            metrics,
        } = job;
        let prompt_tokens = sequence.prompt.len();
        match self.writer.start(sequence) {
            Ok(id) => {
                let text = Text {
                    pieces: TextPieces::new(self.tokenizer, &stop),
                    prompt_tokens,
                    written: 0,
                    scores: likeliest.map(|count| Scores::new(self.tokenizer, count)),
                    until,
                    replies,
                    metrics,
                };
                self.all.insert(id, text);
            }
            // Who has left needs no answer.
            Err(e) => {
                replies.send(Reply::Failed(Refusal::failed(&e)));
            }
        }
    }

    /// Passes on what happened to a text; whether it ends.
    fn hear(&mut self, id: SequenceId, happened: Happened) -> Option<End> {
        let text = self.all.get_mut(&id)?;
        match happened {
            Happened::Prompt(_) => None,
            Happened::Token(token) => {
                text.written += 1;
                if let Some(scores) = &mut text.scores {
                    let scored = match self.writer.logits(id) {
                        Ok(logits) => scores.push(token, &logits.unwrap_or_default()),
                        Err(e) => Err(Refusal::failed(&e)),
                    };
                    if let Err(refusal) = scored {
                        return Some(End::Failed(refusal));
                    }
                }
                match text.pieces.push(token) {
                    Ok((piece, stopped)) => match (text.send(piece), stopped) {
                        (false, _) => Some(End::Left),
                        (true, true) => Some(End::Finish(Finish::Stop)),
                        (true, false) => None,
                    },
                    Err(e) => Some(End::Failed(Refusal::failed(&e))),
                }
            }
            Happened::Ended(finish) => Some(End::Finish(finish)),
            Happened::Failed(e) => Some(End::Failed(Refusal::failed(&e))),
        }
    }

    /// Frees the slot of a text and says how it ended.
    fn end(&mut self, id: SequenceId, how: End) {
        self.writer.cancel(id);
        let Some(text) = self.all.remove(&id) else {
            return;
        };
        count(&text.metrics.prompt_tokens, text.prompt_tokens);
        count(&text.metrics.written_tokens, text.written);
        text.end(how);
    }
}

impl Text<'_> {
    /// False where nobody listens.
    fn send(&mut self, piece: String) -> bool {
        if piece.is_empty() {
            return true;
        }
        let scores = self.scores.as_mut().map(Scores::take);
        self.replies
            .send(Reply::Text(piece, scores.unwrap_or_default()))
    }

    fn end(mut self, how: End) {
        let metrics = Arc::clone(&self.metrics);
        let counted = |counter: &AtomicU64| count(counter, 1);
        let written = self.written;
        let (rest, last) = match how {
            // What follows a stop string was never held back.
            End::Finish(Finish::Stop) => (String::new(), Reply::Done(Finish::Stop, written)),
            End::Finish(finish) => match self.pieces.finish() {
                Ok((rest, true)) => (rest, Reply::Done(Finish::Stop, written)),
                Ok((rest, false)) => (rest, Reply::Done(finish, written)),
                Err(e) => (String::new(), Reply::Failed(Refusal::failed(&e))),
            },
            End::Failed(refusal) => (String::new(), Reply::Failed(refusal)),
            End::Left => return counted(&metrics.cancelled),
            End::Late => {
                counted(&metrics.late);
                (String::new(), Reply::Failed(Refusal::late()))
            }
        };
        let untold = self.scores.as_mut().map(Scores::take).unwrap_or_default();
        let is_last = rest.is_empty() && untold.is_empty();
        if !is_last && !self.replies.send(Reply::Text(rest, untold)) {
            return counted(&metrics.cancelled);
        }
        // Who has left needs no answer.
        self.replies.send(last);
    }
}
