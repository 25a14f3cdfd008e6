//! `POST /v1/audio/transcriptions`, and `/v1/audio/translations`, which translates the speech to English.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tercet_models::speech::Transcript;

use super::ignored_fields::IGNORED;
use crate::error::{ApiError, json_response};
use crate::fields::wrong;
use crate::http::AppState;
use crate::multipart::MultipartForm;
use crate::queue_ticket::{TERM_FIELDS, take_terms};
use crate::request_log::RequestRecord;
use crate::transcriber::AudioUpload;

/// Response format.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TranscriptionFormat {
    Json,
    Text,
    Srt,
    Vtt,
    Verbose,
}

const FORMATS: [(&str, TranscriptionFormat); 5] = [
    ("json", TranscriptionFormat::Json),
    ("text", TranscriptionFormat::Text),
    ("srt", TranscriptionFormat::Srt),
    ("vtt", TranscriptionFormat::Vtt),
    ("verbose_json", TranscriptionFormat::Verbose),
];

/// `POST /v1/audio/transcriptions`
pub(crate) async fn handle(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    written((&app, &record), &headers, body, false).await
}

/// `POST /v1/audio/translations`
pub(crate) async fn translate(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    written((&app, &record), &headers, body, true).await
}

async fn written(
    (app, record): (&AppState, &RequestRecord),
    headers: &HeaderMap,
    body: Body,
    translates: bool,
) -> Result<Response, ApiError> {
    let form = MultipartForm::read(app, headers, body).await?;
    let (mut fields, (name, bytes)) = (form.fields, form.file);
    fields.parse_numbers(&TERM_FIELDS);
    take_terms(&mut fields, record)?;
    let asked = fields.text("model")?;
    let model = app.models.transcriber(asked.as_deref());
    let (served, transcriber) = app.in_time(record, model).await?;
    record.set_model(asked.as_deref(), served);
    let said = fields.text("response_format")?;
    let said = said.as_deref().unwrap_or("json");
    let Some((_, format)) = FORMATS.iter().find(|(known, _)| *known == said) else {
        let known: Vec<&str> = FORMATS.iter().map(|(known, _)| *known).collect();
        let expected = format!("one of {}", known.join(", "));
        return Err(wrong("response_format", &json!(said), &expected));
    };
    let temperature = match fields.text("temperature")? {
        None => 0.0,
        Some(text) => match text.parse() {
            Ok(number) if (0.0..=1.0).contains(&number) => number,
            _ => return Err(wrong("temperature", &json!(text), "a number from 0 to 1")),
        },
    };
    let language = fields.text("language")?.filter(|code| !code.is_empty());
    let granularities = fields.texts("timestamp_granularities[]")?;
    if let Some(other) = granularities.iter().find(|g| *g != "segment") {
        let expected = "`segment`; word timestamps are not supported";
        return Err(wrong("timestamp_granularities", &json!(other), expected));
    }
    fields.neutral(&[("stream", &[json!("false")]), ("prompt", &[json!("")])])?;
    fields.ignore(&IGNORED, (record, ""));
    fields.finish()?;
    let recording = AudioUpload {
        field: "file".to_string(),
        name,
        bytes,
        language,
        temperature,
        timestamps: matches!(
            format,
            TranscriptionFormat::Srt | TranscriptionFormat::Vtt | TranscriptionFormat::Verbose
        ),
        translates,
    };
    let transcript = transcriber
        .transcribe(recording, &app.ticket(record))
        .await?;
    let task = if translates {
        "translate"
    } else {
        "transcribe"
    };
    Ok(answer(*format, task, &transcript))
}

fn answer(format: TranscriptionFormat, task: &str, transcript: &Transcript) -> Response {
    let plain =
        |kind: &'static str, text: String| ([(header::CONTENT_TYPE, kind)], text).into_response();
    let text = transcript.text();
    let text = text.trim();
    match format {
        TranscriptionFormat::Json => json_response(&json!({"text": text})),
        TranscriptionFormat::Text => plain("text/plain; charset=utf-8", format!("{text}\n")),
        TranscriptionFormat::Srt => plain("text/plain; charset=utf-8", transcript.srt()),
        TranscriptionFormat::Vtt => plain("text/vtt; charset=utf-8", transcript.vtt()),
        TranscriptionFormat::Verbose => {
            let segments = transcript.segments.iter().enumerate().map(|(id, s)| {
                json!({
                    "id": id, "start": rounded(s.start), "end": rounded(s.end), "text": s.text, "tokens": s.tokens,
                    "temperature": s.temperature, "avg_logprob": s.log_probability,
                    "compression_ratio": s.compression, "no_speech_prob": s.no_speech,
                })
            });
            let segments: Vec<Value> = segments.collect();
            json_response(&json!({
                "task": task, "language": transcript.language, "duration": transcript.seconds,
                "text": text, "segments": segments,
            }))
        }
    }
}

/// Rounds to milliseconds, which is finer than the resolution of timestamps.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
