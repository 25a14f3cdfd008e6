//! Checks of every operator, based on its cases.

use std::collections::{BTreeMap, HashSet};

use tercet_cases::{CaseGraph, cases, operators, refusals};
use tercet_ir::{DType, EvalCtx, Graph, Op, OpKind, RunError, Tensor, evaluate, one_line, parse};

/// Runs `f` on every case of every operator with every dtype.
fn for_each_case(f: impl Fn(&str, DType, CaseGraph)) {
    for &kind in OpKind::ALL {
        let doc = kind.doc();
        for case in cases(kind) {
            for &dtype in doc.dtypes.iter().filter(|d| case.runs_with(**d)) {
                let name = format!("{}/{}/{dtype}", doc.name, case.name);
                let built = case
                    .build(dtype)
                    .unwrap_or_else(|e| panic!("{name}: {}", one_line(&e)));
                f(&name, dtype, built);
            }
        }
    }
}

#[test]
fn names_are_unique_and_cases_exist() {
    let mut names = HashSet::new();
    for &kind in OpKind::ALL {
        let doc = kind.doc();
        assert!(
            names.insert(doc.name),
            "two operators are named {}",
            doc.name
        );
        assert!(
            !doc.dtypes.is_empty() && !doc.text.is_empty(),
            "{}",
            doc.name
        );
        assert!(
            !cases(kind).is_empty() && !refusals(kind).is_empty(),
            "{}",
            doc.name
        );
        let mut seen = HashSet::new();
        for case in cases(kind) {
            let runs = doc.dtypes.iter().any(|d| case.runs_with(*d));
            assert!(runs, "{}/{} runs with no dtype", doc.name, case.name);
            assert!(
                seen.insert(case.name.clone()),
                "{}/{} twice",
                doc.name,
                case.name
            );
        }
        let used = cases(kind).iter().any(|c| {
            let dtype = doc
                .dtypes
                .iter()
                .find(|d| c.runs_with(**d))
                .expect("checked above");
            let built = c.build(*dtype).expect("cases build");
            built.graph.nodes().any(|(_, n)| n.op.kind() == kind)
        });
        assert!(used, "no case of {} uses it", doc.name);
    }
}

/// One run of the reference: the outputs, and the states after the run.
fn run(
    c: &CaseGraph,
    step: u64,
    leaves: &mut BTreeMap<String, Tensor>,
) -> Result<Vec<Tensor>, RunError> {
    let done = evaluate(&c.graph, &EvalCtx::after(step), leaves)?;
    for a in c.graph.assigns() {
        let Op::State(s) = &c.graph.node(a.state.node).op else {
            panic!("assignments are to states")
        };
        leaves.insert(s.name.clone(), done.get(a.value).clone());
    }
    Ok(c.graph
        .outputs()
        .iter()
        .map(|o| done.get(o.value).clone())
        .collect())
}

#[test]
fn reference_gives_what_cases_pin() {
    for_each_case(|name, _, c| {
        let mut leaves = c.tensors.clone();
        let mut last = run(&c, 0, &mut leaves);
        for step in 1..c.runs {
            last = run(&c, step as u64, &mut leaves);
        }
        let outputs = match (last, &c.expected_fault) {
            (Ok(outputs), None) => outputs,
            (Err(e), Some(message)) => {
                let text = one_line(&e);
                assert!(text.contains(message), "{name}: {text}");
                return;
            }
            (Ok(_), Some(message)) => panic!("{name}: expected a fault with {message:?}"),
            (Err(e), None) => panic!("{name}: {}", one_line(&e)),
        };
        for (output, expected) in &c.expected {
            let ty = outputs[*output].ty().clone();
            let got = outputs[*output].to_f64s();
            let want = Tensor::from_f64s(ty, expected)
                .unwrap_or_else(|e| panic!("{name} output {output}: {e}"))
                .to_f64s();
            let same = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan());
            assert!(
                got.iter().zip(&want).all(same),
                "{name} output {output}: {got:?} {want:?}"
            );
        }
    });
}

#[test]
fn text_form_round_trips() {
    for_each_case(|name, _, c| {
        let text = c.graph.to_string();
        let back: Graph = parse(&text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
        assert_eq!(back, c.graph, "{name}\n{text}");
    });
}

#[test]
fn bad_graphs_are_refused() {
    for &kind in OpKind::ALL {
        for refusal in refusals(kind) {
            let name = format!("{}/{}", kind.doc().name, refusal.name);
            let text = refusal.error().unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(text.contains(&refusal.message), "{name}: {text}");
        }
    }
}

/// A file of an operator that does not exist would never be read.
#[test]
fn files_belong_to_operators() {
    for operator in operators() {
        // Without that feature the IR lacks these operators.
        let is_absent = !cfg!(feature = "splat") && operator.starts_with("gaussian_splat");
        let mut kinds = OpKind::ALL.iter();
        let is_known = kinds.any(|kind| kind.doc().name == operator);
        assert!(is_known || is_absent, "no operator is named {operator}");
    }
}
