//! Errors of the parser, dimension expressions and declared types.

use tercet_ir::{Value, parse};

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn errors_name_the_place() {
    assert_eq!(
        error("graph {\n  %0 = what()\n}"),
        "line 2, column 8: `what` is not an operator; see docs/reference/text-format.md"
    );
    assert_eq!(
        error("graph {\n  %0 = softmax{axis=0}(%1)\n}"),
        "line 2, column 24: `%1` is not defined above"
    );
    assert!(error("graph { %0 = input{name=\"x\"}() }").contains("attribute `ty` is missing"));
    assert!(error("graph { %0 = input{name=\"x\", ty=f32[2], a=1}() }").contains("unknown"));
    assert!(error("graph { ").contains("the end of the text"));
    assert!(error(&format!("graph {{ %0 = input{{name={}", "[".repeat(1000))).contains("deep"));
}

#[test]
fn dimension_expressions() {
    let text = "graph { %0 = input{name=\"x\", ty=f32[2*s+1, b*s, -1+s, 3]}() }";
    let g = parse(text).unwrap();
    assert_eq!(
        g.ty(Value {
            node: tercet_ir::NodeId(0),
            port: 0
        })
        .to_string(),
        "f32[2*s+1, b*s, s-1, 3]"
    );
    assert_eq!(parse(&g.to_string()).unwrap(), g);
}

#[test]
fn said_types_are_checked() {
    let text = "graph { %0 = input{name=\"x\", ty=f32[2]}() : f16[2] }";
    assert!(error(text).contains("declared type f16[2] does not match the inferred type f32[2]"));
}
