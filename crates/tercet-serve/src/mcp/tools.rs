//! The tools of the MCP server. Those without a model to run them are not listed.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::{INVALID_PARAMS, RpcError};
use crate::encoder::EncoderInputs;
use crate::error::ApiError;
use crate::fields::{JsonFields, wrong};
use crate::http::AppState;
use crate::models::ServedKind;
use crate::openai::{chat, embeddings};
use crate::request_log::RequestRecord;

/// Maximum documents of a search, as those of `/v1/rerank`.
const MAX_DOCUMENTS: usize = 2048;
/// Documents that a search returns by default.
const DEFAULT_TOP: usize = 10;

/// A tool and the kinds of models that can run it.
struct McpTool {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    kinds: &'static [ServedKind],
    /// The properties of its arguments, and the names of the required ones.
    arguments: fn() -> (Value, Value),
}

const TOOLS: &[McpTool] = &[
    McpTool {
        name: "generate",
        title: "Generate text",
        description: "Answers a prompt with a language model.",
        kinds: &[ServedKind::Language, ServedKind::ImageText],
        arguments: || {
            let properties = json!({
                "prompt": {"type": "string", "description": "The message of the user"},
                "system": {"type": "string", "description": "The system prompt"},
                "max_tokens": {"type": "integer", "minimum": 1},
                "temperature": {"type": "number", "minimum": 0},
                "seed": {"type": "integer", "minimum": 0},
            });
            (properties, json!(["prompt"]))
        },
    },
    McpTool {
        name: "embed",
        title: "Embed texts",
        description: "Computes a vector for each text with a sentence encoder.",
        kinds: &[ServedKind::Encoder],
        arguments: || {
            let properties = json!({
                "texts": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                "dimensions": {"type": "integer", "minimum": 1, "description": "Elements of a vector"},
            });
            (properties, json!(["texts"]))
        },
    },
    McpTool {
        name: "search",
        title: "Search documents",
        description: "Orders documents by their relevance for a query, with a reranker or a sentence encoder.",
        kinds: &[ServedKind::Reranker, ServedKind::Encoder],
        arguments: || {
            let properties = json!({
                "query": {"type": "string"},
                "documents": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                "top": {"type": "integer", "minimum": 1, "description": "Maximum number of results, 10 by default"},
            });
            (properties, json!(["query", "documents"]))
        },
    },
    #[cfg(feature = "audio")]
    McpTool {
        name: "transcribe",
        title: "Transcribe speech",
        description: "Writes down the speech of a WAV, FLAC or MP3 recording.",
        kinds: &[ServedKind::Speech],
        arguments: || {
            let properties = json!({
                "audio": {"type": "string", "contentEncoding": "base64", "description": "The file in base64"},
                "language": {"type": "string", "description": "Code of the language, such as `en`"},
            });
            (properties, json!(["audio"]))
        },
    },
];

/// Names of the models that can run a tool; rerankers before encoders.
fn models(app: &AppState, tool: &McpTool) -> Vec<(String, ServedKind)> {
    let all = app.models.listed_models();
    let of = |kind: &ServedKind| {
        let kind = *kind;
        let all = all.iter().filter(move |model| model.kind == kind);
        all.map(move |model| (model.name.clone(), kind))
    };
    tool.kinds.iter().flat_map(of).collect()
}

/// The descriptions of the tools that the models can run.
pub(super) fn listed(app: &AppState) -> Vec<Value> {
    let described = |tool: &McpTool| {
        let models = models(app, tool);
        if models.is_empty() {
            return None;
        }
        let (mut properties, required) = (tool.arguments)();
        let names: Vec<String> = models.into_iter().map(|(name, _)| name).collect();
        properties["model"] = json!({"type": "string", "enum": names});
        Some(json!({
            "name": tool.name, "title": tool.title, "description": tool.description,
            "inputSchema": {
                "type": "object", "properties": properties, "required": required, "additionalProperties": false,
            },
            "annotations": {"readOnlyHint": true, "openWorldHint": false},
        }))
    };
    TOOLS.iter().filter_map(described).collect()
}

