//! Tools of a request: parsing those of chat completions, the values for the chat template, and the grammar of a
//! required tool call.

use serde_json::{Value, json};
use tercet_models::answer::AnswerTool;
#[cfg(feature = "grammar")]
use tercet_models::constraint::{GenerationSchema, Grammar, SchemaError};
use tercet_models::dataset::template;

use crate::error::ApiError;
use crate::fields::{JsonFields, wrong};
#[cfg(feature = "grammar")]
use crate::language::ServedLanguageModel;
use crate::request_log::RequestRecord;

/// Maximum tools of a request. OpenAI takes 128; agents with several MCP servers send more.
const MAX_TOOLS: usize = 1024;
/// Maximum characters of the name of a tool, as in Anthropic's API; OpenAI takes 64.
const MAX_NAME: usize = 128;

/// A tool.
pub(crate) struct ToolSpec {
    pub(crate) name: String,
    /// The JSON of the request.
    json: Value,
    /// JSON schema of the arguments.
    #[cfg_attr(
        not(feature = "grammar"),
        allow(dead_code, reason = "only required calls are constrained by it")
    )]
    parameters: Value,
    /// Whether calls of the tool must match its schema, if an answer has any.
    is_strict: bool,
}

impl ToolSpec {
    /// A tool of a protocol whose tools have other fields than those of chat completions. `path` is the
    /// tool's place in the request.
    ///
    /// # Errors
    /// 400 if the name is not valid.
    pub(crate) fn new(
        path: &str,
        (name, description): (String, Option<String>),
        parameters: Option<Value>,
        is_strict: bool,
    ) -> Result<ToolSpec, ApiError> {
        check_name(&format!("{path}.name"), &name)?;
        let mut function = json!({"name": name});
        if let Some(text) = description {
            function["description"] = text.into();
        }
        if let Some(parameters) = &parameters {
            function["parameters"] = parameters.clone();
        }
        let parameters = parameters.unwrap_or_else(no_parameters);
        Ok(ToolSpec {
            name,
            json: json!({"type": "function", "function": function}),
            parameters,
            is_strict,
        })
    }

    /// The schema that constrained arguments match. Without `strict`, it ignores what cannot be
    /// constrained.
    ///
    /// # Errors
    /// 400 if the schema is invalid, or strict with a keyword that is not supported.
    #[cfg(feature = "grammar")]
    fn constrained_schema(&self) -> Result<Value, ApiError> {
        Ok(self
            .generation_schema()
            .map_err(|e| self.refused(&e))?
            .schema)
    }

    #[cfg(feature = "grammar")]
    fn generation_schema(&self) -> Result<GenerationSchema, SchemaError> {
        let mut schema = self.parameters.clone();
        bound_integers(&mut schema);
        GenerationSchema::new(&schema, self.is_strict)
    }

    /// The schema of the arguments if an answer need not call the tool: any object if the tool's own one is not
    /// supported.
    ///
    /// # Errors
    /// 400 if the tool is strict and its schema is not supported.
    #[cfg(feature = "grammar")]
    fn schema_of_optional_call(&self) -> Result<Value, ApiError> {
        match self.constrained_schema() {
            Err(_) if !self.is_strict => Ok(json!({"type": "object"})),
            schema => schema,
        }
    }

    #[cfg(feature = "grammar")]
    fn refused(&self, e: &SchemaError) -> ApiError {
        let name = &self.name;
        ApiError::bad_request(format!("`parameters` of the tool `{name}`: {e}"))
            .with_param(&format!("tools.{name}.parameters{}", e.path))
    }
}

/// A text as a JSON string, which is also a literal of a Lark grammar.
#[cfg(feature = "grammar")]
fn quoted(text: &str) -> String {
    json!(text).to_string()
}

/// Keywords whose value maps names to schemas.
#[cfg(feature = "grammar")]
const NAMED_SCHEMAS: [&str; 5] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "definitions",
    "$defs",
];

