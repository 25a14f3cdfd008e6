//! Texts: patterns and formats.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use super::{SchemaError, SchemaTranslation};

/// Formats that the grammar compiler knows.
const FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];

impl SchemaTranslation<'_> {
    pub(super) fn texts(
        &mut self,
        fields: &mut Map<String, Value>,
        path: &str,
    ) -> Result<(), SchemaError> {
        let format = fields.get("format").and_then(Value::as_str);
        let is_known = format.is_some_and(|format| FORMATS.contains(&format));
        if let Some(Value::String(pattern)) = fields.get("pattern")
            && !is_supported(pattern)
        {
            self.ignore(fields, (path, "pattern"), UNSUPPORTED_PATTERN)?;
        }
        let has_pattern = fields.contains_key("pattern");
        if fields.contains_key("format") && (has_pattern || !is_known) {
            fields.shift_remove("format");
        }
        let patterns = fields.get("patternProperties").and_then(Value::as_object);
        let patterns = patterns.into_iter().flatten();
        let wrong: Vec<String> = patterns
            .filter(|(pattern, _)| !is_supported(pattern))
            .map(|(pattern, _)| pattern.clone())
            .collect();
        let place = super::pointer(path, "patternProperties");
        for pattern in wrong {
            self.refuse(&place, &pattern, UNSUPPORTED_PATTERN)?;
            if let Some(Value::Object(all)) = fields.get_mut("patternProperties") {
                all.shift_remove(&pattern);
            }
            // The names of the pattern must remain possible.
            fields.insert("additionalProperties".to_string(), Value::Bool(true));
        }
        Ok(())
    }
}

const UNSUPPORTED_PATTERN: &str = "the regular expression is invalid, or has look-around, a word \
                                   boundary or a back-reference, which are not supported";

/// Whether the grammar compiler can express a pattern.
pub(super) fn is_supported(pattern: &str) -> bool {
    // The parser of expressions recurses.
    if super::limits::check_regex(pattern).is_err() {
        return true; // The check of limits reports it.
    }
    let search = RegexAst::SearchRegex(regex_to_lark(pattern, "dw"));
    let made = std::panic::catch_unwind(|| RegexBuilder::new().mk(&search).is_ok());
    made.unwrap_or(false)
}
