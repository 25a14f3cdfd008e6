//! Tests of the reference and every executor against NumPy. `tests/data/operators/numpy.json` has
//! graphs in text form with operands and NumPy's results; `make.py` in the same folder creates it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;
use tercet::Device;
use tercet_ir::accuracy::furthest;
use tercet_ir::{
    CompileOptions, EvalCtx, Graph, Op, Tensor, TensorType, evaluate, one_line, parse,
};

use super::parity::is_beyond_gpus;
use crate::{SuiteTest, executors};

const CASES: &str = include_str!("../../data/operators/numpy.json");

/// The numbers of a JSON list; NaN and infinities are strings.
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
    Tensor::from_f64s(TensorType::new(ty.dtype, &shape), &values)
        .expect("the list has the number of elements of its shape")
}

/// Tensors by name.
type NumpyTensors = BTreeMap<String, Tensor>;

/// The outputs of the reference.
fn evaluated(graph: &Graph, leaves: &NumpyTensors) -> Result<Vec<Tensor>, String> {
    let done = evaluate(graph, &EvalCtx::default(), leaves).map_err(|e| e.to_string())?;
    let outputs = graph.outputs().iter();
    Ok(outputs.map(|o| done.get(o.value).clone()).collect())
}

/// The outputs of an executor; empty if it rejects the graph for a reason that GPUs may have.
fn ran(device: &Device, graph: &Graph, leaves: &NumpyTensors) -> Result<Vec<Tensor>, String> {
    let exe = device.compile(graph, &CompileOptions::new());
    let mut exe = match exe {
        Ok(exe) => exe,
        Err(e) if is_beyond_gpus(device.backend(), graph, &e) => return Ok(Vec::new()),
        Err(e) => return Err(one_line(&e)),
    };
    let inputs: Vec<(&str, &Tensor)> = leaves.iter().map(|(n, t)| (n.as_str(), t)).collect();
    exe.run(&inputs).map_err(|e| one_line(&e))
}

fn check(
    case: &Json,
    run: impl Fn(&Graph, &NumpyTensors) -> Result<Vec<Tensor>, String>,
) -> Result<(), String> {
    let text = case["graph"].as_str().expect("a graph");
    let graph: Graph = parse(text).map_err(|e| e.to_string())?;
    let mut leaves = BTreeMap::new();
    for (_, node) in graph.nodes() {
        if let Op::Input(input) = &node.op {
            let data = tensor(&input.ty, &case["inputs"][&input.name]);
            leaves.insert(input.name.clone(), data);
        }
    }
    let done = run(&graph, &leaves)?;
    let classes = graph.nodes().map(|(_, n)| n.op.kind().doc().accuracy);
    let class = classes.max().expect("a graph has nodes");
    for ((at, output), got) in graph.outputs().iter().enumerate().zip(&done) {
        let want = tensor(graph.ty(output.value), &case["outputs"][at]);
        match furthest(class, got, &want) {
            Some(f) if f.units > 1.0 => return Err(format!("output {at}: {f}")),
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// The tests of this suite: one per case and evaluator.
pub(super) fn tests() -> Vec<SuiteTest> {
    let cases: Json = serde_json::from_str(CASES).expect("the file is JSON");
    let cases = cases.as_array().expect("a list of test cases").clone();
    assert!(cases.len() > 40, "{}", cases.len());
    let cases = cases.into_iter().flat_map(|case| {
        let name = case["name"].as_str().unwrap_or_default().to_string();
        let case = Arc::new(case);
        let reference = SuiteTest::new(format!("numpy/{name}/reference"), {
            let case = case.clone();
            move || Ok(check(&case, evaluated)?)
        });
        let on_executors = executors().iter().map(move |executor| {
            let case = case.clone();
            SuiteTest::on(executor, format!("numpy/{name}"), move |device| {
                Ok(check(&case, |graph, leaves| ran(device, graph, leaves))?)
            })
        });
        on_executors.chain([reference])
    });
    cases.collect()
}
