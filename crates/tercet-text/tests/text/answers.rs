//! Answers as published chat templates write them: thoughts, calls and text are found whole and in
//! any pieces.

use serde_json::{Value, json};
use tercet_text::answer::{AnswerFormat, AnswerParser, AnswerTool, ParsedAnswer};
use tercet_text::dataset::template::TemplateValue;
use tercet_text::dataset::{ChatMessage, ChatTemplate, Role};

use crate::common::data;

/// The parts of an answer.
struct ExpectedAnswer {
    thought: &'static str,
    text: &'static str,
    calls: Vec<(&'static str, Value)>,
}

fn scenarios() -> Vec<ExpectedAnswer> {
    let said = |thought, text, calls: &[(&'static str, Value)]| ExpectedAnswer {
        thought,
        text,
        calls: calls.to_vec(),
    };
    let weather = |city: &str| ("get_weather", json!({"city": city}));
    let code = "if a < b && c > d:\n    print(\"</think> {x} <tool_call>\")\n\n# [1, 2]";
    vec![
        said("", "It is 12 o'clock.", &[]),
        said("The user wants the time.\n\nI know it.", "It is 12.", &[]),
        said("I need the weather.", "", &[weather("Paris")]),
        said("", "I look it up.", &[weather("Paris")]),
        said(
            "Two of them.",
            "Both:",
            &[weather("Paris"), weather("New \"York\"")],
        ),
        said("", "", &[("run", json!({"code": code, "times": 3}))]),
        said(
            "",
            "The <tool_call> tag and a `[TOOL_CALLS]` mark are text.",
            &[],
        ),
        said(
            "I write <tool_call> and {\"name\": \"run\"} later.",
            "Done.",
            &[],
        ),
        said(
            "",
            "",
            &[(
                "run",
                json!({
                    "code": "x", "times": 12345678901i64, "options": {"deep": [1, 2.5, true, null], "名": "é"}, "quick": false,
                }),
            )],
        ),
        said("", "", &[weather("a\\b\n c")]),
        said("", "{\"answer\": 42, \"name\": \"run\"}", &[]),
        said("Hm.", "```html\n<div class=\"a\">[1]</div>\n```", &[]),
        said(
            "",
            "",
            &[
                weather("A"),
                ("run", json!({"code": "1 < 2", "times": 0})),
                weather("B"),
            ],
        ),
    ]
    .into_iter()
    .chain(combinations())
    .collect()
}

/// Thoughts, texts and calls by turns. Values have quotes, line ends, markers and other scripts.
fn combinations() -> Vec<ExpectedAnswer> {
    const THOUGHTS: [&str; 4] = [
        "",
        "Let me see: {\"a\": [1, 2]}.",
        "First,\n- one\n- two",
        "<tool_call> comes later; 3 < 4.",
    ];
    const TEXTS: [&str; 4] = [
        "",
        "I call it now.",
        "Zwei Zeilen:\n\n> \"a\" & b",
        "Map<String, Vec<u8>> — [x](y) ✓",
    ];
    const CODES: [&str; 6] = [
        "fn main() { println!(\"{}\", 1); }",
        "for i in range(3):\n    print(i)\n",
        "</parameter> and </arg_value> are words",
        "{\"name\": \"run\", \"arguments\": {}}",
        "a = 'it\\'s'; b = \"q\\\"\"; c = `t`",
        "日本語 🦀 \u{e9}\t|",
    ];
    let mut all = Vec::new();
    for (i, thought) in THOUGHTS.into_iter().enumerate() {
        for (j, text) in TEXTS.into_iter().enumerate() {
            let at = i * TEXTS.len() + j;
            let code = CODES[at % CODES.len()];
            let one = ("run", json!({"code": code, "times": at}));
            let two = (
                "get_weather",
                json!({"city": CODES[(at + 1) % CODES.len()]}),
            );
            for calls in [vec![one.clone()], vec![two.clone(), one.clone()]] {
                all.push(ExpectedAnswer {
                    thought,
                    text,
                    calls,
                });
            }
        }
    }
    all
}

fn tools() -> (TemplateValue, Vec<AnswerTool>) {
    let weather = json!({"type": "object", "properties": {"city": {"type": "string", "description": "c"}},
        "required": ["city"]});
    let run = json!({"type": "object", "properties": {"code": {"type": "string", "description": "c"},
        "times": {"type": "integer", "description": "t"}, "options": {"type": "object", "description": "o"},
        "quick": {"type": "boolean", "description": "q"}}, "required": ["code"]});
    let all = [("get_weather", weather), ("run", run)];
    let shown: Vec<Value> = all
        .iter()
        .map(|(name, schema)| {
            json!({"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}})
        })
        .collect();
    let shown = TemplateValue::from_json(&Value::from(shown).to_string()).unwrap();
    let known = all
        .iter()
        .map(|(name, schema)| AnswerTool::new(name, Some(schema.clone())));
    (shown, known.collect())
}

fn message(said: &ExpectedAnswer, format: &AnswerFormat) -> ChatMessage {
    let takes_text = format.takes_argument_text();
    let calls = said.calls.iter().enumerate().map(|(i, (name, arguments))| {
        let arguments = arguments.to_string();
        let arguments = match takes_text {
            true => TemplateValue::text(&arguments),
            false => TemplateValue::from_json(&arguments).unwrap(),
        };
        let function = TemplateValue::map(vec![
            ("name", TemplateValue::text(name)),
            ("arguments", arguments),
        ]);
        TemplateValue::map(vec![
            ("id", TemplateValue::text(&format!("callid00{i}"))),
            ("type", TemplateValue::text("function")),
            ("function", function),
        ])
    });
    let mut fields = vec![("content", TemplateValue::text(said.text))];
    if !said.thought.is_empty() {
        fields.push((format.thought_key(), TemplateValue::text(said.thought)));
    }
    if !said.calls.is_empty() {
        fields.push(("tool_calls", TemplateValue::list(calls.collect())));
    }
    ChatMessage::from_fields(Role::Assistant, fields)
}

/// The prompt and the answer after it, as a template writes them; `None` if it refuses the answer.
fn transcript(
    template: &ChatTemplate,
    said: &ExpectedAnswer,
    format: &AnswerFormat,
) -> Option<(String, String)> {
    let (shown, _) = tools();
    let user = ChatMessage::new(Role::User, "Please.");
    let prompt = template
        .render(std::slice::from_ref(&user), &shown, true)
        .ok()?
        .text;
    let whole = |message: ChatMessage| {
        let rendered = template
            .render(&[user.clone(), message], &shown, false)
            .ok();
        Some(rendered?.text)
    };
    let plain = whole(ChatMessage::new(Role::Assistant, "Plain."))?;
    let (_, end) = plain.rsplit_once("Plain.")?;
    let written = whole(message(said, format))?;
    let same = prompt
        .chars()
        .zip(written.chars())
        .take_while(|(a, b)| a == b);
    let mut begin: usize = same.map(|(a, _)| a.len_utf8()).sum();
    // Not within a tag.
    if let Some(open) = written[..begin].rfind('<')
        && !written[open..begin].contains('>')
    {
        begin = open;
    }
    let answer = &written[begin..];
    let answer = answer.trim_end().strip_suffix(end.trim()).unwrap_or(answer);
    Some((written[..begin].to_string(), answer.trim_end().to_string()))
}

fn without_ids(mut answer: ParsedAnswer) -> ParsedAnswer {
    answer.calls.iter_mut().for_each(|call| call.id.clear());
    answer
}

fn in_pieces(mut parser: AnswerParser, pieces: &[&str]) -> ParsedAnswer {
    let mut answer = ParsedAnswer::default();
    for piece in pieces {
        parser
            .push(piece)
            .into_iter()
            .for_each(|event| answer.add(event));
    }
    parser
        .finish()
        .into_iter()
        .for_each(|event| answer.add(event));
    without_ids(answer)
}

/// Why the parsed answer differs from the message that the template rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerDifference {
    /// The template renders no thoughts.
    NoThoughts,
    /// The template drops the text of a message with calls.
    NoTextBesideCalls,
    /// The template renders the text of a message with calls as a thought.
    TextBesideCallsIsThought,
    /// The template renders the first call only.
    FirstCall,
    /// A value has the marker of its end. The format has no escapes, and the published parsers of the
    /// family end a value at the first such marker.
    CutValue,
}

use AnswerDifference::{
    CutValue, FirstCall, NoTextBesideCalls, NoThoughts, TextBesideCallsIsThought,
};

/// The parts that a template drops, and the marker at the end of values if they have no escapes. The
/// first is the template's own rule, the second that of the parsers that vLLM and SGLang publish for the family:
/// `<parameter=(.*?)</parameter>`, `<arg_value>(.*?)</arg_value>`.
type TemplateRule = (
    &'static str,
    &'static [AnswerDifference],
    Option<&'static str>,
);

const RULES: [TemplateRule; 25] = [
    ("baichuan-m2", &[], None),
    ("deepseek-r1-0528", &[NoThoughts], None),
    ("deepseek-v3.1", &[NoThoughts], None),
    ("deepseek-v3.2", &[NoThoughts], None),
    ("glm-4.5", &[], Some("</arg_value>")),
    ("glm-4.5v", &[], Some("</arg_value>")),
    ("glm-4.6", &[], Some("</arg_value>")),
    ("glm-4.7-flash", &[], Some("</arg_value>")),
    ("glm-5.1", &[], Some("</arg_value>")),
    ("gpt-oss", &[TextBesideCallsIsThought, FirstCall], None),
    ("minicpm5-1b", &[], None),
    (
        "mistral-instruct-v0.3",
        &[NoThoughts, NoTextBesideCalls],
        None,
    ),
    ("qwen2.5-instruct-1m", &[NoThoughts], None),
    ("qwen3", &[], None),
    ("qwen3-coder", &[NoThoughts], Some("</parameter>")),
    ("qwen3-instruct", &[], None),
    ("qwen3-next-instruct", &[NoThoughts], None),
    ("qwen3-next-thinking", &[], None),
    ("qwen3-omni-instruct", &[], None),
    ("qwen3-omni-thinking", &[], None),
    ("qwen3-vl-instruct", &[NoThoughts], None),
    ("qwen3-vl-thinking", &[], None),
    ("qwen3.6", &[], Some("</parameter>")),
    ("qwq-32b", &[NoThoughts], None),
    ("seed-oss", &[], Some("</parameter>")),
];

/// The right reading of an answer.
#[derive(Clone, Debug, PartialEq)]
struct AnswerReading {
    thought: String,
    text: String,
    calls: Vec<(String, Value)>,
}

impl AnswerReading {
    /// A parsed answer, without the white space around its thought and its text.
    fn of(answer: &ParsedAnswer) -> AnswerReading {
        let calls = answer.calls.iter().map(|call| {
            let arguments = serde_json::from_str(&call.arguments).unwrap_or(Value::Null);
            (call.name.clone(), arguments)
        });
        AnswerReading {
            thought: answer.thought.trim().to_string(),
            text: answer.text.trim().to_string(),
            calls: calls.collect(),
        }
    }

    /// The right reading by a rule of the answer given to the template, and the differences.
    fn expected(
        said: &ExpectedAnswer,
        rule: &TemplateRule,
    ) -> (AnswerReading, Vec<AnswerDifference>) {
        let (_, drops, end_of_values) = rule;
        let calls = said.calls.iter();
        let mut reading = AnswerReading {
            thought: said.thought.to_string(),
            text: said.text.to_string(),
            calls: calls.map(|(n, a)| (n.to_string(), a.clone())).collect(),
        };
        let given = reading.clone();
        let mut differences = Vec::new();
        for difference in *drops {
            let before = reading.clone();
            match difference {
                NoThoughts => reading.thought.clear(),
                NoTextBesideCalls if !reading.calls.is_empty() => reading.text.clear(),
                TextBesideCallsIsThought if !reading.calls.is_empty() => {
                    reading.thought += &std::mem::take(&mut reading.text);
                }
                FirstCall => reading.calls.truncate(1),
                NoTextBesideCalls | TextBesideCallsIsThought | CutValue => {}
            }
            if reading != before {
                differences.push(*difference);
            }
        }
        if let Some(end) = end_of_values {
            let before = reading.clone();
            let arguments = reading.calls.iter_mut().map(|(_, arguments)| arguments);
            let values = arguments.flat_map(|arguments| arguments.as_object_mut().unwrap());
            for (_, value) in values {
                if let Some((cut, _)) = value.as_str().and_then(|text| text.split_once(end)) {
                    *value = Value::from(cut);
                }
            }
            if reading != before {
                differences.push(CutValue);
            }
        }
        assert_eq!(reading == given, differences.is_empty());
        (reading, differences)
    }
}

/// Parses an answer, and asserts the same at every split, and of every cut however it arrives.
fn parsed(parser: &AnswerParser, text: &str, name: &str) -> ParsedAnswer {
    let whole = in_pieces(parser.clone(), &[text]);
    let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    let ends: Vec<usize> = ends.collect();
    let chars: Vec<&str> = ends.windows(2).map(|w| &text[w[0]..w[1]]).collect();
    assert_eq!(in_pieces(parser.clone(), &chars), whole, "{name}: {text:?}");
    for (i, &at) in ends.iter().enumerate() {
        let halves = in_pieces(parser.clone(), &[&text[..at], &text[at..]]);
        assert_eq!(halves, whole, "{name} at {at}: {text:?}");
        let cut = in_pieces(parser.clone(), &[&text[..at]]);
        let by_chars = in_pieces(parser.clone(), &chars[..i]);
        assert_eq!(by_chars, cut, "{name} cut at {at}: {text:?}");
        for (part, all) in cut.calls.iter().zip(&whole.calls) {
            assert_eq!(part.name, all.name);
        }
    }
    whole
}

#[test]
fn answers_of_published_templates() {
    let (_, known) = tools();
    let folder = std::fs::read_dir(data("chat-templates/published")).unwrap();
    let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "jinja"));
    files.sort();
    assert!(files.len() >= 20);
    let (mut total, mut refused, mut with_other_format) = (0, 0, 0);
    let (mut wrong, mut found) = (Vec::new(), Vec::new());
    for path in files {
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        let rule = RULES.iter().find(|(of, ..)| *of == name);
        let rule = rule.unwrap_or_else(|| panic!("{name}: no rule"));
        let source = std::fs::read_to_string(&path).unwrap();
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let tokens = tokens.map(|(k, v)| (k.to_string(), v.to_string()));
        let template =
            ChatTemplate::new(&source, &tokens).unwrap_or_else(|e| panic!("{name}: {e}"));
        let format = AnswerFormat::from_template(&template);
        assert!(format.has_tools(), "{name}");
        for said in scenarios() {
            let Some((prompt, text)) = transcript(&template, &said, &format) else {
                refused += 1;
                continue;
            };
            total += 1;
            let parser = AnswerParser::new(&format, &known, &prompt);
            let whole = parsed(&parser, &text, &name);
            let (expected, differences) = AnswerReading::expected(&said, rule);
            if AnswerReading::of(&whole) != expected {
                wrong.push(format!("{name}: {text:?} is read as {whole:?}"));
            }
            found.extend(differences.into_iter().map(|d| (rule.0, d)));
            let other = AnswerParser::new(&AnswerFormat::default(), &known, &prompt);
            with_other_format += usize::from(AnswerReading::of(&other.parse(&text)) == expected);
        }
    }
    let right = total - wrong.len();
    println!("{right} of {total} answers; templates refused {refused}");
    for line in &wrong {
        println!("{line}");
    }
    assert!(total >= 1000, "{total}");
    assert!(right * 100 >= total * 99, "{right} of {total}");
    let names: Vec<&str> = wrong.iter().filter_map(|l| l.split(':').next()).collect();
    assert_eq!(names, MISREAD);
    // Another format would be seen.
    assert!(with_other_format * 10 < total * 9, "{with_other_format}");
    let kinds = [
        NoThoughts,
        NoTextBesideCalls,
        TextBesideCallsIsThought,
        FirstCall,
        CutValue,
    ];
    let mut listed = Vec::new();
    for (name, ..) in RULES {
        for kind in kinds {
            let count = found.iter().filter(|pair| **pair == (name, kind)).count();
            if count > 0 {
                listed.push((name, kind, count));
            }
        }
    }
    assert_eq!(listed, DIFFERENCES, "{listed:#?}");
}

/// The templates of answers that are read otherwise than expected.
const MISREAD: [&str; 0] = [];

/// Answers by template whose right reading differs from the answer given to the template, of 45 each.
const DIFFERENCES: [(&str, AnswerDifference, usize); 20] = [
    ("deepseek-r1-0528", NoThoughts, 29),
    ("deepseek-v3.1", NoThoughts, 29),
    ("deepseek-v3.2", NoThoughts, 29),
    ("glm-4.5", CutValue, 9),
    ("glm-4.5v", CutValue, 9),
    ("glm-4.6", CutValue, 9),
    ("glm-4.7-flash", CutValue, 9),
    ("glm-5.1", CutValue, 9),
    ("gpt-oss", TextBesideCallsIsThought, 7),
    ("gpt-oss", FirstCall, 8),
    ("mistral-instruct-v0.3", NoThoughts, 29),
    ("mistral-instruct-v0.3", NoTextBesideCalls, 26),
    ("qwen2.5-instruct-1m", NoThoughts, 29),
    ("qwen3-coder", NoThoughts, 29),
    ("qwen3-coder", CutValue, 9),
    ("qwen3-next-instruct", NoThoughts, 29),
    ("qwen3-vl-instruct", NoThoughts, 29),
    ("qwen3.6", CutValue, 9),
    ("qwq-32b", NoThoughts, 29),
    ("seed-oss", CutValue, 9),
];

/// Texts that the grammar of strict calls allows, and others.
#[cfg(feature = "grammar")]
mod strict {
    use tercet_text::Tokenizer;
    use tercet_text::constraint::{Constraint, Grammar, GrammarCompiler};

