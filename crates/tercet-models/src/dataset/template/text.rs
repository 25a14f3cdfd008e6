//! Values as text: as printing gives them, and as JSON.

use std::sync::Arc;

use super::eval::Run;
use super::value::{float_text, json_quoted, quoted};
use super::{TemplateError, Value};

impl Run<'_> {
    /// The text that printing a value gives.
    pub(super) fn text_of(&mut self, value: &Value) -> Result<Arc<str>, TemplateError> {
        match value {
            Value::Text(text) => Ok(Arc::clone(text)),
            Value::Undefined => Ok(Arc::from("")),
            _ => {
                let mut out = String::new();
                self.write_repr(value, &mut out)?;
                Ok(Arc::from(out))
            }
        }
    }

    fn write_repr(&mut self, value: &Value, out: &mut String) -> Result<(), TemplateError> {
        self.step(1)?;
        self.make(8)?;
        match value {
            Value::Undefined => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(x) => out.push_str(if *x { "True" } else { "False" }),
            Value::Int(x) => out.push_str(&x.to_string()),
            Value::Float(x) => out.push_str(&float_text(*x)),
            Value::Text(x) => {
                self.make(4 * x.len())?;
                quoted(x, out);
            }
            Value::List(list) => {
                out.push('[');
                for (at, item) in list.items.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    self.write_repr(item, out)?;
                }
                out.push(']');
            }
            Value::Map(map) => {
                out.push('{');
                for (at, (key, item)) in map.entries.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    self.make(4 * key.len())?;
                    quoted(key, out);
                    out.push_str(": ");
                    self.write_repr(item, out)?;
                }
                out.push('}');
            }
            Value::Internal(_) => out.push_str(&format!("<{}>", value.kind())),
        }
        Ok(())
    }

    /// JSON as Python's `json.dumps` writes it without escapes of what is not ASCII; `indent`
    /// spaces a level on lines of their own, or all on one line.
    pub(super) fn write_json(
        &mut self,
        value: &Value,
        indent: Option<usize>,
        level: usize,
        out: &mut String,
    ) -> Result<(), TemplateError> {
        self.step(1)?;
        self.make(8 + indent.unwrap_or(0).saturating_mul(level + 1))?;
        let new_line = |out: &mut String, level: usize| {
            if let Some(indent) = indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent * level));
            }
        };
        let comma = if indent.is_some() { "," } else { ", " };
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(x) => out.push_str(if *x { "true" } else { "false" }),
            Value::Int(x) => out.push_str(&x.to_string()),
            Value::Float(x) => out.push_str(&float_text(*x)),
            Value::Text(x) => {
                self.make(6 * x.len())?;
                json_quoted(x, out);
            }
            Value::List(list) if list.items.is_empty() => out.push_str("[]"),
            Value::List(list) => {
                out.push('[');
                for (at, item) in list.items.iter().enumerate() {
                    out.push_str(if at > 0 { comma } else { "" });
                    new_line(out, level + 1);
                    self.write_json(item, indent, level + 1, out)?;
                }
                new_line(out, level);
                out.push(']');
            }
            Value::Map(map) if map.entries.is_empty() => out.push_str("{}"),
            Value::Map(map) => {
                out.push('{');
                for (at, (key, item)) in map.entries.iter().enumerate() {
                    out.push_str(if at > 0 { comma } else { "" });
                    new_line(out, level + 1);
                    self.make(6 * key.len())?;
                    json_quoted(key, out);
                    out.push_str(": ");
                    self.write_json(item, indent, level + 1, out)?;
                }
                new_line(out, level);
                out.push('}');
            }
            Value::Undefined | Value::Internal(_) => {
                return Err(self.fail(format!("{} has no form in JSON", value.kind())));
            }
        }
        Ok(())
    }
}
