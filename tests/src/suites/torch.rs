//! Tests of gradients on the reference and every executor against torch.
//! `tests/data/training/gradients.json` has graphs in text form with operands, cotangents and
//! torch's F64 gradients; `make_gradients.py` in the same folder creates it.
//!
//! The tolerance is that of contractions in the tolerance table, which is less than one part in
//! 10,000.

use std::collections::BTreeMap;
use std::sync::Arc;

use libtest_mimic::Failed;
use serde_json::Value as Json;
use tercet_ir::accuracy::{Accuracy, furthest};
use tercet_ir::{
    CompileOptions, EvalCtx, Graph, Node, NodeId, Op, Tensor, TensorType, Type, Value, evaluate,
    one_line, parse,
};

use crate::{SuiteTest, executors};

const CASES: &str = include_str!("../../data/training/gradients.json");

/// The cases that also run on software drivers, which take seconds to compile the kernels of each.
const SOFTWARE_DRIVER_CASES: &[&str] = &[
    "gelu",
    "pow",
    "cross_entropy",
    "softmax_2",
    "scatter_elements_add",
    "conv_2d",
    "layer_norm",
    "attention_causal",
    "gru",
    "mamba2",
];

/// Tensors by name.
type TorchTensors = BTreeMap<String, Tensor>;

/// A graph with the results and gradients of a case in F32, and torch's results.
struct TorchCase {
    graph: Graph,
    leaves: TorchTensors,
    wanted: Vec<(String, Tensor)>,
}

fn tensor(ty: &Type, list: &Json) -> Tensor {
    let shape = ty.shape.as_known().expect("sizes are known");
    let numbers = list.as_array().expect("a list").iter();
    let values: Vec<f64> = numbers.map(|x| x.as_f64().expect("a number")).collect();
    Tensor::from_f64s(TensorType::new(ty.dtype, &shape), &values)
        .expect("the list has the number of elements of its shape")
}

/// The name and value of a float input.
fn float_input((node, n): (NodeId, &Node)) -> Option<(String, Value)> {
    let Op::Input(input) = &n.op else { return None };
    let value = Value { node, port: 0 };
    input
        .ty
        .dtype
        .is_float()
        .then(|| (input.name.clone(), value))
}

impl TorchCase {
    fn read(json: &Json) -> Result<TorchCase, Failed> {
        let text = json["graph"].as_str().expect("a graph");
        let mut graph: Graph = parse(text).map_err(|e| one_line(&e))?;
        let mut leaves = TorchTensors::new();
        for (_, node) in graph.nodes() {
            if let Op::Input(input) = &node.op {
                let data = tensor(&input.ty, &json["inputs"][&input.name]);
                leaves.insert(input.name.clone(), data);
            }
        }
        let (names, inputs): (Vec<String>, Vec<Value>) =
            graph.nodes().filter_map(float_input).unzip();
        let results: Vec<Value> = graph.outputs().iter().map(|o| o.value).collect();
        let (mut pairs, mut wanted) = (Vec::new(), Vec::new());
        for (at, result) in results.into_iter().enumerate() {
            let ty = graph.ty(result).clone();
            wanted.push((format!("result {at}"), tensor(&ty, &json["outputs"][at])));
            let name = format!("cotangent {at}");
            let cotangent = graph.input(&name, ty.clone()).map_err(|e| one_line(&e))?;
            leaves.insert(name, tensor(&ty, &json["cotangents"][at]));
            pairs.push((result, cotangent));
        }
        let gradients = graph.vjp(&pairs, &inputs).map_err(|e| one_line(&e))?;
        for ((name, input), gradient) in names.into_iter().zip(inputs).zip(gradients) {
            let what = format!("gradient of {name}");
            let gradient = gradient.ok_or_else(|| format!("there is no {what}"))?;
            graph.output(&what, gradient).map_err(|e| one_line(&e))?;
            let torch = tensor(graph.ty(input), &json["gradients"][&name]);
            wanted.push((what, torch));
        }
        Ok(TorchCase {
            graph,
            leaves,
            wanted,
        })
    }

    fn check(&self, found: &[Tensor]) -> Result<(), Failed> {
        assert_eq!(found.len(), self.wanted.len());
        for ((what, want), got) in self.wanted.iter().zip(found) {
            match furthest(Accuracy::Contraction, got, want) {
                Some(f) if f.units > 1.0 => return Err(format!("{what}: {f}").into()),
                Some(_) | None => {}
            }
        }
        Ok(())
    }
}

/// The tests of this suite: one per case and evaluator.
pub(super) fn tests() -> Vec<SuiteTest> {
    let file: Json = serde_json::from_str(CASES).expect("the file is JSON");
    let cases = file["cases"]
        .as_array()
        .expect("a list of test cases")
        .clone();
    assert!(cases.len() >= 160, "{}", cases.len());
    let cases = cases.into_iter().flat_map(|case| {
        let name = case["name"].as_str().unwrap_or_default().to_string();
        let variant = if SOFTWARE_DRIVER_CASES.contains(&&*name) {
            ""
        } else {
            "/more"
        };
        let case = Arc::new(case);
        let reference = SuiteTest::new(format!("torch/{name}/reference"), {
            let case = case.clone();
            move || {
                let case = TorchCase::read(&case)?;
                let done = evaluate(&case.graph, &EvalCtx::default(), &case.leaves);
                let done = done.map_err(|e| one_line(&e))?;
                let outputs = case.graph.outputs().iter();
                let found: Vec<Tensor> = outputs.map(|o| done.get(o.value).clone()).collect();
                case.check(&found)
            }
        });
        let on_executors = executors().iter().map(move |executor| {
            let case = case.clone();
            let name = format!("torch/{name}");
            SuiteTest::variant_on(executor, name, variant, move |device| {
                let case = TorchCase::read(&case)?;
                let mut exe = device
                    .compile(&case.graph, &CompileOptions::new())
                    .map_err(|e| one_line(&e))?;
                let leaves = case.leaves.iter();
                let inputs: Vec<(&str, &Tensor)> = leaves.map(|(n, t)| (n.as_str(), t)).collect();
                let found = exe.run(&inputs).map_err(|e| one_line(&e))?;
                case.check(&found)
            })
        });
        on_executors.chain([reference])
    });
    cases.collect()
}