    use super::*;

    const SCHEMA: &str = r#"{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": false, "x-guidance": {"whitespace_pattern": " ?"}}"#;

    const EOS: u32 = 0;
    const VOCAB: usize = 2048;

    struct Checked {
        tokenizer: Tokenizer,
        compiler: GrammarCompiler,
    }

    fn checked() -> Checked {
        let tokenizer = Tokenizer::from_file(data("tiny-rust-llama/tokenizer.json")).unwrap();
        let compiler = GrammarCompiler::new(&tokenizer, &[EOS], VOCAB).unwrap();
        Checked {
            tokenizer,
            compiler,
        }
    }

    impl Checked {
        /// Whether a grammar allows a text and then its end.
        fn allows(&self, lark: &str, text: &str) -> bool {
            let grammar = Grammar::Lark(lark.to_string());
            let mut constraint = self
                .compiler
                .constraint(&grammar)
                .unwrap_or_else(|e| panic!("{e}\n{lark}"));
            let tokens = self.tokenizer.encode(text, false).unwrap();
            for token in tokens.iter().chain([&EOS]) {
                let mut logits = vec![0.0; VOCAB];
                let masked = constraint.mask(&mut logits);
                if masked.is_err() || logits[*token as usize] != 0.0 {
                    return false;
                }
                if constraint.take(*token).is_err() {
                    return false;
                }
            }
            true
        }

