//! Answers of conversations: printed while they are generated, with thoughts apart from the text and
//! calls of tools as calls, and kept as messages.

use serde::Serialize;
use tercet_models::answer::{
    AnswerEvent, AnswerFormat, AnswerParser, AnswerTool, ParsedAnswer, ToolCall,
};
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, Role};

use super::TextGenerator;
use crate::error::CliError;
use crate::output;

/// The part of an answer that was printed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DisplayedPart {
    None,
    Thought,
    Text,
    Call,
}

/// Prints an answer while it is generated.
pub(crate) struct AnswerPrinter {
    parser: AnswerParser,
    /// The answer so far.
    answer: ParsedAnswer,
    last: DisplayedPart,
    /// Whether the generation began.
    is_begun: bool,
    /// Whether nothing is printed.
    is_quiet: bool,
}

impl AnswerPrinter {
    fn new(parser: AnswerParser, is_quiet: bool) -> AnswerPrinter {
        AnswerPrinter {
            parser,
            answer: ParsedAnswer::default(),
            last: DisplayedPart::None,
            is_begun: false,
            is_quiet,
        }
    }

    /// Prints the next piece of generated text.
    pub(crate) fn push(&mut self, piece: &str) -> Result<(), CliError> {
        self.is_begun = true;
        for event in self.parser.push(piece) {
            self.add(event)?;
        }
        Ok(())
    }

    /// Prints the rest of the answer and the end of its line; the latter not before the generation
    /// began, unless `always` is true.
    pub(crate) fn finish(&mut self, always: bool) -> Result<&ParsedAnswer, CliError> {
        for event in self.parser.finish() {
            self.add(event)?;
        }
        match self.last {
            _ if self.is_quiet => {}
            DisplayedPart::Thought => output::thought("\n")?,
            DisplayedPart::None if !always && !self.is_begun => {}
            DisplayedPart::None | DisplayedPart::Text | DisplayedPart::Call => output::text("\n")?,
        }
        Ok(&self.answer)
    }

    fn add(&mut self, event: AnswerEvent) -> Result<(), CliError> {
        if !self.is_quiet {
            match &event {
                AnswerEvent::Thought(text) => {
                    if self.begin(DisplayedPart::Thought)? {
                        output::thought("thoughts: ")?;
                    }
                    output::thought(text)?;
                }
                AnswerEvent::Text(text) => {
                    self.begin(DisplayedPart::Text)?;
                    output::text(text)?;
                }
                AnswerEvent::Call { name, .. } => {
                    self.begin(DisplayedPart::Call)?;
                    output::text(&format!("call {name} "))?;
                }
                AnswerEvent::Arguments(json) => output::text(json)?,
                // Parts that this command does not know.
                _ => {}
            }
        }
        self.answer.add(event);
        Ok(())
    }

    /// Ends the part before, if it is another one. Each call is a part.
    fn begin(&mut self, part: DisplayedPart) -> Result<bool, CliError> {
        let last = std::mem::replace(&mut self.last, part);
        if last == part && part != DisplayedPart::Call {
            return Ok(false);
        }
        match last {
            DisplayedPart::None => {}
            DisplayedPart::Thought => output::thought("\n\n")?,
            DisplayedPart::Text | DisplayedPart::Call => output::text("\n")?,
        }
        Ok(true)
    }
}

impl TextGenerator {
    /// A printer of the answer after the text of a prompt.
    pub(crate) fn answer_printer(&self, prompt: &str, is_quiet: bool) -> AnswerPrinter {
        self.answer_printer_with(&[], prompt, is_quiet)
    }

    /// Whether the chat template shows tools to the model.
    pub(crate) fn shows_tools(&self) -> bool {
        self.answers.has_tools()
    }

    /// Like [`Self::answer_printer`], with the schemas of tools.
    pub(crate) fn answer_printer_with(
        &self,
        tools: &[AnswerTool],
        prompt: &str,
        is_quiet: bool,
    ) -> AnswerPrinter {
        // A grammar constrains the first token already, so the answer has no thought, even if the prompt
        // opens one.
        #[cfg(feature = "grammar")]
        let prompt = match self.constrained {
            Some(_) => "",
            None => prompt,
        };
        let parser = AnswerParser::new(&self.answers, tools, prompt).with_any_tool();
        AnswerPrinter::new(parser, is_quiet)
    }

    /// The message of an answer, with the fields that the chat template reads.
    pub(crate) fn answer_message(&self, answer: &ParsedAnswer) -> ChatMessage {
        let said = self.message(Role::Assistant, 0, &answer.text);
        let content = said.fields().get("content").cloned();
        let mut fields = vec![("content", content.unwrap_or(TemplateValue::None))];
        if !answer.thought.is_empty() {
            let thought = TemplateValue::text(&answer.thought);
            fields.push((self.answers.thought_key(), thought));
        }
        if !answer.calls.is_empty() {
            let calls = answer.calls.iter().map(|call| value(call, &self.answers));
            fields.push(("tool_calls", TemplateValue::list(calls.collect())));
        }
        ChatMessage::from_fields(Role::Assistant, fields)
    }
}

/// A call as templates read it. Arguments that were cut are left out.
fn value(call: &ToolCall, format: &AnswerFormat) -> TemplateValue {
    let arguments = TemplateValue::from_json(&call.arguments);
    let arguments = match (arguments, format.takes_argument_text()) {
        (Ok(_), true) => TemplateValue::text(&call.arguments),
        (Ok(arguments), false) => arguments,
        (Err(_), true) => TemplateValue::text("{}"),
        (Err(_), false) => TemplateValue::map(Vec::<(&str, TemplateValue)>::new()),
    };
    let function = TemplateValue::map(vec![
        ("name", TemplateValue::text(&call.name)),
        ("arguments", arguments),
    ]);
    TemplateValue::map(vec![
        ("id", TemplateValue::text(&call.id)),
        ("type", TemplateValue::text("function")),
        ("function", function),
    ])
}

/// The text of a generation in JSON. An answer has its thoughts and calls apart, as in OpenAI's API.
#[derive(Serialize)]
pub(crate) struct AnswerReport {
    text: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCallReport>,
}

impl AnswerReport {
    /// The parts of an answer, or the text of another generation.
    pub(crate) fn new(text: String, answer: Option<ParsedAnswer>) -> AnswerReport {
        let answer = answer.unwrap_or(ParsedAnswer {
            text,
            ..ParsedAnswer::default()
        });
        AnswerReport {
            text: answer.text,
            reasoning_content: answer.thought,
            tool_calls: answer.calls.iter().map(ToolCallReport::new).collect(),
        }
    }
}

/// A call of a tool in JSON, as in OpenAI's API.
#[derive(Serialize)]
struct ToolCallReport {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: FunctionReport,
}

#[derive(Serialize)]
struct FunctionReport {
    name: String,
    arguments: String,
}

impl ToolCallReport {
    fn new(call: &ToolCall) -> ToolCallReport {
        ToolCallReport {
            id: call.id.clone(),
            kind: "function",
            function: FunctionReport {
                name: call.name.clone(),
                arguments: call.arguments.clone(),
            },
        }
    }
}
