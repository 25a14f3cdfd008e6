//! Answers in a default format and in one of a template: whole, in pieces, cut and malformed.

use tercet_text::answer::{
    AnswerEvent, AnswerFormat, AnswerParser, AnswerTool, ParsedAnswer, ToolCall,
};
use tercet_text::dataset::ChatTemplate;

fn tools() -> Vec<AnswerTool> {
    ["add", "now"]
        .map(|name| AnswerTool::new(name, None))
        .into()
}

fn parser(prompt: &str) -> AnswerParser {
    AnswerParser::new(&AnswerFormat::default(), &tools(), prompt)
}

/// Expected thought, text, and calls as names with arguments.
type Expected = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const CASES: [(&str, Expected); 48] = [
    ("Hello { there", ("", "Hello { there", &[])),
    (
        "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": [2]}}\n</tool_call>",
        ("", "", &[("add", "{\"b\":1,\"a\":[2]}")]),
    ),
    (
        "I see.\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"add\",\"arguments\":\"{\\\"a\\\": \\\"\\\\u00e9\\\"}\"}",
        (
            "",
            "I see.",
            &[("now", "{}"), ("add", "{\"a\":\"\\u00e9\"}")],
        ),
    ),
    (
        "{\"name\": \"add\", \"parameters\": {\"a\": \"x\"}}",
        ("", "", &[("add", "{\"a\":\"x\"}")]),
    ),
    (
        " <|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": null}\n",
        ("", "", &[("now", "{}"), ("now", "{}")]),
    ),
    // Calls without arguments.
    (
        "<tool_call>{\"name\": \"now\"}</tool_call>\n<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"now\"}}</tool_call>",
        ("", "", &[("now", "{}"), ("now", "{}")]),
    ),
    (
        "<tool_call>{\"name\": \"now\", \"arguments\": \"\"}</tool_call>\n<tool_call>{\"arguments\": \"\", \"name\": \"now\"}</tool_call>",
        ("", "", &[("now", "{}"), ("now", "{}")]),
    ),
    (
        "<tool_call>{\"arguments\": null, \"name\": \"now\" }</tool_call> Done.",
        ("", "Done.", &[("now", "{}")]),
    ),
    (
        "<tool_call>{\"name\": \"now\", \"id\": \"x\" }</tool_call>",
        ("", "", &[("now", "{}")]),
    ),
    (
        "<tool_call>{\"arguments\": \"{\\\"a\\\": 1}\", \"name\": \"add\"}</tool_call>",
        ("", "", &[("add", "{\"a\":1}")]),
    ),
    // An object alone may be an answer.
    ("{\"name\": \"now\"}", ("", "{\"name\": \"now\"}", &[])),
    // A list of calls between tags for one.
    (
        "<tool_call>\n[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"add\", \"arguments\": {\"a\": [1]}}]\n</tool_call>",
        ("", "", &[("now", "{}"), ("add", "{\"a\":[1]}")]),
    ),
    (
        "Both: <tool_call>[ {\"name\": \"now\"},\n{\"name\": \"now\"} ]</tool_call> [1, 2]",
        ("", "Both:[1, 2]", &[("now", "{}"), ("now", "{}")]),
    ),
    (
        "<tool_call>[{\"name\": \"now\", \"arguments\": {}}]",
        ("", "", &[("now", "{}")]),
    ),
    (
        "<tool_call>[]</tool_call>",
        ("", "<tool_call>[]</tool_call>", &[]),
    ),
    (
        "<tool_call>[{\"name\": \"other\"}]</tool_call>",
        ("", "<tool_call>[{\"name\": \"other\"}]</tool_call>", &[]),
    ),
    // Numbers with more digits than a float, and blanks and quotes in strings.
    (
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 123456789012345678901234567890, \"b\": 1.10}}</tool_call>",
        (
            "",
            "",
            &[("add", "{\"a\":123456789012345678901234567890,\"b\":1.10}")],
        ),
    ),
    (
        "{\"name\": \"add\", \"parameters\": { \"a b\" : \"x \\\" : y\\\\\" , \"c\": [1, 2] }}",
        (
            "",
            "",
            &[("add", "{\"a b\":\"x \\\" : y\\\\\",\"c\":[1,2]}")],
        ),
    ),
    // The arguments before the name, in a separate object, and with an id.
    (
        "<tool_call>{\"arguments\": {\"a\": 1}, \"id\": \"7\", \"name\": \"add\"}</tool_call>",
        ("", "", &[("add", "{\"a\":1}")]),
    ),
    (
        "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"add\", \"arguments\": {}}, \"index\": 0}</tool_call>.",
        ("", ".", &[("add", "{}")]),
    ),
    // An unknown tool, an incomplete head, text that is not a call.
    (
        "{\"name\": \"delete\", \"parameters\": {}}",
        ("", "{\"name\": \"delete\", \"parameters\": {}}", &[]),
    ),
    (
        "<tool_call>{\"name\": \"add\", \"argu",
        ("", "<tool_call>{\"name\": \"add\", \"argu", &[]),
    ),
    ("{\"name\": \"add\"}", ("", "{\"name\": \"add\"}", &[])),
    (
        "{\"name\": \"add\", \"parameters\": 3}",
        ("", "{\"name\": \"add\", \"parameters\": 3}", &[]),
    ),
    (
        "{\"a\": 1, \"name\": \"now\"}",
        ("", "{\"a\": 1, \"name\": \"now\"}", &[]),
    ),
    // A call that was cut in its arguments, and one whose object is broken.
    (
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"x y",
        ("", "", &[("add", "{\"a\":\"x y")]),
    ),
    (
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1</tool_call>\nDone",
        ("", "Done", &[("add", "{\"a\":1")]),
    ),
    (
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"x\ny\"}}}</tool_call>",
        ("", "}</tool_call>", &[("add", "{\"a\":\"x\\ny\"}")]),
    ),
    ("a < b <tool", ("", "a < b <tool", &[])),
    // Thoughts and texts that name the tag.
    (
        "<think>I must put it in <tool_call> tags.</think>\n\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
        ("I must put it in <tool_call> tags.", "", &[("now", "{}")]),
    ),
    (
        "<think>Like <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call></think> No.",
        (
            "Like <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
            "No.",
            &[],
        ),
    ),
    (
        "<think>\nLike <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\n",
        (
            "Like <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
            "",
            &[],
        ),
    ),
    (
        "\n<thinking>a {b} <tool_call></thinking>\n{\"name\": \"now\", \"parameters\": {}}",
        ("a {b} <tool_call>", "", &[("now", "{}")]),
    ),
    (
        "The <tool_call> tag: <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
        ("", "The <tool_call> tag:", &[("now", "{}")]),
    ),
    (
        "<tool_call>{x}</tool_call> or <tool_call>\n{\"name\": \"now\", \"arguments\": {}}",
        ("", "<tool_call>{x}</tool_call> or", &[("now", "{}")]),
    ),
    (
        "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call> and <tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call> <tool_call>",
        ("", "and<tool_call>", &[("now", "{}"), ("add", "{}")]),
    ),
    // Tags in strings.
    (
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"</tool_call> </think> <tool_call>\"}}</tool_call>",
        (
            "",
            "",
            &[("add", "{\"a\":\"</tool_call> </think> <tool_call>\"}")],
        ),
    ),
    (
        "`</think>` ends a thought\n",
        ("", "`</think>` ends a thought\n", &[]),
    ),
    // The end of a thought that began nowhere.
    ("</think>\n\nIt is 12.", ("", "It is 12.", &[])),
    ("\n</think>", ("", "", &[])),
    ("</think><think>a</think></think> b", ("a", "b", &[])),
    (
        "[/THINK]<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
        ("", "", &[("now", "{}")]),
    ),
    ("</thin", ("", "</thin", &[])),
    ("<tool_call>", ("", "<tool_call>", &[])),
    ("<thin", ("", "<thin", &[])),
    ("", ("", "", &[])),
    (" \n", ("", " \n", &[])),
    ("{", ("", "{", &[])),
];

