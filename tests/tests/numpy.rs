//! The reference against NumPy: `tests/data/operators/numpy.json` has graphs in the text form, their
//! operands and what NumPy gives for them; `make.py` beside it says how.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use tercet_ir::accuracy::furthest;
use tercet_ir::{EvalCtx, Graph, Op, Tensor, TensorType, evaluate, parse};

const CASES: &str = include_str!("../data/operators/numpy.json");

/// The numbers of a list; NaN and infinities are words.
fn numbers(list: &Json) -> Vec<f64> {
    let number = |x: &Json| {
        let word = x.as_str().and_then(|word| word.parse().ok());
        word.or(x.as_f64()).expect("a number")
    };
    list.as_array()
        .expect("a list")
        .iter()
        .map(number)
        .collect()
}

fn tensor(ty: &tercet_ir::Type, list: &Json) -> Tensor {
    let shape = ty.shape.as_known().expect("sizes are known");
    let values = numbers(list);
    Tensor::from_f64s(TensorType::new(ty.dtype, &shape), &values).expect("as many as elements")
}

fn check(case: &Json) -> Result<(), String> {
    let text = case["graph"].as_str().expect("a graph");
    let graph: Graph = parse(text).map_err(|e| e.to_string())?;
    let mut leaves = BTreeMap::new();
    for (_, node) in graph.nodes() {
        if let Op::Input(input) = &node.op {
            let data = tensor(&input.ty, &case["inputs"][&input.name]);
            leaves.insert(input.name.clone(), data);
        }
    }
    let done = evaluate(&graph, &EvalCtx::default(), &leaves).map_err(|e| e.to_string())?;
    let classes = graph.nodes().map(|(_, n)| n.op.kind().doc().accuracy);
    let class = classes.max().expect("a graph has nodes");
    for (at, output) in graph.outputs().iter().enumerate() {
        let want = tensor(graph.ty(output.value), &case["outputs"][at]);
        match furthest(class, done.get(output.value), &want) {
            Some(f) if f.units > 1.0 => return Err(format!("output {at}: {f}")),
            Some(_) | None => {}
        }
    }
    Ok(())
}

#[test]
fn the_reference_agrees_with_numpy() {
    let cases: Json = serde_json::from_str(CASES).expect("the file is JSON");
    let cases = cases.as_array().expect("a list of cases");
    assert!(cases.len() > 40, "{}", cases.len());
    let wrong = cases.iter().filter_map(|case| {
        let error = check(case).err()?;
        Some(format!("{}: {error}", case["name"]))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
