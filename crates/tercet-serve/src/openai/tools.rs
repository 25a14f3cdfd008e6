//! Tools that a conversation may call: what the request says of them, what the chat template is told, and what an answer
//! that has to be a call may be.

use serde_json::{Value, json};
use tercet_models::dataset::template;

use super::calls::{Calls, Dialect};
use crate::error::Refusal;
use crate::fields::{Fields, wrong};
use crate::language::Language;

/// Tools of a request at most.
const MOST_TOOLS: usize = 128;

/// A tool.
struct Tool {
    name: String,
    /// As the request has it.
    whole: Value,
    strict: bool,
    /// The schema of its arguments.
    #[cfg_attr(
        not(feature = "grammar"),
        allow(dead_code, reason = "what has to be called is constrained by it")
    )]
    parameters: Value,
}

/// What answers have to call.
enum Choice {
    Nothing,
    Anything,
    One(String),
}

/// The tools of a conversation.
pub(crate) struct Tools {
    tools: Vec<Tool>,
    choice: Choice,
    dialect: Dialect,
    single: bool,
}

impl Tools {
    /// Takes the fields that are about tools. None where there are none, or none may be called.
    ///
    /// # Errors
    /// Fields that are wrong, and a model whose chat template has no form of calls that is read.
    pub(crate) fn take(fields: &mut Fields, language: &Language) -> Result<Option<Tools>, Refusal> {
        let tools = match fields.take("tools") {
            None => Vec::new(),
            Some(value) => tools(value)?,
        };
        let choice = choice(fields.take("tool_choice"))?;
        let single = !fields.truth("parallel_tool_calls")?.unwrap_or(true);
        let choice = match choice {
            Some(Choice::Anything | Choice::One(_)) if tools.is_empty() => {
                return Err(Refusal::bad("field `tool_choice` needs `tools`"));
            }
            Some(Choice::One(name)) if !tools.iter().any(|tool| tool.name == name) => {
                let shown: String = name.chars().take(64).collect();
                return Err(Refusal::bad(format!(
                    "field `tool_choice` names `{shown}`, which is not among `tools`"
                )));
            }
            Some(choice) if !tools.is_empty() => choice,
            Some(_) | None => return Ok(None),
        };
        if let (Choice::Nothing, Some(tool)) = (&choice, tools.iter().find(|tool| tool.strict)) {
            return Err(Refusal::bad(format!(
                "field `strict` of the tool `{}` needs a `tool_choice` that has to call one",
                tool.name
            )));
        }
        let Some(dialect) = Dialect::of(language.template.source()) else {
            return Err(Refusal::bad(
                "field `tools` is not supported with this model: its chat template has no form of calls that is read",
            ));
        };
        Ok(Some(Tools {
            tools,
            choice,
            dialect,
            single,
        }))
    }

    /// How answers are read.
    pub(crate) fn calls(&self) -> Calls {
        Calls {
            names: self.names().map(str::to_string).collect(),
            single: self.single,
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(|tool| tool.name.as_str())
    }

    /// The tools as templates see them.
    pub(crate) fn for_template(&self) -> Result<template::Value, Refusal> {
        let all = self.tools.iter().map(|tool| for_template(&tool.whole));
        Ok(template::Value::list(all.collect::<Result<_, Refusal>>()?))
    }

    /// All that the request says of them, in one text.
    pub(crate) fn spelled(&self) -> String {
        self.tools
            .iter()
            .map(|tool| tool.whole.to_string())
            .collect()
    }

    /// What an answer has to be, where it has to call something.
    #[cfg(feature = "grammar")]
    pub(crate) fn grammar(&self) -> Option<tercet_models::constraint::Grammar> {
        let may_be = |tool: &&Tool| match &self.choice {
            Choice::Nothing => false,
            Choice::Anything => true,
            Choice::One(name) => tool.name == *name,
        };
        let called: Vec<&Tool> = self.tools.iter().filter(may_be).collect();
        if called.is_empty() {
            return None;
        }
        let ((before, after), key) = (self.dialect.around(), self.dialect.arguments());
        // Names have no quotes in them. Each schema is a document of its own, in which its references are looked up.
        let quoted = |text: &str| json!(text).to_string();
        let all: Vec<String> = (0..called.len()).map(|i| format!("call_{i}")).collect();
        let mut lark = String::from("start: ");
        for part in [quoted(before), "call".into(), quoted(after)] {
            if part != "\"\"" {
                lark += &format!("{part} ");
            }
        }
        lark += &format!("\ncall: {}\n", all.join(" | "));
        for (i, tool) in called.iter().enumerate() {
            let head = quoted(&format!("{{\"name\": \"{}\", \"{key}\": ", tool.name));
            let mut schema = tool.parameters.clone();
            if let Some(object) = schema.as_object_mut() {
                // As of answers that are JSON of a schema.
                let blanks = || json!({"whitespace_pattern": " ?"});
                object.entry("x-guidance").or_insert_with(blanks);
            }
            lark +=
                &format!("call_{i}: {head} arguments_{i} \"}}\"\narguments_{i}: %json {schema}\n");
        }
        Some(tercet_models::constraint::Grammar::Lark(lark))
    }

    /// Refuses what has to call something: nothing here could make it.
    #[cfg(not(feature = "grammar"))]
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        match &self.choice {
            Choice::Nothing => Ok(()),
            Choice::Anything | Choice::One(_) => Err(Refusal::bad(format!(
                "field `tool_choice` can only be `none` or `auto`: calls with `{}` that have to be need the feature `grammar`",
                self.dialect.arguments()
            ))),
        }
    }
}