/// Bounds the integers of a schema to 64 bits, which the programs behind tools take. A small model may
/// otherwise write digits until the context is full.
#[cfg(feature = "grammar")]
pub fn bound_integers(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            let is_integer = |kind: &Value| kind == "integer";
            let is_bounded = match object.get("type") {
                Some(Value::Array(kinds)) => {
                    kinds.iter().any(is_integer) && !kinds.iter().any(|kind| kind == "number")
                }
                Some(kind) => is_integer(kind),
                None => false,
            };
            let others = ["enum", "const", "multipleOf"];
            if is_bounded && !others.iter().any(|key| object.contains_key(*key)) {
                for (plain, exclusive, bound) in [
                    ("minimum", "exclusiveMinimum", i64::MIN),
                    ("maximum", "exclusiveMaximum", i64::MAX),
                ] {
                    if !object.contains_key(plain) && !object.contains_key(exclusive) {
                        object.insert(plain.to_string(), bound.into());
                    }
                }
            }
            for (key, value) in object.iter_mut() {
                match (key.as_str(), value) {
                    ("enum" | "const" | "default" | "examples" | "example", _) => {}
                    (name, Value::Object(schemas)) if NAMED_SCHEMAS.contains(&name) => {
                        schemas.values_mut().for_each(bound_integers);
                    }
                    (_, value) => bound_integers(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(bound_integers),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Sets the white space between the JSON tokens that a schema permits, if the schema does not.
#[cfg(feature = "grammar")]
fn with_blanks(mut schema: Value, pattern: &str) -> Value {
    if let Some(object) = schema.as_object_mut() {
        let blanks = || json!({"whitespace_pattern": pattern});
        object.entry("x-guidance").or_insert_with(blanks);
    }
    schema
}

/// White space between the parts of calls, as a pattern.
#[cfg(feature = "grammar")]
const BLANKS: &str = "[ \\t\\r\\n]{1,16}";

/// Which tools an answer must call.
pub(crate) enum ToolChoice {
    Nothing,
    Anything,
    One(String),
}

/// The tools of a conversation.
pub(crate) struct ToolSet {
    tools: Vec<ToolSpec>,
    choice: ToolChoice,
    pub(crate) single: bool,
}

impl ToolSet {
    /// Takes the fields about tools. Returns `None` if the request has no tools or disallows calls.
    ///
    /// # Errors
    /// Returns an error if a field is invalid.
    pub(crate) fn take(
        fields: &mut JsonFields,
        record: &RequestRecord,
    ) -> Result<Option<ToolSet>, ApiError> {
        let tools = match fields.take("tools") {
            None => Vec::new(),
            Some(value) => tools(value, record)?,
        };
        let choice = choice(fields.take("tool_choice"), record)?;
        let single = !fields.truth("parallel_tool_calls")?.unwrap_or(true);
        #[cfg(feature = "grammar")]
        if let Some(ToolChoice::Anything | ToolChoice::One(_)) = &choice {
            for tool in &tools {
                let notes = tool.generation_schema().map(|made| made.notes);
                for note in notes.unwrap_or_default() {
                    record.add_ignored(&format!("tools.{}.parameters{}", tool.name, note.path));
                }
            }
        }
        ToolSet::new(tools, choice, single)
    }

    /// The tools of a conversation. Returns `None` if there are no tools, or if `choice` is `None`, which
    /// disallows calls. With `single`, answers have only one call.
    ///
    /// # Errors
    /// 400 if there are too many tools, two have the same name, a schema is not supported, or the choice
    /// is not among them.
    pub(crate) fn new(
        tools: Vec<ToolSpec>,
        choice: Option<ToolChoice>,
        single: bool,
    ) -> Result<Option<ToolSet>, ApiError> {
        check_tools(&tools)?;
        let choice = match choice {
            Some(ToolChoice::Anything | ToolChoice::One(_)) if tools.is_empty() => {
                return Err(ApiError::bad_request(
                    "field `tool_choice` requires `tools`",
                ));
            }
            Some(ToolChoice::One(name)) if !tools.iter().any(|tool| tool.name == name) => {
                let shown: String = name.chars().take(64).collect();
                return Err(ApiError::bad_request(format!(
                    "field `tool_choice` names `{shown}`, which is not among `tools`"
                )));
            }
            Some(choice) if !tools.is_empty() => choice,
            Some(_) | None => return Ok(None),
        };
        #[cfg(feature = "grammar")]
        if !matches!(choice, ToolChoice::Nothing) {
            for tool in &tools {
                tool.constrained_schema()?;
            }
        }
        Ok(Some(ToolSet {
            tools,
            choice,
            single,
        }))
    }

    /// The tools that answers may call.
    pub(crate) fn callable(&self) -> Vec<AnswerTool> {
        let tools = self.tools.iter();
        tools
            .map(|tool| AnswerTool::new(&tool.name, Some(tool.parameters.clone())))
            .collect()
    }

    /// The JSON of each tool's function.
    pub(crate) fn functions(&self) -> Vec<String> {
        let functions = self.tools.iter().map(|tool| &tool.json["function"]);
        functions.map(Value::to_string).collect()
    }

    /// The tools as values for a chat template.
    pub(crate) fn for_template(&self) -> Result<template::TemplateValue, ApiError> {
        let all = self.tools.iter().map(|tool| for_template(&tool.json));
        Ok(template::TemplateValue::list(
            all.collect::<Result<_, ApiError>>()?,
        ))
    }

    /// Grammar of an answer, if it must call a tool.
    ///
    /// # Errors
    /// 400 if calls of the model cannot be constrained to the schemas.
    #[cfg(feature = "grammar")]
    pub(crate) fn grammar(
        &self,
        language: &ServedLanguageModel,
    ) -> Result<Option<Grammar>, ApiError> {
        let may_be = |tool: &&ToolSpec| match &self.choice {
            ToolChoice::Nothing => false,
            ToolChoice::Anything => true,
            ToolChoice::One(name) => tool.name == *name,
        };
        let called: Vec<&ToolSpec> = self.tools.iter().filter(may_be).collect();
        if called.is_empty() {
            return Ok(None);
        }
        let tools = called.iter().map(|tool| {
            let schema = tool.constrained_schema()?;
            Ok(AnswerTool::new(&tool.name, Some(with_blanks(schema, " ?"))))
        });
        let tools: Vec<AnswerTool> = tools.collect::<Result<_, ApiError>>()?;
        let lark = language
            .answers
            .required_call_grammar(&tools, &language.tokenizer);
        let lark = lark.map_err(|e| {
            ApiError::bad_request(format!("field `tool_choice` cannot require a call: {e}"))
        })?;
        Ok(Some(Grammar::Lark(lark)))
    }

    /// Grammar of an answer that may call tools, if one of them is strict: its calls match the schemas
    /// of strict tools. `prompt` is the text before the answer.
    ///
    /// # Errors
    /// 400 if calls of the model cannot be constrained to the schemas.
    #[cfg(feature = "grammar")]
    pub(crate) fn strict_grammar(
        &self,
        language: &ServedLanguageModel,
        prompt: &str,
    ) -> Result<Option<Grammar>, ApiError> {
        let Some(strict) = self.first_strict() else {
            return Ok(None);
        };
        let tools = self.tools.iter().map(|tool| {
            let schema = match tool.is_strict {
                true => tool.constrained_schema()?,
                false => json!({"type": "object"}),
            };
            let schema = with_blanks(schema, " ?");
            Ok(AnswerTool::new(&tool.name, Some(schema)))
        });
        let tools: Vec<AnswerTool> = tools.collect::<Result<_, ApiError>>()?;
        let lark = language
            .answers
            .call_grammar(&tools, &language.tokenizer, prompt, self.single);
        let lark = lark.map_err(|e| {
            let name = &strict.name;
            ApiError::bad_request(format!(
                "the tool `{name}` cannot be `strict` with this model: {e}"
            ))
        })?;
        Ok(Some(Grammar::Lark(lark)))
    }

    /// The first strict tool, if calls are allowed and none is required.
    fn first_strict(&self) -> Option<&ToolSpec> {
        let strict = self.tools.iter().find(|tool| tool.is_strict);
        strict.filter(|_| matches!(self.choice, ToolChoice::Nothing))
    }

    /// Grammar of an answer that calls tools or matches a schema. Calls may have any white space.
    ///
    /// # Errors
    /// 400 if a schema that must be matched is not supported.
    #[cfg(feature = "grammar")]
    pub(crate) fn call_or_json(
        &self,
        (field, answer): (&str, &Value),
        is_strict: bool,
        language: &ServedLanguageModel,
    ) -> Result<Grammar, ApiError> {
        let answer = GenerationSchema::new(answer, is_strict).map_err(|e| {
            ApiError::bad_request(format!("field `{field}`: {e}"))
                .with_param(&format!("{field}{}", e.path))
        })?;
        let answer = with_blanks(answer.schema, " ?");
        let (open, key, close) = match language.answers.object_texts() {
            Some(texts) => texts,
            None => return self.tagged_call_or_json((field, &answer), language),
        };
        let tag = |tag: &str| match tag.trim() {
            "" => String::new(),
            tag => format!("{} BLANKS? ", quoted(tag)),
        };
        let more = self.more_calls();
        let tools: Vec<String> = (0..self.tools.len()).map(|i| format!("tool_{i}")).collect();
        let mut lark = format!(
            "start: answer | call{more} BLANKS?\n\
             BLANKS: /{BLANKS}/\n\
             answer: %json {}\n\
             call: {}\"{{\" BLANKS? \"\\\"name\\\"\" BLANKS? \":\" BLANKS? ({}) BLANKS? \"}}\" BLANKS? {}\n",
            answer,
            tag(&open),
            tools.join(" | "),
            tag(&close),
        );
        for (i, tool) in self.tools.iter().enumerate() {
            let schema = tool.schema_of_optional_call()?;
            lark += &format!(
                "tool_{i}: {} BLANKS? \",\" BLANKS? {} BLANKS? \":\" BLANKS? arguments_{i}\n\
                 arguments_{i}: %json {}\n",
                quoted(&quoted(&tool.name)),
                quoted(&quoted(&key)),
                with_blanks(schema, "[ \\t\\r\\n]{0,32}"),
            );
        }
        Ok(Grammar::Lark(lark))
    }

    /// Like [`ToolSet::call_or_json`], for a model that writes arguments as tags.
    #[cfg(feature = "grammar")]
    fn tagged_call_or_json(
        &self,
        (field, answer): (&str, &Value),
        language: &ServedLanguageModel,
    ) -> Result<Grammar, ApiError> {
        const START: &str = "start: call\n";
        let tools = self.tools.iter().map(|tool| {
            let schema = with_blanks(tool.schema_of_optional_call()?, " ?");
            Ok(AnswerTool::new(&tool.name, Some(schema)))
        });
        let tools: Vec<AnswerTool> = tools.collect::<Result<_, ApiError>>()?;
        let answers = &language.answers;
        let lark = answers.required_call_grammar(&tools, &language.tokenizer);
        let lark = lark.map_err(|e| {
            ApiError::bad_request(format!(
                "field `{field}` cannot be combined with `tools` for this model: {e}"
            ))
        })?;
        let more = self.more_calls();
        let start =
            format!("start: answer | call{more}\nBLANKS: /{BLANKS}/\nanswer: %json {answer}\n");
        Ok(Grammar::Lark(lark.replace(START, &start)))
    }

    /// The rule of further calls.
    #[cfg(feature = "grammar")]
    fn more_calls(&self) -> &'static str {
        match self.single {
            true => "",
            false => " (BLANKS? call)*",
        }
    }

    /// Returns an error if `tool_choice` requires a call, which needs the feature `grammar`.
    #[cfg(not(feature = "grammar"))]
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        if let Some(tool) = self.first_strict() {
            return Err(ApiError::bad_request(format!(
                "`strict` of the tool `{}` must be false: constrained calls need a build with the feature `grammar`",
                tool.name
            )));
        }
        match &self.choice {
            ToolChoice::Nothing => Ok(()),
            ToolChoice::Anything | ToolChoice::One(_) => Err(ApiError::bad_request(
                "field `tool_choice` must be `none` or `auto`: required calls need a build with the feature `grammar`",
            )),
        }
    }
}

/// Converts JSON to a value for a chat template.
fn for_template(value: &Value) -> Result<template::TemplateValue, ApiError> {
    serde_json::from_value(value.clone()).map_err(|e| ApiError::failed(&e))
}

fn tools(value: Value, record: &RequestRecord) -> Result<Vec<ToolSpec>, ApiError> {
    let Value::Array(items) = value else {
        return Err(wrong("tools", &value, "a list of tools"));
    };
    let items = items.into_iter().enumerate();
    items
        .map(|(at, item)| tool(item, &format!("tools[{at}]"), record))
        .collect()
}

fn check_tools(tools: &[ToolSpec]) -> Result<(), ApiError> {
    if tools.len() > MAX_TOOLS {
        let found = tools.len();
        let message = format!("field `tools` has {found} tools; at most {MAX_TOOLS} are supported");
        return Err(ApiError::bad_request(message).with_param("tools"));
    }
    for (i, tool) in tools.iter().enumerate() {
        if tools[..i].iter().any(|other| other.name == tool.name) {
            return Err(ApiError::bad_request(format!(
                "two of `tools` have the name `{}`",
                tool.name
            )));
        }
    }
    Ok(())
}

/// Checks the name of a tool, which is in the field `path`.
fn check_name(path: &str, name: &str) -> Result<(), ApiError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_plain) {
        true => {
            let expected = format!("1 to {MAX_NAME} letters, digits, `_` and `-`");
            Err(wrong(path, &Value::String(name.to_string()), &expected))
        }
        false => Ok(()),
    }
}

