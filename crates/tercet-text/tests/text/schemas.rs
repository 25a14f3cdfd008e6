//! Tests of JSON schemas: those that programs write, and costly ones.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::common::data;
use tercet_text::Tokenizer;
use tercet_text::constraint::{Constraint, GenerationSchema, Grammar, GrammarCompiler};

const EOS: u32 = 0;
const VOCAB: usize = 2048;
/// The greatest time of a compilation, with room for a busy machine; the measured ones are below 1 s.
const MAX_TIME: Duration = Duration::from_secs(8);

fn tokenizer() -> Tokenizer {
    Tokenizer::from_file(data("tiny-rust-llama/tokenizer.json")).unwrap()
}

fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(&tokenizer(), &[EOS], VOCAB).unwrap()
}

/// Whether a grammar allows a text.
fn allows(compiler: &GrammarCompiler, grammar: &Grammar, text: &str) -> bool {
    let mut constraint = compiler.constraint(grammar).unwrap();
    let tokens = tokenizer().encode(text, false).unwrap();
    tokens.iter().chain([&EOS]).all(|token| {
        let mut logits = vec![0.0; VOCAB];
        let is_allowed = constraint.mask(&mut logits).is_ok() && logits[*token as usize] == 0.0;
        is_allowed && constraint.take(*token).is_ok()
    })
}

/// The paths of the notes of a schema.
fn notes(schema: &Value) -> Vec<String> {
    let made = GenerationSchema::new(schema, false).unwrap();
    made.notes.into_iter().map(|note| note.path).collect()
}

#[test]
fn schemas_of_zod_compile() {
    let text = std::fs::read_to_string(data("schemas/zod.json")).unwrap();
    let all: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
    assert!(all.len() > 100);
    let compiler = compiler();
    for (name, schema) in all {
        let found = notes(&schema);
        let expected: &[&str] = match name.split(' ').next().unwrap() {
            "duration" | "hostname" | "emoji" | "lookahead" | "boundary" => &["pattern"],
            "float32" | "float64" => &["minimum", "maximum"],
            _ => &[],
        };
        let expected: Vec<String> = expected
            .iter()
            .map(|keyword| format!("/properties/v/{keyword}"))
            .collect();
        assert_eq!(found, expected, "{name}");
        let lenient = Grammar::LenientJsonSchema(schema.clone());
        let made = compiler.constraint(&lenient);
        assert!(made.is_ok(), "{name}: {:?}", made.err());
        // Strict schemas are refused by the place of an unsupported part.
        match (
            expected.first(),
            compiler.constraint(&Grammar::JsonSchema(schema)),
        ) {
            (None, made) => assert!(made.is_ok(), "{name}: {:?}", made.err()),
            (Some(path), made) => {
                let said = made.err().unwrap().to_string();
                assert!(said.contains(&format!("at `{path}`: ")), "{name}: {said}");
            }
        }
    }
}

