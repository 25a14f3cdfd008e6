//! Multipart forms (`multipart/form-data`): a file and text fields.

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::{HeaderMap, header};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::JsonFields;
use crate::http::AppState;

/// Maximum number of parts in a form.
const MAX_PARTS: usize = 32;

/// A form with one file.
pub(crate) struct MultipartForm {
    /// File name from the client, and contents.
    pub(crate) file: (String, Bytes),
    /// All other fields: strings, and lists of strings for repeated names that end in `[]`.
    pub(crate) fields: JsonFields,
}

impl MultipartForm {
    /// Reads the form of a request. The file of the form is the part `file`.
    ///
    /// # Errors
    /// - 403 for requests from web pages of another origin: browsers allow them to send forms.
    /// - 415, 413 and 408 as in `AppState::body`.
    /// - 400 if the form is malformed, a field occurs twice or the file is missing.
    pub(crate) async fn read(
        app: &AppState,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<MultipartForm, ApiError> {
        app.check_origin(headers)?;
        let bytes = app.body(headers, body, &["multipart/form-data"]).await?;
        let bad = |e: &dyn std::fmt::Display| {
            ApiError::bad_request(format!("the body is not a valid form: {e}"))
        };
        let mut request = Request::new(Body::from(bytes));
        if let Some(kind) = headers.get(header::CONTENT_TYPE) {
            request
                .headers_mut()
                .insert(header::CONTENT_TYPE, kind.clone());
        }
        // `AppState::body` has already checked the size.
        DefaultBodyLimit::disable().apply(&mut request);
        let parts = Multipart::from_request(request, &()).await;
        let mut parts = parts.map_err(|e| bad(&e.body_text()))?;
        let mut file = None;
        let mut fields = Map::new();
        let mut seen = 0;
        while let Some(part) = parts.next_field().await.map_err(|e| bad(&e.body_text()))? {
            seen += 1;
            if seen > MAX_PARTS {
                let message = format!("the form has more than {MAX_PARTS} parts");
                return Err(ApiError::bad_request(message));
            }
            let Some(name) = part.name().map(str::to_string) else {
                return Err(ApiError::bad_request("a part of the form has no name"));
            };
            if name == "file" {
                let called: String = part
                    .file_name()
                    .unwrap_or("file")
                    .chars()
                    .take(64)
                    .collect();
                let bytes = part.bytes().await.map_err(|e| bad(&e.body_text()))?;
                if file.replace((called, bytes)).is_some() {
                    return Err(twice(&name));
                }
            } else {
                let text = part.text().await.map_err(|e| bad(&e.body_text()))?;
                add(&mut fields, name, text)?;
            }
        }
        let file = file.ok_or_else(|| ApiError::bad_request("field `file` is missing"))?;
        let fields = JsonFields::from_value(Value::Object(fields), "the form")?;
        Ok(MultipartForm { file, fields })
    }
}

fn add(fields: &mut Map<String, Value>, name: String, text: String) -> Result<(), ApiError> {
    match fields.get_mut(&name) {
        None if name.ends_with("[]") => {
            fields.insert(name, Value::Array(vec![Value::String(text)]));
        }
        None => {
            fields.insert(name, Value::String(text));
        }
        Some(Value::Array(items)) => items.push(Value::String(text)),
        Some(_) => return Err(twice(&name)),
    }
    Ok(())
}

fn twice(name: &str) -> ApiError {
    let shown: String = name.chars().take(64).collect();
    ApiError::bad_request(format!("field `{shown}` occurs twice"))
}
