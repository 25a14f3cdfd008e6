//! Grammars of calls, for answers that must call a tool.

mod literals;

use serde_json::{Value, json};

use super::arguments::is_text;
use super::format::{ArgumentsForm, CallBody, PairMarkers, ThoughtTags};
use super::marker::{MarkerPart, TextMarker, pieces};
use super::{AnswerFormat, AnswerTool};
use crate::constraint::ConstraintError;
use crate::tokenizer::Tokenizer;

/// The texts around the name and the arguments of a call.
///
/// ```
/// use tercet_text::answer::{AnswerFormat, CallTexts};
/// let CallTexts { before, between, .. } = AnswerFormat::default().call_texts().unwrap();
/// assert_eq!(before, "<tool_call>\n{\"name\": \"");
/// assert_eq!(between, "\", \"arguments\": ");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTexts {
    /// Before the name.
    pub before: String,
    /// Between the name and the arguments, which are a JSON object.
    pub between: String,
    /// After the arguments.
    pub after: String,
}

impl AnswerFormat {
    /// The texts of a call. `None` if the arguments are not written as a JSON object.
    #[must_use]
    pub fn call_texts(&self) -> Option<CallTexts> {
        if self.has_channels {
            return Some(CallTexts {
                before: "<|channel|>commentary to=functions.".to_string(),
                between: " <|constrain|>json<|message|>".to_string(),
                after: String::new(),
            });
        }
        let calls = &self.calls;
        let open = format!("{}{}", calls.section.0.spelling, calls.call.0.spelling);
        let close = format!("{}{}", calls.call.1.spelling, calls.section.1.spelling);
        match &calls.body {
            CallBody::Json(keys) => {
                let (wrap, wrap_end) = match &keys.wrapper {
                    Some(key) => (format!("{{\"type\": \"function\", {}: ", quoted(key)), "}"),
                    None => (String::new(), ""),
                };
                Some(CallTexts {
                    before: format!("{open}{wrap}{{{}: \"", quoted(&keys.name)),
                    between: format!("\", {}: ", quoted(&keys.arguments)),
                    after: format!("}}{wrap_end}{close}"),
                })
            }
            CallBody::Named {
                after,
                arguments: ArgumentsForm::Json,
                ..
            } => Some(CallTexts {
                before: open,
                between: literal(after)?,
                after: close,
            }),
            CallBody::Named { .. } => None,
        }
    }

    /// The text before a call, the key of its arguments, and the text after it, if calls are plain
    /// objects.
    #[must_use]
    pub fn object_texts(&self) -> Option<(String, String, String)> {
        let calls = &self.calls;
        match &calls.body {
            CallBody::Json(keys) if keys.wrapper.is_none() && !self.has_channels => Some((
                format!("{}{}", calls.section.0.spelling, calls.call.0.spelling),
                keys.arguments.clone(),
                format!("{}{}", calls.call.1.spelling, calls.section.1.spelling),
            )),
            CallBody::Json(_) | CallBody::Named { .. } => None,
        }
    }
}

/// Builder of a grammar of an answer with calls, in Lark notation.
struct AnswerGrammar<'a> {
    format: &'a AnswerFormat,
    tokenizer: &'a Tokenizer,
    rules: String,
}

