//! Template values, with Python's semantics.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::functions::TemplateFunction;

/// A template value: a JSON value with objects in insertion order, or a value that exists only in
/// templates.
///
/// ```
/// use tercet_models::dataset::template::TemplateValue;
/// let value: TemplateValue = serde_json::from_str(r#"{"name": "search", "strict": true}"#)?;
/// assert_eq!(value.get("name").and_then(TemplateValue::as_text), Some("search"));
/// assert_eq!(value.kind(), "an object");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TemplateValue {
    /// An undefined variable or attribute.
    Undefined,
    /// `none`, JSON's `null`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(Arc<str>),
    /// A list.
    List(Arc<TemplateList>),
    /// An object.
    Map(Arc<TemplateMap>),
    /// A value that exists only during rendering.
    Internal(TemplateInternal),
}

/// The items of a list.
#[derive(Debug)]
pub struct TemplateList {
    pub(super) items: Vec<TemplateValue>,
    depth: u32,
}

/// The entries of an object, in order.
#[derive(Debug)]
pub struct TemplateMap {
    pub(super) entries: Vec<(Arc<str>, TemplateValue)>,
    depth: u32,
}

/// Functions, macros, namespaces and loops: opaque outside of templates.
#[derive(Clone, Debug)]
pub struct TemplateInternal(pub(super) TemplateInternalKind);

#[derive(Clone, Debug)]
pub(super) enum TemplateInternalKind {
    Function(TemplateFunction),
    /// Index of the macro in the rendering.
    Macro(usize),
    /// Index of the namespace in the rendering. A namespace that contains itself therefore forms no
    /// reference cycle.
    Namespace(usize),
    Loop {
        items: Arc<TemplateList>,
        index: usize,
    },
}

impl TemplateValue {
    /// A text value.
    #[must_use]
    pub fn text(text: &str) -> TemplateValue {
        TemplateValue::Text(Arc::from(text))
    }

    /// A list value.
    #[must_use]
    pub fn list(items: Vec<TemplateValue>) -> TemplateValue {
        let depth = 1 + items.iter().map(TemplateValue::depth).max().unwrap_or(0);
        TemplateValue::List(Arc::new(TemplateList { items, depth }))
    }

    /// An object value; of entries with the same key, the last one is used.
    #[must_use]
    pub fn map<K: AsRef<str>>(entries: Vec<(K, TemplateValue)>) -> TemplateValue {
        let depth = 1 + entries.iter().map(|(_, v)| v.depth()).max().unwrap_or(0);
        let mut places = std::collections::HashMap::new();
        let mut kept: Vec<(Arc<str>, TemplateValue)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key: Arc<str> = Arc::from(key.as_ref());
            match places.get(&key) {
                Some(&place) => {
                    let place: usize = place;
                    kept[place].1 = value;
                }
                None => {
                    places.insert(Arc::clone(&key), kept.len());
                    kept.push((key, value));
                }
            }
        }
        let entries = kept;
        TemplateValue::Map(Arc::new(TemplateMap { entries, depth }))
    }

    /// The text, if the value is a text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            TemplateValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The items, if the value is a list.
    #[must_use]
    pub fn as_list(&self) -> Option<&[TemplateValue]> {
        match self {
            TemplateValue::List(list) => Some(&list.items),
            _ => None,
        }
    }

    /// The entries in order, if the value is an object.
    #[must_use]
    pub fn as_map(&self) -> Option<&[(Arc<str>, TemplateValue)]> {
        match self {
            TemplateValue::Map(map) => Some(&map.entries),
            _ => None,
        }
    }

    /// The value of a key, if the value is an object with that key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&TemplateValue> {
        let (_, value) = self.as_map()?.iter().find(|(k, _)| &**k == key)?;
        Some(value)
    }

    /// Nesting depth of lists and objects.
    pub(super) fn depth(&self) -> u32 {
        match self {
            TemplateValue::List(list) => list.depth,
            TemplateValue::Map(map) => map.depth,
            _ => 0,
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            TemplateValue::Undefined | TemplateValue::None => false,
            TemplateValue::Bool(x) => *x,
            TemplateValue::Int(x) => *x != 0,
            TemplateValue::Float(x) => *x != 0.0,
            TemplateValue::Text(x) => !x.is_empty(),
            TemplateValue::List(x) => !x.items.is_empty(),
            TemplateValue::Map(x) => !x.entries.is_empty(),
            TemplateValue::Internal(_) => true,
        }
    }

    /// The type name for error messages, in JSON's and Python's terms.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            TemplateValue::Undefined => "undefined",
            TemplateValue::None => "null",
            TemplateValue::Bool(_) => "a boolean",
            TemplateValue::Int(_) => "an integer",
            TemplateValue::Float(_) => "a number",
            TemplateValue::Text(_) => "a string",
            TemplateValue::List(_) => "a list",
            TemplateValue::Map(_) => "an object",
            TemplateValue::Internal(internal) => match internal.0 {
                TemplateInternalKind::Function(_) => "a function",
                TemplateInternalKind::Macro(_) => "a macro",
                TemplateInternalKind::Namespace(_) => "a namespace",
                TemplateInternalKind::Loop { .. } => "a loop",
            },
        }
    }

    /// The value as an integer, with booleans as 0 and 1.
    pub(super) fn as_int(&self) -> Option<i64> {
        match self {
            TemplateValue::Int(x) => Some(*x),
            TemplateValue::Bool(x) => Some(i64::from(*x)),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            TemplateValue::Float(x) => Some(*x),
            _ => self.as_int().map(|x| x as f64),
        }
    }
}

/// A number in Python's format.
pub(super) fn float_text(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let size = x.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{x:?}")
}

/// Appends a quoted text in the format of Python's `repr`.
pub(super) fn quoted(text: &str, out: &mut String) {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Appends a quoted JSON text without escapes of non-ASCII characters.
pub(super) fn json_quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

impl<'de> Deserialize<'de> for TemplateValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TemplateValue, D::Error> {
        struct ValueVisitor;

        impl<'de> Visitor<'de> for ValueVisitor {
            type Value = TemplateValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }
            fn visit_unit<E>(self) -> Result<TemplateValue, E> {
                Ok(TemplateValue::None)
            }
            fn visit_bool<E>(self, x: bool) -> Result<TemplateValue, E> {
                Ok(TemplateValue::Bool(x))
            }
            fn visit_i64<E>(self, x: i64) -> Result<TemplateValue, E> {
                Ok(TemplateValue::Int(x))
            }
            fn visit_u64<E>(self, x: u64) -> Result<TemplateValue, E> {
                Ok(i64::try_from(x).map_or(TemplateValue::Float(x as f64), TemplateValue::Int))
            }
            fn visit_f64<E>(self, x: f64) -> Result<TemplateValue, E> {
                Ok(TemplateValue::Float(x))
            }
            fn visit_str<E>(self, x: &str) -> Result<TemplateValue, E> {
                Ok(TemplateValue::text(x))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<TemplateValue, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(TemplateValue::list(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TemplateValue, A::Error> {
                let mut entries: Vec<(String, TemplateValue)> = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(TemplateValue::map(entries))
            }
        }

        deserializer.deserialize_any(ValueVisitor)
    }
}
