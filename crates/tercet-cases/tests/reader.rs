//! Tests of the reader of case files.

use tercet_cases::{CaseFile, CaseGraph};
use tercet_ir::{DType, Graph};

fn built(text: &str, dtype: DType) -> CaseGraph {
    let file = CaseFile::read("a.txt", text).unwrap_or_else(|e| panic!("{e}"));
    file.cases[0].build(dtype).unwrap_or_else(|e| panic!("{e}"))
}

/// The error of a file, or of its first case or refusal.
fn error(text: &str) -> String {
    let file = match CaseFile::read("a.txt", text) {
        Ok(file) => file,
        Err(e) => return e.to_string(),
    };
    let case = file.cases.first().map(|case| case.build(DType::F32));
    match (case, file.refusals.first()) {
        (Some(Err(e)), _) => e.to_string(),
        (None, Some(refusal)) => refusal.error().expect_err(text).to_string(),
        _ => panic!("no error:\n{text}"),
    }
}

#[test]
fn one_line_is_short_for_a_body() {
    let short = "case a [f16] s=2<=5: binary{f=add}(x: T[s] normal, param y: f16[1] [3]) == [4, 5]";
    let long = "
case a [f16] s=2<=5:
  // A comment.
  %x = input f16[s] normal
  %y = param f16[1] [
      3
  ]
  %sum = binary{f=add}(%x, %y)
  return %sum == [4, 5]
";
    let [a, b] = [short, long].map(|text| built(text, DType::F16));
    assert_eq!(a.graph, b.graph);
    assert_eq!((&a.tensors, &a.expected), (&b.tensors, &b.expected));
    let wanted: Graph = "graph {
      %x = input{name=\"x\", ty=f16[s]}()
      %y = param{name=\"y\", ty=f16[1]}()
      %z = binary{f=add}(%x, %y)
      return %z as \"out0\"
    }"
    .parse()
    .unwrap();
    assert_eq!(a.graph, wanted);
    assert_eq!(a.tensors["y"].to_f64s(), [3.0]);
    assert_eq!(a.expected, [(0, vec![4.0, 5.0])]);
    let sizes: Vec<usize> = a
        .sizes
        .iter()
        .chain(a.bounds.iter())
        .map(|(_, n)| n)
        .collect();
    assert_eq!(sizes, [2, 5]);
}

#[test]
fn options_and_names_are_read() {
    let text = "case a runs=3 fault=\"say \\\"no\\\": 1\":
  %s = state \"a: state\" T[2] all(2)
  assign %s = %s
  return %s as \"own\"
  return binary{f=mul}(%s, \"b, [c\": T[2] count)
";
    let c = built(text, DType::I32);
    assert_eq!(
        (c.runs, c.expected_fault.as_deref()),
        (3, Some("say \"no\": 1"))
    );
    assert_eq!(c.tensors["a: state"].to_f64s(), [2.0, 2.0]);
    assert_eq!(c.tensors["b, [c"].to_f64s(), [0.0, 1.0]);
    let names: Vec<&str> = c.graph.outputs().iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names, ["own", "out1"]);
}

#[test]
fn each_dtype_has_one_graph() {
    let text = "
case a [f32 f16]: unary{f=neg}(x: T[2] normal)
case a [i32]: unary{f=abs}(x: T[3] normal)
";
    let file = CaseFile::read("a.txt", text).unwrap();
    let [case] = &file.cases[..] else {
        panic!("one case")
    };
    assert!(case.runs_with(DType::F16) && case.runs_with(DType::I32));
    assert!(!case.runs_with(DType::F64) && case.build(DType::F64).is_err());
    assert_eq!(case.build(DType::I32).unwrap().tensors["x"].shape(), [3]);
    for other in ["[f16]", ""] {
        let text = format!("{text}case a {other}: unary{{f=abs}}(x: T[3] normal)");
        assert_eq!(error(&text), "a.txt, line 4: the name `a` is in use");
    }
}

#[test]
fn errors_name_file_and_line() {
    let neg = "unary{f=neg}(x: T[2] normal)";
    for (text, wanted) in [
        (
            "\nwhat a: b",
            "line 2: expected `case`, `refuse` or an indented statement",
        ),
        ("  return %x", "line 1: expected `case`, `refuse`"),
        ("case a", "line 1: expected `:` after the header"),
        ("case : %x", "line 1: expected a name"),
        ("case a:", "line 1: expected a value or a body"),
        (
            "case a: %x\n  return %x",
            "line 1: expected a value or a body, found both",
        ),
        ("case a (\n", "line 1: a bracket is not closed"),
        ("case a: b)", "line 1: a bracket closes that is not open"),
        ("case a [f99]: %x", "line 1: `f99` is not a dtype"),
        ("case a s=3: %x", "line 1: expected an option, found `s=3`"),
        ("case a runs=many: %x", "line 1: expected an option"),
        ("case a fault=no: %x", "line 1: expected an option"),
        (
            "refuse a: softmax{axis=1}(x: f32[2])",
            "line 1: expected a part of the error",
        ),
        (
            "refuse a \"x\" y: softmax{axis=1}(x: f32[2])",
            "line 1: expected a part",
        ),
        (
            "refuse a \"axis\": softmax{axis=0}(x: f32[2])",
            "line 1: `a` is accepted",
        ),
        ("case a: %x", "line 1: `%x` is not defined above"),
        (
            "case a: unary{f=what}(x: T[2] normal)",
            "line 1: attribute `f`",
        ),
        (
            "case a: unary{f=neg}(T[2] normal)",
            "line 1: expected `%value` or `name: type data`",
        ),
        (
            "case a: unary{f=neg}(x: T normal)",
            "line 1: expected the type of `x`",
        ),
        (
            "case a: unary{f=neg}",
            "line 1: expected `operator{...}(...)`",
        ),
        (
            "case a: unary{f=neg}(x: T[2] odd)",
            "line 1: data of `x`: expected data such as",
        ),
        (
            "case a: unary{f=neg}(x: T[2] [1])",
            "line 1: data of `x`: expected 2 values, found 1",
        ),
        (
            "case a: unary{f=neg}(x: T[s] [1])",
            "line 1: the size of f32[s]",
        ),
        (
            "case a:\n  %x = input T[2] normal\n  x = 3",
            "line 3: expected `%name = ...`",
        ),
        (
            "case a:\n  %x = input T[\n      2] normal\n  %y = softmax{axis=1}(%x)\n  return %y",
            "line 4: softmax(f32[2]): axis 1 is out of range",
        ),
        (
            "case a:\n  %x = input T[2] normal",
            "line 1: the graph has no output",
        ),
        (
            &format!("case a: {neg} == [1]"),
            "line 1: expected values: expected 2 values, found 1",
        ),
        (
            &format!("case a: {neg}\ncase a: {neg}"),
            "line 2: the name `a` is in use",
        ),
    ] {
        let found = error(text);
        assert!(
            found.starts_with("a.txt, ") && found.contains(wanted),
            "{text}\n{found}"
        );
    }
}

/// A mistake in an earlier statement must not count as the refusal.
#[test]
fn only_the_last_statement_may_be_refused() {
    let text = "refuse a \"axis\":
  %x = input f32[2]
  %y = softmax{axis=1}(%x)
  %z = softmax{axis=2}(%y)
";
    assert!(error(text).starts_with("a.txt, line 3: softmax(f32[2]): axis 1"));
    let leaf = "refuse a \"already in use\":
  %x = input f32[2]
  %y = input{name=\"x\", ty=f32[2]}()
";
    let file = CaseFile::read("a.txt", leaf).unwrap();
    assert!(file.refusals[0].error().unwrap().contains("already in use"));
}