/// Calls a tool. Errors of its arguments and of the engine are results, which the client's model can read.
///
/// # Errors
/// For an unknown tool, and for arguments that are no object.
pub(super) async fn call(
    app: &Arc<AppState>,
    record: &Arc<RequestRecord>,
    params: Value,
) -> Result<Value, RpcError> {
    let name = params.get("name").and_then(Value::as_str);
    let tool = TOOLS.iter().find(|tool| Some(tool.name) == name);
    let tool = tool.filter(|tool| !models(app, tool).is_empty());
    let Some(tool) = tool else {
        let text = format!("unknown tool `{}`", name.unwrap_or_default());
        return Err(RpcError::new(INVALID_PARAMS, text));
    };
    let arguments = params.get("arguments").cloned().unwrap_or(json!({}));
    let fields = JsonFields::from_value(arguments, "field `arguments`");
    let fields = fields.map_err(|e| RpcError::new(INVALID_PARAMS, e.message))?;
    Ok(match run(app, record, tool, fields).await {
        Ok((text, structured)) => {
            let content = json!([{"type": "text", "text": text}]);
            json!({"content": content, "structuredContent": structured, "isError": false})
        }
        Err(e) => {
            record.set_error(e.logged());
            json!({"content": [{"type": "text", "text": e.message}], "isError": true})
        }
    })
}

/// The result of a tool as text and as JSON.
type ToolOutput = (String, Value);

async fn run(
    app: &Arc<AppState>,
    record: &Arc<RequestRecord>,
    tool: &McpTool,
    mut fields: JsonFields,
) -> Result<ToolOutput, ApiError> {
    let models = models(app, tool);
    let asked = fields.text("model")?;
    let model = match &asked {
        None => models.first(),
        Some(asked) => models.iter().find(|(name, _)| name == asked),
    };
    let Some((model, kind)) = model else {
        let known: Vec<String> = models.into_iter().map(|(name, _)| name).collect();
        return Err(ApiError::no_model(&asked.unwrap_or_default(), &known));
    };
    match tool.name {
        "generate" => generate(app, record, model, fields).await,
        "embed" => embed(app, record, model, fields).await,
        "search" => search(app, record, (model, *kind), fields).await,
        _ => transcribe(app, record, model, fields).await,
    }
}

async fn generate(
    app: &Arc<AppState>,
    record: &Arc<RequestRecord>,
    model: &str,
    mut fields: JsonFields,
) -> Result<ToolOutput, ApiError> {
    let prompt = fields.need_text("prompt")?;
    let mut messages = Vec::new();
    if let Some(system) = fields.text("system")? {
        messages.push(json!({"role": "system", "content": system}));
    }
    messages.push(json!({"role": "user", "content": prompt}));
    let mut request = json!({"model": model, "messages": messages});
    for name in ["max_tokens", "temperature", "seed"] {
        if let Some(value) = fields.take(name) {
            request[name] = value;
        }
    }
    fields.finish()?;
    let (state, own) = (State(Arc::clone(app)), Extension(Arc::clone(record)));
    let body = Body::from(request.to_string());
    let response = chat::handle(state, own, json_headers(), body).await?;
    let answer = json_of(response).await?;
    let message = &answer["choices"][0]["message"];
    let text = message["content"].as_str().unwrap_or_default().to_string();
    let mut structured = json!({
        "text": text, "finish_reason": answer["choices"][0]["finish_reason"], "model": answer["model"],
    });
    if let Some(thought) = message.get("reasoning_content") {
        structured["reasoning"] = thought.clone();
    }
    Ok((text, structured))
}

async fn embed(
    app: &Arc<AppState>,
    record: &Arc<RequestRecord>,
    model: &str,
    mut fields: JsonFields,
) -> Result<ToolOutput, ApiError> {
    let mut request = json!({"model": model, "input": fields.need("texts")?});
    if let Some(value) = fields.take("dimensions") {
        request["dimensions"] = value;
    }
    fields.finish()?;
    let (state, own) = (State(Arc::clone(app)), Extension(Arc::clone(record)));
    let body = Body::from(request.to_string());
    let response = embeddings::handle(state, own, json_headers(), body).await?;
    let mut answer = json_of(response).await?;
    let items = answer["data"].as_array_mut().map(std::mem::take);
    let rows = items.unwrap_or_default().into_iter();
    let rows: Vec<Value> = rows.map(|mut item| item["embedding"].take()).collect();
    let structured = json!({"embeddings": rows, "model": model});
    Ok((structured["embeddings"].to_string(), structured))
}

