//! The page at `/`: a chat and a comparison of embeddings in the browser. Its files are part of the program, and load
//! nothing from other servers.

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// A file of the page.
struct PageFile {
    name: &'static str,
    media_type: &'static str,
    text: &'static str,
}

/// Files of the page with their media types.
macro_rules! page_files {
    ($($name:literal: $media_type:literal),+ $(,)?) => {
        &[$(PageFile {
            name: $name,
            media_type: $media_type,
            text: include_str!(concat!("../page/", $name)),
        }),+]
    };
}

const INDEX: &str = include_str!("../page/index.html");

const FILES: &[PageFile] = page_files! {
    "api.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "main.js": "text/javascript; charset=utf-8",
    "messages.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "pictures.js": "text/javascript; charset=utf-8",
    "settings.js": "text/javascript; charset=utf-8",
    "store.js": "text/javascript; charset=utf-8",
    "vectors.js": "text/javascript; charset=utf-8",
};

/// The page loads and calls only its own server, and runs no script of a text. Pictures of messages are `data:` URLs.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Whether a client asks for a page rather than a text, as browsers do.
pub(crate) fn is_wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok());
    accepted.is_some_and(|types| types.contains("text/html"))
}

/// The page.
pub(crate) fn index() -> Response {
    page_response("text/html; charset=utf-8", INDEX)
}

/// `GET /page/{file}`: a script, a style sheet or an icon of the page.
pub(crate) async fn file(Path(name): Path<String>) -> Result<Response, ApiError> {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => Ok(page_response(file.media_type, file.text)),
        None => {
            let message = "unknown file of the page; open /";
            Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", message))
        }
    }
}

fn page_response(media_type: &'static str, text: &'static str) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    let all = [
        (header::CONTENT_TYPE, media_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // A new version of the program has new files.
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept"),
    ];
    for (name, value) in all {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
