//! Filters (`value | name`) and tests (`value is name`).

use super::eval::{TemplateCallArgs, TemplateEvaluator};
use super::parser::TemplateCompareOp;
use super::spoken::TemplateTextBuilder;
use super::value::{TemplateInternal, TemplateInternalKind};
use super::{TemplateError, TemplateValue, clip};

/// The names of all filters.
const FILTERS: [&str; 48] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
];
/// The names of all tests.
const TESTS: [&str; 39] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

impl TemplateEvaluator<'_> {
    pub(super) fn filter(
        &mut self,
        name: &str,
        value: TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        self.step(1)?;
        match name {
            "default" | "d" => {
                let given = self.bind_args(name, args, &["default_value", "boolean"])?;
                let mut given = given.into_iter();
                let default = given
                    .next()
                    .flatten()
                    .unwrap_or_else(|| TemplateValue::text(""));
                let falsy = given.next().flatten().is_some_and(|b| b.is_true());
                let missing =
                    matches!(value, TemplateValue::Undefined) || (falsy && !value.is_true());
                Ok(if missing { default } else { value })
            }
            "length" | "count" => {
                self.bind_args(name, args, &[])?;
                self.length(&value)
            }
            "first" | "last" => {
                self.bind_args(name, args, &[])?;
                let items = self.items(&value)?;
                let item = match name {
                    "first" => items.items.first(),
                    _ => items.items.last(),
                };
                Ok(item.cloned().unwrap_or(TemplateValue::Undefined))
            }
            "list" => {
                self.bind_args(name, args, &[])?;
                let items = self.items(&value)?;
                Ok(TemplateValue::List(items))
            }
            "string" => {
                self.bind_args(name, args, &[])?;
                let text = self.text_of(&value)?;
                Ok(TemplateValue::Text(text))
            }
            "safe" => {
                self.bind_args(name, args, &[])?;
                Ok(value)
            }
            "reverse" => {
                self.bind_args(name, args, &[])?;
                self.reverse(&value)
            }
            "join" => self.join(value, args),
            "tojson" => self.tojson(&value, args),
            "items" => match value {
                TemplateValue::Undefined => self.list(Vec::new()),
                TemplateValue::Map(_) => self.method(&value, "items", args),
                _ => Err(self.fail(format!("{} has no entries", value.kind()))),
            },
            "dictsort" => self.dictsort(&value, args),
            "int" | "float" | "abs" => self.number(name, &value, args),
            "indent" => self.indent(&value, args),
            "select" | "reject" | "selectattr" | "rejectattr" => self.select(name, &value, args),
            "map" => self.map_filter(&value, args),
            "trim" | "upper" | "lower" | "title" | "capitalize" | "replace" => {
                let text = TemplateValue::Text(self.text_of(&value)?);
                let method = if name == "trim" { "strip" } else { name };
                self.method(&text, method, args)
            }
            _ => self.sequence_filter(name, &value, args),
        }
    }

    fn length(&mut self, value: &TemplateValue) -> Result<TemplateValue, TemplateError> {
        let len = match value {
            TemplateValue::Text(text) => {
                self.scan(text.len())?;
                text.chars().count()
            }
            TemplateValue::List(list) => list.items.len(),
            TemplateValue::Map(map) => map.entries.len(),
            TemplateValue::Undefined => 0,
            _ => return Err(self.fail(format!("{} has no length", value.kind()))),
        };
        Ok(TemplateValue::Int(len as i64))
    }

    fn reverse(&mut self, value: &TemplateValue) -> Result<TemplateValue, TemplateError> {
        match value {
            TemplateValue::Text(text) => {
                self.reserve_bytes(text.len())?;
                let reversed: String = text.chars().rev().collect();
                self.made(text.mapped(&reversed))
            }
            _ => {
                let items = self.items(value)?;
                let items = items.items.iter().rev().cloned().collect();
                self.list(items)
            }
        }
    }

    fn join(
        &mut self,
        value: TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args("join", args, &["d", "attribute"])?;
        let mut given = given.into_iter();
        let between = given
            .next()
            .flatten()
            .unwrap_or_else(|| TemplateValue::text(""));
        let between = self.text_of(&between)?;
        let attribute = given.next().flatten();
        let items = self.items(&value)?;
        let mut joined = TemplateTextBuilder::default();
        for (at, item) in items.items.iter().enumerate() {
            let text = match &attribute {
                None => self.text_of(item)?,
                Some(attribute) => {
                    let value = self.path(item, attribute)?;
                    self.text_of(&value)?
                }
            };
            self.reserve_bytes(between.len() + text.len())?;
            if at > 0 {
                joined.push(&between);
            }
            joined.push(&text);
        }
        self.made(joined.finish())
    }

    fn tojson(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let names = ["indent", "ensure_ascii", "separators", "sort_keys"];
        let given = self.bind_args("tojson", args, &names)?;
        let mut given = given.into_iter();
        let indent = match given.next().flatten() {
            None | Some(TemplateValue::None) => None,
            Some(indent) => match indent.as_int().and_then(|x| usize::try_from(x).ok()) {
                Some(indent) => Some(indent),
                None => return Err(self.fail("the indent of `tojson` is not a number")),
            },
        };
        if given.flatten().any(|option| option.is_true()) {
            return Err(self.unsupported("this option of `tojson`"));
        }
        let mut out = TemplateTextBuilder::default();
        self.write_json(value, indent, 0, &mut out)?;
        self.made(out.finish())
    }

    fn dictsort(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let names = ["case_sensitive", "by", "reverse"];
        let mut given = self.bind_args("dictsort", args, &names)?.into_iter();
        let has_case = given
            .next()
            .flatten()
            .is_some_and(|option| option.is_true());
        let by = given.next().flatten();
        let is_reverse = given
            .next()
            .flatten()
            .is_some_and(|option| option.is_true());
        let by_value = match &by {
            None => false,
            Some(TemplateValue::Text(by)) if matches!(&**by, "key" | "value") => &**by == "value",
            _ => return Err(self.fail("`by` of `dictsort` is \"key\" or \"value\"")),
        };
        let TemplateValue::Map(map) = value else {
            return Err(self.fail(format!("{} has no entries", value.kind())));
        };
        let mut pairs = Vec::with_capacity(map.entries.len());
        for (at, (_, value)) in map.entries.iter().enumerate() {
            let key = map.key(at);
            let sorted = if by_value { value } else { &key };
            let sorted = match sorted {
                TemplateValue::Text(text) if !has_case => {
                    self.reserve_bytes(text.len() + 64)?;
                    TemplateValue::text(&text.to_lowercase())
                }
                sorted => sorted.clone(),
            };
            pairs.push((sorted, TemplateValue::list(vec![key, value.clone()])));
        }
        let sorted = self.sorted(pairs, is_reverse)?;
        self.list(sorted)
    }

    /// Sorts values by texts or by numbers.
    fn sorted(
        &mut self,
        mut pairs: Vec<(TemplateValue, TemplateValue)>,
        is_reverse: bool,
    ) -> Result<Vec<TemplateValue>, TemplateError> {
        self.step(pairs.len())?;
        let are_texts = pairs.iter().all(|(key, _)| key.as_text().is_some());
        if are_texts {
            for (key, _) in &pairs {
                self.reserve_bytes(key.as_text().map_or(0, str::len))?;
            }
            pairs.sort_by(|(a, _), (b, _)| {
                let order = a.as_text().cmp(&b.as_text());
                if is_reverse { order.reverse() } else { order }
            });
        } else {
            let mut numbers = Vec::with_capacity(pairs.len());
            for (key, value) in pairs {
                let Some(number) = key.as_float().filter(|x| !x.is_nan()) else {
                    return Err(self.fail("texts, numbers and other values have no common order"));
                };
                numbers.push((number, value));
            }
            numbers.sort_by(|(a, _), (b, _)| {
                let order = a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal);
                if is_reverse { order.reverse() } else { order }
            });
            return Ok(numbers.into_iter().map(|(_, value)| value).collect());
        }
        Ok(pairs.into_iter().map(|(_, value)| value).collect())
    }

    fn number(
        &mut self,
        name: &str,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args(name, args, &["default"])?;
        let default = given.into_iter().next().flatten();
        let text = match value {
            TemplateValue::Text(text) => text.trim(),
            _ => "",
        };
        Ok(match name {
            "int" => {
                let float = value.as_float().or_else(|| text.parse().ok());
                let int = value.as_int().or_else(|| text.parse().ok());
                // Rust's float-to-integer cast saturates.
                int.or(float.map(|x| x as i64))
                    .map(TemplateValue::Int)
                    .or(default)
                    .unwrap_or(TemplateValue::Int(0))
            }
            "float" => {
                let float = value.as_float().or_else(|| text.parse().ok());
                float
                    .map(TemplateValue::Float)
                    .or(default)
                    .unwrap_or(TemplateValue::Float(0.0))
            }
            _ => match value {
                TemplateValue::Float(x) => TemplateValue::Float(x.abs()),
                _ => match value.as_int().and_then(i64::checked_abs) {
                    Some(x) => TemplateValue::Int(x),
                    None => return Err(self.fail(format!("{} has no size", value.kind()))),
                },
            },
        })
    }

    fn indent(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args("indent", args, &["width", "first", "blank"])?;
        let mut given = given.into_iter();
        let before = match given.next().flatten() {
            None => "    ".to_owned(),
            Some(TemplateValue::Text(text)) => text.to_string(),
            Some(width) => {
                let width = width.as_int().and_then(|w| usize::try_from(w).ok());
                let width = width.unwrap_or(0);
                self.reserve_bytes(width)?;
                " ".repeat(width)
            }
        };
        let first = given.next().flatten().is_some_and(|v| v.is_true());
        let blank = given.next().flatten().is_some_and(|v| v.is_true());
        let text = self.text_of(value)?;
        let mut out = TemplateTextBuilder::default();
        let mut start = 0;
        for (at, line) in text.split('\n').enumerate() {
            self.reserve_bytes(before.len() + line.len() + 1)?;
            if at > 0 {
                out.push_part(&text, start - 1..start);
            }
            if (at > 0 || first) && (blank || first && at == 0 || !line.is_empty()) {
                out.push_str(&before, false);
            }
            out.push_part(&text, start..start + line.len());
            start += line.len() + 1;
        }
        self.made(out.finish())
    }

    /// An attribute of an item, by name or by a path with dots.
    pub(super) fn path(
        &mut self,
        item: &TemplateValue,
        path: &TemplateValue,
    ) -> Result<TemplateValue, TemplateError> {
        let path = self.text_of(path)?;
        let mut value = item.clone();
        for name in path.split('.') {
            self.step(1)?;
            let place: Option<usize> = name.parse().ok();
            value = match (&value, place) {
                (TemplateValue::List(list), Some(at)) => list
                    .items
                    .get(at)
                    .cloned()
                    .unwrap_or(TemplateValue::Undefined),
                _ => self.attribute(&value, name, || "an item".to_owned())?,
            };
        }
        Ok(value)
    }

    fn select(
        &mut self,
        name: &str,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
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
        let rest: Vec<TemplateValue> = plain.collect();
        let items = self.items(value)?;
        let mut kept = Vec::new();
        for item in &items.items {
            let subject = match &attribute {
                Some(attribute) => self.path(item, attribute)?,
                None => item.clone(),
            };
            let holds = match &test {
                None => subject.is_true(),
                Some(TemplateValue::Text(test)) => {
                    let called = TemplateCallArgs {
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

    fn map_filter(
        &mut self,
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
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
        let Some(TemplateValue::Text(filter)) = plain.next() else {
            return Err(self.fail("`map` takes an attribute or the name of a filter"));
        };
        // `map` of `map` could recurse without limit.
        if &*filter == "map" {
            return Err(self.unsupported("`map` through `map`"));
        }
        let rest: Vec<TemplateValue> = plain.collect();
        for item in &items.items {
            let called = TemplateCallArgs {
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
        value: &TemplateValue,
        args: TemplateCallArgs,
    ) -> Result<bool, TemplateError> {
        self.step(1)?;
        let compared = match name {
            "eq" | "equalto" | "==" | "sameas" => Some(TemplateCompareOp::Eq),
            "ne" | "!=" => Some(TemplateCompareOp::Ne),
            "lt" | "lessthan" | "<" => Some(TemplateCompareOp::Lt),
            "le" | "<=" => Some(TemplateCompareOp::Le),
            "gt" | "greaterthan" | ">" => Some(TemplateCompareOp::Gt),
            "ge" | ">=" => Some(TemplateCompareOp::Ge),
            "in" => Some(TemplateCompareOp::In),
            _ => None,
        };
        if compared.is_some() || name == "divisibleby" {
            let mut given = self.bind_args(name, args, &["other"])?;
            let Some(other) = given.pop().flatten() else {
                return Err(self.fail(format!("the test `{}` takes an operand", clip(name))));
            };
            return match compared {
                Some(op) => self.compare(op, value, &other),
                None => match (value.as_int(), other.as_int()) {
                    (Some(a), Some(b)) if b != 0 => Ok(a.checked_rem(b).unwrap_or(0) == 0),
                    _ => Err(self.fail("`divisibleby` takes integers other than 0")),
                },
            };
        }
        self.bind_args(name, args, &[])?;
        let is_callable = |kind: &TemplateInternalKind| {
            matches!(
                kind,
                TemplateInternalKind::Function(_) | TemplateInternalKind::Macro(_)
            )
        };
        Ok(match name {
            "defined" => !matches!(value, TemplateValue::Undefined),
            "undefined" => matches!(value, TemplateValue::Undefined),
            "none" => matches!(value, TemplateValue::None),
            "string" => matches!(value, TemplateValue::Text(_)),
            "boolean" => matches!(value, TemplateValue::Bool(_)),
            "true" => matches!(value, TemplateValue::Bool(true)),
            "false" => matches!(value, TemplateValue::Bool(false)),
            "integer" => matches!(value, TemplateValue::Int(_) | TemplateValue::BigInt(_)),
            "float" => matches!(value, TemplateValue::Float(_)),
            "number" => value.as_float().is_some(),
            "mapping" => matches!(value, TemplateValue::Map(_)),
            "sequence" | "iterable" => matches!(
                value,
                TemplateValue::List(_)
                    | TemplateValue::Map(_)
                    | TemplateValue::Text(_)
                    | TemplateValue::Undefined
            ),
            "lower" | "upper" => {
                let text = self.text_of(value)?;
                self.scan(text.len())?;
                let changed = match name {
                    "lower" => text.to_lowercase(),
                    _ => text.to_uppercase(),
                };
                *changed == *text && text.to_lowercase() != text.to_uppercase()
            }
            "escaped" => false,
            "filter" => value.as_text().is_some_and(|name| FILTERS.contains(&name)),
            "test" => value.as_text().is_some_and(|name| TESTS.contains(&name)),
            "callable" => {
                matches!(value, TemplateValue::Internal(TemplateInternal(kind)) if is_callable(kind))
            }
            "odd" | "even" => match value.as_int() {
                Some(x) => (x.rem_euclid(2) == 1) == (name == "odd"),
                None => return Err(self.fail(format!("{} is not an integer", value.kind()))),
            },
            _ => return Err(self.unsupported(format!("the test `{}`", clip(name)))),
        })
    }
}
