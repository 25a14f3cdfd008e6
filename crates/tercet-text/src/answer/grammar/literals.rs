//! Arguments that are literals: Python's, as in `set(mode="on", level=1)`, or objects with bare keys, as in
//! `set{mode:<quote>on<quote>,level:1}`.

use serde_json::{Map, Value};

use super::{AnswerGrammar, choices, quoted, refused};
use crate::answer::AnswerTool;
use crate::answer::marker::TextMarker;
use crate::constraint::ConstraintError;

/// Keywords that constrain nothing by themselves.
const ANNOTATIONS: [&str; 10] = [
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$defs",
    "definitions",
    "x-guidance",
    "$comment",
    "deprecated",
];
/// Keywords of strings and numbers, which the rules of JSON enforce.
const OF_STRINGS: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];
const OF_NUMBERS: [&str; 5] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];
/// Keywords of lists and objects.
const OF_LISTS: [&str; 3] = ["items", "minItems", "maxItems"];
const OF_OBJECTS: [&str; 3] = ["properties", "required", "additionalProperties"];
/// The types of JSON.
const TYPES: [&str; 7] = [
    "string", "number", "integer", "boolean", "null", "array", "object",
];
/// Names of the rules of any literal, any string and any key.
const ANY: &str = "any_literal";
const TEXT: &str = "text_literal";
/// The comma between two items; models write a space after it or not.
const COMMA: &str = "\",\" \" \"?";

/// The rules of the literals of one tool.
pub(super) struct LiteralRules<'a> {
    root: &'a Value,
    tool: &'a str,
    /// Prefix of the names of rules.
    prefix: String,
    count: usize,
    /// The rules of references.
    references: Vec<(String, String)>,
    /// The marker around strings; empty for quotes.
    quote: &'a TextMarker,
}

impl AnswerGrammar<'_> {
    /// The rules that all tools share.
    pub(super) fn literals(&mut self, quote: &TextMarker) {
        let (text, key, separator) = match quote.is_empty() {
            true => (
                "%json {\"type\": \"string\"}".to_string(),
                "text_literal",
                "\":\" \" \"?",
            ),
            false => {
                let mark = quote.spelling.trim();
                let until = self.until("quoted", mark, &[]);
                (
                    format!("{} {until}", self.lark(mark)),
                    "KEY_LITERAL",
                    "\":\"",
                )
            }
        };
        let names = match quote.is_empty() {
            true => "\"True\" | \"False\" | \"None\"",
            false => "\"true\" | \"false\" | \"null\"",
        };
        self.rules += &format!(
            "{TEXT}: {text}\n\
             number_literal: %json {{\"type\": \"number\"}}\n\
             KEY_LITERAL: /[A-Za-z_][A-Za-z0-9_]*/\n\
             pair_literal: {key} {separator} {ANY}\n\
             {ANY}: {TEXT} | number_literal | {names} | \"[\" ({ANY} ({COMMA} {ANY})*)? \"]\" | \
             \"{{\" (pair_literal ({COMMA} pair_literal)*)? \"}}\"\n"
        );
    }

    /// The arguments of a tool, without the brackets around them, in the order of its schema.
    pub(super) fn literal_arguments(
        &mut self,
        i: usize,
        tool: &AnswerTool,
        (schema, quote): (&Value, &TextMarker),
    ) -> Result<(), ConstraintError> {
        let mut rules = LiteralRules {
            root: schema,
            tool: &tool.name,
            prefix: format!("literal_{i}"),
            count: 0,
            references: Vec::new(),
            quote,
        };
        let equals = if quote.is_empty() { "=" } else { ":" };
        let empty = Map::new();
        let object = schema.as_object().unwrap_or(&empty);
        rules.check(object, &OF_OBJECTS)?;
        let body = rules.members(self, object, (equals, false))?;
        self.rules += &format!("arguments_{i}: {body}\n");
        Ok(())
    }
}