/// Parses a text in pieces that end at these bytes.
fn parse_at(mut parser: AnswerParser, text: &str, ends: &[usize]) -> ParsedAnswer {
    let mut answer = ParsedAnswer::default();
    let mut start = 0;
    for end in ends.iter().copied().chain([text.len()]) {
        parser
            .push(&text[start..end])
            .into_iter()
            .for_each(|e| answer.add(e));
        start = end;
    }
    parser.finish().into_iter().for_each(|e| answer.add(e));
    for call in &mut answer.calls {
        assert!(!call.id.is_empty());
        call.id.clear();
    }
    answer
}

/// Checks an answer whole, cut in two at every place, and character by character.
fn check(parser: &AnswerParser, text: &str, (thought, said, calls): Expected) {
    let calls = calls.iter().map(|(name, arguments)| ToolCall {
        id: String::new(),
        name: name.to_string(),
        arguments: arguments.to_string(),
    });
    let expected = ParsedAnswer {
        thought: thought.to_string(),
        text: said.to_string(),
        calls: calls.collect(),
    };
    let chars: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    assert_eq!(
        parse_at(parser.clone(), text, &[]),
        expected,
        "whole: {text}"
    );
    assert_eq!(
        parse_at(parser.clone(), text, &chars),
        expected,
        "by characters: {text}"
    );
    for at in &chars {
        assert_eq!(
            parse_at(parser.clone(), text, &[*at]),
            expected,
            "at {at}: {text}"
        );
    }
}

