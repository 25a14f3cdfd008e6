//! What is left of the body of a request that was refused.
//!
//! A connection whose body nobody reads is closed after the answer, and a client that still writes learns of the close before it has
//! read why (RFC 9112, 9.6). What is left is therefore read and dropped first, within the limits that bodies have.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::{StreamExt, stream};

use crate::http::App;

/// Bytes that are dropped at most, in bodies as large as a body may be.
const MOST_BODIES: usize = 4;

/// Answers, and reads what a refused request has left, within the time that a body may take.
pub(crate) async fn read(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    // Such a client sends nothing before it is asked to.
    let waits = parts.headers.contains_key(header::EXPECT);
    // It can be read on after whoever answers has dropped it.
    let frames = Arc::new(Mutex::new(body.into_data_stream().fuse()));
    let reader = || {
        let frames = Arc::clone(&frames);
        stream::poll_fn(move |cx| {
            let mut frames = frames.lock().unwrap_or_else(PoisonError::into_inner);
            frames.poll_next_unpin(cx)
        })
    };
    let request = Request::from_parts(parts, Body::from_stream(reader()));
    let response = next.run(request).await;
    let status = response.status();
    if waits || !status.is_client_error() || status == StatusCode::REQUEST_TIMEOUT {
        return response;
    }
    let mut left = reader();
    let mut most = app.options.body_bytes.saturating_mul(MOST_BODIES);
    let read = async {
        while let Some(Ok(bytes)) = left.next().await {
            match most.checked_sub(bytes.len()) {
                Some(rest) => most = rest,
                None => break,
            }
        }
    };
    // The answer is sent either way.
    let _ = tokio::time::timeout(app.options.body_time, read).await;
    response
}