        fn check(
            &self,
            source: &str,
            prompt: &str,
            is_single: bool,
            right: &[&str],
            wrong: &[&str],
        ) {
            let template = ChatTemplate::new(source, &[]).unwrap();
            let format = AnswerFormat::from_template(&template);
            let schema = serde_json::from_str(SCHEMA).unwrap();
            let tools = [
                AnswerTool::new("weather", Some(schema)),
                AnswerTool::new("any", None),
                AnswerTool::new("set", Some(typed())),
            ];
            let lark = format.call_grammar(&tools, &self.tokenizer, prompt, is_single);
            let lark = lark.unwrap();
            for (texts, expected) in [(right, true), (wrong, false)] {
                for text in texts {
                    assert_eq!(self.allows(&lark, text), expected, "{text:?}\n{lark}");
                }
            }
        }
    }

    fn typed() -> Value {
        json!({"type": "object", "properties": {"mode": {"type": "string", "enum": ["on", "off"]},
            "level": {"type": "integer", "minimum": 0}, "note": {"type": "string"}},
            "required": ["mode", "level"], "additionalProperties": false})
    }

    #[test]
    fn calls_as_tags() {
        let checked = checked();
        let source =
            "{# <tool_call> <function=a> #}{% for m in messages %}{{ m.content }}{% endfor %}";
        let call = |body: &str| {
            format!("Well. <tool_call>\n<function=set>\n{body}</function>\n</tool_call>")
        };
        let mode = "<parameter=mode>\non\n</parameter>\n";
        let level = "<parameter=level>\n12\n</parameter>\n";
        let note = "<parameter=note>\na <b>\n\"c\"\n</parameter>\n";
        let right = [
            call(&format!("{mode}{level}")),
            call(&format!("{mode}{level}{note}")),
            call("").replace("set", "any"),
            call(note).replace("set", "any"),
        ];
        let wrong = [
            call(mode),
            call(&format!("{mode}{}", level.replace("12", "-1"))),
            call(&format!("{}{level}", mode.replace("on\n", "in\n"))),
            call(&format!("{mode}{level}{}", note.replace("note", "knot"))),
        ];
        let right: Vec<&str> = right.iter().map(String::as_str).collect();
        let wrong: Vec<&str> = wrong.iter().map(String::as_str).collect();
        checked.check(source, "", false, &right, &wrong);
        // Forms and schemas that cannot be constrained.
        let refused = |source: &str, schema: Value| {
            let template = ChatTemplate::new(source, &[]).unwrap();
            let format = AnswerFormat::from_template(&template);
            let tools = [AnswerTool::new("set", Some(schema))];
            let error = format.call_grammar(&tools, &checked.tokenizer, "", false);
            error.unwrap_err().to_string()
        };
        let pattern = json!({"properties": {"mode": {"type": "string", "pattern": "^a"}}});
        assert!(refused(source, pattern).contains("`pattern` of `mode` of `set`"));
        assert!(refused(source, json!({"anyOf": []})).contains("`anyOf`"));
    }

