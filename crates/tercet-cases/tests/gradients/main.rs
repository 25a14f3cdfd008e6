//! Gradient checks of every float case of every operator. The vector-Jacobian product along a
//! random direction is compared with a central difference of the reference in F64. Random
//! cotangents reveal rules that ignore them or miss a factor. A dense direction reveals a wrong
//! gradient of any element.

mod differences;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use differences::{GradCheckGraph, GradCheckOutcome};
use tercet_cases::{OpCase, cases};
use tercet_ir::verify::verify;
use tercet_ir::{DType, GradError, GradientKind, Graph, OpKind, Value, one_line, parse};

/// Cases, or whole operators, that central differences cannot check, with the reason.
const EXCLUDED: &[(&str, &str)] = &[
    ("stop_gradient", "its gradient is not its derivative"),
    ("top_k/whole_long_lines", CLOSE),
    ("sort/long_line_3000", CLOSE),
    ("sort/long_lines_2x2100_down", CLOSE),
    ("custom/gate_of_256_experts", CLOSE),
    ("custom/gate_more_groups_than_invocations", CLOSE),
    ("dequant_mat_mul/q6_k_infinity", INFINITE),
    ("dequant_mat_mul/q8_0_infinity_in_rows", INFINITE),
];
const CLOSE: &str = "neighbours change places within a step";
const INFINITE: &str = "0 times an infinite weight";

/// Operators with cases that have no gradient, and a part of the reason.
const REFUSED: &[(&str, &str)] = &[
    ("while", "known only after the run"),
    ("scan", "known only after the run"),
    ("gaussian_splat_rasterize_grad", NOT_TWICE),
    ("resize", "a resized axis has a symbolic size"),
];

const NOT_TWICE: &str = "second derivatives of rasterization";

/// Operators with cases that have no second derivative, and a part of the reason.
const REFUSED_TWICE: &[(&str, &str)] = &[
    ("gaussian_splat_rasterize", NOT_TWICE),
    ("gaussian_splat_render", NOT_TWICE),
];

/// Operators that have a gradient but no case to check it, with the reason.
const UNTRIED: &[(&str, &str)] = &[];

/// Maximum number of elements in all values of a case. Larger cases are skipped in favour of
/// smaller ones of the same operator.
const MAX_ELEMENTS: usize = 1 << 16;
/// As [`MAX_ELEMENTS`], for second derivatives.
const MAX_ELEMENTS_SECOND_ORDER: usize = 1 << 10;

/// The cases of an operator that are not excluded, by name, each with its first supported dtype in
/// this order.
fn cases_of(kind: OpKind) -> Vec<(String, &'static OpCase, DType)> {
    let order = [DType::F64, DType::F32, DType::F16, DType::BF16];
    let doc = kind.doc();
    let mut found = Vec::new();
    for case in cases(kind) {
        let runs = |d: &DType| doc.dtypes.contains(d) && case.runs_with(*d);
        let name = format!("{}/{}", doc.name, case.name);
        if let Some(dtype) = order.into_iter().find(runs)
            && !EXCLUDED.iter().any(|(e, _)| [&name, doc.name].contains(e))
        {
            found.push((name, case, dtype));
        }
    }
    found
}

/// Adds a line for an unexpected outcome.
fn report(
    wrong: &mut String,
    refused: &[(&str, &str)],
    op: &str,
    name: &str,
    outcome: &GradCheckOutcome,
) {
    let what = match outcome {
        GradCheckOutcome::Same | GradCheckOutcome::Skipped => return,
        GradCheckOutcome::NoGradient(why) => {
            let mut known = refused.iter();
            if known.any(|(o, reason)| *o == op && why.contains(reason)) {
                return;
            }
            why
        }
        GradCheckOutcome::Wrong(what) => what,
    };
    writeln!(wrong, "{name}: {what}").expect("text grows");
}

