//! The fields of a JSON request. Handlers take them one by one; a remaining field is an error.

use axum::http::StatusCode;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::request_log::RequestRecord;

/// A JSON object whose fields are taken out.
pub(crate) struct JsonFields {
    map: Map<String, Value>,
    /// Place of the object in the body, such as `messages[2].`; empty for the body.
    path: String,
}

impl JsonFields {
    /// Parses the JSON object of a body.
    ///
    /// # Errors
    /// 400 for a body that is no JSON object, or has too many lists and objects.
    pub(crate) fn parse(body: &[u8]) -> Result<JsonFields, ApiError> {
        check_containers(body)?;
        let value = serde_json::from_slice(body)
            .map_err(|e| ApiError::bad_request(format!("the body is not JSON: {e}")))?;
        JsonFields::from_value(value, "the body")
    }

    pub(crate) fn from_value(value: Value, what: &str) -> Result<JsonFields, ApiError> {
        match value {
            Value::Object(map) => Ok(JsonFields {
                map,
                path: String::new(),
            }),
            other => Err(ApiError::bad_request(format!(
                "{what} is {}; expected an object",
                kind(&other)
            ))),
        }
    }

    /// The fields of an inner object. Errors name its fields with their path, such as
    /// `messages[2].role`.
    pub(crate) fn nested(value: Value, path: &str) -> Result<JsonFields, ApiError> {
        match value {
            Value::Object(map) => Ok(JsonFields {
                map,
                path: format!("{path}."),
            }),
            other => Err(wrong(path, &other, "an object")),
        }
    }

    /// Takes a field that is an object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<JsonFields>, ApiError> {
        let path = self.path_of(name);
        let value = self.take(name);
        value
            .map(|value| JsonFields::nested(value, &path))
            .transpose()
    }

    /// Takes a field that is an object, such as a schema.
    pub(crate) fn object_value(&mut self, name: &str) -> Result<Option<Value>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(value @ Value::Object(_)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(name, &other, "an object")),
        }
    }

    /// Path of a field in the body.
    pub(crate) fn path_of(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// The error of a field with a wrong value.
    pub(crate) fn wrong(&self, name: &str, found: &Value, expected: &str) -> ApiError {
        wrong(&self.path_of(name), found, expected)
    }

    /// The error of a field that is missing.
    pub(crate) fn missing(&self, name: &str) -> ApiError {
        let path = self.path_of(name);
        ApiError::bad_request(format!("field `{path}` is missing")).with_param(&path)
    }

    /// Takes a text that must be present.
    pub(crate) fn need_text(&mut self, name: &str) -> Result<String, ApiError> {
        let text = self.text(name)?;
        text.ok_or_else(|| self.missing(name))
    }

    /// Takes a list; without the field, it is empty.
    pub(crate) fn list(&mut self, name: &str, items: &str) -> Result<Vec<Value>, ApiError> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(self.wrong(name, &other, &format!("a list of {items}"))),
        }
    }

    /// Takes a field, if it is present and not null.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|v| !v.is_null())
    }

    /// Whether a field is missing, null, or an empty text or list.
    pub(crate) fn is_blank(&self, name: &str) -> bool {
        match self.map.get(name) {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Array(items)) => items.is_empty(),
            Some(_) => false,
        }
    }

    /// Puts a field back that was taken.
    pub(crate) fn put(&mut self, name: &str, value: Option<Value>) {
        if let Some(value) = value {
            self.map.insert(name.to_string(), value);
        }
    }

    pub(crate) fn need(&mut self, name: &str) -> Result<Value, ApiError> {
        self.take(name).ok_or_else(|| self.missing(name))
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, &other, "a string")),
        }
    }

    pub(crate) fn truth(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(truth)) => Ok(Some(truth)),
            Some(other) => Err(self.wrong(name, &other, "true or false")),
        }
    }

    pub(crate) fn count(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match whole(&value) {
                Some(n) => Ok(Some(n)),
                None => Err(self.wrong(name, &value, "a whole number, 0 or more")),
            },
        }
    }

    /// Takes a whole number for which -1 stands for none, as in other servers.
    pub(crate) fn count_or_minus_one(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) if value.as_f64() == Some(-1.0) => Ok(None),
            Some(value) => match whole(&value) {
                Some(n) => Ok(Some(n)),
                None => Err(self.wrong(name, &value, "a whole number, or -1 for none")),
            },
        }
    }

    /// Takes a list of token ids.
    pub(crate) fn token_ids(&mut self, name: &str) -> Result<Vec<u32>, ApiError> {
        let expected = "a list of token ids";
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => {
                let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
                let ids = items.iter().map(|item| id(item).ok_or(item));
                ids.collect::<Result<_, _>>()
                    .map_err(|item| self.wrong(name, item, expected))
            }
            Some(other) => Err(self.wrong(name, &other, expected)),
        }
    }

    /// Takes a number from `from` to `to`.
    pub(crate) fn number(
        &mut self,
        name: &str,
        from: f64,
        to: f64,
    ) -> Result<Option<f64>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|x| (from..=to).contains(x)) {
                Some(x) => Ok(Some(x)),
                None => Err(self.wrong(name, &value, &format!("a number from {from} to {to}"))),
            },
        }
    }

    /// Turns texts of these fields into the numbers that they spell, for forms.
    #[cfg(feature = "audio")]
    pub(crate) fn parse_numbers(&mut self, names: &[&str]) {
        for name in names {
            if let Some(value) = self.map.get_mut(*name)
                && let Some(number) = value.as_str().and_then(|text| text.trim().parse().ok())
            {
                *value = Value::Number(number);
            }
        }
    }

    /// Takes a string or a list of strings.
    pub(crate) fn texts(&mut self, name: &str) -> Result<Vec<String>, ApiError> {
        let value = self.take(name);
        match value {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(items)) => {
                let text = |item| match item {
                    Value::String(text) => Ok(text),
                    other => Err(self.wrong(name, &other, "a string or a list of strings")),
                };
                items.into_iter().map(text).collect()
            }
            Some(other) => Err(self.wrong(name, &other, "a string or a list of strings")),
        }
    }

    /// Takes unsupported fields. Each unsupported field may only have one of the listed values,
    /// which have no effect.
    pub(crate) fn neutral(&mut self, table: &[(&str, &[Value])]) -> Result<(), ApiError> {
        for (name, values) in table {
            let Some(found) = self.take(name) else {
                continue;
            };
            if !values.iter().any(|value| is_same(value, &found)) {
                let remedy = match values.first() {
                    Some(value) => format!("leave it out, or set it to {value}"),
                    None => "leave it out".to_string(),
                };
                return Err(unsupported(&self.path_of(name), &remedy));
            }
        }
        Ok(())
    }

    /// Like [`JsonFields::neutral`], with each field's values as a JSON list.
    pub(crate) fn neutral_json(&mut self, table: &[(&str, &str)]) -> Result<(), ApiError> {
        for (name, values) in table {
            let values: Vec<Value> = serde_json::from_str(values).unwrap_or_default();
            self.neutral(&[(name, &values)])?;
        }
        Ok(())
    }

    /// Takes fields that have no effect; the record of the request names those that are present.
    pub(crate) fn ignore(&mut self, names: &[&str], (record, of): (&RequestRecord, &str)) {
        for name in names {
            if self.take(name).is_some() {
                record.add_ignored(&format!("{of}{name}"));
            }
        }
    }

    /// Takes all remaining fields, which have no effect; the record of the request names them.
    pub(crate) fn ignore_rest(self, (record, of): (&RequestRecord, &str)) {
        for name in self
            .map
            .iter()
            .filter(|(_, v)| !v.is_null())
            .map(|(k, _)| k)
        {
            record.add_ignored(&format!("{of}{}", shown_name(name)));
        }
    }

    /// Returns an error if any field remains.
    pub(crate) fn finish(mut self) -> Result<(), ApiError> {
        self.map.retain(|_, v| !v.is_null());
        match self.map.keys().next() {
            None => Ok(()),
            Some(name) => {
                let path = self.path_of(&shown_name(name));
                Err(unsupported(&path, "leave it out"))
            }
        }
    }
}