    const LITERALS: &str =
        "{# <|tool_call_start|> #}{% for m in messages %}{{ m.content }}{% endfor %}";

    const BARE_KEYS: &str = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}\
        {{ '<|tool_call>call:' + c.function.name + '{' }}{% for k, v in c.function.arguments|items %}\
        {{ k }}:{% if v is string %}<|\"|>{{ v }}<|\"|>{% else %}{{ v }}{% endif %}{% if not loop.last %},{% endif %}\
        {% endfor %}{{ '}<tool_call|>' }}{% endfor %}{% endfor %}";

    #[test]
    fn calls_as_literals() {
        let checked = checked();
        let call = |body: &str| format!("Well. <|tool_call_start|>[{body}]<|tool_call_end|>");
        let right = [
            call("set(mode=\"on\", level=12)"),
            call("set(mode=\"off\",level=0,note=\"a \\\"b\\\"\")"),
            call("weather(city=\"Rome\"), any()"),
            call("any(x=[1, \"a\", {\"k\": None}], y=True)"),
            "No [call] (here).".to_string(),
        ];
        let wrong = [
            call("set(mode=\"on\")"),
            call("set(level=12, mode=\"on\")"),
            call("set(mode=\"in\", level=12)"),
            call("set(mode=\"on\", level=-1)"),
            call("set(mode=\"on\", level=1, more=2)"),
            call("weather(town=\"Rome\")"),
            call("weather(city=1)"),
            call("any(x=true)"),
            call("other()"),
        ];
        let texts = |all: &'static [String]| all.iter().map(String::as_str).collect::<Vec<_>>();
        let (right, wrong) = (right.to_vec().leak(), wrong.to_vec().leak());
        checked.check(LITERALS, "", false, &texts(right), &texts(wrong));
        let two = call("weather(city=\"Rome\"), any()");
        checked.check(LITERALS, "", true, &[&call("any()")], &[&two]);
    }

