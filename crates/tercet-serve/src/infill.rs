//! `POST /infill` of llama.cpp's server: the text between a prefix and a suffix.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};
use tercet_models::FinishReason;
use tercet_models::answer::AnswerEvent;

use crate::answer_stream::{
    AnswerEnd, AnswerPiece, AnswerRenderer, AnswerStream, WholeAnswer, stream_response,
};
use crate::conversation::select_language;
use crate::error::{ApiError, json_response};
use crate::fields::JsonFields;
use crate::fill_in_middle::FillInMiddle;
use crate::http::AppState;
use crate::openai::sampling::take_text_params;
use crate::request_log::RequestRecord;

/// Maximum files of the same project.
const MAX_FILES: usize = 256;

/// Fields about caches and times, which have no effect.
const IGNORED: [&str; 4] = [
    "n_indent",
    "response_fields",
    "t_max_predict_ms",
    "t_max_prompt_ms",
];

pub(crate) async fn handle(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let mut fields = JsonFields::parse(&body)?;
    let selected = select_language(&app, &mut fields, &record).await?;
    let language = &selected.model;
    let tokens = FillInMiddle::for_field("input_suffix", &language.tokenizer)?;
    let before = fields.need_text("input_prefix")?;
    let after = fields.need_text("input_suffix")?;
    // The start of the middle, which follows the prefix.
    let begun = fields.text("prompt")?.unwrap_or_default();
    let files = files(&mut fields, &record)?;
    fields.ignore(&IGNORED, (&record, ""));
    let mut params = take_text_params(fields, &record)?;
    params.stop_tokens.extend(&tokens.ends);
    let texts = files.iter().map(|(name, text)| name.len() + text.len());
    let bytes = before.len() + after.len() + begun.len() + texts.sum::<usize>();
    language.check_bytes(bytes)?;
    let tokenizer = &language.tokenizer;
    let mut prompt = tokens.prompt(tokenizer, (&before, &after), &files)?;
    let begun = tokenizer.encode_literally(&begun, false);
    prompt.extend(begun.map_err(|e| ApiError::failed(&e))?);
    record.set_prompt_tokens(prompt.len());
    params.n = 1;
    let room = language.context.saturating_sub(prompt.len());
    let requests = params.requests(&prompt, room);
    let responses = language
        .start(requests, selected.adapter, app.ticket(&record))
        .await?;
    let mut answers = AnswerStream::new(responses, (1, None), (language, &record));
    let renderer = InfillRenderer {
        model: selected.name,
        prompt_tokens: prompt.len(),
    };
    match params.stream {
        true => stream_response(answers, renderer).await,
        false => Ok(json_response(&renderer.whole(answers.collect_one().await?))),
    }
}

/// Parses `input_extra`: names and texts of files of the same project.
fn files(
    fields: &mut JsonFields,
    record: &RequestRecord,
) -> Result<Vec<(String, String)>, ApiError> {
    let items = fields.list("input_extra", "files")?;
    if items.len() > MAX_FILES {
        let message = format!(
            "field `input_extra` has {} files; at most {MAX_FILES} are supported",
            items.len()
        );
        return Err(ApiError::bad_request(message).with_param("input_extra"));
    }
    let file = |(at, item)| {
        let mut file = JsonFields::nested(item, &format!("input_extra[{at}]"))?;
        let name = file.text("filename")?.unwrap_or_default();
        let text = file.need_text("text")?;
        file.ignore_rest((record, "input_extra."));
        Ok((name, text))
    };
    items.into_iter().enumerate().map(file).collect()
}

/// Writes the text, as a stream or whole.
struct InfillRenderer {
    model: String,
    prompt_tokens: usize,
}

impl InfillRenderer {
    fn whole(&self, answer: WholeAnswer) -> Value {
        let texts = answer.piece.events.into_iter().filter_map(text_of);
        self.document(&texts.collect::<String>(), Some(&answer.end))
    }

    fn document(&self, text: &str, end: Option<&AnswerEnd>) -> Value {
        let mut document = json!({
            "index": 0, "content": text, "tokens": [], "id_slot": -1, "stop": end.is_some(),
        });
        if let Some(end) = end {
            let kind = match end.finish {
                FinishReason::Length | FinishReason::Context => "limit",
                FinishReason::Stop => "word",
                FinishReason::End | FinishReason::Cancelled => "eos",
            };
            document["model"] = json!(self.model);
            document["stop_type"] = json!(kind);
            document["stopping_word"] = json!(end.stop.as_deref().unwrap_or_default());
            document["tokens_predicted"] = json!(end.tokens);
            document["tokens_evaluated"] = json!(self.prompt_tokens);
            document["truncated"] = json!(false);
        }
        document
    }
}

fn text_of(event: AnswerEvent) -> Option<String> {
    match event {
        AnswerEvent::Text(text) => Some(text),
        _ => None,
    }
}

impl AnswerRenderer for InfillRenderer {
    fn piece(&mut self, _: usize, piece: AnswerPiece) -> String {
        let text: String = piece.events.into_iter().filter_map(text_of).collect();
        format!("data: {}\n\n", self.document(&text, None))
    }

    fn end(&mut self, _: usize, end: &AnswerEnd) -> String {
        format!("data: {}\n\n", self.document("", Some(end)))
    }

    fn last(&mut self, _: usize) -> String {
        String::new()
    }

    fn failure(&mut self, error: &ApiError) -> String {
        format!("data: {}\n\n", error.body())
    }
}
