//! Routes and shared request handling: API key, limits of body size and time, metrics.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::anthropic::AnthropicError;
use crate::error::{ApiError, ServeError, json_response};
use crate::metrics::ServerMetrics;
use crate::models::ModelRegistry;
use crate::ollama::OllamaError;
use crate::options::ServeOptions;
use crate::queue_ticket::QueueTicket;
use crate::request_log::{ClientAddress, LoggedError, RequestLogGuard, RequestRecord};
use crate::{
    anthropic, drain_body, infill, mcp, model_routes, oip, ollama, openai, page, text_routes,
};

/// State shared by all handlers.
pub(crate) struct AppState {
    pub(crate) models: ModelRegistry,
    pub(crate) metrics: Arc<ServerMetrics>,
    /// Start time of the server, in seconds since 1970.
    pub(crate) started: u64,
    pub(crate) options: ServeOptions,
}

impl AppState {
    pub(crate) fn new(models: ModelRegistry, options: ServeOptions) -> AppState {
        AppState {
            models,
            metrics: Arc::default(),
            started: now(),
            options,
        }
    }

    /// The ticket of a request that waits for a model from now on.
    pub(crate) fn ticket(&self, record: &RequestRecord) -> QueueTicket {
        QueueTicket::new(record, &self.options, &self.metrics)
    }

    /// The result of `wait`, if it completes before the deadline of the request.
    ///
    /// # Errors
    /// 504 after the deadline; the errors of `wait`.
    pub(crate) async fn in_time<T>(
        &self,
        record: &RequestRecord,
        wait: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let ticket = self.ticket(record);
        let done = tokio::time::timeout_at(ticket.until.into(), wait).await;
        done.unwrap_or_else(|_| Err(ticket.late()))
    }

    /// Reads a body of one of the media types `types`.
    ///
    /// # Errors
    /// - 415 for another media type or a compressed body.
    /// - 413 if the body is too large.
    /// - 408 if it does not arrive in time.
    pub(crate) async fn body(
        &self,
        headers: &HeaderMap,
        body: Body,
        types: &[&str],
    ) -> Result<Bytes, ApiError> {
        let found = headers
            .get(header::CONTENT_TYPE)
            .and_then(|v| v.to_str().ok())
            .unwrap_or("");
        let found = found.split(';').next().unwrap_or("").trim();
        // Media types that browsers send cross-origin without a preflight request are not allowed.
        if !types.iter().any(|t| found.eq_ignore_ascii_case(t)) {
            let message = format!(
                "the media type must be {}; set the header Content-Type",
                types.join(" or ")
            );
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                message,
            ));
        }
        self.read(headers, body).await
    }

    /// Reads a body of any media type.
    ///
    /// # Errors
    /// - 415 if the body is compressed.
    /// - 413 if it is too large.
    /// - 408 if it does not arrive in time.
    pub(crate) async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
        let coding = headers.get(header::CONTENT_ENCODING);
        if coding.is_some_and(|coding| coding != "identity") {
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "compressed bodies are not supported; leave out the header Content-Encoding",
            ));
        }
        let most = self.options.body_bytes;
        let large = || {
            ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "body_too_large",
                format!("the body exceeds {most} bytes"),
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
            Ok(Err(e)) if is_body_limit(&e) => Err(large()),
            Ok(Err(e)) => Err(ApiError::bad_request(format!("cannot read the body: {e}"))),
            Err(_) => {
                let message = format!(
                    "the body did not arrive within {} s",
                    self.options.body_time.as_secs_f64()
                );
                Err(ApiError::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "body_too_slow",
                    message,
                ))
            }
        }
    }

    /// The index of the API key of a request; `None` if the server has no keys. The comparison uses
    /// digests, so its duration reveals nothing about a key.
    ///
    /// # Errors
    /// 401 if the server has keys, and the request has none of them.
    fn key_of(&self, headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
        if self.options.api_keys.is_empty() {
            return Ok(None);
        }
        let refused = || {
            let message = "missing or wrong API key; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`";
            ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
        };
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        // The name of the scheme has no case (RFC 9110, 11.1).
        let bearer = text(header::AUTHORIZATION.as_str())
            .and_then(|given| given.trim().split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, key)| key);
        let Some(given) = bearer.or_else(|| text("x-api-key")) else {
            return Err(refused());
        };
        let given = Sha256::digest(given.trim().as_bytes());
        let keys = self.options.api_keys.iter().enumerate();
        // All keys are compared, so that the duration does not reveal which one matches.
        let found = keys.fold(None, |found, (at, key)| {
            let is_equal = Sha256::digest(key.as_bytes()) == given;
            found.or(is_equal.then_some(at))
        });
        found.map(Some).ok_or_else(refused)
    }

    /// Rejects cross-origin requests, except those of allowed origins: browsers send an `Origin`
    /// header with requests that need no preflight.
    ///
    /// # Errors
    /// 403 if the origin differs from the host and is not allowed.
    pub(crate) fn check_origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let of = |name| headers.get(name).map(|v| v.to_str().unwrap_or(""));
        let Some(origin) = of(header::ORIGIN) else {
            return Ok(());
        };
        let mut allowed = self.options.allowed_origins.iter();
        if allowed.any(|known| known == "*" || known.eq_ignore_ascii_case(origin)) {
            return Ok(());
        }
        let site = origin.split_once("://").map(|(_, site)| site);
        let host = of(header::HOST);
        match site.is_some_and(|site| host.is_some_and(|host| host.eq_ignore_ascii_case(site))) {
            true => Ok(()),
            false => {
                let message = "cross-origin requests are not allowed; start the server with --allow-origin ORIGIN";
                Err(ApiError::new(
                    StatusCode::FORBIDDEN,
                    "cross_origin",
                    message,
                ))
            }
        }
    }
}

