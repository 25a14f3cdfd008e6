//! Error responses to clients, and errors of starting a server.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::request_log::LoggedError;

/// An error response in the form of the OpenAI routes. [`ApiError::into_oip_response`] is the form of the other
/// routes.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// Status of the response.
    pub status: StatusCode,
    pub(crate) message: String,
    /// Machine-readable error code.
    pub code: &'static str,
    /// Path of the field that caused the error.
    pub(crate) param: Option<String>,
}

impl ApiError {
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
    ) -> ApiError {
        ApiError {
            status,
            message: message.into(),
            code,
            param: None,
        }
    }

    /// Names the field that caused the error.
    #[must_use]
    pub(crate) fn with_param(mut self, path: &str) -> ApiError {
        self.param = Some(path.to_string());
        self
    }

    /// An invalid request (status 400).
    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    pub(crate) fn no_model(name: &str, known: &[String]) -> ApiError {
        let shown: String = name.chars().take(64).collect();
        let known = match known {
            [] => "none".to_string(),
            known => known.join(", "),
        };
        let message = format!("unknown model `{shown}` for this route; available: {known}");
        ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message)
    }

    /// A full queue (status 503).
    pub fn overloaded() -> ApiError {
        let message = "all slots are busy and the queue is full; try again later";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
    }

    /// No slot became free in time (status 503).
    pub(crate) fn queue_timeout(limit: std::time::Duration) -> ApiError {
        let message = format!(
            "no slot became free within {} s; try again later, or ask for a longer time: `queue_seconds` of the request, --queue-seconds of the server",
            limit.as_secs_f64()
        );
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "queue_timeout", message)
    }

    /// A request that took too long (status 504).
    pub fn deadline_exceeded() -> ApiError {
        let message = "the request exceeded its deadline; request fewer tokens, set a longer `deadline_seconds`, or start the server with a longer --deadline";
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded", message)
    }

    /// The engine failed (status 500).
    pub(crate) fn failed(e: &dyn std::error::Error) -> ApiError {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "engine_error",
            tercet::one_line(e),
        )
    }

    /// The worker ended without an answer: the server is shutting down, or the worker panicked.
    pub fn worker_lost() -> ApiError {
        let message =
            "request aborted: the server is shutting down or hit an internal error (see its log)";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "engine_error", message)
    }

    pub(crate) fn body(&self) -> serde_json::Value {
        let kind = match self.status.is_client_error() {
            true => "invalid_request_error",
            false => "server_error",
        };
        let (message, param) = (&self.message, &self.param);
        json!({"error": {"message": message, "type": kind, "param": param, "code": self.code}})
    }

    /// The error as a response of the Open Inference Protocol.
    pub(crate) fn into_oip_response(self) -> Response {
        self.with(&json!({"error": self.message}))
    }

    /// Code and message for the log.
    pub(crate) fn logged(&self) -> LoggedError {
        LoggedError {
            code: self.code,
            message: self.message.clone(),
        }
    }

    /// The error as a response with this body.
    pub(crate) fn with(&self, body: &serde_json::Value) -> Response {
        let mut response = json_response(body);
        *response.status_mut() = self.status;
        response.extensions_mut().insert(self.logged());
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.with(&self.body())
    }
}

/// A response with a JSON document.
pub(crate) fn json_response(body: &serde_json::Value) -> Response {
    json_text_response(body.to_string())
}

/// A response with the text of a JSON document.
pub(crate) fn json_text_response(text: String) -> Response {
    let kind = [(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )];
    (kind, text).into_response()
}

/// Errors of starting or running a server.
///
/// ```
/// use tercet::{CompileOptions, DType, Device, Graph, Type};
/// # use tercet_models::MatmulPrecision;
/// use tercet_serve::{ModelConfig, ModelRegistry, ServeError, ServeOptions};
/// let mut g = Graph::new();
/// let w = g.param("w", Type::new(DType::F32, [2]))?;
/// g.output("w", w)?;
/// # let config = ModelConfig {
/// #     device: Device::cpu(),
/// #     dtype: DType::F32,
/// #     cache: None,
/// #     matmul_precision: MatmulPrecision::Full,
/// #     context: None,
/// #     adapters: Vec::new(),
/// #     draft: None,
/// # };
/// let (compile, serve) = (CompileOptions::new(), ServeOptions::default());
/// let error = ModelRegistry::new().add_graph("g", &g, &compile, &config, &serve).unwrap_err();
/// assert!(matches!(error, ServeError::InvalidGraph { .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A model cannot be served.
    #[error("cannot serve `{name}`")]
    Model {
        /// Name of the model.
        name: String,
        /// The reason.
        #[source]
        source: tercet_models::Error,
    },
    /// A graph cannot be compiled for the device.
    #[error("cannot serve the graph `{name}`")]
    Graph {
        /// Name of the graph.
        name: String,
        /// The reason.
        #[source]
        source: tercet::CompileError,
    },
    /// A graph does not meet the requirements of serving.
    #[error("cannot serve the graph `{name}`: {reason}")]
    InvalidGraph {
        /// Name of the graph.
        name: String,
        /// The reason and a remedy.
        reason: String,
    },
    /// There is not enough memory for another slot of a graph.
    #[error("not enough memory for another slot of `{name}`; start with fewer slots")]
    Slot {
        /// Name of the graph.
        name: String,
        /// The error of the device.
        #[source]
        source: tercet::RunError,
    },
    /// Two models have the same name.
    #[error("two models have the name `{name}`; rename a file, or serve only one of them")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A model alone exceeds the memory of all models.
    #[error(
        "`{name}` takes {bytes} bytes, which exceeds the memory of {limit} bytes for models; set a larger --max-model-memory, a shorter context or fewer slots"
    )]
    ModelMemory {
        /// Name of the model.
        name: String,
        /// Estimated bytes of the model.
        bytes: u64,
        /// Maximum bytes of all models.
        limit: u64,
    },
    /// Requests cannot select an adapter by its name.
    #[error("an adapter of `{model}` cannot have the name `{name}`: {reason}")]
    AdapterName {
        /// Name of the model.
        model: String,
        /// Name of the adapter.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// The certificate or the private key for HTTPS cannot be used.
    #[error("`{}` is not {expected}: {reason}", path.display())]
    Tls {
        /// The file.
        path: std::path::PathBuf,
        /// What the file must be.
        expected: &'static str,
        /// The reason.
        reason: String,
    },
    /// An allowed origin is not an origin.
    #[error(
        "`{origin}` is not an origin; expected a scheme and a host, such as `https://app.example`, or `*`"
    )]
    Origin {
        /// The text.
        origin: String,
    },
    /// A system call failed.
    #[error("{what}")]
    Io {
        /// The failed operation.
        what: String,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
}