impl AnswerFormat {
    /// Grammar in Lark notation of an answer after `prompt` that may call tools: from the opening
    /// marker of a call on, it is the call of a tool with arguments of its schema (any arguments, if
    /// the tool has none). Thoughts and text are free. With `is_single`, it has at most one call.
    ///
    /// # Errors
    /// [`ConstraintError::Grammar`] if calls of this format cannot be constrained to a schema.
    ///
    /// ```
    /// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    /// #     "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    /// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}}"#;
    /// # let tokenizer = tercet_text::Tokenizer::from_json(json.as_bytes())?;
    /// use tercet_text::answer::{AnswerFormat, AnswerTool};
    /// let tools = [AnswerTool::new("now", None)];
    /// let lark = AnswerFormat::default().call_grammar(&tools, &tokenizer, "", false)?;
    /// assert!(lark.contains("now"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn call_grammar(
        &self,
        tools: &[AnswerTool],
        tokenizer: &Tokenizer,
        prompt: &str,
        is_single: bool,
    ) -> Result<String, ConstraintError> {
        let texts = self.framed_texts()?;
        let mut answer = AnswerGrammar::new(self, tokenizer, tools)?;
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        match (self.has_channels, self.calls.is_bare()) {
            (true, _) => answer.channels(&names, is_single),
            (false, true) => answer.bare(&names, &texts),
            (false, false) => answer.marked(&names, &texts, prompt, is_single),
        }
        Ok(answer.rules)
    }

    /// Grammar in Lark notation of an answer that is the call of one of the tools.
    ///
    /// # Errors
    /// [`ConstraintError::Grammar`] if calls of this format cannot be constrained to a schema.
    ///
    /// ```
    /// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    /// #     "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    /// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}}"#;
    /// # let tokenizer = tercet_text::Tokenizer::from_json(json.as_bytes())?;
    /// use tercet_text::answer::{AnswerFormat, AnswerTool};
    /// let tools = [AnswerTool::new("now", None)];
    /// let lark = AnswerFormat::default().required_call_grammar(&tools, &tokenizer)?;
    /// assert!(lark.contains("start: call"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn required_call_grammar(
        &self,
        tools: &[AnswerTool],
        tokenizer: &Tokenizer,
    ) -> Result<String, ConstraintError> {
        let texts = self.framed_texts()?;
        let mut answer = AnswerGrammar::new(self, tokenizer, tools)?;
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let frame = (&*texts.before, &*texts.between, &*texts.after);
        answer.calls("call", &names, frame);
        answer.rules += "start: call\n";
        Ok(answer.rules)
    }

    /// The texts around the name and the arguments, which may be tags or literals.
    fn framed_texts(&self) -> Result<CallTexts, ConstraintError> {
        if let Some(texts) = self.call_texts() {
            return Ok(texts);
        }
        let refused = || refused("the model writes arguments in a form that cannot be constrained");
        let CallBody::Named {
            after, arguments, ..
        } = &self.calls.body
        else {
            return Err(refused());
        };
        let close = match arguments {
            ArgumentsForm::Literals { close, .. } => close.to_string(),
            ArgumentsForm::Pairs(_) | ArgumentsForm::Json => String::new(),
        };
        let (section, call) = (&self.calls.section, &self.calls.call);
        Ok(CallTexts {
            before: format!("{}{}", section.0.spelling, call.0.spelling),
            between: literal(after).ok_or_else(refused)?,
            after: format!("{close}{}{}", call.1.spelling, section.1.spelling),
        })
    }
}

fn refused(reason: impl Into<String>) -> ConstraintError {
    ConstraintError::Grammar {
        kind: "call of a tool",
        reason: reason.into(),
    }
}

