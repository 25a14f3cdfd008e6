//! Methods of texts, lists and objects, with Python's semantics.

use super::eval::{TemplateCallArgs, TemplateEvaluator};
use super::spoken::{TemplateText, TemplateTextBuilder};
use super::value::{TemplateInternal, TemplateInternalKind, TemplateMap};
use super::{TemplateError, TemplateValue, clip};

impl TemplateEvaluator<'_> {
    pub(super) fn method(
        &mut self,
        value: &TemplateValue,
        name: &str,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        self.step(1)?;
        match value {
            TemplateValue::Text(text) => self.text_method(text, name, args),
            TemplateValue::Map(map) => self.map_method(map, name, args),
            TemplateValue::List(list) if matches!(name, "index" | "count") => {
                let [Some(wanted)] = &self.bind_args(name, args, &["value"])?[..] else {
                    return Err(self.fail(format!("`{name}` takes a value")));
                };
                let mut count = 0;
                for (at, item) in list.items.iter().enumerate() {
                    if self.equal(item, wanted)? {
                        count += 1;
                        if name == "index" {
                            return Ok(TemplateValue::Int(at as i64));
                        }
                    }
                }
                match name {
                    "count" => Ok(TemplateValue::Int(count)),
                    _ => Err(self.fail("the list does not have the value")),
                }
            }
            TemplateValue::Internal(TemplateInternal(TemplateInternalKind::Loop {
                index, ..
            })) if name == "cycle" => match args.plain.len() {
                0 => Err(self.fail("`cycle` takes values")),
                len => Ok(args.plain[index % len].clone()),
            },
            _ => {
                let (kind, name) = (value.kind(), clip(name));
                Err(self.unsupported(format!("the method `{name}` of {kind}")))
            }
        }
    }

    fn map_method(
        &mut self,
        map: &TemplateMap,
        name: &str,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let entries = &map.entries;
        match name {
            "get" => {
                let mut given = self.bind_args(name, args, &["key", "default"])?.into_iter();
                self.step(entries.len() / 8)?;
                let key = given.next().flatten();
                let found = key.and_then(|key| map.find(&key)).cloned();
                Ok(found
                    .or(given.next().flatten())
                    .unwrap_or(TemplateValue::None))
            }
            "keys" | "values" | "items" => {
                self.bind_args(name, args, &[])?;
                let mut items = Vec::with_capacity(entries.len());
                for (at, (_, value)) in entries.iter().enumerate() {
                    let key = map.key(at);
                    items.push(match name {
                        "keys" => key,
                        "values" => value.clone(),
                        _ => self.list(vec![key, value.clone()])?,
                    });
                }
                self.list(items)
            }
            _ => {
                let name = clip(name);
                Err(self.unsupported(format!("the method `{name}` of an object")))
            }
        }
    }

    fn text_method(
        &mut self,
        text: &TemplateText,
        name: &str,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        self.scan(text.len())?;
        match name {
            "strip" | "lstrip" | "rstrip" => self.strip(text, name, args),
            "startswith" | "endswith" => self.starts(text, name, args),
            "split" | "rsplit" => self.split(text, name, args),
            "replace" => self.replace(text, args),
            "join" => self.join_method(text, args),
            "find" | "count" | "removeprefix" | "removesuffix" => {
                let [Some(TemplateValue::Text(part))] = &self.bind_args(name, args, &["part"])?[..]
                else {
                    return Err(self.fail(format!("`{name}` takes a string")));
                };
                match name {
                    "find" => {
                        let at = text.find(&**part);
                        let at = at.map(|at| text[..at].chars().count() as i64);
                        Ok(TemplateValue::Int(at.unwrap_or(-1)))
                    }
                    "count" if part.is_empty() => {
                        Ok(TemplateValue::Int(text.chars().count() as i64 + 1))
                    }
                    "count" => Ok(TemplateValue::Int(text.matches(&**part).count() as i64)),
                    "removeprefix" => {
                        let rest = text.strip_prefix(&**part).unwrap_or(text);
                        self.made(text.part_of(rest))
                    }
                    _ => {
                        let rest = text.strip_suffix(&**part).unwrap_or(text);
                        self.made(text.part_of(rest))
                    }
                }
            }
            _ => {
                self.bind_args(name, args, &[])?;
                self.reserve_bytes(4 * text.len())?;
                match name {
                    "upper" => self.made(text.mapped(&text.to_uppercase())),
                    "lower" => self.made(text.mapped(&text.to_lowercase())),
                    "title" => self.made(text.mapped(&title(text))),
                    "capitalize" => self.made(text.mapped(&capitalized(text))),
                    "splitlines" => {
                        let mut lines = Vec::new();
                        for line in text.lines() {
                            lines.push(self.made(text.part_of(line))?);
                        }
                        self.list(lines)
                    }
                    "isdigit" => all(text, |c| c.is_ascii_digit()),
                    "isalpha" => all(text, char::is_alphabetic),
                    "isalnum" => all(text, char::is_alphanumeric),
                    "isspace" => all(text, char::is_whitespace),
                    "isupper" => Ok(TemplateValue::Bool(
                        **text != *text.to_lowercase() && **text == *text.to_uppercase(),
                    )),
                    "islower" => Ok(TemplateValue::Bool(
                        **text != *text.to_uppercase() && **text == *text.to_lowercase(),
                    )),
                    _ => Err(self.unsupported(format!("the method `{}` of a string", clip(name)))),
                }
            }
        }
    }

    fn strip(
        &mut self,
        text: &TemplateText,
        name: &str,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let chars = match self.bind_args(name, args, &["chars"])?.pop().flatten() {
            None | Some(TemplateValue::None) => None,
            Some(TemplateValue::Text(chars)) => Some(chars),
            Some(other) => {
                let kind = other.kind();
                return Err(self.fail(format!("`{name}` takes characters, not {kind}")));
            }
        };
        if let Some(chars) = &chars {
            let ends = chars.len().max(1);
            self.step(ends.saturating_mul(text.len() / 64 + 1))?;
        }
        let strips = |c: char| match &chars {
            Some(chars) => chars.contains(c),
            None => c.is_whitespace(),
        };
        let stripped = match name {
            "lstrip" => text.trim_start_matches(strips),
            "rstrip" => text.trim_end_matches(strips),
            _ => text.trim_matches(strips),
        };
        self.made(text.part_of(stripped))
    }

    fn starts(
        &mut self,
        text: &str,
        name: &str,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let holds = |part: &str| match name {
            "startswith" => text.starts_with(part),
            _ => text.ends_with(part),
        };
        match self.bind_args(name, args, &["part"])?.pop().flatten() {
            Some(TemplateValue::Text(part)) => Ok(TemplateValue::Bool(holds(&part))),
            Some(TemplateValue::List(parts)) => {
                self.step(parts.items.len() * (1 + text.len() / 64))?;
                let mut parts = parts.items.iter().filter_map(TemplateValue::as_text);
                Ok(TemplateValue::Bool(parts.any(holds)))
            }
            _ => Err(self.fail(format!("`{name}` takes a string"))),
        }
    }

    fn split(
        &mut self,
        text: &TemplateText,
        name: &str,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let mut given = self
            .bind_args(name, args, &["sep", "maxsplit"])?
            .into_iter();
        let between = given.next().flatten();
        let most = given.next().flatten().and_then(|v| v.as_int());
        // `maxsplit` splits give at most `maxsplit + 1` pieces.
        let most = most.and_then(|m| usize::try_from(m).ok());
        let pieces = most.map_or(usize::MAX, |m| m.saturating_add(1));
        self.reserve_bytes(text.len() / 2 * size_of::<&str>())?;
        let mut parts: Vec<&str> = match &between {
            None | Some(TemplateValue::None) if most.is_some() => {
                return Err(self.unsupported("`split` at white space with a limit"));
            }
            None | Some(TemplateValue::None) => text.split_whitespace().collect(),
            Some(TemplateValue::Text(between)) if between.is_empty() => {
                return Err(self.fail("`split` at an empty text"));
            }
            Some(TemplateValue::Text(between)) => match name {
                "split" => text.splitn(pieces, &**between).collect(),
                _ => text.rsplitn(pieces, &**between).collect(),
            },
            Some(_) => return Err(self.fail("`split` takes a string")),
        };
        if name == "rsplit" && matches!(between, Some(TemplateValue::Text(_))) {
            parts.reverse();
        }
        let mut items = Vec::with_capacity(parts.len());
        for part in parts {
            items.push(self.made(text.part_of(part))?);
        }
        self.list(items)
    }

    fn replace(
        &mut self,
        text: &TemplateText,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let given = self.bind_args("replace", args, &["old", "new", "count"])?;
        let [Some(old), Some(new), count] = &given[..] else {
            return Err(self.fail("`replace` takes two strings"));
        };
        let (old, new) = (self.text_of(old)?, self.text_of(new)?);
        let most = count.as_ref().and_then(TemplateValue::as_int);
        let most = most.and_then(|m| usize::try_from(m).ok());
        let most = most.unwrap_or(usize::MAX);
        let found = match old.is_empty() {
            true => text.len() + 1,
            false => text.matches(&*old).count(),
        };
        self.reserve_bytes(
            found
                .min(most)
                .saturating_mul(new.len())
                .saturating_add(text.len()),
        )?;
        let mut replaced = TemplateTextBuilder::default();
        let mut start = 0;
        for (at, found) in text.match_indices(&*old).take(most) {
            replaced.push_part(text, start..at);
            replaced.push(&new);
            start = at + found.len();
        }
        replaced.push_part(text, start..text.len());
        self.made(replaced.finish())
    }

    fn join_method(
        &mut self,
        between: &TemplateText,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let Some(of) = self.bind_args("join", args, &["of"])?.pop().flatten() else {
            return Err(self.fail("`join` takes a list"));
        };
        let items = self.items(&of)?;
        let mut joined = TemplateTextBuilder::default();
        for (at, item) in items.items.iter().enumerate() {
            let TemplateValue::Text(text) = item else {
                return Err(self.fail(format!("`join` of {}", item.kind())));
            };
            self.reserve_bytes(between.len() + text.len())?;
            if at > 0 {
                joined.push(between);
            }
            joined.push(text);
        }
        self.made(joined.finish())
    }
}

fn all(text: &str, is: impl Fn(char) -> bool) -> Result<TemplateValue, TemplateError> {
    Ok(TemplateValue::Bool(
        !text.is_empty() && text.chars().all(is),
    ))
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + &chars.as_str().to_lowercase()
}

fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}
