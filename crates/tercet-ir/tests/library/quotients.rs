//! Quotients of symbolic sizes in the text form.

use tercet_ir::attr::AttrLiteral;
use tercet_ir::{Bindings, Dim, DimError, parse_literal};

fn quotient(text: &str) -> Dim {
    let ty = format!("f32[{text}]");
    let literal = parse_literal(&ty).unwrap_or_else(|e| panic!("{text}: {e}"));
    match literal {
        AttrLiteral::Type(ty) => ty.shape[0].clone(),
        other => panic!("{other}"),
    }
}

#[test]
fn quotients_are_canonical_and_print_as_they_parse() {
    let canonical = [
        ("((2*s+3)/2)", "s+1"),
        ("((s+5)/2)", "((s+1)/2)+2"),
        ("((s-1)/2)+1", "((s+1)/2)"),
        ("((6*s+5)/4)", "s+(s/2)+1"),
        ("((2*s+1)/4)", "(s/2)"),
        ("((((s+1)/2)+1)/2)", "((s+3)/4)"),
        ("((s/3)/2)*2", "2*(s/6)"),
        ("2*((s+t)/2)-t", "-t+2*((s+t)/2)"),
        ("(b*s/4)", "(b*s/4)"),
        ("(-s/2)+s", "s+(-s/2)"),
        ("(7/2)*s", "3*s"),
        ("(s/1)", "s"),
    ];
    for (text, printed) in canonical {
        let dim = quotient(text);
        assert_eq!(dim.to_string(), printed, "{text}");
        assert_eq!(quotient(printed), dim, "{printed}");
    }
}

#[test]
fn quotients_have_the_values_of_their_formulas() {
    let texts = [
        "((((3*s+t)/4)*2+1)/3)+2",
        "s*((s+t+1)/2)",
        "(((s+7)/3)*(t/2)/4)",
        "((5*s-t+9)/3)+9",
        "((2*t-s)/4)+7",
    ];
    for text in texts {
        let dim = quotient(text);
        for (s, t) in (0..8).flat_map(|s| (0..5).map(move |t| (s, t))) {
            let q = |n: i64, by: i64| n.div_euclid(by);
            let expected = match text {
                "((((3*s+t)/4)*2+1)/3)+2" => q(q(3 * s + t, 4) * 2 + 1, 3) + 2,
                "s*((s+t+1)/2)" => s * q(s + t + 1, 2),
                "(((s+7)/3)*(t/2)/4)" => q(q(s + 7, 3) * q(t, 2), 4),
                "((5*s-t+9)/3)+9" => q(5 * s - t + 9, 3) + 9,
                _ => q(2 * t - s, 4) + 7,
            };
            let values = Bindings::new().with("s", s as usize).with("t", t as usize);
            assert_eq!(
                dim.eval(&values),
                Ok(expected as usize),
                "{text} {values:?}"
            );
            let fixed = dim
                .with_sizes(&Bindings::new().with("s", s as usize))
                .unwrap();
            assert_eq!(fixed.eval(&values), Ok(expected as usize), "{text} {fixed}");
            let bounds = Bindings::new().with("s", 7).with("t", 4);
            assert!(
                dim.upper_bound(&bounds).unwrap() >= expected as usize,
                "{text}"
            );
        }
    }
    let half = quotient("((s+1)/2)");
    assert_eq!(half.upper_bound(&Bindings::new().with("s", 9)), Ok(5));
    assert!(matches!(
        half.upper_bound(&Bindings::new()),
        Err(DimError::Unbound { .. })
    ));
}

#[test]
fn comparisons_of_quotients_are_proofs() {
    let at_least = |a: &str, b: &str| quotient(a).is_at_least(&quotient(b));
    assert!(at_least("s", "(s/2)"));
    assert!(at_least("s", "2*(s/2)"));
    assert!(at_least("s+2", "((s+1)/2)+1"));
    assert!(at_least("2*((s+1)/2)", "s"));
    assert!(!at_least("2*(s/2)", "s"));
    assert!(!at_least("(s/2)", "1"));
    assert!(!at_least("((s+5)/2)", "(t/2)"));
}

#[test]
fn malformed_quotients_are_refused() {
    let bad = [
        "f32[(s)",
        "f32[(s/0)]",
        "f32[(s/t)]",
        "f32[(s+1/2)]",
        "f32[((s+1/2)]",
        "f32[()]",
        "f32[(2*)]",
        "f32[((3-5)/2)]",
        "f32[s/2]",
    ];
    for text in bad {
        assert!(parse_literal(text).is_err(), "{text}");
    }
    let deep = format!("f32[{}s{}]", "((1+".repeat(5000), ")/2)".repeat(5000));
    assert!(parse_literal(&deep).is_err());
}