impl<'a> AnswerGrammar<'a> {
    /// The rules of the arguments of each tool.
    fn new(
        format: &'a AnswerFormat,
        tokenizer: &'a Tokenizer,
        tools: &[AnswerTool],
    ) -> Result<AnswerGrammar<'a>, ConstraintError> {
        let mut answer = AnswerGrammar {
            format,
            tokenizer,
            rules: String::new(),
        };
        let any = json!({"type": "object"});
        let json = ArgumentsForm::Json;
        let form = match &format.calls.body {
            CallBody::Named { arguments, .. } if !format.has_channels => arguments,
            CallBody::Named { .. } | CallBody::Json(_) => &json,
        };
        match form {
            ArgumentsForm::Pairs(markers) => {
                let value = answer.until("value", markers.close.spelling.trim(), &[]);
                answer.rules += &format!("text: {value}\nKEY: /[^<>\\n]+/\n");
            }
            ArgumentsForm::Literals { quote, .. } => answer.literals(quote),
            ArgumentsForm::Json => {}
        }
        for (i, tool) in tools.iter().enumerate() {
            // Each schema is a separate document, so its references resolve within it.
            let schema = tool.parameters.as_ref().unwrap_or(&any);
            match form {
                ArgumentsForm::Pairs(markers) => answer.pairs(i, tool, (schema, markers))?,
                ArgumentsForm::Literals { quote, .. } => {
                    answer.literal_arguments(i, tool, (schema, quote))?;
                }
                ArgumentsForm::Json => {
                    answer.rules += &format!("arguments_{i}: %json {schema}\n");
                }
            }
        }
        Ok(answer)
    }

    /// The arguments of a tool as tags, in the order of its schema.
    fn pairs(
        &mut self,
        i: usize,
        tool: &AnswerTool,
        (schema, markers): (&Value, &PairMarkers),
    ) -> Result<(), ConstraintError> {
        const KNOWN: [&str; 9] = [
            "type",
            "properties",
            "required",
            "additionalProperties",
            "title",
            "description",
            "$defs",
            "$schema",
            "x-guidance",
        ];
        let keywords = schema.as_object().into_iter().flatten();
        for (keyword, _) in keywords {
            if !KNOWN.contains(&keyword.as_str()) {
                let name = &tool.name;
                return Err(refused(format!(
                    "`{keyword}` in the parameters of `{name}` is not supported for a model that writes tags"
                )));
            }
        }
        let open = self.lark(&markers.open.spelling);
        let [for_text, for_other] = [0, 1].map(|kind| self.lark(&markers.after_key[kind].spelling));
        let close = markers.close.spelling.trim();
        let after = markers
            .close
            .spelling
            .split_once(close)
            .map_or("", |(_, blank)| blank);
        let after = self.lark(after);
        let close = self.lark(close);
        let required = schema.get("required").and_then(Value::as_array);
        let is_required =
            |key: &str| required.is_some_and(|all| all.iter().any(|name| name == key));
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            let is_free = schema.get("additionalProperties") != Some(&Value::Bool(false));
            let pair = match is_free {
                true => format!("({open} KEY {for_text} text {after})*"),
                false => "\"\"".to_string(),
            };
            self.rules += &format!("arguments_{i}: {pair}\n");
            return Ok(());
        };
        let mut all = Vec::new();
        for (j, key) in properties.keys().enumerate() {
            let property = tool.property(key).cloned().unwrap_or(Value::Bool(true));
            let key_text = self.lark(key);
            let value = match choices(&property) {
                Some(texts) => {
                    let texts: Vec<String> = texts.iter().map(|text| self.lark(text)).collect();
                    format!("{for_text} ({}) \"\\n\"? {close}", texts.join(" | "))
                }
                None if is_text(&property) => {
                    let limits = ["pattern", "format", "minLength", "maxLength"];
                    if let Some(limit) = limits.iter().find(|limit| property.get(**limit).is_some())
                    {
                        return Err(refused(format!(
                            "`{limit}` of `{key}` of `{}` is not supported for a model that writes tags",
                            tool.name
                        )));
                    }
                    format!("{for_text} text")
                }
                None => {
                    let mut property = property;
                    // Definitions, and the rule of white space.
                    for shared in ["$defs", "x-guidance"] {
                        if let (Some(fields), Some(value)) =
                            (property.as_object_mut(), schema.get(shared))
                        {
                            fields.insert(shared.to_string(), value.clone());
                        }
                    }
                    self.rules += &format!("json_{i}_{j}: %json {property}\n");
                    format!("{for_other} json_{i}_{j} \"\\n\"? {close}")
                }
            };
            self.rules += &format!("pair_{i}_{j}: {open} {key_text} {value} {after}\n");
            let optional = if is_required(key) { "" } else { "?" };
            all.push(format!("pair_{i}_{j}{optional}"));
        }
        if all.is_empty() {
            all.push("\"\"".to_string());
        }
        self.rules += &format!("arguments_{i}: {}\n", all.join(" "));
        Ok(())
    }
}

/// The texts that a schema allows, if it lists them.
fn choices(schema: &Value) -> Option<Vec<&str>> {
    let all: Vec<&Value> = match schema.get("const") {
        Some(value) => vec![value],
        None => schema.get("enum")?.as_array()?.iter().collect(),
    };
    all.into_iter().map(Value::as_str).collect()
}