/// Answers of the server to browsers that ask for another origin.
///
/// # Errors
/// [`ServeError::Origin`] for a text that is no origin.
fn cross_origin(origins: &[String]) -> Result<Option<CorsLayer>, ServeError> {
    if origins.is_empty() {
        return Ok(None);
    }
    let parse = |origin: &String| {
        let is_origin = origin.split_once("://").is_some_and(|(scheme, host)| {
            !scheme.is_empty() && !host.is_empty() && !host.contains('/')
        });
        let value = is_origin.then(|| HeaderValue::from_str(origin).ok());
        value.flatten().ok_or_else(|| ServeError::Origin {
            origin: origin.clone(),
        })
    };
    let allowed = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().map(parse).collect::<Result<Vec<_>, _>>()?),
    };
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        // A `*` would exclude `Authorization`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([REQUEST_ID])
        .max_age(MAX_PREFLIGHT_AGE);
    Ok(Some(layer))
}

/// Time for which browsers cache the response to a preflight request.
const MAX_PREFLIGHT_AGE: std::time::Duration = std::time::Duration::from_secs(600);

/// Whether reading stopped because the body exceeds the size limit.
fn is_body_limit(e: &axum::Error) -> bool {
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

/// # Errors
/// [`ServeError::Origin`] if an allowed origin is none.
pub(crate) fn router(app: Arc<AppState>) -> Result<Router, ServeError> {
    let cross_origin = cross_origin(&app.options.allowed_origins)?;
    let open = Router::new()
        .route("/", get(index))
        .route("/page/{file}", get(page::file))
        .route("/health", get(health))
        .route("/v1/health", get(health));
    let closed = Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{model}", get(openai::models::one))
        .route("/models/load", post(model_routes::load))
        .route("/models/unload", post(model_routes::unload))
        .route("/v1/load_lora_adapter", post(model_routes::load_adapter))
        .route(
            "/v1/unload_lora_adapter",
            post(model_routes::unload_adapter),
        )
        .route("/v1/completions", post(openai::completions::handle))
        .route("/v1/chat/completions", post(openai::chat::handle))
        .route("/v1/responses", post(openai::responses::handle))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/embeddings", post(openai::embeddings::handle))
        .route("/v1/rerank", post(openai::rerank::handle))
        .route("/rerank", post(openai::rerank::handle))
        .route("/tokenize", post(text_routes::tokenize))
        .route("/detokenize", post(text_routes::detokenize))
        .route("/apply-template", post(text_routes::apply_template))
        .route("/props", get(text_routes::props))
        .route("/slots", get(text_routes::slots))
        .route("/infill", post(infill::handle))
        .route("/score", post(openai::score::handle))
        .route("/mcp", post(mcp::handle))
        .route("/v1/score", post(openai::score::handle));
    let closed = closed
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(ollama::embed))
        .route("/api/embeddings", post(ollama::embeddings))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/show", post(ollama::show))
        .route("/api/version", get(ollama::version));
    #[cfg(feature = "audio")]
    let closed = closed
        .route(
            "/v1/audio/transcriptions",
            post(openai::transcriptions::handle),
        )
        .route(
            "/v1/audio/translations",
            post(openai::transcriptions::translate),
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
    let all = open
        .merge(closed)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed);
    let all = match cross_origin {
        // Outside of the check of the key, as preflight requests have none.
        Some(layer) => all.layer(layer),
        None => all,
    };
    Ok(all
        .layer(from_fn_with_state(Arc::clone(&app), drain_body::read))
        .layer(from_fn_with_state(Arc::clone(&app), count_request))
        .with_state(app))
}