#[test]
fn unsupported_keywords_are_noted_or_refused() {
    let text = json!({"type": "string"});
    for (schema, paths) in [
        (
            json!({"type": "array", "items": text, "uniqueItems": true}),
            vec!["/uniqueItems"],
        ),
        (json!({"not": {"type": "null"}}), vec!["/not"]),
        (
            json!({"if": {"const": 1}, "then": {"type": "null"}}),
            vec!["/if", "/then"],
        ),
        (
            json!({"type": "array", "contains": text}),
            vec!["/contains"],
        ),
        (
            json!({"properties": {"a/b": {"type": "array", "contains": text}}}),
            vec!["/properties/a~1b/contains"],
        ),
        (
            json!({"type": "object", "dependentRequired": {"a": ["b"]}}),
            vec!["/dependentRequired"],
        ),
        (
            json!({"oneOf": [{"type": "number"}, {"type": "integer"}]}),
            vec!["/oneOf"],
        ),
        (
            json!({"type": "string", "pattern": "^(?!/).*$"}),
            vec!["/pattern"],
        ),
        (json!({"type": "string", "pattern": "["}), vec!["/pattern"]),
        (json!({"$ref": "https://example.com/s.json"}), vec!["/$ref"]),
        (
            json!({"type": "integer", "multipleOf": 10_000_019}),
            vec!["/multipleOf"],
        ),
        (
            json!({"type": "number", "maximum": 1e300}),
            vec!["/maximum"],
        ),
        (
            json!({"type": "object", "properties": {"a": text, "b": text, "c": text}, "minProperties": 2}),
            vec!["/minProperties"],
        ),
    ] {
        assert_eq!(notes(&schema), paths, "{schema}");
        let compiler = compiler();
        let lenient = Grammar::LenientJsonSchema(schema.clone());
        assert!(compiler.constraint(&lenient).is_ok(), "{schema}");
        let said = compiler
            .constraint(&Grammar::JsonSchema(schema.clone()))
            .err();
        let said = said
            .unwrap_or_else(|| panic!("{schema} is accepted"))
            .to_string();
        for internal in [
            "x-guidance",
            "coerce_one_of",
            "non-verbose",
            "NoExtensionBias",
            "%json",
        ] {
            assert!(!said.contains(internal), "{said}");
        }
    }
    for accepted in [
        json!({"type": "string", "format": "color"}),
        json!({"type": "string", "format": "date", "pattern": "^2"}),
        json!({"type": "object", "properties": null, "required": null}),
        json!({"type": "array", "uniqueItems": false, "minItems": 1.0}),
        json!({"oneOf": [{"type": "string"}, {"type": "integer"}]}),
        json!({"type": "object", "propertyNames": {"type": "string"}}),
    ] {
        assert_eq!(
            GenerationSchema::new(&accepted, true).unwrap().notes,
            [],
            "{accepted}"
        );
    }
    for wrong in [
        json!({"type": "str"}),
        json!({"minLength": -1}),
        json!({"properties": {"a": 1}}),
    ] {
        assert!(GenerationSchema::new(&wrong, false).is_err(), "{wrong}");
    }
}

