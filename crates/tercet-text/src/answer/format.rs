//! The format of a model's answers.

use super::marker::TextMarker;

/// The tags around a thought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThoughtTags {
    pub(super) open: TextMarker,
    pub(super) close: TextMarker,
}

/// Known tags around thoughts, which every answer may begin with.
const THOUGHTS: [(&str, &str); 9] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<mm:think>", "</mm:think>"),
];

/// The known tags, and those of a template.
pub(super) fn all_thoughts(own: Option<ThoughtTags>) -> Vec<ThoughtTags> {
    let known = THOUGHTS.iter().map(|(open, close)| ThoughtTags {
        open: TextMarker::new(open),
        close: TextMarker::new(close),
    });
    let mut all: Vec<ThoughtTags> = own.into_iter().collect();
    for tags in known {
        if !all.iter().any(|other| other.open.parts == tags.open.parts) {
            all.push(tags);
        }
    }
    all
}

/// How calls are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallFormat {
    /// Markers around all calls of an answer.
    pub(super) section: (TextMarker, TextMarker),
    /// Markers around each call.
    pub(super) call: (TextMarker, TextMarker),
    /// Text between calls.
    pub(super) separator: TextMarker,
    pub(super) body: CallBody,
}

/// Syntax of a call between its markers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallBody {
    /// An object with the name and the arguments; `list` if the objects are in a list.
    Json(JsonCall),
    /// The name, a marker, and the arguments.
    Named {
        after: TextMarker,
        /// Whether the id is the text from the marker before the name, such as `functions.NAME:0`.
        id_prefix: Option<String>,
        arguments: ArgumentsForm,
    },
}

/// The keys of a call that is an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JsonCall {
    pub(super) name: String,
    pub(super) arguments: String,
    pub(super) id: Option<String>,
    /// The key of the object that has the name and the arguments, if it is nested.
    pub(super) wrapper: Option<String>,
    pub(super) is_list: bool,
}

/// How the arguments of a named call are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ArgumentsForm {
    /// A JSON object.
    Json,
    /// Literals up to a bracket: `a=1, b='x')`, or `a:1,b:<quote>x<quote>}`.
    Literals { quote: TextMarker, close: char },
    /// A marker before each key, between key and value, and after each value.
    Pairs(PairMarkers),
}

/// The markers of arguments that are written as tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PairMarkers {
    pub(super) open: TextMarker,
    /// After the keys of texts, and after other keys.
    pub(super) after_key: [TextMarker; 2],
    pub(super) close: TextMarker,
    /// Whether a line end follows the marker after the key and precedes that after the value.
    pub(super) has_lines: bool,
}

impl CallFormat {
    /// The format of Hermes and Qwen: an object with the name and the arguments between tags.
    pub(super) fn hermes() -> CallFormat {
        CallFormat::tagged("<tool_call>\n", "\n</tool_call>", "arguments")
    }

    /// Objects between tags, with this key of the arguments.
    pub(super) fn tagged(open: &str, close: &str, arguments: &str) -> CallFormat {
        CallFormat {
            section: Default::default(),
            call: (TextMarker::new(open), TextMarker::new(close)),
            separator: TextMarker::new("\n"),
            body: CallBody::json(arguments, false),
        }
    }

    /// A list of objects between tags.
    pub(super) fn list(open: &str, close: &str, arguments: &str) -> CallFormat {
        CallFormat {
            section: (
                TextMarker::new(&format!("{open}[")),
                TextMarker::new(&format!("]{close}")),
            ),
            call: Default::default(),
            separator: TextMarker::new(", "),
            body: CallBody::json(arguments, true),
        }
    }

    /// Whether a call begins with no marker that is unlikely in text.
    pub(super) fn is_bare(&self) -> bool {
        !self.openings().iter().any(TextMarker::is_distinct)
    }

    /// The markers with which calls begin.
    pub(super) fn openings(&self) -> Vec<TextMarker> {
        let whole = self.section.0.followed_by(&self.call.0);
        let mut all = vec![whole];
        if self.call.0.is_distinct() && !self.section.0.is_empty() {
            all.push(self.call.0.clone());
        }
        all.retain(|marker| !marker.is_empty());
        all
    }

    /// The markers that may follow a call, each by itself: models leave some out.
    pub(super) fn closings(&self) -> Vec<TextMarker> {
        let markers = [&self.call.1, &self.section.1];
        let parts = markers.iter().flat_map(|marker| &marker.parts);
        let parts = parts.map(|part| TextMarker {
            parts: vec![part.clone()],
            spelling: String::new(),
        });
        parts.collect()
    }
}

impl CallBody {
    pub(super) fn json(arguments: &str, is_list: bool) -> CallBody {
        CallBody::Json(JsonCall {
            name: "name".to_string(),
            arguments: arguments.to_string(),
            id: None,
            wrapper: None,
            is_list,
        })
    }
}

impl CallFormat {
    /// The markers as the template writes them.
    pub(super) fn spellings(&self) -> Vec<String> {
        let CallFormat {
            section,
            call,
            separator,
            body,
        } = self;
        let mut markers = vec![&section.0, &section.1, &call.0, &call.1, separator];
        if let CallBody::Named {
            after, arguments, ..
        } = body
        {
            markers.push(after);
            match arguments {
                ArgumentsForm::Json => {}
                ArgumentsForm::Literals { quote, .. } => markers.push(quote),
                ArgumentsForm::Pairs(pairs) => {
                    markers.extend([&pairs.open, &pairs.close]);
                    markers.extend(&pairs.after_key);
                }
            }
        }
        let spellings = markers.iter().map(|marker| marker.spelling.clone());
        spellings.filter(|spelling| !spelling.is_empty()).collect()
    }
}
