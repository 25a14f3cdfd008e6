//! Properties of the text form: printing and parsing round-trips, and no text makes the parser
//! panic.

use proptest::prelude::*;

use tercet_ir::attr::{AttrLiteral, AttrValue};
use tercet_ir::{
    DType, Dim, Graph, NodeId, Op, Shape, Tensor, TensorType, Type, parse, parse_literal,
};

fn ident() -> impl Strategy<Value = String> {
    // `inf` and `nan` would parse as numbers.
    "[a-z_][a-z0-9_]{0,6}".prop_filter("a number", |s| s != "inf" && s != "nan")
}

fn dim() -> impl Strategy<Value = Dim> {
    let term = (
        prop::collection::vec(ident(), 0..3),
        1usize..50,
        any::<bool>(),
    );
    prop::collection::vec(term, 1..4).prop_filter_map("a negative constant", |terms| {
        let mut sum = Dim::Known(0);
        for (symbols, factor, minus) in terms {
            let mut product = Dim::Known(factor);
            for s in symbols {
                product = product.checked_mul(&Dim::sym(&s))?;
            }
            sum = match minus {
                true => sum.checked_sub(&product)?,
                false => sum.checked_add(&product)?,
            };
        }
        Some(sum)
    })
}

fn ty() -> impl Strategy<Value = Type> {
    let dtype = prop::sample::select(DType::ALL);
    (dtype, prop::collection::vec(dim(), 0..4)).prop_map(|(d, dims)| Type::new(d, Shape::new(dims)))
}

fn identity(ty: Type) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", ty).expect("the type is small");
    g.output("\"y\"\n", x).expect("the name is free");
    g
}

fn literal() -> impl Strategy<Value = AttrLiteral> {
    let leaf = prop_oneof![
        (i128::MIN + 1..=i128::MAX).prop_map(AttrLiteral::Int),
        any::<f64>().prop_map(AttrLiteral::Float),
        prop::num::f64::ANY.prop_map(AttrLiteral::Float),
        ident().prop_map(AttrLiteral::Ident),
        any::<String>().prop_map(AttrLiteral::Str),
        dim().prop_map(|d| d.to_literal()),
        ty().prop_map(AttrLiteral::Type),
        ty().prop_map(|ty| AttrLiteral::Graph(identity(ty).into())),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let items = prop::collection::vec(inner, 0..4);
        prop_oneof![
            items.clone().prop_map(AttrLiteral::List),
            (ident(), items).prop_map(|(name, args)| AttrLiteral::Call(name, args)),
        ]
    })
}

/// Fragments from which malformed texts are generated.
const PIECES: &[&str] = &[
    "graph",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "=",
    ",",
    ":",
    ".",
    "+",
    "-",
    "*",
    "%0",
    "%1",
    "%x",
    "input",
    "name",
    "ty",
    "\"x\"",
    "\"",
    "f32",
    "f32[2, s]",
    "const",
    "tensor",
    "dense",
    "hex",
    "softmax",
    "axis",
    "0",
    "1",
    "2",
    "18446744073709551615",
    "1e999",
    "1.",
    "1e",
    "inf",
    "nan",
    "return",
    "as",
    "assign",
    "//",
    "\n",
    "\\u{",
    "é",
    "%0 = input{name=\"x\", ty=f32[2, s]}()",
    "graph {",
    "softmax{axis=",
    "}(%0)",
    "\u{0}",
    "/",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn literals_round_trip(literal in literal()) {
        let text = literal.to_string();
        let back = parse_literal(&text);
        prop_assert!(back.is_ok(), "{text}: {back:?}");
        // Compares the printed form, because a NaN is not equal to itself.
        prop_assert_eq!(back.unwrap().to_string(), text);
    }

    #[test]
    fn numbers_keep_their_bits(x in prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO | prop::num::f64::INFINITE) {
        match parse_literal(&AttrLiteral::Float(x).to_string()) {
            Ok(AttrLiteral::Float(y)) => prop_assert_eq!(x.to_bits(), y.to_bits()),
            other => prop_assert!(false, "{x:?}: {other:?}"),
        }
    }

    #[test]
    fn tensors_keep_their_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40), at in 0..DType::ALL.len()) {
        let dtype = DType::ALL[at];
        let n = bytes.len() / dtype.size_bytes();
        let data = &bytes[..n * dtype.size_bytes()];
        let tensor = Tensor::from_bytes(TensorType::new(dtype, &[n]), data).unwrap();
        let literal = parse_literal(&tensor.to_literal().to_string()).unwrap();
        prop_assert_eq!(Tensor::from_literal(&literal).unwrap(), tensor);
    }

    #[test]
    fn no_soup_of_tokens_panics(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..40), spaced in any::<bool>()) {
        let text = pieces.join(if spaced { " " } else { "" });
        let _ = parse(&text);
        let _ = parse(&format!("graph {{ %0 = input{{name=\"x\", ty=f32[2, s]}}()\n {text} }}"));
    }

    #[test]
    fn no_string_panics(text in any::<String>()) {
        let _ = parse(&text);
        let _ = parse_literal(&text);
    }
}