#[test]
fn names_and_formats_constrain_where_possible() {
    let compiler = compiler();
    let of = |schema: Value| Grammar::JsonSchema(schema);
    let names = json!({"type": "string", "enum": ["a", "b"]});
    let record = of(
        json!({"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}}),
    );
    assert!(allows(&compiler, &record, "{\"a\":1,\"b\":2}"));
    assert!(!allows(&compiler, &record, "{\"c\":1}"));
    let names = json!({"pattern": "^x"});
    let record = of(json!({"type": "object", "propertyNames": names}));
    assert!(allows(&compiler, &record, "{\"xy\":null}"));
    assert!(!allows(&compiler, &record, "{\"y\":null}"));
    // The pattern applies, not the format.
    let both = of(json!({"type": "string", "format": "date", "pattern": "^[ab]+$"}));
    assert!(allows(&compiler, &both, "\"ab\""));
    let format =
        Grammar::LenientJsonSchema(json!({"type": "string", "format": "date", "pattern": "(?=1)"}));
    assert!(allows(&compiler, &format, "\"2024-02-29\""));
    assert!(!allows(&compiler, &format, "\"ab\""));
}

#[test]
fn objects_have_only_their_stated_properties() {
    let compiler = compiler();
    let text = json!({"type": "string"});
    let a = json!({"type": "object", "properties": {"a": text}});
    let b = json!({"type": "object", "properties": {"b": text}, "required": ["b"]});
    for (schema, right, wrong) in [
        (a.clone(), "{\"a\":\"x\"}", Some("{\"a\":\"x\",\"z\":1}")),
        (
            json!({"type": "object", "properties": {}}),
            "{}",
            Some("{\"z\":1}"),
        ),
        (json!({"type": "object"}), "{\"z\":1}", None),
        (
            json!({"type": "object", "properties": {"a": text}, "additionalProperties": true}),
            "{\"a\":\"x\",\"z\":1}",
            None,
        ),
        (
            json!({"type": "object", "properties": {"a": text}, "additionalProperties": {"type": "integer"}}),
            "{\"z\":1}",
            Some("{\"z\":\"x\"}"),
        ),
        (
            json!({"type": "object", "properties": {"a": text}, "patternProperties": {"^x": text}}),
            "{\"xy\":\"1\"}",
            None,
        ),
        // The schema asks for more.
        (
            json!({"type": "object", "properties": {"a": text}, "required": ["c"]}),
            "{\"a\":\"x\",\"c\":1}",
            Some("{\"c\":1,\"z\":1}"),
        ),
        (
            json!({"type": "array", "items": a}),
            "[{\"a\":\"x\"}]",
            Some("[{\"z\":1}]"),
        ),
        // Several schemas state the properties of one object.
        (
            json!({"allOf": [a, b]}),
            "{\"a\":\"x\",\"b\":\"y\"}",
            Some("{\"b\":\"y\",\"z\":1}"),
        ),
        (
            json!({"$defs": {"b": b}, "properties": {"a": text}, "allOf": [{"$ref": "#/$defs/b"}]}),
            "{\"a\":\"x\",\"b\":\"y\"}",
            Some("{\"b\":\"y\",\"z\":1}"),
        ),
        (
            json!({"type": "object", "properties": {"a": text, "b": text}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            "{\"b\":\"y\"}",
            Some("{\"b\":\"y\",\"z\":1}"),
        ),
        (
            json!({"anyOf": [a, b]}),
            "{\"b\":\"y\"}",
            Some("{\"a\":\"x\",\"b\":\"y\"}"),
        ),
        (
            json!({"allOf": [{"properties": {"o": a}}, {"properties": {"o": b}}], "type": "object"}),
            "{\"o\":{\"a\":\"x\",\"b\":\"y\"}}",
            None,
        ),
        (
            json!({"$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}),
            "{\"next\":{\"next\":{}}}",
            Some("{\"next\":{\"z\":1}}"),
        ),
    ] {
        let grammar = Grammar::JsonSchema(schema.clone());
        assert!(allows(&compiler, &grammar, right), "{schema}: {right}");
        if let Some(wrong) = wrong {
            assert!(!allows(&compiler, &grammar, wrong), "{schema}: {wrong}");
        }
    }
}

/// Rules or terminals that each use the next one twice.
fn doubling(count: usize, rule: impl Fn(usize) -> String) -> String {
    (0..count).map(rule).collect()
}

#[test]
fn costly_schemas_and_grammars_are_bounded() {
    let compiler = compiler();
    let multiple = |divisor: f64| json!({"type": "integer", "multipleOf": divisor});
    let many: Map<String, Value> = (1..40)
        .map(|at| (format!("p{at}"), multiple(f64::from(900 + at))))
        .collect();
    let optional: Map<String, Value> = (0..1000)
        .map(|at| (format!("p{at}"), json!({"type": "string"})))
        .collect();
    let chain = "root ::= a0\n".to_string()
        + &doubling(30, |i| format!("a{i} ::= a{} a{}\n", i + 1, i + 1));
    let chain = chain + "a30 ::= \"x\"\n";
    let terminals =
        "start: A0\n".to_string() + &doubling(30, |i| format!("A{i}: A{} A{}\n", i + 1, i + 1));
    let terminals = terminals + "A30: \"x\"\n";
    let lenient = Grammar::LenientJsonSchema;
    for grammar in [
        lenient(multiple(99_991.0)),
        lenient(multiple(10_000_019.0)),
        lenient(json!({"anyOf": [multiple(997.0), multiple(991.0), multiple(983.0)]})),
        lenient(json!({"allOf": [multiple(97.0), multiple(89.0), multiple(83.0)]})),
        lenient(json!({"type": "object", "properties": many})),
        lenient(json!({"type": "object", "properties": optional, "minProperties": 1})),
        lenient(json!({"type": "string", "minLength": 1 << 30, "maxLength": 1u64 << 31})),
        lenient(json!({"type": "array", "minItems": 1 << 30})),
        Grammar::Gbnf(chain),
        Grammar::Lark(terminals),
        Grammar::Regex("((x{1000}){1000}){1000}".to_string()),
    ] {
        let began = Instant::now();
        // Both a constraint and an error are an answer.
        let made = compiler.constraint(&grammar).map(|_| ());
        let shown: String = format!("{grammar:?}").chars().take(200).collect();
        assert!(
            began.elapsed() < MAX_TIME,
            "{shown}: {:?}: {made:?}",
            began.elapsed()
        );
    }
    let said = compiler
        .constraint(&Grammar::JsonSchema(multiple(99_991.0)))
        .err()
        .unwrap();
    assert!(said.to_string().contains("at `/multipleOf`: "), "{said}");
}
