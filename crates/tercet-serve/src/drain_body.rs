//! Drains the body of a rejected request.
//!
//! If a server closes a connection with an unread body, a client that is still sending can see the
//! reset before the error response (RFC 9112, 9.6). The remaining body is therefore read and
//! discarded first, within the size and time limits of bodies.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::{StreamExt, stream};

use crate::http::AppState;

/// Maximum discarded bytes, as a multiple of the body size limit.
const MAX_DRAINED_BODIES: usize = 4;

/// Runs the handler. If the handler rejects the request, reads and discards the remaining body
/// within the time limit of bodies.
pub(crate) async fn read(
    State(app): State<Arc<AppState>>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    // With `Expect: 100-continue` the client sends no body before the server asks for it.
    let waits = parts.headers.contains_key(header::EXPECT);
    // The stream is shared, because reading continues after the handler has dropped the body.
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
    let mut most = app.options.body_bytes.saturating_mul(MAX_DRAINED_BODIES);
    let read = async {
        while let Some(Ok(bytes)) = left.next().await {
            match most.checked_sub(bytes.len()) {
                Some(rest) => most = rest,
                None => break,
            }
        }
    };
    // The response is sent even if draining fails or times out.
    let _ = tokio::time::timeout(app.options.body_time, read).await;
    response
}
