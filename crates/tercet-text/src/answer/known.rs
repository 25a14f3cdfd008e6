//! Formats of templates that do not show how calls are written: they drop the calls of earlier
//! answers, or refuse them.

use super::format::{ArgumentsForm, CallBody, CallFormat, PairMarkers};
use super::marker::TextMarker;

/// The format that the source of a template tells, with the texts that tell it.
pub(super) fn from_source(source: &str) -> Option<CallFormat> {
    let has = |text: &str| source.contains(text);
    if has("<|tool_call_start|>") {
        return Some(literals("<|tool_call_start|>[", "]<|tool_call_end|>"));
    }
    if has("<tool_call>") && has("<function=") {
        return Some(function_tags());
    }
    if has("<tool_call>") && has("<arg_key>") {
        return Some(key_tags());
    }
    if has("<tool_call>") {
        return Some(CallFormat::hermes());
    }
    if has("<TOOLCALL>") {
        return Some(CallFormat::list("<TOOLCALL>", "</TOOLCALL>", "arguments"));
    }
    if has("[TOOL_CALLS]") {
        return Some(CallFormat::list("[TOOL_CALLS]", "", "arguments"));
    }
    if has("<｜tool▁calls▁begin｜>") {
        return Some(deepseek());
    }
    if has("<|tool_call|>") && has("<|/tool_call|>") {
        return Some(CallFormat::list(
            "<|tool_call|>",
            "<|/tool_call|>",
            "arguments",
        ));
    }
    if has("<|tool_call|>") {
        return Some(CallFormat::list("<|tool_call|>", "", "arguments"));
    }
    has("\"parameters\": ").then(|| CallFormat::tagged("", "", "parameters"))
}

/// Python's calls in a list.
fn literals(open: &str, close: &str) -> CallFormat {
    CallFormat {
        section: (TextMarker::new(open), TextMarker::new(close)),
        call: Default::default(),
        separator: TextMarker::new(", "),
        body: CallBody::Named {
            after: TextMarker::new("("),
            id_prefix: None,
            arguments: ArgumentsForm::Literals {
                quote: TextMarker::default(),
                close: ')',
            },
        },
    }
}

/// Tags with names, as Qwen3-Coder writes them.
fn function_tags() -> CallFormat {
    let after_key = || TextMarker::new(">\n");
    CallFormat {
        section: Default::default(),
        call: (
            TextMarker::new("<tool_call>\n<function="),
            TextMarker::new("</function>\n</tool_call>"),
        ),
        separator: TextMarker::new("\n"),
        body: CallBody::Named {
            after: TextMarker::new(">\n"),
            id_prefix: None,
            arguments: ArgumentsForm::Pairs(PairMarkers {
                open: TextMarker::new("<parameter="),
                after_key: [after_key(), after_key()],
                close: TextMarker::new("</parameter>\n"),
                has_lines: true,
            }),
        },
    }
}

/// Tags around keys and values, as GLM writes them.
fn key_tags() -> CallFormat {
    let after_key = || TextMarker::new("</arg_key>\n<arg_value>");
    CallFormat {
        section: Default::default(),
        call: (
            TextMarker::new("<tool_call>"),
            TextMarker::new("</tool_call>"),
        ),
        separator: TextMarker::new("\n"),
        body: CallBody::Named {
            after: TextMarker::new(""),
            id_prefix: None,
            arguments: ArgumentsForm::Pairs(PairMarkers {
                open: TextMarker::new("\n<arg_key>"),
                after_key: [after_key(), after_key()],
                close: TextMarker::new("</arg_value>\n"),
                has_lines: false,
            }),
        },
    }
}

/// The calls of DeepSeek-V3 and R1: JSON in a code block after the name.
fn deepseek() -> CallFormat {
    CallFormat {
        section: (
            TextMarker::new("<｜tool▁calls▁begin｜>"),
            TextMarker::new("<｜tool▁calls▁end｜>"),
        ),
        call: (
            TextMarker::new("<｜tool▁call▁begin｜>function<｜tool▁sep｜>"),
            TextMarker::new("\n```<｜tool▁call▁end｜>"),
        ),
        separator: TextMarker::new("\n"),
        body: CallBody::Named {
            after: TextMarker::new("\n```json\n"),
            id_prefix: None,
            arguments: ArgumentsForm::Json,
        },
    }
}
