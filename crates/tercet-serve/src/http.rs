//! Routes, and what holds for all of them: the key, sizes and times of bodies, metrics.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use sha2::{Digest, Sha256};

use crate::error::{Refusal, json_response};
use crate::metrics::Metrics;
use crate::models::Models;
use crate::options::ServeOptions;
use crate::{leftover, oip, openai};

/// What every handler sees.
pub(crate) struct App {
    pub(crate) models: Models,
    pub(crate) metrics: Arc<Metrics>,
    /// Seconds since 1970 when the server started.
    pub(crate) started: u64,
    pub(crate) options: ServeOptions,
}

impl App {
    pub(crate) fn new(models: Models, options: ServeOptions) -> App {
        App {
            models,
            metrics: Arc::default(),
            started: now(),
            options,
        }
    }

    /// A body of one of these media types.
    ///
    /// # Errors
    /// 415, 413, 408.
    pub(crate) async fn body(
        &self,
        headers: &HeaderMap,
        body: Body,
        types: &[&str],
    ) -> Result<Bytes, Refusal> {
        let found = headers
            .get(header::CONTENT_TYPE)
            .and_then(|v| v.to_str().ok())
            .unwrap_or("");
        let found = found.split(';').next().unwrap_or("").trim();
        // What a page of another site may send without asking first is not among them.
        if !types.iter().any(|t| found.eq_ignore_ascii_case(t)) {
            let message = format!(
                "the body has to be {}: send the header Content-Type",
                types.join(" or ")
            );
            return Err(Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                message,
            ));
        }
        self.read(headers, body).await
    }

    /// A body of any media type.
    ///
    /// # Errors
    /// 415 where it is compressed, 413, 408.
    pub(crate) async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Bytes, Refusal> {
        let coding = headers.get(header::CONTENT_ENCODING);
        if coding.is_some_and(|coding| coding != "identity") {
            return Err(Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "compressed bodies are not taken: leave out the header Content-Encoding",
            ));
        }
        let most = self.options.body_bytes;
        let large = || {
            Refusal::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "body_too_large",
                format!("the body has more than {most} bytes"),
            )
        };
        let length = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|n| n > most) {
            return Err(large());
        }
        let read = tokio::time::timeout(self.options.body_time, to_bytes(body, most)).await;
        match read {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(e)) if is_limit(&e) => Err(large()),
            Ok(Err(e)) => Err(Refusal::bad(format!("the body could not be read: {e}"))),
            Err(_) => {
                let message = format!(
                    "the body did not arrive within {} s",
                    self.options.body_time.as_secs_f64()
                );
                Err(Refusal::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "body_too_slow",
                    message,
                ))
            }
        }
    }

    /// Whether a request carries the key, if there is one. Digests are compared, so that the time it takes says nothing.
    fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.options.api_key else {
            return true;
        };
        let given = headers
            .get(header::AUTHORIZATION)
            .and_then(|v| v.to_str().ok());
        let given = given.and_then(|v| v.strip_prefix("Bearer ")).unwrap_or("");
        Sha256::digest(given.as_bytes()) == Sha256::digest(key.as_bytes())
    }
}

/// Refuses what a page of another site sends: browsers say where a request comes from that they send unasked.
///
/// # Errors
/// 403.
pub(crate) fn of_own_site(headers: &HeaderMap) -> Result<(), Refusal> {
    let of = |name| headers.get(name).map(|v| v.to_str().unwrap_or(""));
    let Some(origin) = of(header::ORIGIN) else {
        return Ok(());
    };
    let site = origin.split_once("://").map(|(_, site)| site);
    let host = of(header::HOST);
    match site.is_some_and(|site| host.is_some_and(|host| host.eq_ignore_ascii_case(site))) {
        true => Ok(()),
        false => {
            let message = "pages of other sites may not send this";
            Err(Refusal::new(StatusCode::FORBIDDEN, "cross_origin", message))
        }
    }
}