#[test]
fn answers_are_parsed_whole_and_in_pieces() {
    for (text, expected) in CASES {
        check(&parser(""), text, expected);
    }
}

/// A value that contains its end tag ends at this tag, as in the parsers that the model families publish.
#[test]
fn text_after_a_cut_value_is_no_answer() {
    let source = "{# <tool_call> <function=a> #}{% for m in messages %}{{ m.content }}{% endfor %}";
    let template = ChatTemplate::new(source, &[]).unwrap();
    let format = AnswerFormat::from_template(&template);
    let parser = AnswerParser::new(&format, &tools(), "");
    let begin = "So: <tool_call>\n<function=add>\n<parameter=a>\nx</parameter> y";
    let later = "\n</parameter>\n<parameter=b>\nz\n</parameter>\n";
    let end = "</function>\n</tool_call>";
    let both: Expected = ("", "So:", &[("add", "{\"a\":\"x\",\"b\":\"z\"}")]);
    check(&parser, &format!("{begin}{later}{end}"), both);
    check(&parser, &format!("{begin} < </{later}{end}"), both);
    let one: Expected = ("", "So:", &[("add", "{\"a\":\"x\"}")]);
    check(&parser, &format!("{begin}\n</parameter>\n{end}"), one);
    // A model that leaves out the end of a call writes text after it.
    let left: Expected = ("", "So:y < z", &[("add", "{\"a\":\"x\"}")]);
    check(&parser, &format!("{begin} < z"), left);
    let call = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    let two = format!("{} {call}", begin.trim_end_matches(" y"));
    let next: Expected = ("", "So:", &[("add", "{\"a\":\"x\"}"), ("now", "{}")]);
    check(&parser, &two, next);
}

#[test]
fn a_thought_that_the_prompt_opened() {
    let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    for prompt in ["assistant\n<think>\n", "[THINK]", "<|START_THINKING|>"] {
        let close = match prompt {
            "[THINK]" => "[/THINK]",
            "<|START_THINKING|>" => "<|END_THINKING|>",
            _ => "</think>",
        };
        let open = parse_at(parser(prompt), &format!("a {call}"), &[]);
        assert_eq!((open.thought, open.calls.len()), (format!("a {call}"), 0));
        let closed = parse_at(parser(prompt), &format!("{call}{close}{call}"), &[]);
        assert_eq!((closed.thought.as_str(), closed.calls.len()), (call, 1));
    }
    let none = parse_at(parser("<think>\n\n</think>\n\n"), "a", &[]);
    assert_eq!((none.thought.as_str(), none.text.as_str()), ("", "a"));
}

#[test]
fn text_and_arguments_arrive_as_they_are_written() {
    let mut parser = parser("");
    let text = |text: &str| vec![AnswerEvent::Text(text.to_string())];
    let arguments = |text: &str| vec![AnswerEvent::Arguments(text.to_string())];
    assert_eq!(parser.push("x <"), text("x"));
    assert_eq!(parser.push("tool"), []);
    assert_eq!(parser.push("s> {"), text(" <tools> {"));
    assert_eq!(
        parser.push("<tool_call>{\"name\": \"add\", \"arguments\": "),
        []
    );
    let begun = parser.push("{\"text\": \"one ");
    assert!(
        matches!(&begun[..], [AnswerEvent::Call { .. }, AnswerEvent::Arguments(json)] if json == "{\"text\":\"one ")
    );
    assert_eq!(parser.push("two"), arguments("two"));
    assert_eq!(parser.push("\", \"b\": 1"), arguments("\",\"b\":1"));
    // A JSON answer is no call as soon as its first key tells so.
    let mut json = self::parser("");
    assert_eq!(json.push("{\"x\": "), text("{\"x\":"));
}

#[test]
fn further_calls_are_left_out_on_request() {
    let twice = "{\"name\": \"now\", \"parameters\": {}}".repeat(2);
    assert_eq!(parser("").parse(&twice).calls.len(), 2);
    assert_eq!(
        parser("").with_single_call(true).parse(&twice).calls.len(),
        1
    );
}

/// A long head that never becomes a call is read in time proportional to its length.
#[test]
fn long_heads_take_little_time() {
    let started = std::time::Instant::now();
    let mut parser = parser("");
    let mut said = 0;
    let begin = "<tool_call>{\"id\": \"";
    for piece in std::iter::once(begin).chain(std::iter::repeat_n("aaaa", 100_000)) {
        said += parser.push(piece).len();
    }
    assert_eq!(said, 0);
    assert_eq!(parser.finish().len(), 1);
    assert!(started.elapsed().as_secs() < 10);
}