#[test]
fn deep_nesting_is_refused() {
    for open in ["[", "f(", "[f(", "f32[", "-", "s*", "s+"] {
        let text = open.repeat(20_000);
        let graph = format!("graph {{ %0 = softmax{{axis={text}");
        assert!(parse(&graph).is_err(), "{open}");
    }
    let nested = format!("{}{}", "[".repeat(20), "]".repeat(20));
    assert!(parse_literal(&nested).is_ok());
}

#[test]
fn huge_numbers_are_errors() {
    let digits = "9".repeat(5000);
    let input = |ty: &str| parse(&format!("graph {{ %0 = input{{name=\"x\", ty={ty}}}() }}"));
    for size in [
        digits.as_str(),
        "18446744073709551615",
        "9223372036854775808*s",
        "-1",
        "1.5",
    ] {
        assert!(input(&format!("f32[{size}]")).is_err(), "{size}");
    }
    assert!(input("f32[18446744073709551615, 18446744073709551615]").is_err());
    assert!(input("f32[s*9223372036854775807*9223372036854775807]").is_err());
    assert!(parse_literal(&digits).is_err());
    assert_eq!(
        parse_literal("1e999").unwrap(),
        AttrLiteral::Float(f64::INFINITY)
    );
}

#[test]
fn graphs_nest_only_so_deep() {
    let deep = format!("graph {{ {}", "%0 = if{then=graph {".repeat(100_000));
    let error = parse(&deep).unwrap_err();
    assert_eq!(error.message, "literals are nested too deeply");
}

