//! What executors make of a step.

use tercet::train::{
    AdamW, LossScale, Optimizer, ParamGroup, Sgd, StepOptions, TrainStep, Trainable,
};
use tercet::{CompileOptions, Device, Graph};

use crate::common::f32s;

/// The calls of fused maps of a step with so many weights, and the bytes that it holds.
fn cost(weights: usize, optimizer: &dyn Optimizer, options: &StepOptions) -> (usize, u64) {
    let mut g = Graph::new();
    let mut sums = Vec::new();
    let mut trainables = Vec::new();
    for i in 0..weights {
        let x = g.input(&format!("x{i}"), f32s([64, 32])).unwrap();
        let w = g.state(&format!("w{i}"), f32s([64, 32])).unwrap();
        let product = g.mul(x, w).unwrap();
        let sum = g.reduce_sum(product, &[0, 1], false).unwrap();
        sums.push(g.reshape(sum, [1usize]).unwrap());
        trainables.push(Trainable::new(format!("w{i}")).in_group(ParamGroup::decay()));
    }
    let sums = g.concat(&sums, 0).unwrap();
    let loss = g.reduce_sum(sums, &[0], false).unwrap();
    let step = TrainStep::build(&g, loss, &trainables, optimizer, options).unwrap();
    let plan = Device::cpu()
        .explain(step.graph(), &CompileOptions::new())
        .unwrap();
    println!("{plan}");
    let maps = plan.kernels.iter().filter(|k| k.op == "map");
    (maps.map(|k| k.calls).sum(), plan.peak_bytes())
}

/// One more weight is one more map: moments and weight are updated together, in place.
#[test]
fn an_update_is_one_kernel() {
    let sgd = Sgd {
        momentum: 0.9,
        nesterov: true,
        weight_decay: 0.1,
    };
    let clipped = StepOptions {
        clip_norm: Some(1.0),
        loss_scale: Some(LossScale::default()),
        ..StepOptions::default()
    };
    let optimizers: [&dyn Optimizer; 2] = [&AdamW::default(), &sgd];
    for optimizer in optimizers {
        for options in [StepOptions::default(), clipped.clone()] {
            let [two, three] = [2, 3].map(|n| cost(n, optimizer, &options));
            assert_eq!(three.0 - two.0, 1, "{optimizer:?} {options:?}");
            println!("{} {}", two.1, three.1);
        }
    }
}
