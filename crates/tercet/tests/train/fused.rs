//! Fusion of a training step by the passes.

use std::collections::BTreeSet;

use tercet::train::{
    AdamW, Lion, LossScale, Optimizer, ParamGroup, Sgd, StepOptions, TrainStep, Trainable,
};
use tercet::{CompileOptions, NodeId, Op, OpKind, passes};

use crate::common::regression;

/// Kernels that assign `w` and its moments.
fn kernels(optimizer: &dyn Optimizer, options: &StepOptions) -> BTreeSet<NodeId> {
    let (g, loss) = regression(8);
    let trainables = ["w", "b"].map(|name| Trainable::new(name).in_group(ParamGroup::decay()));
    let step = TrainStep::build(&g, loss, &trainables, optimizer, options).unwrap();
    let graph = passes::optimize(step.graph(), &CompileOptions::new()).unwrap();
    let of_w = graph.assigns().iter().filter(|a| {
        let Op::State(state) = &graph.node(a.state.node).op else {
            return false;
        };
        state.name == "w" || state.name.ends_with(".w")
    });
    let nodes = of_w.map(|a| a.value.node);
    let nodes: BTreeSet<NodeId> = nodes.collect();
    for node in &nodes {
        assert_eq!(graph.node(*node).op.kind(), OpKind::Map);
    }
    nodes
}

/// Weight and moments are updated by one map of at most 8 operands, with any options.
#[test]
fn an_update_is_one_kernel() {
    let sgd = Sgd {
        momentum: 0.9,
        nesterov: true,
        weight_decay: 0.1,
    };
    let plain = StepOptions::default();
    let clipped = StepOptions {
        clip_norm: Some(1.0),
        ..plain.clone()
    };
    let all = StepOptions {
        loss_scale: Some(LossScale::default()),
        microbatches: 2,
        ..clipped.clone()
    };
    for options in [plain, clipped, all] {
        let optimizers: [(&dyn Optimizer, usize); 3] =
            [(&AdamW::default(), 1), (&sgd, 1), (&Lion::default(), 2)];
        for (optimizer, count) in optimizers {
            let found = kernels(optimizer, &options);
            assert_eq!(found.len(), count, "{optimizer:?} {options:?}");
        }
    }
}