#[test]
fn graphs_inside_have_names_of_their_own() {
    let text = "graph {
      %p = input{name=\"p\", ty=bool[]}()
      %x = input{name=\"x\", ty=f32[s]}()
      %y = if{
        then=graph { %p = input{name=\"a\", ty=f32[s]}() return %p as \"r\" },
        else=graph { %q = input{name=\"a\", ty=f32[s]}() return %NAME as \"r\" }
      }(%p, %x)
      return %y as \"y\"
    }";
    let graph = parse(&text.replace("NAME", "q")).unwrap();
    assert_eq!(parse(&graph.to_string()).unwrap(), graph);
    let error = parse(&text.replace("NAME", "x")).unwrap_err();
    assert_eq!(
        (error.line, error.message.as_str()),
        (6, "`%x` is not defined above")
    );
}

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn errors_say_each_cause_once() {
    let x = "%x = input{name=\"x\", ty=f32[4]}()";
    assert_eq!(
        error(&format!("graph {{ {x} %y = softmax{{axis=-1}}(%x) }}")),
        "line 1, column 48: attribute `axis`: expected an integer that fits usize, found `-1`"
    );
    assert_eq!(
        error("graph { %c = const{tensor=dense(bool[2], [true, 3])}() }"),
        "line 1, column 14: attribute `tensor`: expected true or false, or 1 or 0, found `3`"
    );
    let nine = format!(
        "graph {{ %x = input{{name=\"x\", ty=f32[{}1]}}() }}",
        "1, ".repeat(8)
    );
    assert!(
        error(&nine).ends_with("has 9 axes; expected at most 8"),
        "{}",
        error(&nine)
    );
    let long = "graph { %x = input{name=\"x\", ty=f32[4611686018427387904]}() }";
    assert!(
        error(long).ends_with("is too large: expected at most 9223372036854775807 bytes"),
        "{}",
        error(long)
    );
}

#[test]
fn truth_values_are_words_or_numbers() {
    let graph =
        parse("graph { %c = const{tensor=dense(bool[2], [true, 0])}() return %c as \"c\" }");
    let graph = graph.unwrap();
    let Op::Const(c) = &graph.node(NodeId(0)).op else {
        panic!("{graph}");
    };
    assert_eq!(c.tensor, Tensor::from_bools(&[2], &[true, false]).unwrap());
    assert_eq!(parse(&graph.to_string()).unwrap(), graph);
}

#[test]
fn byte_order_marks_are_no_part_of_the_text() {
    let text = "graph { %x = input{name=\"x\", ty=f32[4]}() return %x as \"y\" }";
    let marked = format!("\u{feff}{text}");
    assert_eq!(parse(&marked).unwrap(), parse(text).unwrap());
    assert_eq!(tercet_ir::decode_text(marked.as_bytes()).unwrap(), marked);
    // A byte-order mark in the middle is an unexpected character.
    assert!(error("graph\u{feff} {}").contains("unexpected character"));
    let utf16: Vec<u16> = marked.encode_utf16().collect();
    let little: Vec<u8> = utf16.iter().flat_map(|c| c.to_le_bytes()).collect();
    let big: Vec<u8> = utf16.iter().flat_map(|c| c.to_be_bytes()).collect();
    for bytes in [&little[..], &big] {
        let e = tercet_ir::decode_text(bytes).unwrap_err();
        assert_eq!((e.line, e.column), (1, 1));
        assert!(e.message.contains("UTF-16"), "{e}");
    }
    // Without its byte-order mark, UTF-16 text is UTF-8 text with zero bytes.
    for bytes in [&little[2..], &big[2..]] {
        let e = parse(tercet_ir::decode_text(bytes).unwrap()).unwrap_err();
        assert!(e.message.contains("UTF-16"), "{e}");
    }
    let e = tercet_ir::decode_text(b"graph {\n  \xff").unwrap_err();
    assert_eq!(e.to_string(), "line 2, column 3: the text is not UTF-8");
}

/// Quadratic algorithms would take many minutes with these sizes.
const MANY: usize = 300_000;

#[test]
fn long_sums_of_symbols_are_read_in_time() {
    let sum: Vec<String> = (0..MANY).map(|i| format!("s{i}")).collect();
    let minus: Vec<String> = (0..MANY).map(|i| format!("-2*s{i}*s{}", i + 1)).collect();
    let text = format!(
        "graph {{ %x = input{{name=\"x\", ty=f32[{}{}, 3]}}() return %x as \"y\" }}",
        sum.join("+"),
        minus.concat()
    );
    let graph = parse(&text).unwrap();
    assert_eq!(graph.symbols().len(), MANY + 1);
    assert_eq!(parse(&graph.to_string()).unwrap(), graph);
    // The product of two such sums exceeds the term limit.
    let (a, b) = (sum[..400].join("+"), sum[400..800].join("+"));
    let square = format!("graph {{ %x = input{{name=\"x\", ty=f32[{a}, {b}]}}() }}");
    assert!(error(&square).contains("is too large"));
}

#[test]
fn many_names_of_one_value_are_read_in_time() {
    let names: Vec<String> = (0..MANY).map(|i| format!("%x as \"n{i}\"")).collect();
    let x = "%x = input{name=\"x\", ty=f32[4]}()";
    let text = format!("graph {{ {x} return {} }}", names.join(", "));
    assert_eq!(parse(&text).unwrap().outputs().len(), MANY);
    let twice = format!("graph {{ {x} return {}, %x as \"n7\" }}", names.join(", "));
    assert!(error(&twice).contains("the name `n7` is already in use"));
}