/// JSON as templates see it.
pub(crate) fn for_template(value: &Value) -> Result<template::Value, Refusal> {
    serde_json::from_value(value.clone()).map_err(|e| Refusal::failed(&e))
}

fn tools(value: Value) -> Result<Vec<Tool>, Refusal> {
    let Value::Array(items) = value else {
        return Err(wrong("tools", &value, "a list of tools"));
    };
    if items.len() > MOST_TOOLS {
        return Err(Refusal::bad(format!(
            "field `tools` has {} tools; at most {MOST_TOOLS} are possible",
            items.len()
        )));
    }
    let tools: Result<Vec<Tool>, Refusal> = items.into_iter().map(tool).collect();
    let tools = tools?;
    for (i, tool) in tools.iter().enumerate() {
        if tools[..i].iter().any(|other| other.name == tool.name) {
            return Err(Refusal::bad(format!(
                "two of `tools` are called `{}`",
                tool.name
            )));
        }
    }
    Ok(tools)
}

fn tool(whole: Value) -> Result<Tool, Refusal> {
    let mut fields = Fields::of(whole.clone(), "a tool")?;
    let kind = fields.text("type")?.unwrap_or_default();
    if kind != "function" {
        let expected = "`function`: other tools are not supported";
        return Err(wrong("type", &Value::String(kind), expected));
    }
    let mut function = Fields::of(fields.need("function")?, "field `function`")?;
    fields.finish()?;
    let name = function.text("name")?.unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
        let expected = "1 to 64 letters, digits, `_` and `-`";
        return Err(wrong("name", &Value::String(name), expected));
    }
    function.text("description")?;
    let strict = function.truth("strict")?.unwrap_or(false);
    let nothing = || json!({"type": "object", "properties": {}, "additionalProperties": false});
    let parameters = function.take("parameters").unwrap_or_else(nothing);
    if !parameters.is_object() {
        return Err(wrong("parameters", &parameters, "a JSON schema"));
    }
    function.finish()?;
    Ok(Tool {
        name,
        whole,
        strict,
        parameters,
    })
}

/// What `tool_choice` says; nothing may be called for none.
fn choice(value: Option<Value>) -> Result<Option<Choice>, Refusal> {
    let expected = "`none`, `auto`, `required`, or the name of a function";
    match value {
        None => Ok(Some(Choice::Nothing)),
        Some(Value::String(text)) => match text.as_str() {
            "none" => Ok(None),
            "auto" => Ok(Some(Choice::Nothing)),
            "required" => Ok(Some(Choice::Anything)),
            _ => Err(wrong("tool_choice", &Value::String(text), expected)),
        },
        Some(value @ Value::Object(_)) => {
            let mut fields = Fields::of(value, "field `tool_choice`")?;
            let kind = fields.text("type")?.unwrap_or_default();
            if kind != "function" {
                return Err(wrong("type", &Value::String(kind), "`function`"));
            }
            let mut function = Fields::of(fields.need("function")?, "field `function`")?;
            let name = function.text("name")?;
            function.finish()?;
            fields.finish()?;
            let name = name.ok_or_else(|| Refusal::bad("field `name` is missing"))?;
            Ok(Some(Choice::One(name)))
        }
        Some(other) => Err(wrong("tool_choice", &other, expected)),
    }
}