    fn format(source: &str) -> AnswerFormat {
        let template = ChatTemplate::new(source, &[]).unwrap();
        AnswerFormat::from_template(&template)
    }

    #[test]
    fn literals_match_schemas_with_parts_of_each_kind() {
        let checked = checked();
        let schema = json!({"type": "object", "properties": {
            "first": {"type": "integer"},
            "kind": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}], "default": null},
            "point": {"$ref": "#/$defs/point"},
            "list": {"type": "array", "items": {"enum": [1, "two", true, null]}, "minItems": 1, "maxItems": 2},
        }, "required": ["point"], "$defs": {"point": {"type": "object", "properties": {
            "x": {"type": ["number", "boolean"]}, "next": {"$ref": "#/$defs/point"}}, "required": ["x"],
            "additionalProperties": false}}});
        let tools = [AnswerTool::new("draw", Some(schema.clone()))];
        let lark = format(LITERALS).required_call_grammar(&tools, &checked.tokenizer);
        let lark = lark.unwrap();
        let call = |body: &str| format!("<|tool_call_start|>[draw({body})]<|tool_call_end|>");
        for (body, is_right) in [
            ("point={\"x\": 1.5}", true),
            (
                "first=3, kind=None, point={\"x\": True, \"next\": {\"x\": 0}}, list=[1, None]",
                true,
            ),
            ("kind=\"abc\",point={\"x\":1},list=[\"two\"]", true),
            ("kind=\"abcd\",point={\"x\":1}", false),
            ("first=3", false),
            ("point={}", false),
            ("point={\"x\": 1, \"y\": 2}", false),
            ("point={\"x\": 1}, list=[]", false),
            ("point={\"x\": 1}, list=[1, 1, 1]", false),
            ("point={\"x\": 1}, list=[2]", false),
        ] {
            let text = call(body);
            assert_eq!(checked.allows(&lark, &text), is_right, "{text}\n{lark}");
            if is_right {
                let parser = AnswerParser::new(&format(LITERALS), &tools, "");
                let parsed = parser.parse(&text);
                let arguments: Value = serde_json::from_str(&parsed.calls[0].arguments).unwrap();
                assert!(arguments["point"]["x"] != Value::Null, "{arguments}");
            }
        }
        // Bare keys, and strings between markers.
        let lark = format(BARE_KEYS).required_call_grammar(&tools, &checked.tokenizer);
        assert!(lark.unwrap_err().to_string().contains("maxLength"));
        let mut schema = schema;
        schema["properties"]["kind"]["anyOf"][0] = json!({"type": "string"});
        let tools = [AnswerTool::new("draw", Some(schema))];
        let lark = format(BARE_KEYS).required_call_grammar(&tools, &checked.tokenizer);
        let lark = lark.unwrap();
        let call = |body: &str| format!("<|tool_call>call:draw{{{body}}}<tool_call|>");
        for (body, is_right) in [
            ("point:{x:1.5}", true),
            (
                "kind:<|\"|>a \"b\" c<|\"|>,point:{x:true,next:{x:0}},list:[<|\"|>two<|\"|>,null]",
                true,
            ),
            ("kind:<|\"|>a<|\"|>", false),
            ("point:{\"x\": 1}", false),
            ("point:{x:1},list:[2]", false),
        ] {
            let text = call(body);
            assert_eq!(checked.allows(&lark, &text), is_right, "{text}\n{lark}");
        }
        for (schema, named) in [
            (json!({"properties": {"a": {"not": {}}}}), "`not`"),
            (
                json!({"properties": {"a": {"$ref": "#/$defs/b"}}}),
                "#/$defs/b",
            ),
            (json!({"properties": {"a": {"enum": [[1]]}}}), "`enum`"),
            (json!({"properties": {"a": false}}), "no value"),
            (json!({"patternProperties": {"a": {}}}), "patternProperties"),
        ] {
            let tools = [AnswerTool::new("set", Some(schema))];
            let error = format(LITERALS).call_grammar(&tools, &checked.tokenizer, "", false);
            let error = error.unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("`set`"), "{error}");
        }
    }

    const TAGGED: &str = "{# <tool_call> #}{% for m in messages %}{{ m.content }}{% endfor %}";
    const CALL: &str =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";

    #[test]
    fn calls_match_their_schemas_and_texts_are_free() {
        let twice = format!("Both: {CALL}\nand {CALL}");
        let thought = format!("<think>\nI use <tool_call> later.\n</think>\n\nSo: {CALL}");
        let open = format!("I use <tool_call> later.\n</think>\n\n{CALL}");
        let other = "<tool_call>\n{\"name\": \"any\", \"arguments\": {\"x\": [1]}}\n</tool_call>";
        let wrong_key = CALL.replace("city", "town");
        let wrong_name = CALL.replace("weather", "whether");
        let cut = &CALL[..CALL.len() - 20];
        let wrong = [
            wrong_key.as_str(),
            wrong_name.as_str(),
            cut,
            "Say <tool_call> in a text.",
            "<think>x</think> <tool_call>y",
        ];
        let right = [
            "",
            "Plain text with <tool and {\"a\": 1}.",
            CALL,
            other,
            &thought,
            "<think>without <tool_call> end",
            "<think>a</think>b",
        ];
        let checked = checked();
        checked.check(TAGGED, "", false, &right, &wrong);
        checked.check(TAGGED, "", false, &[&twice], &[]);
        checked.check(TAGGED, "", true, &right, &[&twice]);
        let prompt = "assistant\n<think>\n";
        checked.check(
            TAGGED,
            prompt,
            false,
            &[&open, "<tool_call> x"],
            &["a</think>b <tool_call> x"],
        );
    }

    #[test]
    fn calls_in_lists_alone_and_on_channels() {
        let checked = checked();
        let list = "{# [TOOL_CALLS] #}{% for m in messages %}{{ m.content }}{% endfor %}";
        let one = "{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}";
        let (single, twice) = (
            format!("[TOOL_CALLS][{one}]"),
            format!("[TOOL_CALLS][{one}, {one}]"),
        );
        let wrong = [
            single.replace("city", "town"),
            "[TOOL_CALLS] is a mark".to_string(),
        ];
        let wrong = wrong.each_ref().map(String::as_str);
        checked.check(list, "", false, &["Text [a].", &single, &twice], &wrong);
        checked.check(list, "", true, &[&single], &[&twice]);
        let bare = "{# \"parameters\":  #}{% for m in messages %}{{ m.content }}{% endfor %}";
        let call = one.replace("arguments", "parameters");
        let wrong = call.replace("city", "town");
        checked.check(
            bare,
            "",
            false,
            &["Text {\"name\"}.", "{\"a\": 1}", &call],
            &[&wrong],
        );
        let channels = "<|channel|><|message|>{% for m in messages %}{{ m.content }}{% endfor %}";
        let said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
        let call = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Rome\"}";
        let (right, wrong) = (
            format!("{said}{call}<|call|>"),
            format!("{said}{call}").replace("city", "town"),
        );
        let answer = format!("{said}<|channel|>final<|message|>It is warm.");
        checked.check(
            channels,
            "",
            false,
            &[&right, call, &answer],
            &[&wrong, "Hm."],
        );
    }
}