impl LiteralRules<'_> {
    /// Returns an error if a schema has other keywords than these.
    fn check(&self, schema: &Map<String, Value>, known: &[&str]) -> Result<(), ConstraintError> {
        let is_known =
            |key: &str| key == "type" || ANNOTATIONS.contains(&key) || known.contains(&key);
        match schema.keys().find(|key| !is_known(key)) {
            None => Ok(()),
            Some(keyword) => Err(refused(format!(
                "`{keyword}` in the parameters of `{}` is not supported for a model that writes literals",
                self.tool
            ))),
        }
    }

    fn no_value(&self) -> ConstraintError {
        refused(format!("a schema of `{}` allows no value", self.tool))
    }

    /// Adds a rule, and returns its name.
    fn rule(&mut self, grammar: &mut AnswerGrammar<'_>, body: &str) -> String {
        let name = format!("{}_{}", self.prefix, self.count);
        self.count += 1;
        grammar.rules += &format!("{name}: {body}\n");
        name
    }

    /// The members of an object in the order of its properties. `is_nested` if the keys are those of a literal.
    fn members(
        &mut self,
        grammar: &mut AnswerGrammar<'_>,
        schema: &Map<String, Value>,
        (equals, is_nested): (&str, bool),
    ) -> Result<String, ConstraintError> {
        let is_python = self.quote.is_empty();
        let equals = match is_nested && is_python {
            true => format!("{} \" \"?", quoted(equals)),
            false => quoted(equals),
        };
        let properties = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array);
        let is_required =
            |key: &str| required.is_some_and(|all| all.iter().any(|name| name == key));
        let Some(properties) = properties.filter(|properties| !properties.is_empty()) else {
            let more = schema
                .get("additionalProperties")
                .unwrap_or(&Value::Bool(true));
            if *more == Value::Bool(false) {
                return Ok("\"\"".to_string());
            }
            let value = self.value(grammar, more)?;
            let key = match is_nested && is_python {
                true => TEXT,
                false => "KEY_LITERAL",
            };
            let pair = self.rule(grammar, &format!("{key} {equals} {value}"));
            return Ok(format!("({pair} ({COMMA} {pair})*)?"));
        };
        let mut pairs = Vec::new();
        for (key, property) in properties {
            let value = self.value(grammar, property)?;
            let key_text = match is_nested && is_python {
                true => quoted(&quoted(key)),
                false => grammar.lark(key),
            };
            let pair = self.rule(grammar, &format!("{key_text} {equals} {value}"));
            pairs.push((pair, is_required(key)));
        }
        // From the last property: the rest after an earlier member, and the rest with no member before it.
        let (mut after, mut first) = ("\"\"".to_string(), "\"\"".to_string());
        for (pair, is_needed) in pairs.into_iter().rev() {
            let here = format!("{pair} {after}");
            let (with_comma, alone) = match is_needed {
                true => (format!("{COMMA} {here}"), here),
                false => (
                    format!("{COMMA} {here} | {after}"),
                    format!("{here} | {first}"),
                ),
            };
            after = self.rule(grammar, &with_comma);
            first = self.rule(grammar, &alone);
        }
        Ok(first)
    }

    /// The rule of a value of a schema.
    fn value(
        &mut self,
        grammar: &mut AnswerGrammar<'_>,
        schema: &Value,
    ) -> Result<String, ConstraintError> {
        let schema = match schema {
            Value::Bool(true) => return Ok(ANY.to_string()),
            Value::Object(schema) => schema,
            _ => {
                return Err(self.no_value());
            }
        };
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            self.check(schema, &["$ref"])?;
            return self.reference(grammar, reference);
        }
        if schema.contains_key("const") || schema.contains_key("enum") {
            return self.choice(grammar, schema);
        }
        for keyword in ["anyOf", "oneOf", "allOf"] {
            let Some(parts) = schema.get(keyword).and_then(Value::as_array) else {
                continue;
            };
            self.check(schema, &[keyword])?;
            if keyword == "allOf" && parts.len() > 1 || parts.is_empty() {
                return Err(refused(format!(
                    "`{keyword}` in the parameters of `{}` is not supported for a model that writes literals",
                    self.tool
                )));
            }
            let mut all = Vec::new();
            for part in parts {
                all.push(self.value(grammar, part)?);
            }
            return Ok(self.rule(grammar, &all.join(" | ")));
        }
        let implied = match () {
            () if schema.contains_key("properties") => Some("object"),
            () if schema.contains_key("items") => Some("array"),
            () => None,
        };
        let types: Vec<&str> = match schema.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
            _ => match implied {
                Some(one) => vec![one],
                None if schema.keys().all(|key| ANNOTATIONS.contains(&key.as_str())) => {
                    return Ok(ANY.to_string());
                }
                None => TYPES.to_vec(),
            },
        };
        let known: Vec<&str> = [&OF_STRINGS[..], &OF_NUMBERS, &OF_LISTS, &OF_OBJECTS].concat();
        self.check(schema, &known)?;
        let mut all = Vec::new();
        for kind in types {
            all.push(self.of_type(grammar, schema, kind)?);
        }
        Ok(self.rule(grammar, &all.join(" | ")))
    }

    /// The body of a value of one type.
    fn of_type(
        &mut self,
        grammar: &mut AnswerGrammar<'_>,
        schema: &Map<String, Value>,
        kind: &str,
    ) -> Result<String, ConstraintError> {
        let is_python = self.quote.is_empty();
        let json = |keywords: &[&str]| {
            let mut own = Map::new();
            own.insert("type".to_string(), kind.into());
            for key in keywords {
                if let Some(value) = schema.get(*key) {
                    own.insert((*key).to_string(), value.clone());
                }
            }
            format!("%json {}", Value::Object(own))
        };
        Ok(match kind {
            "string" => match OF_STRINGS.iter().find(|key| schema.contains_key(**key)) {
                None => TEXT.to_string(),
                Some(_) if is_python => self.rule(grammar, &json(&OF_STRINGS)),
                Some(limit) => {
                    return Err(refused(format!(
                        "`{limit}` in the parameters of `{}` is not supported for a model that writes strings between markers",
                        self.tool
                    )));
                }
            },
            "number" | "integer" => self.rule(grammar, &json(&OF_NUMBERS)),
            "boolean" if is_python => "\"True\" | \"False\"".to_string(),
            "boolean" => "\"true\" | \"false\"".to_string(),
            "null" if is_python => "\"None\"".to_string(),
            "null" => "\"null\"".to_string(),
            "array" => {
                let item =
                    self.value(grammar, schema.get("items").unwrap_or(&Value::Bool(true)))?;
                let count = |key: &str| schema.get(key).and_then(Value::as_u64);
                let least = count("minItems").unwrap_or(0);
                let most = count("maxItems");
                let more = match most {
                    Some(most) if most < least => {
                        return Err(refused(format!(
                            "a list of `{}` allows no length",
                            self.tool
                        )));
                    }
                    Some(0) => return Ok("\"[\" \"]\"".to_string()),
                    Some(most) => format!("{{{},{}}}", least.saturating_sub(1), most - 1),
                    None => format!("{{{},}}", least.saturating_sub(1)),
                };
                let items = format!("{item} ({COMMA} {item}){more}");
                match least {
                    0 => format!("\"[\" ({items})? \"]\""),
                    _ => format!("\"[\" {items} \"]\""),
                }
            }
            "object" => {
                let body = self.members(grammar, schema, (":", true))?;
                format!("\"{{\" {body} \"}}\"")
            }
            other => {
                return Err(refused(format!(
                    "the type `{other}` in the parameters of `{}` is unknown",
                    self.tool
                )));
            }
        })
    }

    /// The rule of the values that a schema lists.
    fn choice(
        &mut self,
        grammar: &mut AnswerGrammar<'_>,
        schema: &Map<String, Value>,
    ) -> Result<String, ConstraintError> {
        self.check(schema, &["const", "enum"])?;
        let whole = Value::Object(schema.clone());
        let texts = choices(&whole);
        let all: Vec<String> = match (texts, schema.get("const"), schema.get("enum")) {
            (Some(texts), ..) => texts
                .into_iter()
                .map(|text| self.text(grammar, text))
                .collect(),
            (None, Some(value), _) => vec![self.constant(grammar, value)?],
            (None, None, Some(Value::Array(values))) => {
                let values = values.iter().map(|value| self.constant(grammar, value));
                values.collect::<Result<_, _>>()?
            }
            _ => Vec::new(),
        };
        match all.is_empty() {
            true => Err(self.no_value()),
            false => Ok(self.rule(grammar, &all.join(" | "))),
        }
    }

    fn text(&self, grammar: &AnswerGrammar<'_>, text: &str) -> String {
        match self.quote.is_empty() {
            true => quoted(&quoted(text)),
            false => {
                let mark = self.quote.spelling.trim();
                format!(
                    "{} {} {}",
                    grammar.lark(mark),
                    grammar.lark(text),
                    grammar.lark(mark)
                )
            }
        }
    }

    fn constant(
        &self,
        grammar: &AnswerGrammar<'_>,
        value: &Value,
    ) -> Result<String, ConstraintError> {
        let is_python = self.quote.is_empty();
        Ok(match value {
            Value::String(text) => self.text(grammar, text),
            Value::Number(number) => quoted(&number.to_string()),
            Value::Bool(true) if is_python => "\"True\"".to_string(),
            Value::Bool(false) if is_python => "\"False\"".to_string(),
            Value::Null if is_python => "\"None\"".to_string(),
            Value::Bool(_) | Value::Null => quoted(&value.to_string()),
            Value::Array(_) | Value::Object(_) => {
                return Err(refused(format!(
                    "a list or object in `enum` or `const` of `{}` is not supported for a model that writes literals",
                    self.tool
                )));
            }
        })
    }

    /// The rule of a reference within the schema, which may be recursive.
    fn reference(
        &mut self,
        grammar: &mut AnswerGrammar<'_>,
        reference: &str,
    ) -> Result<String, ConstraintError> {
        if let Some((_, rule)) = self.references.iter().find(|(own, _)| own == reference) {
            return Ok(rule.clone());
        }
        let pointer = reference.strip_prefix('#');
        let target = pointer.and_then(|pointer| self.root.pointer(pointer));
        let Some(target) = target.cloned() else {
            return Err(refused(format!(
                "`{reference}` in the parameters of `{}` names nothing",
                self.tool
            )));
        };
        let name = format!("{}_reference_{}", self.prefix, self.references.len());
        self.references.push((reference.to_string(), name.clone()));
        let body = self.value(grammar, &target)?;
        grammar.rules += &format!("{name}: {body}\n");
        Ok(name)
    }
}
