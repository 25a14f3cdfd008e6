//! Template values, with Python's semantics.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::functions::TemplateFunction;
use super::spoken::{TemplateText, TemplateTextBuilder};

/// A template value: a JSON value with objects in insertion order, or a value that exists only in
/// templates.
///
/// ```
/// use tercet_text::dataset::template::TemplateValue;
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
    /// An integer outside the range of I64, as decimal digits with an optional sign.
    BigInt(Arc<str>),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(TemplateText),
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
    /// Keys that are no texts are spelled as JSON spells them.
    pub(super) entries: Vec<(Arc<str>, TemplateValue)>,
    /// For each entry its key, if that is no text. Empty if all keys are texts.
    other_keys: Vec<Option<TemplateValue>>,
    depth: u32,
    /// Whether the keys are literal (from message content).
    pub(super) has_literal_keys: bool,
}

impl TemplateMap {
    /// The key of an entry that is no text: a number, a boolean or none.
    pub(super) fn other_key(&self, at: usize) -> Option<&TemplateValue> {
        self.other_keys.get(at)?.as_ref()
    }

    /// The key of an entry.
    pub(super) fn key(&self, at: usize) -> TemplateValue {
        match self.other_key(at) {
            Some(key) => key.clone(),
            None => {
                let key = Arc::clone(&self.entries[at].0);
                TemplateValue::Text(TemplateText::of(key, self.has_literal_keys))
            }
        }
    }

    /// The value of a text as key.
    pub(super) fn find_text(&self, name: &str) -> Option<&TemplateValue> {
        let mut entries = self.entries.iter().enumerate();
        let found = entries.find(|(at, (key, _))| &**key == name && self.other_key(*at).is_none());
        found.map(|(_, (_, value))| value)
    }

    /// The value of a key. As in Python, 1, 1.0 and true are the same key.
    pub(super) fn find(&self, key: &TemplateValue) -> Option<&TemplateValue> {
        if let TemplateValue::Text(name) = key {
            return self.find_text(name);
        }
        let wanted = TemplateKey::of(key)?;
        let mut keys = self.other_keys.iter();
        let at =
            keys.position(|key| key.as_ref().and_then(TemplateKey::of).as_ref() == Some(&wanted));
        at.map(|at| &self.entries[at].1)
    }
}

/// The identity of a key.
#[derive(PartialEq, Eq, Hash)]
enum TemplateKey {
    Text(Arc<str>),
    Int(i64),
    /// None, or a number as text.
    Other(String),
}

impl TemplateKey {
    fn of(key: &TemplateValue) -> Option<TemplateKey> {
        Some(match key {
            TemplateValue::Text(text) => TemplateKey::Text(text.shared()),
            TemplateValue::None => TemplateKey::Other("null".to_owned()),
            TemplateValue::BigInt(digits) => TemplateKey::Other(digits.to_string()),
            // 2^53: up to there, floats tell all integers apart.
            TemplateValue::Float(x) if x.fract() == 0.0 && x.abs() <= 9_007_199_254_740_992.0 => {
                TemplateKey::Int(*x as i64)
            }
            TemplateValue::Float(x) => TemplateKey::Other(float_text(*x)),
            _ => TemplateKey::Int(key.as_int()?),
        })
    }
}

/// A key as JSON spells it; `None` if the value cannot be a key.
fn key_spelling(key: &TemplateValue) -> Option<Arc<str>> {
    Some(match key {
        TemplateValue::Text(text) => text.shared(),
        TemplateValue::None => Arc::from("null"),
        TemplateValue::Bool(x) => Arc::from(if *x { "true" } else { "false" }),
        TemplateValue::Int(x) => Arc::from(x.to_string()),
        TemplateValue::BigInt(digits) => Arc::clone(digits),
        TemplateValue::Float(x) => Arc::from(float_text(*x)),
        TemplateValue::Undefined
        | TemplateValue::List(_)
        | TemplateValue::Map(_)
        | TemplateValue::Internal(_) => return None,
    })
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
        TemplateValue::Text(TemplateText::new(text))
    }

    /// The same value, with all of its texts and keys literal: special tokens spelled in them are
    /// ordinary text ([`RenderedTemplate::literal`](super::RenderedTemplate::literal)).
    #[must_use]
    pub fn into_literal(self) -> TemplateValue {
        match self {
            TemplateValue::Text(text) => TemplateValue::Text(text.into_literal()),
            TemplateValue::List(list) => {
                let items = list.items.iter().cloned();
                let items = items.map(TemplateValue::into_literal).collect();
                let depth = list.depth;
                TemplateValue::List(Arc::new(TemplateList { items, depth }))
            }
            TemplateValue::Map(map) => {
                let entries = map.entries.iter();
                let entries = entries.map(|(k, v)| (Arc::clone(k), v.clone().into_literal()));
                TemplateValue::Map(Arc::new(TemplateMap {
                    entries: entries.collect(),
                    other_keys: map.other_keys.clone(),
                    depth: map.depth,
                    has_literal_keys: true,
                }))
            }
            other => other,
        }
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
        let entries = entries.into_iter();
        let entries = entries.map(|(key, value)| (TemplateValue::text(key.as_ref()), value));
        TemplateValue::map_with_keys(entries.collect(), false)
    }

    /// An object value whose keys are literal, or from the template. Entries whose key is a list, an
    /// object or undefined are left out.
    pub(super) fn map_with_keys(
        entries: Vec<(TemplateValue, TemplateValue)>,
        has_literal_keys: bool,
    ) -> TemplateValue {
        let depth = 1 + entries.iter().map(|(_, v)| v.depth()).max().unwrap_or(0);
        let mut places = std::collections::HashMap::new();
        let mut kept: Vec<(Arc<str>, TemplateValue)> = Vec::with_capacity(entries.len());
        let mut other_keys = Vec::new();
        for (key, value) in entries {
            let (Some(identity), Some(spelling)) = (TemplateKey::of(&key), key_spelling(&key))
            else {
                continue;
            };
            match places.get(&identity) {
                Some(&place) => {
                    let place: usize = place;
                    kept[place].1 = value;
                }
                None => {
                    places.insert(identity, kept.len());
                    if !matches!(key, TemplateValue::Text(_)) {
                        other_keys.resize(kept.len(), None);
                        other_keys.push(Some(key));
                    }
                    kept.push((spelling, value));
                }
            }
        }
        let entries = kept;
        TemplateValue::Map(Arc::new(TemplateMap {
            entries,
            other_keys,
            depth,
            has_literal_keys,
        }))
    }

    /// Parses JSON; integers of any size keep their digits.
    ///
    /// ```
    /// use tercet_text::dataset::template::TemplateValue;
    /// let value = TemplateValue::from_json("[12345678901234567890123]")?;
    /// let items = value.as_list().unwrap_or_default();
    /// assert!(matches!(&items[0], TemplateValue::BigInt(x) if x.ends_with("0123")));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    ///
    /// # Errors
    /// The position of the first byte that is not JSON.
    pub fn from_json(text: &str) -> Result<TemplateValue, serde_json::Error> {
        // The deserializer bounds the depth, so the recursion is bounded too.
        from_raw(serde_json::from_str(text)?)
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

    /// The entries in order, if the value is an object. Keys that are no texts are spelled as in JSON.
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
        match self {
            TemplateValue::Map(map) => map.find_text(key),
            _ => None,
        }
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
            TemplateValue::BigInt(_) => true,
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
            TemplateValue::Int(_) | TemplateValue::BigInt(_) => "an integer",
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
            TemplateValue::BigInt(digits) => digits.parse().ok(),
            _ => self.as_int().map(|x| x as f64),
        }
    }
}

