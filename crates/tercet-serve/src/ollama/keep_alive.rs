//! The field `keep_alive`: how long a model stays loaded after its last request.

use std::time::Duration;

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::JsonFields;
use crate::models::KeepAlive;

/// The units of a duration, in seconds.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("μs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// Takes `keep_alive`: a number of seconds, or a duration such as `1h30m`. Negative values mean forever.
pub(super) fn take_keep_alive(fields: &mut JsonFields) -> Result<Option<KeepAlive>, ApiError> {
    let Some(value) = fields.take("keep_alive") else {
        return Ok(None);
    };
    let seconds = match &value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => seconds(text),
        _ => None,
    };
    let Some(seconds) = seconds else {
        let expected = "a number of seconds, or a duration such as `5m`";
        return Err(fields.wrong("keep_alive", &value, expected));
    };
    if seconds < 0.0 {
        return Ok(Some(KeepAlive::Forever));
    }
    // A time that is too long for a duration never ends.
    let time = Duration::try_from_secs_f64(seconds);
    Ok(Some(time.map_or(KeepAlive::Forever, KeepAlive::For)))
}

/// Seconds of a duration; `None` for another text.
fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if is_number(rest) {
        return Some(sign * rest.parse::<f64>().ok()?);
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total += number.parse::<f64>().ok()? * scale;
        rest = tail;
    }
    Some(sign * total)
}