/// The schema of tools without one.
fn no_parameters() -> Value {
    json!({"type": "object", "properties": {}, "additionalProperties": false})
}

/// Parses a tool. The chat template sees the whole object, with fields that are unknown here.
fn tool(whole: Value, path: &str, record: &RequestRecord) -> Result<ToolSpec, ApiError> {
    let mut fields = JsonFields::nested(whole.clone(), path)?;
    let kind = fields.text("type")?.unwrap_or_default();
    if kind != "function" {
        let expected = "`function`; other tools are not supported";
        return Err(fields.wrong("type", &Value::String(kind), expected));
    }
    let function = fields.object("function")?;
    let mut function = function.ok_or_else(|| fields.missing("function"))?;
    fields.ignore_rest((record, "tools."));
    let name = function.text("name")?.unwrap_or_default();
    check_name(&function.path_of("name"), &name)?;
    function.text("description")?;
    let is_strict = function.truth("strict")?.unwrap_or(false);
    let parameters = function.take("parameters").unwrap_or_else(no_parameters);
    if !parameters.is_object() {
        return Err(function.wrong("parameters", &parameters, "a JSON schema"));
    }
    function.ignore_rest((record, "tools.function."));
    Ok(ToolSpec {
        name,
        json: whole,
        parameters,
        is_strict,
    })
}