#[test]
fn products_agree_with_central_differences() {
    let mut wrong = String::new();
    for &kind in OpKind::ALL {
        let op = kind.doc().name;
        let mut tried = 0;
        for (name, case, dtype) in cases_of(kind) {
            let c = case.build(dtype).expect("cases build");
            let outcome = GradCheckGraph::for_case(&c).check(MAX_ELEMENTS);
            tried += usize::from(matches!(outcome, GradCheckOutcome::Same));
            report(&mut wrong, REFUSED, op, &name, &outcome);
        }
        let has_one = matches!(
            kind.gradient(),
            GradientKind::Rule | GradientKind::Decompose
        );
        let known = |list: &[(&str, &str)]| list.iter().any(|(o, _)| *o == op);
        if has_one && tried == 0 && !known(REFUSED) && !known(UNTRIED) {
            writeln!(wrong, "{op}: no case was tried").expect("text grows");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Repeats the check on the gradient graphs, if they are small.
#[test]
fn second_derivatives_agree_with_central_differences() {
    let mut wrong = String::new();
    let refused = [REFUSED, REFUSED_TWICE].concat();
    for &kind in OpKind::ALL {
        let op = kind.doc().name;
        for (name, case, dtype) in cases_of(kind) {
            let c = case.build(dtype).expect("cases build");
            let subject = GradCheckGraph::for_case(&c);
            if subject
                .elements()
                .is_none_or(|n| n > MAX_ELEMENTS_SECOND_ORDER)
            {
                continue;
            }
            match subject.gradient() {
                Ok(gradient) => {
                    let outcome = gradient.check(MAX_ELEMENTS);
                    report(&mut wrong, &refused, op, &name, &outcome);
                }
                Err(GradCheckOutcome::NoGradient(_) | GradCheckOutcome::Skipped) => {}
                Err(outcome) => report(&mut wrong, &refused, op, &name, &outcome),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Checks every float dtype, and a round trip through the text form.
#[test]
fn gradients_are_ordinary_graphs() {
    for &kind in OpKind::ALL {
        let doc = kind.doc();
        for case in cases(kind) {
            for &dtype in doc.dtypes.iter().filter(|d| case.runs_with(**d)) {
                let c = case.build(dtype).expect("cases build");
                let name = format!("{}/{}/{dtype}", doc.name, case.name);
                let mut graph = c.graph.clone();
                match differentiated(&mut graph) {
                    Ok(wanted) => {
                        verify(&graph).unwrap_or_else(|e| panic!("{name}: {}", one_line(&e)));
                        for (x, dx) in wanted {
                            assert_eq!(graph.ty(x), graph.ty(dx), "{name}");
                        }
                        let is_small = graph.len() < 200 && dtype == DType::F32;
                        if is_small {
                            assert_eq!(parse(&graph.to_string()).as_ref(), Ok(&graph), "{name}");
                        }
                    }
                    Err(GradError::Severed { .. }) => assert_eq!(graph, c.graph, "{name}"),
                    Err(e) => panic!("{name}: {}", one_line(&e)),
                }
            }
        }
    }
}

/// Adds cotangents as inputs and returns each float leaf with its gradient, if it has one.
fn differentiated(graph: &mut Graph) -> Result<Vec<(Value, Value)>, GradError> {
    let before = graph.clone();
    let leaves = differences::float_leaves(graph);
    let results: Vec<Value> = graph.results().collect();
    let mut pairs: BTreeMap<Value, Value> = BTreeMap::new();
    for y in results
        .into_iter()
        .filter(|y| before.ty(*y).dtype.is_float())
    {
        let name = format!("cotangent of {y}");
        if pairs.contains_key(&y) {
            continue;
        }
        let ty = graph.ty(y).clone();
        pairs.insert(y, graph.input(&name, ty).expect("a fresh name"));
    }
    let pairs: Vec<(Value, Value)> = pairs.into_iter().collect();
    let wanted: Vec<Value> = leaves.iter().map(|(_, v, _)| *v).collect();
    let done = graph.vjp(&pairs, &wanted);
    if done.is_err() {
        *graph = before;
    }
    let done = wanted.iter().zip(done?);
    Ok(done.filter_map(|(x, dx)| Some((*x, dx?))).collect())
}