impl AnswerGrammar<'_> {
    fn lark(&self, text: &str) -> String {
        lark_text(text, self.tokenizer)
    }

    /// Adds the rule `NAME` of a call of each tool, between two texts.
    fn calls(&mut self, rule: &str, names: &[&str], (before, between, after): (&str, &str, &str)) {
        let mut all = Vec::new();
        for (i, name) in names.iter().enumerate() {
            let head = self.lark(&format!("{before}{name}{between}"));
            let after = self.lark(after);
            all.push(format!("{rule}_{i}"));
            self.rules += &format!("{rule}_{i}: {head} arguments_{i} {after}\n");
        }
        self.rules += &format!("{rule}: {}\n", all.join(" | "));
    }

    /// Answers whose calls begin with a marker.
    fn marked(&mut self, names: &[&str], texts: &CallTexts, prompt: &str, is_single: bool) {
        let calls = &self.format.calls;
        let open = format!("{}{}", calls.section.0.spelling, calls.call.0.spelling);
        let begun = pieces(&open).first().map_or(open.len(), |piece| piece.end);
        let mark = &open[..begun];
        let rest = &texts.before[begun..];
        if is_single || calls.section.0.is_empty() {
            self.calls("call", names, (rest, &texts.between, &texts.after));
            self.rules += "calls: call\n";
        } else {
            // Further calls of a section.
            let (section, inner) = (&calls.section, &calls.call);
            let close = texts.after.strip_suffix(section.1.spelling.as_str());
            let close = close.unwrap_or(&texts.after).to_string();
            let body = &texts.before[open.len()..];
            let again = format!("{}{}{body}", calls.separator.spelling, inner.0.spelling);
            let end = self.lark(&section.1.spelling);
            self.calls("call", names, (rest, &texts.between, &close));
            self.calls("more", names, (&again, &texts.between, &close));
            self.rules += &format!("calls: call more* {end}\n");
        }
        let starts = self.thought_starts();
        let first = self.until("first", mark, &starts);
        let then = self.until("then", mark, &[]);
        let plain = self.free("plain", begins(&starts));
        // A text up to the marker ends there, before any other text, so that only text that no call
        // may follow has to exclude the marker.
        let (later, end) = match is_single {
            true => (
                String::new(),
                self.special(mark).is_none().then(|| contains(mark)),
            ),
            false => (format!("({then} calls)* "), None),
        };
        let end = self.free("tail", end);
        self.rules += &format!(
            "answer: {plain}? | {first} calls {later}{end}?\n\
             rest: {end}? | {then} calls {later}{end}?\n"
        );
        self.thoughts(prompt);
    }

    /// The rule `start`: a thought, and the answer after it.
    fn thoughts(&mut self, prompt: &str) {
        let thoughts = self.format.thoughts.clone();
        if let Some(tags) = thoughts.iter().find(|tags| tags.open.ends(prompt)) {
            let thought = self.thought(0, tags);
            self.rules += &format!("start: {thought}\n");
            return;
        }
        let mut all = vec!["answer".to_string()];
        for (i, tags) in thoughts.iter().enumerate() {
            let open = self.lark(tags.open.spelling.trim());
            let thought = self.thought(i, tags);
            all.push(format!("BLANK? {open} {thought}"));
        }
        self.rules += &format!("BLANK: /\\s+/\nstart: {}\n", all.join(" | "));
    }

    /// A thought up to its end, and the answer; or a thought without end.
    fn thought(&mut self, i: usize, tags: &ThoughtTags) -> String {
        let close = tags.close.spelling.trim().to_string();
        let until = self.until(&format!("thought_{i}"), &close, &[]);
        let open = self.free(&format!("open_{i}"), None);
        format!("({until} rest | {open}?)")
    }

    /// The starts of an answer that are thoughts, as far as they are text.
    fn thought_starts(&self) -> Vec<String> {
        let thoughts = self.format.thoughts.iter();
        let opens = thoughts.map(|tags| tags.open.spelling.trim().to_string());
        opens.filter(|open| self.special(open).is_none()).collect()
    }

    /// The token of a text that is a special token.
    fn special(&self, text: &str) -> Option<u32> {
        let id = self.tokenizer.token_to_id(text)?;
        self.tokenizer.is_special(id).then_some(id)
    }

    /// Free text up to and with a marker that does not begin in these ways.
    fn until(&mut self, rule: &str, marker: &str, starts: &[String]) -> String {
        let but = begins(starts);
        if let Some(id) = self.special(marker) {
            // Text does not match special tokens.
            let text = self.free(rule, but);
            return format!("{text}? <[{id}]>");
        }
        let body = match but {
            None => "/(?s:.*)/".to_string(),
            Some(but) => {
                let name = format!("BODY_{}", rule.to_uppercase());
                self.rules += &format!("{name}: /(?s:.*)/ & ~{but}\n");
                name
            }
        };
        self.rules += &format!("{rule}[suffix={}]: {body}\n", quoted(marker));
        rule.to_string()
    }

    /// Text that does not match an expression.
    fn free(&mut self, rule: &str, but: Option<String>) -> String {
        let name = format!("FREE_{}", rule.to_uppercase());
        let but = but.map_or(String::new(), |but| format!(" & ~{but}"));
        self.rules += &format!("{name}: /(?s:.+)/{but}\n");
        name
    }

    /// Answers that consist of an object if they call.
    fn bare(&mut self, names: &[&str], texts: &CallTexts) {
        self.calls("call", names, (&texts.before, &texts.between, &texts.after));
        let tag = match self.special("<|python_tag|>") {
            Some(id) => format!("<[{id}]>? "),
            None => String::new(),
        };
        let head = match &self.format.calls.body {
            CallBody::Json(_) => {
                let head = texts.before.trim_end_matches(['"', ' ', ':']);
                let head = head.trim_start_matches(['{', ' ']);
                format!("\\{{\\s*{}", regex_text(head))
            }
            CallBody::Named { .. } => {
                let names: Vec<String> = names.iter().map(|name| regex_text(name)).collect();
                let before = regex_text(texts.before.trim_start());
                format!(
                    "{before}({}){}",
                    names.join("|"),
                    regex_text(&texts.between)
                )
            }
        };
        self.rules += &format!(
            "start: PLAIN? | {tag}call\n\
             PLAIN: /(?s:.+)/ & ~/\\s*{head}(?s:.*)/\n"
        );
    }

    /// Answers that are messages on channels.
    fn channels(&mut self, names: &[&str], is_single: bool) {
        let lark = |text: &str| self.lark(text);
        let (channel, message) = (lark("<|channel|>"), lark("<|message|>"));
        let (end, call_end) = (lark("<|end|>"), lark("<|call|>"));
        let (start, kind) = (lark("<|start|>"), lark("<|constrain|>"));
        let between = format!("({kind} \"json\" | \"json\")? {message}");
        let mut all = Vec::new();
        for (i, name) in names.iter().enumerate() {
            let name = quoted(&format!("to=functions.{name}"));
            let before = format!("{channel} \"commentary \" {name} \" \"?");
            let other = format!("\" \" {name} {channel} \"commentary\" \" \"?");
            all.push(format!("call_{i}"));
            self.rules += &format!("call_{i}: ({before} | {other}) {between} arguments_{i}\n");
        }
        let said = self.until("said", "<|end|>", &[]);
        let last = self.free("last", None);
        let again = match is_single {
            true => String::new(),
            false => format!("(({end} | {call_end}) next call)* "),
        };
        self.rules += &format!(
            "call: {}\n\
             head: {channel} /analysis|commentary|final/ {message}\n\
             next: {start} \"assistant\"\n\
             start: (head {said} next)* (head {last}? | head {said} | call {again}({end} | {call_end})?)\n",
            all.join(" | ")
        );
    }
}

