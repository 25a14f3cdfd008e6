//! `POST /v1/audio/transcriptions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tercet_models::speech::Transcript;

use crate::error::{Refusal, json_response};
use crate::fields::wrong;
use crate::form::Form;
use crate::http::App;
use crate::transcriber::Recording;

/// What an answer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Text,
    Srt,
    Vtt,
    Verbose,
}

const FORMATS: [(&str, Format); 5] = [
    ("json", Format::Json),
    ("text", Format::Text),
    ("srt", Format::Srt),
    ("vtt", Format::Vtt),
    ("verbose_json", Format::Verbose),
];

pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let form = Form::read(&app, &headers, body).await?;
    let (mut fields, (name, bytes)) = (form.fields, form.file);
    let model = fields
        .text("model")?
        .ok_or_else(|| Refusal::bad("field `model` is missing"))?;
    let transcriber = app.models.transcriber(&model)?;
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
        let expected = "`segment`: words have no times";
        return Err(wrong("timestamp_granularities", &json!(other), expected));
    }
    fields.neutral(&[("stream", &[json!("false")]), ("prompt", &[json!("")])])?;
    fields.finish()?;
    let recording = Recording {
        name,
        bytes,
        language,
        temperature,
        timestamps: matches!(format, Format::Srt | Format::Vtt | Format::Verbose),
    };
    let transcript = transcriber.transcribe(recording).await?;
    Ok(answer(*format, &transcript))
}

fn answer(format: Format, transcript: &Transcript) -> Response {
    let plain =
        |kind: &'static str, text: String| ([(header::CONTENT_TYPE, kind)], text).into_response();
    let text = transcript.text();
    let text = text.trim();
    match format {
        Format::Json => json_response(&json!({"text": text})),
        Format::Text => plain("text/plain; charset=utf-8", format!("{text}\n")),
        Format::Srt => plain("text/plain; charset=utf-8", transcript.srt()),
        Format::Vtt => plain("text/vtt; charset=utf-8", transcript.vtt()),
        Format::Verbose => {
            let segments = transcript.segments.iter().enumerate().map(|(id, s)| {
                json!({
                    "id": id, "start": rounded(s.start), "end": rounded(s.end), "text": s.text, "tokens": s.tokens,
                    "temperature": s.temperature, "avg_logprob": s.log_probability,
                    "compression_ratio": s.compression, "no_speech_prob": s.no_speech,
                })
            });
            let segments: Vec<Value> = segments.collect();
            json_response(&json!({
                "task": "transcribe", "language": transcript.language, "duration": transcript.seconds,
                "text": text, "segments": segments,
            }))
        }
    }
}

/// Milliseconds are more than timestamps have.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
