//! Tests of GBNF grammars: texts that match and do not match, and errors.

use crate::common::data;
use tercet_text::Tokenizer;
use tercet_text::constraint::{Constraint, ConstraintError, Grammar, GrammarCompiler};

const EOS: u32 = 0;
const VOCAB: usize = 2048;

fn tokenizer() -> Tokenizer {
    Tokenizer::from_file(data("tiny-rust-llama/tokenizer.json")).unwrap()
}

/// Whether a constraint allows the tokens, and then the end.
fn allows(
    compiler: &GrammarCompiler,
    grammar: &Grammar,
    tokens: &[u32],
) -> Result<bool, ConstraintError> {
    let mut constraint = compiler.constraint(grammar)?;
    for token in tokens.iter().chain([&EOS]) {
        let mut logits = vec![0.0; VOCAB];
        if constraint.mask(&mut logits).is_err() || logits[*token as usize] != 0.0 {
            return Ok(false);
        }
        if constraint.take(*token).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks texts, token by token and byte by byte.
fn check(gbnf: &str, right: &[&str], wrong: &[&str]) {
    let tokenizer = tokenizer();
    let compiler = GrammarCompiler::new(&tokenizer, &[EOS], VOCAB).unwrap();
    let byte: Vec<u32> = (0..=255u8)
        .map(|byte| {
            let mut ids = 0..VOCAB as u32;
            let is = |id: &u32| tokenizer.bytes(*id) == Some((vec![byte], false));
            ids.find(is).unwrap()
        })
        .collect();
    let grammar = Grammar::from_text(gbnf).unwrap();
    for (texts, expected) in [(right, true), (wrong, false)] {
        for text in texts {
            let tokens = tokenizer.encode(text, false).unwrap();
            let bytes: Vec<u32> = text.bytes().map(|b| byte[usize::from(b)]).collect();
            for ids in [tokens, bytes] {
                let found = allows(&compiler, &grammar, &ids).unwrap();
                assert_eq!(found, expected, "{gbnf}\n{text:?}\n{ids:?}");
            }
        }
    }
}

#[test]
fn literals_classes_and_repetitions() {
    check(
        "root ::= \"yes\" | \"no\"",
        &["yes", "no"],
        &["", "ye", "yesno", "maybe"],
    );
    check(
        r#"root ::= "a\n\t\\\"\x41\u00e9\U0001F600[/]""#,
        &["a\n\t\\\"A\u{e9}\u{1F600}[/]"],
        &["a"],
    );
    check(
        "root ::= [a-cx]+ [^a-c\\n]",
        &["ax", "abcx?", "x\u{e9}", "xx"],
        &["a", "x\n", "ya"],
    );
    check(
        "root ::= [-+]? [0-9a-]",
        &["-1", "+a", "--", "7"],
        &["b", "+-1"],
    );
    check(r"root ::= [\]\[\-^]+", &["[]-^"], &["a", ""]);
    check("root ::= .", &["a", "\n", "\u{1F600}"], &["", "ab"]);
    check(
        "root ::= \"ab\"{2} \"c\"{1,2} \"d\"{2,} \"e\"{0}",
        &["ababcdd", "ababccddd"],
        &["abcdd", "ababcd", "ababccdde"],
    );
    check("root ::= \"x\"{,2}", &["", "x", "xx"], &["xxx"]);
    check("root ::= (\"a\" |) \"b\" \"\"", &["ab", "b"], &["a", "aab"]);
    check(
        "root ::= ([a-z]+ \" \")* \"end\"",
        &["end", "the end", "end end"],
        &["the", "the  end"],
    );
    // A literal that starts like a class is no separate lexeme.
    check(
        "root ::= [a-z]* \"true\" [a-z]",
        &["truex", "atruetruez", "trtruee"],
        &["true", "tru"],
    );
}

#[test]
fn the_layout_of_rules() {
    let gbnf = "# a comment\nroot ::= move # another\n\n  move::=(pawn |\n castle) [+#]?\n\
        pawn ::= [a-h] [1-8] |\n  \"=\" [NBQR]\r\ncastle ::= \"O-O\" \"-O\"?\nunused_1 ::= \"x\"\n";
    check(
        gbnf,
        &["e4", "e4+", "O-O", "O-O-O#", "=Q"],
        &["e9", "O-", "e4 ", "x"],
    );
    // The last definition counts.
    check("root ::= \"a\"\nroot ::= \"b\"", &["b"], &["a"]);
}

#[test]
fn recursive_rules() {
    let pairs = "root ::= \"(\" root? \")\"";
    check(pairs, &["()", "((()))"], &["", "(", "(()", "())"]);
    let sums = "root ::= sum\nsum ::= sum [-+*/] term | term\nterm ::= [0-9]+ | \"(\" sum \")\"";
    check(sums, &["1", "1+22*(3-4)", "((7))"], &["", "1+", "(1", "1)"]);
    let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    let right = [
        "{}",
        r#"{"a": [1, -2.5e3, true, null], "b": {"c": "d\"\u00e9"}}"#,
        "{\n  \"x\": \"\u{1F600}/\"\n}",
    ];
    check(
        json,
        &right,
        &["[]", "{", r#"{"a"}"#, r#"{"a": 01}"#, r#"{"a": tru}"#],
    );
    // A keyword that starts like a name, in a recursive grammar.
    let names = "root ::= item (\",\" root)?\nitem ::= [a-z]+ \"nil\" | \"ni\" [a-z]";
    check(names, &["anil", "nix,xnil", "nilnil"], &["nil,", "ni"]);
}

#[test]
fn tokens_of_the_vocabulary() {
    let tokenizer = tokenizer();
    let compiler = GrammarCompiler::new(&tokenizer, &[EOS], VOCAB).unwrap();
    let grammar = Grammar::from_text("root ::= <[300]> !<[301]>* <[301]>").unwrap();
    let allows = |tokens: &[u32]| allows(&compiler, &grammar, tokens).unwrap();
    assert!(allows(&[300, 301]));
    assert!(allows(&[300, 302, 300, 301]));
    assert!(!allows(&[302, 301]));
    assert!(!allows(&[300]));
    let unknown = Grammar::from_text("root ::= <no-such-token>").unwrap();
    assert!(compiler.constraint(&unknown).is_err());
}

#[test]
fn errors_have_a_line_and_a_column() {
    let depth = "(".repeat(65);
    let cases = [
        ("x ::= \"a\"", "line 1, column 10: there is no rule `root`"),
        (
            "root ::= \"a\"\n  b",
            "line 2, column 4: expected `::=`, found the end",
        ),
        (
            "root ::= [a-z] c d\nd ::= \"\"",
            "line 1, column 16: the rule `c` is not defined",
        ),
        (
            "root ::= \"ab",
            "line 1, column 10: the text has no closing",
        ),
        (
            "root ::= \"\u{e9}\" [ab",
            "line 1, column 14: the class has no closing",
        ),
        (
            "root ::= []",
            "line 1, column 10: the class has no characters",
        ),
        (
            "root ::= [z-a]",
            "line 1, column 11: the range `z-a` is out of order",
        ),
        ("root ::= \"\\q\"", "line 1, column 11: unknown escape"),
        (
            "root ::= \"\\x4\"",
            "line 1, column 11: expected 2 hex digits",
        ),
        (
            "root ::= \"\\uD800\"",
            "line 1, column 11: D800 is not a Unicode character",
        ),
        (
            "root ::= *",
            "line 1, column 10: expected an item before the repetition, found `*`",
        ),
        (
            "root ::= \"a\"{2",
            "line 1, column 15: expected `}`, found the end",
        ),
        (
            "root ::= \"a\"{3,2}",
            "line 1, column 13: the maximum 2 is less",
        ),
        (
            "root ::= \"a\"{99999}",
            "line 1, column 14: expected a number of at most",
        ),
        (
            "root ::= (\"a\"\n",
            "line 2, column 1: expected an item, `|` or `)`, found the end",
        ),
        (
            "root ::= \"a\")",
            "line 1, column 13: expected an item, `|` or the end of the line",
        ),
        (
            "root ::= !<think>",
            "line 1, column 10: `!` requires the id",
        ),
        (
            "root ::= <[x]>",
            "line 1, column 10: `<[x]>` has no token id",
        ),
        (
            &format!("root ::= {depth}"),
            "groups are nested more than 64 deep",
        ),
    ];
    for (gbnf, expected) in cases {
        let error = Grammar::from_text(gbnf).unwrap_err().to_string();
        assert!(error.contains(expected), "{gbnf}: {error}");
    }
}
