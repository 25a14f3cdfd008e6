//! Forms (`multipart/form-data`): files beside fields.

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::{HeaderMap, header};
use serde_json::{Map, Value};

use crate::error::Refusal;
use crate::fields::Fields;
use crate::http::{App, of_own_site};

/// Parts of a form at most.
const MOST_PARTS: usize = 32;

/// A form with one file.
pub(crate) struct Form {
    /// The name that the client gave it, and what it holds.
    pub(crate) file: (String, Bytes),
    /// All other fields: texts, and lists of texts where a name that ends in `[]` has several.
    pub(crate) fields: Fields,
}

impl Form {
    /// Reads the form of a request; the file is its part `file`.
    ///
    /// # Errors
    /// 403 for pages of other sites, which may send forms unasked; 415, 413, 408; a form that is none, a field twice, no file.
    pub(crate) async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<Form, Refusal> {
        of_own_site(headers)?;
        let bytes = app.body(headers, body, &["multipart/form-data"]).await?;
        let bad = |e: &dyn std::fmt::Display| Refusal::bad(format!("the body is no form: {e}"));
        let mut request = Request::new(Body::from(bytes));
        if let Some(kind) = headers.get(header::CONTENT_TYPE) {
            request
                .headers_mut()
                .insert(header::CONTENT_TYPE, kind.clone());
        }
        // It has been looked at.
        DefaultBodyLimit::disable().apply(&mut request);
        let parts = Multipart::from_request(request, &()).await;
        let mut parts = parts.map_err(|e| bad(&e.body_text()))?;
        let mut file = None;
        let mut fields = Map::new();
        let mut seen = 0;
        while let Some(part) = parts.next_field().await.map_err(|e| bad(&e.body_text()))? {
            seen += 1;
            if seen > MOST_PARTS {
                let message = format!("the form has more than {MOST_PARTS} parts");
                return Err(Refusal::bad(message));
            }
            let Some(name) = part.name().map(str::to_string) else {
                return Err(Refusal::bad("a part of the form has no name"));
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
        let file = file.ok_or_else(|| Refusal::bad("field `file` is missing"))?;
        let fields = Fields::of(Value::Object(fields), "the form")?;
        Ok(Form { file, fields })
    }
}

fn add(fields: &mut Map<String, Value>, name: String, text: String) -> Result<(), Refusal> {
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

fn twice(name: &str) -> Refusal {
    let shown: String = name.chars().take(64).collect();
    Refusal::bad(format!("field `{shown}` is there twice"))
}
