//! Steps whose gradients recompute activations.

use tercet::scalar::UnaryFn;
use tercet::train::{AdamW, LearningRateSchedule, StepOptions, TrainStep, Trainer};
use tercet::{CompileOptions, Device, DeviceOptions, Graph, Op, Value, passes};

use crate::common::{f32s, tensor};

const SIZE: usize = 128;
const LAYERS: usize = 3;

/// Layers of a matmul followed by `bent`, which gets the matmul's result and its input. The loss is
/// the mean of squares.
fn model(bent: impl Fn(&mut Graph, Value, Value) -> Value) -> (Graph, Value) {
    let mut g = Graph::new();
    let mut x = g.input("x", f32s([SIZE, SIZE])).unwrap();
    for layer in 0..LAYERS {
        let w = g.state(&format!("w{layer}"), f32s([SIZE, SIZE])).unwrap();
        let y = g.matmul(x, w).unwrap();
        x = bent(&mut g, y, x);
    }
    let square = g.mul(x, x).unwrap();
    let loss = g.reduce_mean(square, &[0, 1], false).unwrap();
    (g, loss)
}

fn gelus(g: &mut Graph, y: Value, _: Value) -> Value {
    g.gelu_tanh(y).unwrap()
}

fn step(model: &(Graph, Value), recompute: bool) -> TrainStep {
    let options = StepOptions {
        recompute_activations: recompute,
        ..StepOptions::default()
    };
    let names: Vec<_> = (0..LAYERS).map(|i| format!("w{i}").into()).collect();
    TrainStep::build(&model.0, model.1, &names, &AdamW::default(), &options).unwrap()
}

fn count(step: &TrainStep, f: UnaryFn) -> usize {
    let options = CompileOptions::new().without_pass("fuse_elementwise");
    let graph = passes::optimize(step.graph(), &options).unwrap();
    let is = |op: &Op| matches!(op, Op::Unary(o) if o.f == f);
    graph.nodes().filter(|(_, n)| is(&n.op)).count()
}

#[test]
fn activations_follow_from_what_is_kept() {
    // The derivative of GELU needs its operand. Only the last GELU is not recomputed, because the
    // loss reads it directly.
    let counted = [false, true].map(|again| count(&step(&model(gelus), again), UnaryFn::GeluTanh));
    assert_eq!(counted[0], LAYERS);
    assert!(counted[1] >= 2 * LAYERS - 1, "{counted:?}");
    // No derivative needs the sum of two matmuls, so it is not stored, and its negation cannot be
    // recomputed from it.
    let residual = |g: &mut Graph, y: Value, x: Value| {
        let other = g.matmul(x, x).unwrap();
        let sum = g.plus(y, other).unwrap();
        g.neg(sum).unwrap()
    };
    let counted = [false, true].map(|again| count(&step(&model(residual), again), UnaryFn::Neg));
    assert_eq!(counted[0], counted[1]);
}

#[test]
fn steps_are_the_same_in_less_memory() {
    let device = Device::open("cpu", &DeviceOptions::default()).unwrap();
    let waves = |by: f64, scale: f64| {
        let values: Vec<f64> = (0..SIZE * SIZE)
            .map(|i| scale * (by * (i as f64 + 1.0)).sin())
            .collect();
        tensor(&[SIZE, SIZE], &values)
    };
    let model = model(gelus);
    let [plain, again] = [false, true].map(|recompute| {
        let step = step(&model, recompute);
        let explained = device
            .explain(step.graph(), &CompileOptions::new())
            .unwrap();
        let arena = explained.bytes.iter().find(|(kind, _)| *kind == "arena");
        let schedule = LearningRateSchedule::constant(0.01);
        let mut trainer = Trainer::new(&device, step, schedule, &CompileOptions::new()).unwrap();
        for layer in 0..LAYERS {
            let w = waves(0.7 + layer as f64, 0.2);
            trainer.set_state(&format!("w{layer}"), &w).unwrap();
        }
        let x = waves(0.9, 1.0);
        let losses: Vec<f32> = (0..4)
            .map(|_| trainer.step(&[("x", &x)]).unwrap().loss)
            .collect();
        assert_ne!(losses[0], losses[1]);
        (losses, arena.unwrap().1)
    });
    assert_eq!(plain.0, again.0);
    assert!(again.1 < plain.1, "{} and {} bytes", plain.1, again.1);
}
