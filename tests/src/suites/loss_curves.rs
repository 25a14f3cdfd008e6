//! Tests of training curves: the losses of 30 steps of small models in F32 match torch's F64 losses
//! within one part in 10,000 at each step. `tests/data/training/curves.json` has torch's losses.
//! Weights and data are computed from their names (`formula.rs`, and `models.py` in
//! `tests/data/training`). All trained values must change.
//!
//! The limit is not in the tolerance table, which holds for single operators, because rounding
//! errors of 30 steps accumulate.

mod formula;
mod graphs;
mod models;

use std::sync::Arc;

use libtest_mimic::Failed;
use serde_json::Value as Json;
use tercet::train::{
    AdamW, LearningRateSchedule, Optimizer, Sgd, StepOptions, TrainStep, Trainable, Trainer,
};
use tercet::{CompileOptions, DType, Device, Graph, Tensor, TensorType, Value, one_line};

use crate::{SuiteTest, executors};

const CURVES: &str = include_str!("../../data/training/curves.json");

/// Maximum relative error of the loss against torch, at each step.
const RELATIVE: f64 = 1e-4;

/// The number of different batches, used in turn.
const BATCHES: usize = 4;

/// The error of a model builder.
type BoxError = Box<dyn std::error::Error>;

/// A model to train.
struct CurveNet {
    graph: Graph,
    loss: Value,
    /// The trained values with their initial values.
    trained: Vec<(String, Tensor)>,
    params: Vec<(String, Tensor)>,
    /// The initial values of other states that are not initialized to zeros.
    states: Vec<(String, Tensor)>,
    /// The inputs of a batch.
    inputs: fn(usize) -> Vec<(&'static str, Tensor)>,
}

struct LossCurveTest {
    name: &'static str,
    net: fn() -> Result<CurveNet, BoxError>,
    optimizer: fn() -> (Box<dyn Optimizer>, f64),
}

const CURVES_OF: &[LossCurveTest] = &[
    curve("bert_classes", models::bert_classes, adamw),
    curve("bert_pairs", models::bert_pairs, adamw),
    curve("llama", models::llama, adamw),
    curve("llama_lora", models::llama_lora, adamw),
    curve("gpt2", graphs::gpt2, adamw),
    curve("resnet_block", graphs::resnet_block, sgd),
    curve("gru", graphs::gru, adamw),
    curve("mamba2", graphs::mamba2, adamw),
];

const fn curve(
    name: &'static str,
    net: fn() -> Result<CurveNet, BoxError>,
    optimizer: fn() -> (Box<dyn Optimizer>, f64),
) -> LossCurveTest {
    LossCurveTest {
        name,
        net,
        optimizer,
    }
}

fn adamw() -> (Box<dyn Optimizer>, f64) {
    let optimizer = AdamW {
        weight_decay: 0.1,
        ..AdamW::default()
    };
    (Box::new(optimizer), 0.01)
}

fn sgd() -> (Box<dyn Optimizer>, f64) {
    let optimizer = Sgd {
        momentum: 0.9,
        nesterov: false,
        weight_decay: 0.01,
    };
    (Box::new(optimizer), 0.05)
}

fn numbers(list: &Json) -> Vec<f64> {
    let numbers = list.as_array().expect("a list").iter();
    numbers.map(|x| x.as_f64().expect("a number")).collect()
}

fn check(curve: &LossCurveTest, file: &Json, device: &Device) -> Result<(), BoxError> {
    let net = (curve.net)()?;
    let (optimizer, rate) = (curve.optimizer)();
    let trainables = net.trained.iter().map(|(name, _)| Trainable::new(name));
    let trainables: Vec<Trainable> = trainables.collect();
    let options = StepOptions::default();
    let step = TrainStep::build(&net.graph, net.loss, &trainables, &*optimizer, &options)?;
    let schedule = LearningRateSchedule::constant(rate);
    let mut trainer = Trainer::new(device, step, schedule, &CompileOptions::new())?;
    for (name, tensor) in &net.params {
        trainer.set_param(name, tensor.clone())?;
    }
    for (name, tensor) in net.trained.iter().chain(&net.states) {
        trainer.set_state(name, tensor)?;
    }
    let wanted = numbers(&file["curves"][curve.name]);
    assert_eq!(wanted.len(), 30);
    for (step, want) in wanted.into_iter().enumerate() {
        let batch = (net.inputs)(step % BATCHES);
        let inputs: Vec<(&str, &Tensor)> = batch.iter().map(|(name, t)| (*name, t)).collect();
        let loss = f64::from(trainer.step(&inputs)?.loss);
        let off = (loss - want).abs() / want.abs();
        if off > RELATIVE {
            return Err(format!("step {step}: the loss is {loss}, expected {want}").into());
        }
    }
    let unmoved = trainer.unchanged_trainables()?;
    if !unmoved.is_empty() {
        return Err(format!("never moved: {}", unmoved.join(", ")).into());
    }
    let running = file["running statistics of resnet_block"].as_object();
    let running = running.into_iter().flatten();
    for (name, want) in running.filter(|_| curve.name == "resnet_block") {
        let found = trainer.state(name)?.to_f64s();
        let pairs = found.iter().zip(numbers(want));
        if let Some((got, want)) = pairs.into_iter().find(|(g, w)| {
            let off = (*g - w).abs();
            off > RELATIVE * w.abs().max(1e-2)
        }) {
            return Err(format!("{name}: found {got}, expected {want}").into());
        }
    }
    Ok(())
}

fn f32s(shape: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_f64s(TensorType::new(DType::F32, shape), values)
        .expect("the list has the number of elements of its shape")
}

fn i32s(shape: &[usize], values: &[i32]) -> Tensor {
    Tensor::from_slice(shape, values).expect("the list has the number of elements of its shape")
}

/// The tests of this suite: one per model and executor.
pub(super) fn tests() -> Vec<SuiteTest> {
    let file: Json = serde_json::from_str(CURVES).expect("the file is JSON");
    let file = Arc::new(file);
    let tests = CURVES_OF.iter().flat_map(|curve| {
        let file = file.clone();
        executors().iter().map(move |executor| {
            let file = file.clone();
            // A software driver takes several seconds to compile the kernels of any other curve.
            let variant = if curve.name == "gru" { "" } else { "/more" };
            let name = format!("curves/{}", curve.name);
            SuiteTest::variant_on(executor, name, variant, move |device| {
                check(curve, &file, device).map_err(|e| Failed::from(one_line(&*e)))
            })
        })
    });
    tests.collect()
}