/// Routes and their models, for the page at `/`.
const ROUTES: &[(&str, &str)] = &[
    ("GET  /", "a page for browsers"),
    ("GET  /health", ""),
    ("GET  /metrics", "Prometheus"),
    ("GET  /v1/models", ""),
    ("GET  /v1/models/{model}", ""),
    ("POST /models/load", "models on demand"),
    ("POST /models/unload", "models on demand"),
    ("POST /v1/load_lora_adapter", "language models"),
    ("POST /v1/unload_lora_adapter", "language models"),
    ("POST /v1/chat/completions", "language models"),
    ("POST /v1/completions", "language models"),
    ("POST /v1/responses", "language models"),
    ("POST /v1/messages", "language models"),
    ("POST /v1/messages/count_tokens", "language models"),
    ("POST /v1/embeddings", "encoders"),
    ("POST /v1/rerank", "rerankers"),
    (
        "POST /v1/audio/transcriptions",
        "speech recognizers, feature audio",
    ),
    (
        "POST /v1/audio/translations",
        "speech recognizers, feature audio",
    ),
    ("POST /tokenize", "language models"),
    ("POST /detokenize", "language models"),
    ("POST /apply-template", "language models"),
    ("GET  /props", "language models"),
    ("GET  /slots", "language models"),
    ("POST /infill", "language models"),
    ("POST /score", "rerankers"),
    ("POST /mcp", "Model Context Protocol"),
    ("POST /api/chat", "language models"),
    ("POST /api/generate", "language models"),
    ("POST /api/embed", "encoders"),
    ("POST /api/embeddings", "encoders"),
    ("GET  /api/tags", ""),
    ("GET  /api/ps", ""),
    ("POST /api/show", ""),
    ("GET  /api/version", ""),
    ("GET  /v2", "Open Inference Protocol"),
    ("GET  /v2/models/{model}", "graphs"),
    ("GET  /v2/models/{model}/ready", "graphs"),
    ("POST /v2/models/{model}/infer", "graphs"),
];

/// `GET /`: the page for browsers, or the routes as text. Neither names a model, because they need no key.
async fn index(headers: HeaderMap) -> Response {
    if page::is_wanted(&headers) {
        return page::index();
    }
    let mut page = format!("tercet {}\n\n", env!("CARGO_PKG_VERSION"));
    for (route, models) in ROUTES {
        page += format!("{route:<34}{models}").trim_end();
        page.push('\n');
    }
    page += "\nOpenAI clients: set the base URL to this address with /v1.\n";
    let kind = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::VARY, "accept"),
    ];
    (kind, page).into_response()
}

async fn health() -> Response {
    json_response(&serde_json::json!({"status": "ok"}))
}

async fn metrics(State(app): State<Arc<AppState>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    let store = app.options.prefix_store.as_ref();
    let prefixes = store.map(tercet_models::PrefixStore::stats);
    (kind, app.metrics.page(&app.models.metrics(), prefixes)).into_response()
}