/// The value of a JSON text.
fn from_raw(json: &RawValue) -> Result<TemplateValue, serde_json::Error> {
    let text = json.get();
    match text.as_bytes().first() {
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text)?;
            let items: Result<Vec<TemplateValue>, _> = items.into_iter().map(from_raw).collect();
            Ok(TemplateValue::list(items?))
        }
        Some(b'{') => {
            let RawEntries(entries) = serde_json::from_str(text)?;
            let entries = entries.into_iter();
            let entries = entries.map(|(key, json)| Ok((key, from_raw(json)?)));
            Ok(TemplateValue::map(
                entries.collect::<Result<Vec<_>, serde_json::Error>>()?,
            ))
        }
        Some(b'-' | b'0'..=b'9') if !text.contains(['.', 'e', 'E']) => Ok(match text.parse() {
            Ok(x) => TemplateValue::Int(x),
            Err(_) => TemplateValue::BigInt(text.into()),
        }),
        _ => serde_json::from_str(text),
    }
}

/// The entries of a JSON object, in order.
struct RawEntries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for RawEntries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawEntries<'de>, D::Error> {
        struct EntriesVisitor;

        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = RawEntries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawEntries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(RawEntries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor)
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
pub(super) fn quoted(text: &TemplateText, out: &mut TemplateTextBuilder) {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    let escape = |c: char| match c {
        '\n' => Some("\\n".to_owned()),
        '\r' => Some("\\r".to_owned()),
        '\t' => Some("\\t".to_owned()),
        '\\' => Some("\\\\".to_owned()),
        c if c == quote => Some(format!("\\{c}")),
        c if c.is_ascii_control() => Some(format!("\\x{:02x}", c as u32)),
        _ => None,
    };
    push_escaped(text, quote, escape, out);
}

/// Appends a text between quotes, with escapes for some characters. The quotes are text of the
/// template, escapes have the origin of their character.
fn push_escaped(
    text: &TemplateText,
    quote: char,
    escape: impl Fn(char) -> Option<String>,
    out: &mut TemplateTextBuilder,
) {
    let quote = quote.to_string();
    out.push_str(&quote, false);
    let mut start = 0;
    for (at, c) in text.char_indices() {
        if let Some(escaped) = escape(c) {
            out.push_part(text, start..at);
            start = at + c.len_utf8();
            out.push_str(&escaped, text.is_literal_at(at));
        }
    }
    out.push_part(text, start..text.len());
    out.push_str(&quote, false);
}

/// Appends a quoted JSON text without escapes of non-ASCII characters.
pub(super) fn json_quoted(text: &TemplateText, out: &mut TemplateTextBuilder) {
    let escape = |c: char| match c {
        '\n' => Some("\\n".to_owned()),
        '\r' => Some("\\r".to_owned()),
        '\t' => Some("\\t".to_owned()),
        '\u{8}' => Some("\\b".to_owned()),
        '\u{c}' => Some("\\f".to_owned()),
        '"' => Some("\\\"".to_owned()),
        '\\' => Some("\\\\".to_owned()),
        c if (c as u32) < 0x20 => Some(format!("\\u{:04x}", c as u32)),
        _ => None,
    };
    push_escaped(text, '"', escape, out);
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
                Ok(match i64::try_from(x) {
                    Ok(x) => TemplateValue::Int(x),
                    Err(_) => TemplateValue::BigInt(x.to_string().into()),
                })
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
