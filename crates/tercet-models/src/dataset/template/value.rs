//! Values of templates, in Python's manner.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::functions::Function;

/// A value: what JSON has, with objects in the order they were written in, and what only
/// templates make.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Value {
    /// A variable or an attribute that is not there.
    Undefined,
    /// `none`, JSON's `null`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// Another number.
    Float(f64),
    /// Text.
    Text(Arc<str>),
    /// A list.
    List(Arc<List>),
    /// An object.
    Map(Arc<Map>),
    /// What exists while a template is rendered only.
    Internal(Internal),
}

/// The items of a list.
#[derive(Debug)]
pub struct List {
    pub(super) items: Vec<Value>,
    depth: u32,
}

/// The entries of an object, in order.
#[derive(Debug)]
pub struct Map {
    pub(super) entries: Vec<(Arc<str>, Value)>,
    depth: u32,
}

/// Functions, macros, namespaces and loops: opaque outside of templates.
#[derive(Clone, Debug)]
pub struct Internal(pub(super) InternalKind);

#[derive(Clone, Debug)]
pub(super) enum InternalKind {
    Function(Function),
    /// Its place among the macros of the run.
    Macro(usize),
    /// Its place among the namespaces of the run: a namespace that holds itself makes no cycle.
    Namespace(usize),
    Loop {
        items: Arc<List>,
        index: usize,
    },
}

impl Value {
    /// Text.
    #[must_use]
    pub fn text(text: &str) -> Value {
        Value::Text(Arc::from(text))
    }

    /// A list.
    #[must_use]
    pub fn list(items: Vec<Value>) -> Value {
        let depth = 1 + items.iter().map(Value::depth).max().unwrap_or(0);
        Value::List(Arc::new(List { items, depth }))
    }

    /// An object; of entries with the same key, the last one counts.
    #[must_use]
    pub fn map<K: AsRef<str>>(entries: Vec<(K, Value)>) -> Value {
        let depth = 1 + entries.iter().map(|(_, v)| v.depth()).max().unwrap_or(0);
        let mut places = std::collections::HashMap::new();
        let mut kept: Vec<(Arc<str>, Value)> = Vec::with_capacity(entries.len());
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
        Value::Map(Arc::new(Map { entries, depth }))
    }

    /// The text, if it is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The items, if it is a list.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Value::List(list) => Some(&list.items),
            _ => None,
        }
    }

    /// The entries in order, if it is an object.
    #[must_use]
    pub fn as_map(&self) -> Option<&[(Arc<str>, Value)]> {
        match self {
            Value::Map(map) => Some(&map.entries),
            _ => None,
        }
    }

    /// The value of a key, if it is an object that has the key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        let (_, value) = self.as_map()?.iter().find(|(k, _)| &**k == key)?;
        Some(value)
    }

    /// How deep lists and objects nest.
    pub(super) fn depth(&self) -> u32 {
        match self {
            Value::List(list) => list.depth,
            Value::Map(map) => map.depth,
            _ => 0,
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(x) => *x,
            Value::Int(x) => *x != 0,
            Value::Float(x) => *x != 0.0,
            Value::Text(x) => !x.is_empty(),
            Value::List(x) => !x.items.is_empty(),
            Value::Map(x) => !x.entries.is_empty(),
            Value::Internal(_) => true,
        }
    }

    /// How messages call it, as JSON and Python's users do.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Undefined => "undefined",
            Value::None => "null",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a number",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "an object",
            Value::Internal(internal) => match internal.0 {
                InternalKind::Function(_) => "a function",
                InternalKind::Macro(_) => "a macro",
                InternalKind::Namespace(_) => "a namespace",
                InternalKind::Loop { .. } => "a loop",
            },
        }
    }

    /// An integer, with booleans as 0 and 1.
    pub(super) fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(x) => Some(*x),
            Value::Bool(x) => Some(i64::from(*x)),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(x) => Some(*x),
            _ => self.as_int().map(|x| x as f64),
        }
    }
}

/// A number as Python prints it.
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

/// Text in quotes, as Python's `repr` gives it.
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

/// Text in quotes, as JSON without escapes of what is not ASCII.
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

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        struct ValueVisitor;

        impl<'de> Visitor<'de> for ValueVisitor {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::None)
            }
            fn visit_bool<E>(self, x: bool) -> Result<Value, E> {
                Ok(Value::Bool(x))
            }
            fn visit_i64<E>(self, x: i64) -> Result<Value, E> {
                Ok(Value::Int(x))
            }
            fn visit_u64<E>(self, x: u64) -> Result<Value, E> {
                Ok(i64::try_from(x).map_or(Value::Float(x as f64), Value::Int))
            }
            fn visit_f64<E>(self, x: f64) -> Result<Value, E> {
                Ok(Value::Float(x))
            }
            fn visit_str<E>(self, x: &str) -> Result<Value, E> {
                Ok(Value::text(x))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Value::list(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut entries: Vec<(String, Value)> = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Value::map(entries))
            }
        }

        deserializer.deserialize_any(ValueVisitor)
    }
}