/// Parses `tool_choice`; `None` disallows calls.
fn choice(value: Option<Value>, record: &RequestRecord) -> Result<Option<ToolChoice>, ApiError> {
    let expected = "`none`, `auto`, `required`, or the name of a function";
    match value {
        None => Ok(Some(ToolChoice::Nothing)),
        Some(Value::String(text)) => match text.as_str() {
            "none" => Ok(None),
            "auto" => Ok(Some(ToolChoice::Nothing)),
            "required" => Ok(Some(ToolChoice::Anything)),
            _ => Err(wrong("tool_choice", &Value::String(text), expected)),
        },
        Some(value @ Value::Object(_)) => {
            let mut fields = JsonFields::nested(value, "tool_choice")?;
            let kind = fields.text("type")?.unwrap_or_default();
            if kind != "function" {
                return Err(fields.wrong("type", &Value::String(kind), "`function`"));
            }
            let function = fields.object("function")?;
            let mut function = function.ok_or_else(|| fields.missing("function"))?;
            let name = function.need_text("name")?;
            function.ignore_rest((record, "tool_choice.function."));
            fields.ignore_rest((record, "tool_choice."));
            Ok(Some(ToolChoice::One(name)))
        }
        Some(other) => Err(wrong("tool_choice", &other, expected)),
    }
}
