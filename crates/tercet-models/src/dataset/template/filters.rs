//! Filters (`value | name`) and tests (`value is name`).

use std::sync::Arc;

use super::eval::{Called, Run};
use super::parser::CompareOp;
use super::value::{Internal, InternalKind};
use super::{TemplateError, Value, clip};

impl Run<'_> {
    pub(super) fn filter(
        &mut self,
        name: &str,
        value: Value,
        args: Called,
    ) -> Result<Value, TemplateError> {
        self.step(1)?;
        match name {
            "default" | "d" => {
                let given = self.given(name, args, &["default_value", "boolean"])?;
                let mut given = given.into_iter();
                let default = given.next().flatten().unwrap_or_else(|| Value::text(""));
                let falsy = given.next().flatten().is_some_and(|b| b.is_true());
                let missing = matches!(value, Value::Undefined) || (falsy && !value.is_true());
                Ok(if missing { default } else { value })
            }
            "length" | "count" => {
                self.given(name, args, &[])?;
                self.length(&value)
            }
            "first" | "last" => {
                self.given(name, args, &[])?;
                let items = self.items(&value)?;
                let item = match name {
                    "first" => items.items.first(),
                    _ => items.items.last(),
                };
                Ok(item.cloned().unwrap_or(Value::Undefined))
            }
            "list" => {
                self.given(name, args, &[])?;
                let items = self.items(&value)?;
                Ok(Value::List(items))
            }
            "string" => {
                self.given(name, args, &[])?;
                let text = self.text_of(&value)?;
                Ok(Value::Text(text))
            }
            "safe" => {
                self.given(name, args, &[])?;
                Ok(value)
            }
            "reverse" => {
                self.given(name, args, &[])?;
                self.reverse(&value)
            }
            "join" => self.join(value, args),
            "tojson" => self.tojson(&value, args),
            "items" => match value {
                Value::Undefined => self.list(Vec::new()),
                Value::Map(_) => self.method(&value, "items", args),
                _ => Err(self.fail(format!("{} has no entries", value.kind()))),
            },
            "dictsort" => self.dictsort(&value, args),
            "int" | "float" | "abs" => self.number(name, &value, args),
            "indent" => self.indent(&value, args),
            "select" | "reject" | "selectattr" | "rejectattr" => self.select(name, &value, args),
            "map" => self.map_filter(&value, args),
            "trim" | "upper" | "lower" | "title" | "capitalize" | "replace" => {
                let text = Value::Text(self.text_of(&value)?);
                let method = if name == "trim" { "strip" } else { name };
                self.method(&text, method, args)
            }
            _ => Err(self.unsupported(format!("the filter `{}`", clip(name)))),
        }
    }

    fn length(&mut self, value: &Value) -> Result<Value, TemplateError> {
        let len = match value {
            Value::Text(text) => {
                self.scan(text.len())?;
                text.chars().count()
            }
            Value::List(list) => list.items.len(),
            Value::Map(map) => map.entries.len(),
            Value::Undefined => 0,
            _ => return Err(self.fail(format!("{} has no length", value.kind()))),
        };
        Ok(Value::Int(len as i64))
    }

    fn reverse(&mut self, value: &Value) -> Result<Value, TemplateError> {
        match value {
            Value::Text(text) => {
                self.make(text.len())?;
                let text: String = text.chars().rev().collect();
                self.text(&text)
            }
            _ => {
                let items = self.items(value)?;
                let items = items.items.iter().rev().cloned().collect();
                self.list(items)
            }
        }
    }

    fn join(&mut self, value: Value, args: Called) -> Result<Value, TemplateError> {
        let given = self.given("join", args, &["d", "attribute"])?;
        let mut given = given.into_iter();
        let between = given.next().flatten().unwrap_or_else(|| Value::text(""));
        let between = self.text_of(&between)?;
        let attribute = given.next().flatten();
        let items = self.items(&value)?;
        let mut joined = String::new();
        for (at, item) in items.items.iter().enumerate() {
            let text = match &attribute {
                None => self.text_of(item)?,
                Some(attribute) => {
                    let value = self.path(item, attribute)?;
                    self.text_of(&value)?
                }
            };
            self.make(between.len() + text.len())?;
            joined.push_str(if at > 0 { &between } else { "" });
            joined.push_str(&text);
        }
        self.text(&joined)
    }

    fn tojson(&mut self, value: &Value, args: Called) -> Result<Value, TemplateError> {
        let names = ["indent", "ensure_ascii", "separators", "sort_keys"];
        let given = self.given("tojson", args, &names)?;
        let mut given = given.into_iter();
        let indent = match given.next().flatten() {
            None | Some(Value::None) => None,
            Some(indent) => match indent.as_int().and_then(|x| usize::try_from(x).ok()) {
                Some(indent) => Some(indent),
                None => return Err(self.fail("the indent of `tojson` is no number")),
            },
        };
        if given.flatten().any(|option| option.is_true()) {
            return Err(self.unsupported("this option of `tojson`"));
        }
        let mut out = String::new();
        self.write_json(value, indent, 0, &mut out)?;
        self.text(&out)
    }

    fn dictsort(&mut self, value: &Value, args: Called) -> Result<Value, TemplateError> {
        self.given("dictsort", args, &[])?;
        let Value::Map(map) = value else {
            return Err(self.fail(format!("{} has no entries", value.kind())));
        };
        let mut entries: Vec<_> = map.entries.iter().collect();
        for (key, _) in &entries {
            self.make(key.len() + 64)?;
        }
        entries.sort_by_cached_key(|(key, _)| key.to_lowercase());
        let pairs = entries.into_iter();
        let pairs = pairs
            .map(|(key, value)| Value::list(vec![Value::Text(Arc::clone(key)), value.clone()]))
            .collect();
        self.list(pairs)
    }

    fn number(&mut self, name: &str, value: &Value, args: Called) -> Result<Value, TemplateError> {
        let given = self.given(name, args, &["default"])?;
        let default = given.into_iter().next().flatten();
        let text = match value {
            Value::Text(text) => text.trim(),
            _ => "",
        };
        Ok(match name {
            "int" => {
                let float = value.as_float().or_else(|| text.parse().ok());
                let int = value.as_int().or_else(|| text.parse().ok());
                // A cast to an integer stays within its range.
                int.or(float.map(|x| x as i64))
                    .map(Value::Int)
                    .or(default)
                    .unwrap_or(Value::Int(0))
            }
            "float" => {
                let float = value.as_float().or_else(|| text.parse().ok());
                float
                    .map(Value::Float)
                    .or(default)
                    .unwrap_or(Value::Float(0.0))
            }
            _ => match value {
                Value::Float(x) => Value::Float(x.abs()),
                _ => match value.as_int().and_then(i64::checked_abs) {
                    Some(x) => Value::Int(x),
                    None => return Err(self.fail(format!("{} has no size", value.kind()))),
                },
            },
        })
    }

    fn indent(&mut self, value: &Value, args: Called) -> Result<Value, TemplateError> {
        let given = self.given("indent", args, &["width", "first", "blank"])?;
        let mut given = given.into_iter();
        let before = match given.next().flatten() {
            None => "    ".to_owned(),
            Some(Value::Text(text)) => text.to_string(),
            Some(width) => {
                let width = width.as_int().and_then(|w| usize::try_from(w).ok());
                let width = width.unwrap_or(0);
                self.make(width)?;
                " ".repeat(width)
            }
        };
        let first = given.next().flatten().is_some_and(|v| v.is_true());
        let blank = given.next().flatten().is_some_and(|v| v.is_true());
        let text = self.text_of(value)?;
        let mut out = String::new();
        for (at, line) in text.split('\n').enumerate() {
            self.make(before.len() + line.len() + 1)?;
            out.push_str(if at > 0 { "\n" } else { "" });
            if (at > 0 || first) && (blank || first && at == 0 || !line.is_empty()) {
                out.push_str(&before);
            }
            out.push_str(line);
        }
        self.text(&out)
    }

    /// The attribute of an item, by a name or a path with dots.
    fn path(&mut self, item: &Value, path: &Value) -> Result<Value, TemplateError> {
        let path = self.text_of(path)?;
        let mut value = item.clone();
        for name in path.split('.') {
            self.step(1)?;
            value = self.attribute(&value, name, || "an item".to_owned())?;
        }
        Ok(value)
    }

    fn select(&mut self, name: &str, value: &Value, args: Called) -> Result<Value, TemplateError> {
        let mut plain = args.plain.into_iter();
        let attribute = match name {
            "selectattr" | "rejectattr" => match plain.next() {
                Some(attribute) => Some(attribute),
                None => return Err(self.fail(format!("`{name}` takes an attribute"))),
            },
            _ => None,
        };
        let wanted = matches!(name, "select" | "selectattr");
        let test = plain.next();
        let rest: Vec<Value> = plain.collect();
        let items = self.items(value)?;
        let mut kept = Vec::new();
        for item in &items.items {
            let subject = match &attribute {
                Some(attribute) => self.path(item, attribute)?,
                None => item.clone(),
            };
            let holds = match &test {
                None => subject.is_true(),
                Some(Value::Text(test)) => {
                    let called = Called {
                        plain: rest.clone(),
                        named: Vec::new(),
                    };
                    self.test(test, &subject, called)?
                }
                Some(_) => return Err(self.fail(format!("`{name}` takes the name of a test"))),
            };
            if holds == wanted {
                kept.push(item.clone());
            }
        }
        self.list(kept)
    }

    fn map_filter(&mut self, value: &Value, args: Called) -> Result<Value, TemplateError> {
        let items = self.items(value)?;
        let mut mapped = Vec::with_capacity(items.items.len());
        if let [(name, attribute)] = &args.named[..]
            && args.plain.is_empty()
            && name == "attribute"
        {
            for item in &items.items {
                mapped.push(self.path(item, attribute)?);
            }
            return self.list(mapped);
        }
        let mut plain = args.plain.into_iter();
        let Some(Value::Text(filter)) = plain.next() else {
            return Err(self.fail("`map` takes an attribute or the name of a filter"));
        };
        // A filter of filters of filters has no end of its own.
        if &*filter == "map" {
            return Err(self.unsupported("`map` through `map`"));
        }
        let rest: Vec<Value> = plain.collect();
        for item in &items.items {
            let called = Called {
                plain: rest.clone(),
                named: args.named.clone(),
            };
            mapped.push(self.filter(&filter, item.clone(), called)?);
        }
        self.list(mapped)
    }

    pub(super) fn test(
        &mut self,
        name: &str,
        value: &Value,
        args: Called,
    ) -> Result<bool, TemplateError> {
        self.step(1)?;
        let compared = match name {
            "eq" | "equalto" | "==" | "sameas" => Some(CompareOp::Eq),
            "ne" | "!=" => Some(CompareOp::Ne),
            "lt" | "lessthan" | "<" => Some(CompareOp::Lt),
            "le" | "<=" => Some(CompareOp::Le),
            "gt" | "greaterthan" | ">" => Some(CompareOp::Gt),
            "ge" | ">=" => Some(CompareOp::Ge),
            "in" => Some(CompareOp::In),
            _ => None,
        };
        if compared.is_some() || name == "divisibleby" {
            let mut given = self.given(name, args, &["other"])?;
            let Some(other) = given.pop().flatten() else {
                return Err(self.fail(format!("the test `{}` takes an operand", clip(name))));
            };
            return match compared {
                Some(op) => self.compare(op, value, &other),
                None => match (value.as_int(), other.as_int()) {
                    (Some(a), Some(b)) if b != 0 => Ok(a.checked_rem(b).unwrap_or(0) == 0),
                    _ => Err(self.fail("`divisibleby` takes integers, and not 0")),
                },
            };
        }
        self.given(name, args, &[])?;
        let is_callable = |kind: &InternalKind| {
            matches!(kind, InternalKind::Function(_) | InternalKind::Macro(_))
        };
        Ok(match name {
            "defined" => !matches!(value, Value::Undefined),
            "undefined" => matches!(value, Value::Undefined),
            "none" => matches!(value, Value::None),
            "string" => matches!(value, Value::Text(_)),
            "boolean" => matches!(value, Value::Bool(_)),
            "true" => matches!(value, Value::Bool(true)),
            "false" => matches!(value, Value::Bool(false)),
            "integer" => matches!(value, Value::Int(_)),
            "float" => matches!(value, Value::Float(_)),
            "number" => value.as_float().is_some(),
            "mapping" => matches!(value, Value::Map(_)),
            "sequence" | "iterable" => matches!(
                value,
                Value::List(_) | Value::Map(_) | Value::Text(_) | Value::Undefined
            ),
            "callable" => matches!(value, Value::Internal(Internal(kind)) if is_callable(kind)),
            "odd" | "even" => match value.as_int() {
                Some(x) => (x.rem_euclid(2) == 1) == (name == "odd"),
                None => return Err(self.fail(format!("{} is no integer", value.kind()))),
            },
            _ => return Err(self.unsupported(format!("the test `{}`", clip(name)))),
        })
    }
}