/// Orders documents by a reranker's scores, or by the cosine of embeddings.
async fn search(
    app: &Arc<AppState>,
    record: &Arc<RequestRecord>,
    (model, kind): (&str, ServedKind),
    mut fields: JsonFields,
) -> Result<ToolOutput, ApiError> {
    let query = fields.need_text("query")?;
    let documents = fields.texts("documents")?;
    if documents.is_empty() || documents.len() > MAX_DOCUMENTS {
        return Err(ApiError::bad_request(format!(
            "field `documents` has {} documents; expected 1 to {MAX_DOCUMENTS}",
            documents.len()
        )));
    }
    let top = match fields.count("top")? {
        Some(0) => return Err(wrong("top", &json!(0), "a whole number, 1 or more")),
        top => top.map_or(DEFAULT_TOP, |n| usize::try_from(n).unwrap_or(usize::MAX)),
    };
    fields.finish()?;
    let scores = match kind {
        ServedKind::Reranker => {
            let (name, reranker) = app.models.reranker(Some(model)).await?;
            record.set_model(Some(model), name);
            let ranked = reranker
                .rank(query, documents.clone(), true, &app.ticket(record))
                .await?;
            record.set_prompt_tokens(ranked.tokens);
            ranked.scores
        }
        _ => {
            let (name, encoder) = app.models.encoder(Some(model)).await?;
            record.set_model(Some(model), name);
            let texts = std::iter::once(query).chain(documents.iter().cloned());
            let inputs = EncoderInputs::Texts(texts.collect());
            let embedded = encoder.embed(inputs, true, &app.ticket(record)).await?;
            record.set_prompt_tokens(embedded.tokens);
            let (query, rows) = embedded
                .rows
                .split_first()
                .ok_or_else(ApiError::worker_lost)?;
            rows.iter().map(|row| cosine(query, row)).collect()
        }
    };
    let mut order: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    // The sort is stable: documents with equal scores stay in input order.
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.truncate(top);
    let results = order.iter().map(
        |(index, score)| json!({"index": index, "score": score, "document": documents[*index]}),
    );
    let structured = json!({"results": results.collect::<Vec<Value>>(), "model": model});
    Ok((structured["results"].to_string(), structured))
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |x: &[f32], y: &[f32]| -> f64 {
        x.iter()
            .zip(y)
            .map(|(x, y)| f64::from(*x) * f64::from(*y))
            .sum()
    };
    let length = (dot(a, a) * dot(b, b)).sqrt();
    match length > 0.0 {
        true => (dot(a, b) / length) as f32,
        false => 0.0,
    }
}

#[cfg(feature = "audio")]
async fn transcribe(
    app: &Arc<AppState>,
    record: &Arc<RequestRecord>,
    model: &str,
    mut fields: JsonFields,
) -> Result<ToolOutput, ApiError> {
    use base64::Engine;
    let audio = fields.need_text("audio")?;
    let language = fields.text("language")?.filter(|code| !code.is_empty());
    fields.finish()?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(audio.trim());
    let bytes =
        bytes.map_err(|e| ApiError::bad_request(format!("field `audio` is no base64: {e}")))?;
    let (_, transcriber) = app.models.transcriber(Some(model)).await?;
    let upload = crate::transcriber::AudioUpload {
        field: "audio".to_string(),
        name: "audio".to_string(),
        bytes: bytes.into(),
        language,
        temperature: 0.0,
        timestamps: false,
        translates: false,
    };
    let transcript = transcriber.transcribe(upload, &app.ticket(record)).await?;
    let text = transcript.text().trim().to_string();
    let structured = json!({
        "text": text, "language": transcript.language, "seconds": transcript.seconds, "model": model,
    });
    Ok((text, structured))
}

#[cfg(not(feature = "audio"))]
async fn transcribe(
    _: &Arc<AppState>,
    _: &Arc<RequestRecord>,
    _: &str,
    _: JsonFields,
) -> Result<ToolOutput, ApiError> {
    Err(ApiError::bad_request(
        "transcription requires a build with the feature `audio`",
    ))
}

fn json_headers() -> HeaderMap {
    let kind = (
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    HeaderMap::from_iter([kind])
}

/// The JSON document of a response of this server.
async fn json_of(response: impl IntoResponse) -> Result<Value, ApiError> {
    let response: Response = response.into_response();
    let bytes = to_bytes(response.into_body(), usize::MAX).await;
    let bytes = bytes.map_err(|e| ApiError::failed(&e))?;
    serde_json::from_slice(&bytes).map_err(|e| ApiError::failed(&e))
}
