//! The Open Inference Protocol, version 2, for graphs, with Triton's binary tensor extension.
//!
//! <https://github.com/kserve/open-inference-protocol>. In the binary extension, the tensor bytes follow the JSON header. The HTTP header `Inference-Header-Content-Length` is the length of the JSON.

mod request;
mod tensor;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tercet::Port;

use crate::error::{ApiError, json_response};
use crate::graph::GraphModel;
use crate::http::AppState;
use crate::request_log::RequestRecord;
use request::{InferenceRequest, OutputRequest};

/// Length of the JSON that precedes binary tensors.
const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// `GET /v2`
pub(crate) async fn server() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    json_response(
        &json!({"name": "tercet", "version": version, "extensions": ["binary_tensor_data"]}),
    )
}

/// `GET /v2/health/live` and `/v2/health/ready`. All models are loaded before the server listens.
pub(crate) async fn healthy() -> Response {
    json_response(&json!({"live": true, "ready": true}))
}

/// Version number of every graph.
const VERSION: &str = "1";

/// Path parameters: a graph, and its version if the path has one.
#[derive(serde::Deserialize)]
pub(crate) struct OipModelPath {
    model: String,
    version: Option<String>,
}

impl OipModelPath {
    fn graph(&self, app: &AppState) -> Result<Arc<GraphModel>, ApiError> {
        let graph = app.models.graph(&self.model)?;
        match self.version.as_deref() {
            None | Some(VERSION) => Ok(graph),
            Some(_) => {
                let message = format!("`{}` has only version {VERSION}", self.model);
                let status = axum::http::StatusCode::NOT_FOUND;
                Err(ApiError::new(status, "model_not_found", message))
            }
        }
    }
}

/// `GET /v2/models/{model}`
pub(crate) async fn metadata(
    State(app): State<Arc<AppState>>,
    Path(named): Path<OipModelPath>,
) -> Response {
    let graph = match named.graph(&app) {
        Ok(graph) => graph,
        Err(refusal) => return refusal.into_oip_response(),
    };
    let model = named.model;
    let ports = |ports: &[Port]| -> Vec<Value> { ports.iter().map(tensor::metadata).collect() };
    let (inputs, outputs) = (
        ports(&graph.signature.inputs),
        ports(&graph.signature.outputs),
    );
    json_response(
        &json!({"name": model, "versions": [VERSION], "platform": "tercet", "inputs": inputs, "outputs": outputs}),
    )
}

/// `GET /v2/models/{model}/ready`
pub(crate) async fn ready(
    State(app): State<Arc<AppState>>,
    Path(named): Path<OipModelPath>,
) -> Response {
    match named.graph(&app) {
        Ok(_) => json_response(&json!({"name": named.model, "ready": true})),
        Err(refusal) => refusal.into_oip_response(),
    }
}

/// `POST /v2/models/{model}/infer`
pub(crate) async fn infer(
    State(app): State<Arc<AppState>>,
    Path(named): Path<OipModelPath>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    record.set_model(None, &named.model);
    answered((&app, &record), &named, &headers, body)
        .await
        .unwrap_or_else(ApiError::into_oip_response)
}

async fn answered(
    (app, record): (&AppState, &RequestRecord),
    named: &OipModelPath,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let graph = named.graph(app)?;
    let types = ["application/json", "application/octet-stream"];
    let body = match headers.contains_key(header::CONTENT_TYPE) {
        true => app.body(headers, body, &types).await?,
        // Triton's clients do not set a media type.
        false => {
            app.check_origin(headers)?;
            app.read(headers, body).await?
        }
    };
    let length = match headers.get(&HEADER_LENGTH) {
        None => body.len(),
        Some(length) => {
            let length = length.to_str().ok().and_then(|v| v.parse::<usize>().ok());
            length.filter(|n| *n <= body.len()).ok_or_else(|| {
                ApiError::bad_request(format!(
                    "the header {HEADER_LENGTH} is not a valid length within the body of {} bytes",
                    body.len()
                ))
            })?
        }
    };
    let (head, binary) = body.split_at(length);
    let InferenceRequest {
        id,
        inputs,
        outputs,
    } = InferenceRequest::parse((&graph, record), head, binary)?;
    let names = outputs.iter().map(|o| o.name.clone()).collect();
    let results = graph.run(inputs, names, &app.ticket(record)).await?;

    let mut described = Vec::new();
    let mut data = Vec::new();
    for (OutputRequest { name, binary }, result) in outputs.iter().zip(&results) {
        let datatype = tensor::datatype(result.dtype());
        let mut one = json!({"name": name, "datatype": datatype, "shape": result.shape()});
        if *binary {
            one["parameters"] = json!({"binary_data_size": result.bytes().len()});
            data.extend_from_slice(result.bytes());
        } else {
            one["data"] = tensor::to_json(name, result)?;
        }
        described.push(one);
    }
    let mut answer =
        json!({"model_name": named.model, "model_version": VERSION, "outputs": described});
    if let Some(id) = id {
        answer["id"] = Value::String(id);
    }
    if !outputs.iter().any(|o| o.binary) {
        return Ok(json_response(&answer));
    }
    let mut bytes = answer.to_string().into_bytes();
    let length = HeaderValue::from(bytes.len());
    bytes.extend(data);
    let kind = HeaderValue::from_static("application/octet-stream");
    Ok((
        [(header::CONTENT_TYPE, kind), (HEADER_LENGTH, length)],
        bytes,
    )
        .into_response())
}
