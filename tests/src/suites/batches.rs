//! Tests of batches: equal chains over many inputs are one launch on GPUs, with the results of
//! separate launches.

use std::collections::BTreeMap;

use crate::{SuiteTest, executors};
use tercet_ir::{
    CompileOptions, DType, Dim, EvalCtx, Graph, OpError, Tensor, TensorType, Type, Value, evaluate,
};

type Failure = Box<dyn std::error::Error>;

/// Chains over inputs of different sizes: odd ones, empty ones, and a symbol.
fn chains(dtype: DType, count: usize) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let scale = g.input("scale", Type::new(dtype, [5]))?;
    for i in 0..count {
        let rows = match i % 7 {
            3 => Dim::sym("s"),
            n => Dim::Known(n * (1 + i % 3)),
        };
        let x = g.input(&format!("x{i}"), Type::new(dtype, [rows, Dim::Known(5)]))?;
        let y = g.mul(x, scale)?;
        let y = g.sigmoid(y)?;
        let y = g.plus(y, x)?;
        g.output(&format!("y{i}"), y)?;
    }
    Ok(g)
}

/// Heads of a detection model at three scales: boxes and scores, which are concatenated.
fn heads(dtype: DType) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let mut all = Vec::new();
    for (i, size) in [20usize, 10, 5].into_iter().enumerate() {
        let x = g.input(&format!("x{i}"), Type::new(dtype, [1, 9, size, size]))?;
        let boxes = g.slice_axis(x, 1, 0, 4, 1)?;
        let boxes = g.exp(boxes)?;
        let scores = g.slice_axis(x, 1, 4, 9, 1)?;
        let scores = g.sigmoid(scores)?;
        let joined = g.concat(&[boxes, scores], 1)?;
        all.push(g.reshape(joined, [1, 9, size * size])?);
    }
    let y = g.concat(&all, 2)?;
    g.output("y", y)?;
    Ok(g)
}

fn inputs(graph: &Graph) -> Result<BTreeMap<String, Tensor>, Failure> {
    let sizes = tercet_ir::Bindings::new().with("s", 4);
    let mut inputs = BTreeMap::new();
    for (id, node) in graph.nodes() {
        let tercet_ir::Op::Input(input) = &node.op else {
            continue;
        };
        let ty: TensorType = graph.ty(Value { node: id, port: 0 }).eval(&sizes)?;
        let value = |i: usize| ((i * 7919 + id.index() * 13) % 1009) as f64 / 504.5 - 1.0;
        let values: Vec<f64> = (0..ty.numel()).map(value).collect();
        inputs.insert(input.name.clone(), Tensor::from_f64s(ty, &values)?);
    }
    Ok(inputs)
}

/// Runs the graph twice and compares the results with the reference.
fn check(device: &tercet::Device, graph: &Graph, dtype: DType) -> Result<(), Failure> {
    let options = CompileOptions::new().bound("s", 6);
    let options = match graph.symbols().is_empty() {
        true => CompileOptions::new(),
        false => options,
    };
    let mut exe = device.compile(graph, &options)?;
    let inputs = inputs(graph)?;
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let reference = evaluate(graph, &EvalCtx::default(), &inputs)?;
    let tolerance = if dtype == DType::F32 { 1e-6 } else { 4e-3 };
    for _ in 0..2 {
        for (found, output) in exe.run(&given)?.iter().zip(graph.outputs()) {
            let expected = reference.get(output.value);
            let pairs = found.to_f64s().into_iter().zip(expected.to_f64s());
            for (at, (a, b)) in pairs.enumerate() {
                if (a - b).abs() > tolerance * b.abs().max(1.0) {
                    return Err(format!("{} at {at}: {a}, expected {b}", output.name).into());
                }
            }
        }
    }
    Ok(())
}

/// The number of launches of a run.
fn dispatches(device: &tercet::Device, graph: &Graph) -> Result<usize, Failure> {
    let options = match graph.symbols().is_empty() {
        true => CompileOptions::new(),
        false => CompileOptions::new().bound("s", 6),
    };
    Ok(device.explain(graph, &options)?.dispatches)
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let mut tests = Vec::new();
    for executor in executors() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let name = format!("batches/chains_and_heads_agree_with_the_reference/{dtype}");
            tests.push(SuiteTest::on(executor, name, move |device| {
                let run = || -> Result<(), Failure> {
                    for count in [2, 5, 64, 67] {
                        check(device, &chains(dtype, count)?, dtype)?;
                    }
                    check(device, &heads(dtype)?, dtype)
                };
                run().map_err(|e| tercet::one_line(&*e).into())
            }));
        }
        if (executor.caps)().is_none() {
            continue;
        }
        let name = "batches/equal_chains_are_few_launches".to_string();
        tests.push(SuiteTest::on(executor, name, move |device| {
            let run = || -> Result<(), Failure> {
                let caps = (executor.caps)().ok_or("a GPU has capabilities")?;
                // Each part binds its input, the common operand and its result.
                let parts = (caps.max_batch_buffers as usize / 3).clamp(1, 64);
                let found = dispatches(device, &chains(DType::F32, 64)?)?;
                if found > 64usize.div_ceil(parts) + 2 {
                    return Err(format!("{found} launches for {parts} parts each").into());
                }
                Ok(())
            };
            run().map_err(|e| tercet::one_line(&*e).into())
        }));
    }
    tests
}
