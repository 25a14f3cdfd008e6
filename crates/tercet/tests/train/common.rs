//! A linear regression as a graph, and its F64 reference.

use serde_json::Value as Json;
use tercet::train::{LearningRateSchedule, Optimizer, StepOptions, TrainStep, Trainable, Trainer};
use tercet::{CompileOptions, DType, Device, Graph, Tensor, Type, Value};

/// Numbers of rows, inputs and outputs of the regression.
pub(crate) const ROWS: usize = 8;
pub(crate) const IN: usize = 3;
pub(crate) const OUT: usize = 2;

/// Inputs and results of the torch reference.
pub(crate) fn torch() -> Json {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/training/torch.json"
    );
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn numbers(json: &Json) -> Vec<f64> {
    json.as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

/// The regression with its weights, in F64.
#[derive(Clone)]
pub(crate) struct Regression {
    pub(crate) x: Vec<f64>,
    pub(crate) y: Vec<f64>,
    pub(crate) w: Vec<f64>,
    pub(crate) b: Vec<f64>,
}

impl Regression {
    pub(crate) fn new() -> Regression {
        let data = torch();
        let [x, y, w, b] = ["x", "y", "w", "b"].map(|name| numbers(&data[name]));
        Regression { x, y, w, b }
    }

    /// Mean squared error, and its gradients with respect to `w` and `b`.
    pub(crate) fn gradients(&self) -> (f64, Vec<f64>, Vec<f64>) {
        let n = (ROWS * OUT) as f64;
        let (mut loss, mut dw, mut db) = (0.0, vec![0.0; IN * OUT], vec![0.0; OUT]);
        for row in 0..ROWS {
            for out in 0..OUT {
                let x = &self.x[row * IN..(row + 1) * IN];
                let product: f64 = (0..IN).map(|i| x[i] * self.w[i * OUT + out]).sum();
                let error = product + self.b[out] - self.y[row * OUT + out];
                loss += error * error / n;
                db[out] += 2.0 * error / n;
                for i in 0..IN {
                    dw[i * OUT + out] += 2.0 * error * x[i] / n;
                }
            }
        }
        (loss, dw, db)
    }
}

pub(crate) fn norm(parts: &[&[f64]]) -> f64 {
    parts
        .iter()
        .flat_map(|p| p.iter())
        .map(|x| x * x)
        .sum::<f64>()
        .sqrt()
}

pub(crate) fn f32s(ty: impl Into<tercet::Shape>) -> Type {
    Type::new(DType::F32, ty)
}

/// Graph and loss of the regression over `rows` rows.
pub(crate) fn regression(rows: usize) -> (Graph, Value) {
    let mut g = Graph::new();
    let x = g.input("x", f32s([rows, IN])).unwrap();
    let y = g.input("y", f32s([rows, OUT])).unwrap();
    let w = g.state("w", f32s([IN, OUT])).unwrap();
    let b = g.state("b", f32s([OUT])).unwrap();
    let product = g.matmul(x, w).unwrap();
    let guess = g.plus(product, b).unwrap();
    let error = g.sub(guess, y).unwrap();
    let square = g.mul(error, error).unwrap();
    let loss = g.reduce_mean(square, &[0, 1], false).unwrap();
    g.output("guess", guess).unwrap();
    (g, loss)
}

pub(crate) fn tensor(shape: &[usize], values: &[f64]) -> Tensor {
    let values: Vec<f32> = values.iter().map(|x| *x as f32).collect();
    Tensor::from_slice(shape, &values).unwrap()
}

pub(crate) fn trainables() -> Vec<Trainable> {
    vec!["w".into(), "b".into()]
}

pub(crate) fn trainer_of(step: TrainStep, schedule: LearningRateSchedule) -> Trainer {
    Trainer::new(&Device::cpu(), step, schedule, &CompileOptions::new()).unwrap()
}

/// A trainer of the regression with the initial weights.
pub(crate) fn regression_trainer(
    trainables: &[Trainable],
    optimizer: &dyn Optimizer,
    options: &StepOptions,
    rate: f64,
) -> Trainer {
    let (g, loss) = regression(ROWS / options.microbatches);
    let step = TrainStep::build(&g, loss, trainables, optimizer, options).unwrap();
    let mut trainer = trainer_of(step, LearningRateSchedule::constant(rate));
    let first = Regression::new();
    trainer
        .set_state("w", &tensor(&[IN, OUT], &first.w))
        .unwrap();
    trainer.set_state("b", &tensor(&[OUT], &first.b)).unwrap();
    trainer
}

/// Inputs of the regression, split into microbatches.
pub(crate) fn inputs(microbatches: usize) -> [(&'static str, Tensor); 2] {
    let data = Regression::new();
    let rows = ROWS / microbatches;
    let shape = |n: usize| match microbatches {
        1 => vec![rows, n],
        m => vec![m, rows, n],
    };
    [
        ("x", tensor(&shape(IN), &data.x)),
        ("y", tensor(&shape(OUT), &data.y)),
    ]
}

pub(crate) fn given<'a>(inputs: &'a [(&'static str, Tensor)]) -> Vec<(&'static str, &'a Tensor)> {
    inputs
        .iter()
        .map(|(name, tensor)| (*name, tensor))
        .collect()
}

#[track_caller]
pub(crate) fn expect_close(what: &str, found: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(wanted).enumerate() {
        let off = (a - b).abs() / b.abs().max(1.0);
        assert!(off <= tolerance, "{what}[{i}]: {a} instead of {b}");
    }
}