/// A regular expression of texts that begin with white space and one of these texts.
fn begins(starts: &[String]) -> Option<String> {
    let texts: Vec<String> = starts.iter().map(|start| regex_text(start)).collect();
    (!texts.is_empty()).then(|| format!("/\\s*({})(?s:.*)/", texts.join("|")))
}

/// A regular expression of texts with this text.
fn contains(text: &str) -> String {
    format!("/(?s:.*){}(?s:.*)/", regex_text(text))
}

/// A text as part of a regular expression between slashes.
fn regex_text(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            c if c.is_ascii()
                && !c.is_ascii_alphanumeric()
                && !matches!(c, '<' | '>' | '_' | '"' | ' ') =>
            {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

/// The text of a marker with an index of 0 and without ids of calls.
fn literal(marker: &TextMarker) -> Option<String> {
    let has_id = marker.parts.contains(&MarkerPart::Id);
    (!has_id).then(|| marker.spelling.clone())
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A text as literals of a Lark grammar. Special tokens of the vocabulary are tokens by their ids.
#[must_use]
pub fn lark_text(text: &str, tokenizer: &Tokenizer) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut start = 0;
    for piece in pieces(text) {
        let id = tokenizer.token_to_id(piece.text);
        let Some(id) = id.filter(|id| tokenizer.is_special(*id)) else {
            continue;
        };
        if start < piece.start {
            parts.push(quoted(&text[start..piece.start]));
        }
        parts.push(format!("<[{id}]>"));
        start = piece.end;
    }
    if start < text.len() {
        parts.push(quoted(&text[start..]));
    }
    parts.join(" ")
}
