//! Values as printed text and as JSON.

use std::sync::Arc;

use super::eval::TemplateEvaluator;
use super::spoken::{TemplateText, TemplateTextBuilder};
use super::value::{float_text, json_quoted, quoted};
use super::{TemplateError, TemplateValue};

impl TemplateEvaluator<'_> {
    /// The printed text of a value.
    pub(super) fn text_of(&mut self, value: &TemplateValue) -> Result<TemplateText, TemplateError> {
        match value {
            TemplateValue::Text(text) => Ok(text.clone()),
            TemplateValue::Undefined => Ok(TemplateText::new("")),
            _ => {
                let mut out = TemplateTextBuilder::default();
                self.write_repr(value, &mut out)?;
                Ok(out.finish())
            }
        }
    }

    fn write_repr(
        &mut self,
        value: &TemplateValue,
        out: &mut TemplateTextBuilder,
    ) -> Result<(), TemplateError> {
        self.step(1)?;
        self.reserve_bytes(8)?;
        match value {
            TemplateValue::Undefined => out.push_str("Undefined", false),
            TemplateValue::None => out.push_str("None", false),
            TemplateValue::Bool(x) => out.push_str(if *x { "True" } else { "False" }, false),
            TemplateValue::Int(x) => out.push_str(&x.to_string(), false),
            TemplateValue::BigInt(digits) => {
                self.reserve_bytes(digits.len())?;
                out.push_str(digits, false);
            }
            TemplateValue::Float(x) => out.push_str(&float_text(*x), false),
            TemplateValue::Text(x) => {
                self.reserve_bytes(4 * x.len())?;
                quoted(x, out);
            }
            TemplateValue::List(list) => {
                out.push_str("[", false);
                for (at, item) in list.items.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" }, false);
                    self.write_repr(item, out)?;
                }
                out.push_str("]", false);
            }
            TemplateValue::Map(map) => {
                out.push_str("{", false);
                for (at, (_, item)) in map.entries.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" }, false);
                    self.write_repr(&map.key(at), out)?;
                    out.push_str(": ", false);
                    self.write_repr(item, out)?;
                }
                out.push_str("}", false);
            }
            TemplateValue::Internal(_) => out.push_str(&format!("<{}>", value.kind()), false),
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
        out: &mut TemplateTextBuilder,
    ) -> Result<(), TemplateError> {
        self.step(1)?;
        self.reserve_bytes(8 + indent.unwrap_or(0).saturating_mul(level + 1))?;
        let new_line = |out: &mut TemplateTextBuilder, level: usize| {
            if let Some(indent) = indent {
                out.push_str("\n", false);
                out.push_str(&" ".repeat(indent * level), false);
            }
        };
        let comma = if indent.is_some() { "," } else { ", " };
        match value {
            TemplateValue::None => out.push_str("null", false),
            TemplateValue::Bool(x) => out.push_str(if *x { "true" } else { "false" }, false),
            TemplateValue::Int(x) => out.push_str(&x.to_string(), false),
            TemplateValue::BigInt(digits) => {
                self.reserve_bytes(digits.len())?;
                out.push_str(digits, false);
            }
            TemplateValue::Float(x) => out.push_str(&float_text(*x), false),
            TemplateValue::Text(x) => {
                self.reserve_bytes(6 * x.len())?;
                json_quoted(x, out);
            }
            TemplateValue::List(list) if list.items.is_empty() => out.push_str("[]", false),
            TemplateValue::List(list) => {
                out.push_str("[", false);
                for (at, item) in list.items.iter().enumerate() {
                    out.push_str(if at > 0 { comma } else { "" }, false);
                    new_line(out, level + 1);
                    self.write_json(item, indent, level + 1, out)?;
                }
                new_line(out, level);
                out.push_str("]", false);
            }
            TemplateValue::Map(map) if map.entries.is_empty() => out.push_str("{}", false),
            TemplateValue::Map(map) => {
                out.push_str("{", false);
                for (at, (key, item)) in map.entries.iter().enumerate() {
                    out.push_str(if at > 0 { comma } else { "" }, false);
                    new_line(out, level + 1);
                    self.reserve_bytes(6 * key.len())?;
                    json_quoted(
                        &TemplateText::of(Arc::clone(key), map.has_literal_keys),
                        out,
                    );
                    out.push_str(": ", false);
                    self.write_json(item, indent, level + 1, out)?;
                }
                new_line(out, level);
                out.push_str("}", false);
            }
            TemplateValue::Undefined | TemplateValue::Internal(_) => {
                return Err(self.fail(format!("{} cannot be converted to JSON", value.kind())));
            }
        }
        Ok(())
    }
}
