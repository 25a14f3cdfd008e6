//! Answers of both completion routes on their way to the client: whole, or as a stream of events.

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tercet_models::Finish;
use tokio::sync::mpsc::UnboundedReceiver;

use super::answer::{Frame, Piece, event};
use super::calls::Held;
use crate::error::{Refusal, json_response};
use crate::language::Reply;
use crate::likely::Scored;

/// Pieces of texts by their places.
pub(crate) type Pieces = UnboundedReceiver<(usize, Reply)>;

/// Waits for all texts. When the client leaves, this is dropped, and the receiver with it.
///
/// # Errors
/// What one of the texts failed with.
pub(crate) async fn whole(frame: &Frame, mut pieces: Pieces) -> Result<Response, Refusal> {
    let mut texts: Vec<(Piece, Option<Finish>)> = vec![(Piece::default(), None); frame.texts];
    let mut tokens = 0;
    while texts.iter().any(|(_, finish)| finish.is_none()) {
        let Some((index, reply)) = pieces.recv().await else {
            return Err(Refusal::lost());
        };
        let (piece, ended) = &mut texts[index];
        match reply {
            Reply::Text(text, scores) => {
                piece.text += &text;
                piece.scores.extend(scores);
            }
            Reply::Done(finish, written) => {
                tokens += written;
                *ended = Some(finish);
                if let Some(calls) = &frame.calls {
                    (piece.text, piece.calls) = calls.read(&piece.text);
                }
            }
            Reply::Failed(refusal) => return Err(refusal),
        }
    }
    let texts = texts.into_iter();
    let texts: Vec<(Piece, Finish)> = texts
        .filter_map(|(piece, finish)| Some((piece, finish?)))
        .collect();
    Ok(json_response(&frame.whole(&texts, tokens)))
}

/// Server-sent events as the texts come. What fails before any text is an error as without a stream; later it is an
/// event with the error, after which the stream ends without `[DONE]`.
///
/// # Errors
/// What failed before any text.
pub(crate) async fn stream(frame: Frame, mut pieces: Pieces) -> Result<Response, Refusal> {
    let first = match pieces.recv().await {
        Some((_, Reply::Failed(refusal))) => return Err(refusal),
        None => return Err(Refusal::lost()),
        Some(first) => first,
    };
    let texts = (0..frame.texts).map(|_| Text {
        held: frame.calls.clone().map(Held::new),
        untold: Vec::new(),
    });
    let state = Some(Live {
        texts: texts.collect(),
        frame,
        pieces,
        first: Some(first),
        ended: 0,
        written: 0,
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

/// A stream on its way.
struct Live {
    frame: Frame,
    pieces: Pieces,
    /// What has come before the stream began.
    first: Option<(usize, Reply)>,
    texts: Vec<Text>,
    ended: usize,
    /// Tokens of the texts that have ended.
    written: usize,
}

struct Text {
    /// What may be a call of a tool, where there may be some.
    held: Option<Held>,
    untold: Vec<Scored>,
}

impl Live {
    /// The next events, at least one, and whether they are the last.
    async fn next(&mut self) -> (String, bool) {
        let mut events = match self.first {
            Some(_) => self.frame.beginning(),
            None => String::new(),
        };
        loop {
            let reply = match self.first.take() {
                Some(first) => Some(first),
                None => self.pieces.recv().await,
            };
            let (heard, ended) = match reply {
                Some((index, reply)) => self.hear(index, reply),
                None => (event(&Refusal::lost().body()), true),
            };
            events += &heard;
            if ended || !events.is_empty() {
                return (events, ended);
            }
        }
    }

    fn hear(&mut self, index: usize, reply: Reply) -> (String, bool) {
        let (frame, text) = (&self.frame, &mut self.texts[index]);
        match reply {
            Reply::Text(piece, scores) => {
                text.untold.extend(scores);
                let shown = match &mut text.held {
                    Some(held) => held.push(&piece),
                    None => piece,
                };
                if shown.is_empty() && text.held.is_some() {
                    return (String::new(), false);
                }
                let piece = Piece {
                    text: shown,
                    calls: Vec::new(),
                    scores: std::mem::take(&mut text.untold),
                };
                (frame.piece(index, &piece), false)
            }
            Reply::Done(finish, written) => {
                let (rest, calls) = match text.held.take() {
                    Some(held) => held.finish(),
                    None => (String::new(), Vec::new()),
                };
                let has_calls = !calls.is_empty();
                let piece = Piece {
                    text: rest,
                    calls,
                    scores: std::mem::take(&mut text.untold),
                };
                let mut events = String::new();
                if !piece.text.is_empty() || has_calls || !piece.scores.is_empty() {
                    events += &frame.piece(index, &piece);
                }
                events += &frame.end(index, finish, has_calls);
                self.ended += 1;
                self.written += written;
                let all = self.ended == frame.texts;
                if all {
                    events += &frame.last(self.written);
                }
                (events, all)
            }
            Reply::Failed(refusal) => (event(&refusal.body()), true),
        }
    }
}
