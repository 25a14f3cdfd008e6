//! Compares convolutions, pooling and resizing with ONNX's reference evaluator.
//! `tests/data/windows/generate.py` writes its results.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tercet_ir::accuracy::{Accuracy, furthest};
use tercet_ir::{DType, EvalCtx, Graph, Op, Tensor, TensorType, evaluate, parse};

/// A case of the fixture file.
#[derive(Default)]
struct Fixture {
    name: String,
    graph: Graph,
    inputs: BTreeMap<String, Vec<f64>>,
    output: Vec<f64>,
}

fn numbers(text: &str) -> Vec<f64> {
    let words = text.split_whitespace();
    words.map(|w| w.parse().expect("a number")).collect()
}

fn fixtures() -> Vec<Fixture> {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/windows/windows.txt");
    let text = std::fs::read_to_string(path).expect("the fixtures are there");
    let mut all: Vec<Fixture> = Vec::new();
    for line in text.lines() {
        let (what, rest) = line.split_once(' ').expect("a word and what it says");
        if what == "case" {
            all.push(Fixture {
                name: rest.to_string(),
                ..Fixture::default()
            });
            continue;
        }
        let case = all.last_mut().expect("a case begins with its name");
        match what {
            "graph" => {
                case.graph = parse(rest).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            }
            "input" => {
                let (name, values) = rest.split_once(' ').expect("a name and values");
                case.inputs.insert(name.to_string(), numbers(values));
            }
            "output" => case.output = numbers(rest),
            _ => panic!("{}: {what} means nothing", case.name),
        }
    }
    all
}

fn run(case: &Fixture) -> Tensor {
    let mut leaves = BTreeMap::new();
    for (_, node) in case.graph.nodes() {
        let Op::Input(input) = &node.op else { continue };
        let shape = input.ty.shape.as_known().expect("known sizes");
        let ty = TensorType::new(DType::F32, &shape);
        let tensor = Tensor::from_f64s(ty, &case.inputs[&input.name]);
        leaves.insert(input.name.clone(), tensor.expect("values fit the shape"));
    }
    let done = evaluate(&case.graph, &EvalCtx::default(), &leaves);
    let done = done.unwrap_or_else(|e| panic!("{}: {e}", case.name));
    done.get(case.graph.outputs()[0].value).clone()
}

#[test]
fn the_reference_agrees_with_onnx() {
    let mut wrong = Vec::new();
    let all = fixtures();
    assert!(all.len() > 60, "only {} cases", all.len());
    for case in &all {
        let got = run(case);
        let want = Tensor::from_f64s(got.ty().clone(), &case.output);
        let Ok(want) = want else {
            let count = case.output.len();
            wrong.push(format!("{}: {} for {count} values", case.name, got.ty()));
            continue;
        };
        match furthest(Accuracy::Contraction, &got, &want) {
            Some(f) if f.units > 1.0 => wrong.push(format!("{}: {f}", case.name)),
            Some(_) | None => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
