//! Values as printed text and as JSON.

use std::sync::Arc;

use super::eval::TemplateEvaluator;
use super::value::{float_text, json_quoted, quoted};
use super::{TemplateError, TemplateValue};

impl TemplateEvaluator<'_> {
    /// The printed text of a value.
    pub(super) fn text_of(&mut self, value: &TemplateValue) -> Result<Arc<str>, TemplateError> {
        match value {
            TemplateValue::Text(text) => Ok(Arc::clone(text)),
            TemplateValue::Undefined => Ok(Arc::from("")),
            _ => {
                let mut out = String::new();
                self.write_repr(value, &mut out)?;
                Ok(Arc::from(out))
            }
        }
    }

    fn write_repr(&mut self, value: &TemplateValue, out: &mut String) -> Result<(), TemplateError> {
        self.step(1)?;
        self.reserve_bytes(8)?;
        match value {
            TemplateValue::Undefined => out.push_str("Undefined"),
            TemplateValue::None => out.push_str("None"),
            TemplateValue::Bool(x) => out.push_str(if *x { "True" } else { "False" }),
            TemplateValue::Int(x) => out.push_str(&x.to_string()),
            TemplateValue::Float(x) => out.push_str(&float_text(*x)),
            TemplateValue::Text(x) => {
                self.reserve_bytes(4 * x.len())?;
                quoted(x, out);
            }
            TemplateValue::List(list) => {
                out.push('[');
                for (at, item) in list.items.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    self.write_repr(item, out)?;
                }
                out.push(']');
            }
            TemplateValue::Map(map) => {
                out.push('{');
                for (at, (key, item)) in map.entries.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    self.reserve_bytes(4 * key.len())?;
                    quoted(key, out);
                    out.push_str(": ");
                    self.write_repr(item, out)?;
                }
                out.push('}');
            }
            TemplateValue::Internal(_) => out.push_str(&format!("<{}>", value.kind())),
        }
        Ok(())
    }

    /// Formats JSON as Python's `json.dumps` does with `ensure_ascii=False`. With `indent`, each
    /// level is indented by that number of spaces; otherwise the output is one line.
    pub(super) fn write_json(
        &mut self,
        value: &TemplateValue,
        indent: Option<usize>,
        level: usize,
        out: &mut String,
    ) -> Result<(), TemplateError> {
        self.step(1)?;
        self.reserve_bytes(8 + indent.unwrap_or(0).saturating_mul(level + 1))?;
        let new_line = |out: &mut String, level: usize| {
            if let Some(indent) = indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent * level));
            }
        };
        let comma = if indent.is_some() { "," } else { ", " };
        match value {
            TemplateValue::None => out.push_str("null"),
            TemplateValue::Bool(x) => out.push_str(if *x { "true" } else { "false" }),
            TemplateValue::Int(x) => out.push_str(&x.to_string()),
            TemplateValue::Float(x) => out.push_str(&float_text(*x)),
            TemplateValue::Text(x) => {
                self.reserve_bytes(6 * x.len())?;
                json_quoted(x, out);
            }
            TemplateValue::List(list) if list.items.is_empty() => out.push_str("[]"),
            TemplateValue::List(list) => {
                out.push('[');
                for (at, item) in list.items.iter().enumerate() {
                    out.push_str(if at > 0 { comma } else { "" });
                    new_line(out, level + 1);
                    self.write_json(item, indent, level + 1, out)?;
                }
                new_line(out, level);
                out.push(']');
            }
            TemplateValue::Map(map) if map.entries.is_empty() => out.push_str("{}"),
            TemplateValue::Map(map) => {
                out.push('{');
                for (at, (key, item)) in map.entries.iter().enumerate() {
                    out.push_str(if at > 0 { comma } else { "" });
                    new_line(out, level + 1);
                    self.reserve_bytes(6 * key.len())?;
                    json_quoted(key, out);
                    out.push_str(": ");
                    self.write_json(item, indent, level + 1, out)?;
                }
                new_line(out, level);
                out.push('}');
            }
            TemplateValue::Undefined | TemplateValue::Internal(_) => {
                return Err(self.fail(format!("{} cannot be converted to JSON", value.kind())));
            }
        }
        Ok(())
    }
}