/// Maximum lists and objects of a body. A parsed list takes many times the memory of its two bytes.
const MAX_CONTAINERS: usize = 1 << 20;

/// Returns an error if a JSON text has too many lists and objects, before it is parsed.
///
/// # Errors
/// 400 with the limit.
pub(crate) fn check_containers(body: &[u8]) -> Result<(), ApiError> {
    let (mut count, mut is_text, mut is_escaped) = (0, false, false);
    for byte in body {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'[' | b'{' if !is_text => count += 1,
            _ => {}
        }
    }
    match count > MAX_CONTAINERS {
        true => Err(ApiError::bad_request(format!(
            "the body has {count} lists and objects; at most {MAX_CONTAINERS} are supported"
        ))),
        false => Ok(()),
    }
}

/// A whole number, also as clients without integers write it: `4.0`.
fn whole(value: &Value) -> Option<u64> {
    let float = || {
        value
            .as_f64()
            .filter(|x| x.fract() == 0.0 && (0.0..=9e15).contains(x))
    };
    value.as_u64().or_else(|| float().map(|x| x as u64))
}

/// The start of a field's name, for messages and the log.
fn shown_name(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Whether two values are equal; numbers by value.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

/// The error of a field that the server does not support.
pub(crate) fn unsupported(path: &str, remedy: &str) -> ApiError {
    let message = format!("field `{path}` is not supported; {remedy}");
    ApiError::new(StatusCode::BAD_REQUEST, "unsupported_field", message).with_param(path)
}

pub(crate) fn wrong(name: &str, found: &Value, expected: &str) -> ApiError {
    let text = found.to_string();
    let mut shown: String = text.chars().take(64).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    let message = format!("field `{name}` is {shown}; expected {expected}");
    ApiError::bad_request(message).with_param(name)
}

pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
