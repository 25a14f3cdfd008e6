//! What clients are told, and why a server does not start.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// A request that is refused or failed, in the form of the OpenAI routes; [`Refusal::plain`] is that of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// A word for programs.
    pub(crate) code: &'static str,
}

impl Refusal {
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
    ) -> Refusal {
        Refusal {
            status,
            message: message.into(),
            code,
        }
    }

    /// Something in the request.
    pub(crate) fn bad(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    pub(crate) fn no_model(name: &str, known: &[String]) -> Refusal {
        let shown: String = name.chars().take(64).collect();
        let known = match known {
            [] => "none".to_string(),
            known => known.join(", "),
        };
        let message = format!("there is no model `{shown}` for this route; there is: {known}");
        Refusal::new(StatusCode::NOT_FOUND, "model_not_found", message)
    }

    pub(crate) fn busy() -> Refusal {
        let message = "all slots are taken and the queue is full; try again later";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
    }

    pub(crate) fn late() -> Refusal {
        let message = "the deadline of the server for a request has passed; ask for fewer tokens, or start it with a longer --deadline";
        Refusal::new(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded", message)
    }

    /// The engine failed.
    pub(crate) fn failed(e: &dyn std::error::Error) -> Refusal {
        Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "engine_error",
            tercet::one_line(e),
        )
    }

    /// The worker is gone: a bug of ours, or the server stops.
    pub(crate) fn lost() -> Refusal {
        let message = "the request was given up: the server stops, or has a bug that its log shows";
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "engine_error", message)
    }

    pub(crate) fn body(&self) -> serde_json::Value {
        let kind = match self.status.is_client_error() {
            true => "invalid_request_error",
            false => "server_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": null, "code": self.code}})
    }

    /// The response of the Open Inference Protocol.
    pub(crate) fn plain(self) -> Response {
        self.with(&json!({"error": self.message}))
    }

    fn with(&self, body: &serde_json::Value) -> Response {
        let mut response = json_response(body);
        *response.status_mut() = self.status;
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

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.with(&self.body())
    }
}

/// A JSON document as a response.
pub(crate) fn json_response(body: &serde_json::Value) -> Response {
    let kind = [(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )];
    (kind, body.to_string()).into_response()
}

/// Why a server did not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A model was refused.
    #[error("cannot serve `{name}`")]
    Model {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: tercet_models::Error,
    },
    /// A graph was refused by the device.
    #[error("cannot serve the graph `{name}`")]
    Graph {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: tercet::CompileError,
    },
    /// A graph was refused.
    #[error("cannot serve the graph `{name}`: {reason}")]
    Unfit {
        /// Its name.
        name: String,
        /// Why, and what to do.
        reason: String,
    },
    /// A language model with a draft was to write several texts at a time.
    #[error(
        "`{name}` has a draft, and with one a model writes one text at a time, not {slots}: start it with one slot (--parallel 1), or leave out the draft"
    )]
    DraftSlots {
        /// Its name.
        name: String,
        /// The slots that were asked for.
        slots: usize,
    },
    /// Another copy of a graph has no room.
    #[error("no room for another slot of `{name}`; start with fewer slots")]
    Slot {
        /// Its name.
        name: String,
        /// What the device said.
        #[source]
        source: tercet::RunError,
    },
    /// Two models have one name.
    #[error("two models are called `{name}`; rename a file, or serve one of them")]
    Twice {
        /// The name.
        name: String,
    },
    /// An adapter has a name that requests cannot use.
    #[error("an adapter of `{model}` cannot be called `{name}`: {reason}")]
    AdapterName {
        /// The model.
        model: String,
        /// The name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// The system refused.
    #[error("{what}")]
    Io {
        /// What could not be done.
        what: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}