/// An error response in the form of the protocol of `path`.
fn error_response(path: &str, refusal: ApiError) -> Response {
    let is_below = |root: &str| {
        let rest = path.strip_prefix(root);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match () {
        () if is_below("/v2") => refusal.into_oip_response(),
        () if is_below("/api") => OllamaError(refusal).into_response(),
        () if is_below("/v1/messages") => AnthropicError(refusal).into_response(),
        () => refusal.into_response(),
    }
}

async fn not_found(uri: Uri) -> Response {
    let path = uri.path().trim_end_matches('/');
    let near = [path.to_string(), format!("/v1{path}")];
    let near = near.iter().find(|path| route_of(path) != "other");
    let message = match near {
        Some(near) => format!("unknown route; use {near}, or GET / for all routes"),
        None => "unknown route; GET / lists the routes".to_string(),
    };
    let refusal = ApiError::new(StatusCode::NOT_FOUND, "not_found", message);
    error_response(uri.path(), refusal)
}

async fn method_not_allowed(uri: Uri) -> Response {
    let message = "method not allowed for this route; GET / lists the routes";
    let status = StatusCode::METHOD_NOT_ALLOWED;
    let refusal = ApiError::new(status, "method_not_allowed", message);
    error_response(uri.path(), refusal)
}

async fn guard(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    match app.key_of(request.headers()) {
        Ok(key) => {
            if let Some(record) = request.extensions().get::<Arc<RequestRecord>>() {
                record.set_key(key);
            }
            next.run(request).await
        }
        Err(refusal) => error_response(request.uri().path(), refusal),
    }
}

/// Header with the id of a request, of the client or of the server; responses repeat it.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same header of Anthropic's API.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// Maximum bytes of a client's id.
const MAX_REQUEST_ID: usize = 128;

/// The id that a client gave its request, if it is visible ASCII and short.
fn given_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let given = headers.get(REQUEST_ID)?;
    let is_visible = given.as_bytes().iter().all(u8::is_ascii_graphic);
    (is_visible && (1..=MAX_REQUEST_ID).contains(&given.len())).then(|| given.clone())
}

fn new_id() -> HeaderValue {
    let [high, low] = [0u8, 1].map(|half| RandomState::new().hash_one(half));
    HeaderValue::from_str(&format!("req_{high:016x}{low:016x}"))
        .unwrap_or(HeaderValue::from_static("req_0"))
}

/// Counts a request in the metrics, names it, and logs it when its response ends.
async fn count_request(
    State(app): State<Arc<AppState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let route = route_of(request.uri().path());
    let record = Arc::new(RequestRecord::default());
    let given = given_id(request.headers());
    if let Some(given) = given.as_ref().and_then(|id| id.to_str().ok()) {
        record.set_id(given);
    }
    let id = given.unwrap_or_else(new_id);
    let is_anthropic = route.starts_with("/v1/messages");
    let mut guard = app.options.log.clone().map(|log| {
        let client = request.extensions().get::<ClientAddress>().copied();
        let named = (request.method().as_str(), request.uri().path());
        RequestLogGuard::new(log, Arc::clone(&record), client, named)
    });
    request.extensions_mut().insert(Arc::clone(&record));
    let mut response = next.run(request).await;
    if is_anthropic {
        response
            .headers_mut()
            .insert(ANTHROPIC_REQUEST_ID, id.clone());
    }
    response.headers_mut().insert(REQUEST_ID, id);
    if let Some(error) = response.extensions_mut().remove::<LoggedError>() {
        record.set_error(error);
    }
    let status = response.status().as_u16();
    app.metrics.request(route, status, began.elapsed());
    if let Some(guard) = &mut guard {
        guard.set_status(status);
    }
    if !record.is_streaming() {
        return response;
    }
    // The guard lives as long as the stream.
    response.map(|body| {
        let events = body.into_data_stream().map(move |event| {
            let _ = &guard;
            event
        });
        Body::from_stream(events)
    })
}

/// Route of a path, for metrics. Unknown paths share one label, so clients cannot create new metric
/// rows.
fn route_of(path: &str) -> &'static str {
    const PLAIN: &[&str] = &[
        "/",
        "/health",
        "/metrics",
        "/v1/models",
        "/models/load",
        "/models/unload",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/health",
        "/rerank",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/props",
        "/slots",
        "/infill",
        "/score",
        "/mcp",
        "/v1/score",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
        "/api/tags",
        "/api/ps",
        "/api/show",
        "/api/version",
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
    ];
    if let Some(route) = PLAIN.iter().find(|r| **r == path) {
        return route;
    }
    match path {
        _ if path.starts_with("/page/") => "/page/{file}",
        _ if path.starts_with("/v1/models/") => "/v1/models/{model}",
        _ if path.starts_with("/v2/models/") && path.ends_with("/infer") => {
            "/v2/models/{model}/infer"
        }
        _ if path.starts_with("/v2/models/") => "/v2/models/{model}",
        _ => "other",
    }
}
