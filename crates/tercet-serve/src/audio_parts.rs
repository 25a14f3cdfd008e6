//! Audio parts of messages. The language models read text, so a served speech recognizer writes the parts
//! down first.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{JsonFields, unsupported};
use crate::http::AppState;
use crate::request_log::RequestRecord;

/// Type of a part with audio.
const AUDIO: &str = "input_audio";
/// Maximum audio parts of a request.
#[cfg(feature = "audio")]
const MAX_PARTS: usize = 16;

/// Replaces the audio parts in the messages of the field `name` by text parts with their words.
///
/// # Errors
/// 400 with the path of a part that is no audio, or if the server has no speech recognizer; the errors of
/// the recognizer.
pub(crate) async fn write_down(
    (app, record): (&AppState, &RequestRecord),
    fields: &mut JsonFields,
    name: &str,
) -> Result<(), ApiError> {
    let Some(mut messages) = fields.take(name) else {
        return Ok(());
    };
    let mut places = Vec::new();
    for (at, message) in messages.as_array().into_iter().flatten().enumerate() {
        let content = message.get("content").and_then(Value::as_array);
        for (part_at, part) in content.into_iter().flatten().enumerate() {
            if part.get("type").and_then(Value::as_str) == Some(AUDIO) {
                places.push((at, part_at));
            }
        }
    }
    #[cfg(feature = "audio")]
    if places.len() > MAX_PARTS {
        let count = places.len();
        let message =
            format!("field `{name}` has {count} audio parts; at most {MAX_PARTS} are supported");
        return Err(ApiError::bad_request(message).with_param(name));
    }
    for (at, part_at) in places {
        let path = format!("{name}[{at}].content[{part_at}]");
        let part = &mut messages[at]["content"][part_at];
        let text = heard((app, record), part.take(), &path).await?;
        *part = serde_json::json!({"type": "text", "text": text});
    }
    fields.put(name, Some(messages));
    Ok(())
}

/// The words of a part.
#[cfg(feature = "audio")]
async fn heard(
    (app, record): (&AppState, &RequestRecord),
    part: Value,
    path: &str,
) -> Result<String, ApiError> {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use crate::models::ServedKind;
    use crate::transcriber::AudioUpload;

    let models = app.models.listed_models();
    let speech = models.iter().find(|model| model.kind == ServedKind::Speech);
    let speech = speech.ok_or_else(|| deaf(path))?;
    let mut part = JsonFields::nested(part, path)?;
    part.take("type");
    let mut audio = part.object(AUDIO)?.ok_or_else(|| part.missing(AUDIO))?;
    part.ignore_rest((record, "messages.content."));
    let data = audio.need_text("data")?;
    let format = audio.text("format")?.unwrap_or_else(|| "wav".to_string());
    if !["wav", "mp3", "flac"].contains(&format.as_str()) {
        let expected = "`wav`, `mp3` or `flac`";
        return Err(audio.wrong("format", &Value::String(format), expected));
    }
    let field = audio.path_of("data");
    audio.ignore_rest((record, "messages.content.input_audio."));
    let bytes = STANDARD.decode(data.trim()).map_err(|e| {
        let message = format!("field `{field}` is no base64: {e}");
        ApiError::bad_request(message).with_param(&field)
    })?;
    let (_, transcriber) = app
        .in_time(record, app.models.transcriber(Some(&speech.name)))
        .await?;
    let upload = AudioUpload {
        field,
        name: format!("audio.{format}"),
        bytes: bytes.into(),
        language: None,
        temperature: 0.0,
        timestamps: false,
        translates: false,
    };
    let transcript = transcriber.transcribe(upload, &app.ticket(record)).await?;
    Ok(transcript.text().trim().to_string())
}

#[cfg(not(feature = "audio"))]
async fn heard(_: (&AppState, &RequestRecord), _: Value, path: &str) -> Result<String, ApiError> {
    Err(deaf(path))
}

/// The error of an audio part that nothing can hear.
fn deaf(path: &str) -> ApiError {
    let remedy = match cfg!(feature = "audio") {
        true => {
            "the model does not hear; serve a speech recognizer beside it, which writes the audio down"
        }
        false => {
            "the model does not hear; audio requires a build with the feature `audio`, and a speech recognizer"
        }
    };
    unsupported(&format!("{path}.{AUDIO}"), remedy)
}