/// Whether reading stopped at the limit of sizes.
fn is_limit(e: &axum::Error) -> bool {
    let mut source: Option<&dyn std::error::Error> = Some(e);
    while let Some(cause) = source {
        if cause.to_string().contains("length limit exceeded") {
            return true;
        }
        source = cause.source();
    }
    false
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| d.as_secs())
}

pub(crate) fn router(app: Arc<App>) -> Router {
    let open = Router::new().route("/health", get(health));
    let closed = Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{model}", get(openai::models::one))
        .route("/v1/completions", post(openai::completions::handle))
        .route("/v1/chat/completions", post(openai::chat::handle))
        .route("/v1/embeddings", post(openai::embeddings::handle))
        .route("/v1/rerank", post(openai::rerank::handle));
    #[cfg(feature = "audio")]
    let closed = closed.route(
        "/v1/audio/transcriptions",
        post(openai::transcriptions::handle),
    );
    let closed = closed
        .route("/v2", get(oip::server))
        .route("/v2/health/live", get(oip::healthy))
        .route("/v2/health/ready", get(oip::healthy))
        .route("/v2/models/{model}", get(oip::metadata))
        .route("/v2/models/{model}/ready", get(oip::ready))
        .route("/v2/models/{model}/infer", post(oip::infer))
        .route("/v2/models/{model}/versions/{version}", get(oip::metadata))
        .route(
            "/v2/models/{model}/versions/{version}/ready",
            get(oip::ready),
        )
        .route(
            "/v2/models/{model}/versions/{version}/infer",
            post(oip::infer),
        )
        .route_layer(from_fn_with_state(Arc::clone(&app), guard));
    open.merge(closed)
        .fallback(nothing)
        .method_not_allowed_fallback(not_so)
        .layer(from_fn_with_state(Arc::clone(&app), leftover::read))
        .layer(from_fn_with_state(Arc::clone(&app), counted))
        .with_state(app)
}

async fn health() -> Response {
    json_response(&serde_json::json!({"status": "ok"}))
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, app.metrics.page(&app.models.loads())).into_response()
}

/// A refusal in the form of the protocol that a path belongs to.
fn refused(path: &str, refusal: Refusal) -> Response {
    match path == "/v2" || path.starts_with("/v2/") {
        true => refusal.plain(),
        false => refusal.into_response(),
    }
}

async fn nothing(uri: Uri) -> Response {
    let message = "there is no such route; docs/serve.md lists them";
    let refusal = Refusal::new(StatusCode::NOT_FOUND, "not_found", message);
    refused(uri.path(), refusal)
}

async fn not_so(uri: Uri) -> Response {
    let message = "the route takes another method; docs/serve.md lists them";
    let status = StatusCode::METHOD_NOT_ALLOWED;
    let refusal = Refusal::new(status, "method_not_allowed", message);
    refused(uri.path(), refusal)
}

async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.admits(request.headers()) {
        true => next.run(request).await,
        false => {
            let message = "send the key of the server as `Authorization: Bearer KEY`";
            let refusal = Refusal::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message);
            refused(request.uri().path(), refusal)
        }
    }
}

async fn counted(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let route = route_of(request.uri().path());
    let response = next.run(request).await;
    app.metrics
        .request(route, response.status().as_u16(), began.elapsed());
    response
}

/// The route of a path, so that clients cannot make rows of metrics.
fn route_of(path: &str) -> &'static str {
    const PLAIN: [&str; 11] = [
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/audio/transcriptions",
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
    ];
    if let Some(route) = PLAIN.iter().find(|r| **r == path) {
        return route;
    }
    match path {
        _ if path.starts_with("/v1/models/") => "/v1/models/{model}",
        _ if path.starts_with("/v2/models/") && path.ends_with("/infer") => {
            "/v2/models/{model}/infer"
        }
        _ if path.starts_with("/v2/models/") => "/v2/models/{model}",
        _ => "other",
    }
}
