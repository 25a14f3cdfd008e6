//! Rejected inputs and their error messages.

use tercet::train::{
    AdamW, LossScale, Muon, Optimizer, OptimizerUpdate, ParamGroup, Sgd, StepError, StepOptions,
    TrainStep, Trainable, TrainedParam,
};
use tercet::{DType, Graph, Type, Value};

use crate::common::{f32s, regression, trainables};

fn refused(
    graph: &Graph,
    loss: Value,
    names: &[&str],
    optimizer: &dyn Optimizer,
    options: &StepOptions,
) -> String {
    let names: Vec<Trainable> = names.iter().map(|n| (*n).into()).collect();
    let e = TrainStep::build(graph, loss, &names, optimizer, options).unwrap_err();
    one_line(&e)
}

fn one_line(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(e) = source {
        text += &format!(": {e}");
        source = e.source();
    }
    text
}

#[test]
fn wrong_trainables_are_named() {
    let (mut g, loss) = regression(8);
    g.param("frozen", f32s([2])).unwrap();
    g.state("half", Type::new(DType::F16, [2])).unwrap();
    let own = g.state("own", f32s([2])).unwrap();
    let twice = g.plus(own, own).unwrap();
    g.assign(own, twice).unwrap();
    let aside = g.state("aside", f32s([2])).unwrap();
    let rounded = g.round(aside).unwrap();
    let sum = g.reduce_sum(rounded, &[0], false).unwrap();
    let loss_too = g.plus(loss, sum).unwrap();
    let all = |names: &[&str]| {
        refused(
            &g,
            loss_too,
            names,
            &Sgd::default(),
            &StepOptions::default(),
        )
    };
    assert_eq!(
        all(&[]),
        "the list of trainables is empty; name at least one state of the graph"
    );
    assert_eq!(all(&["w", "b", "w"]), "the trainable `w` occurs twice");
    let unknown = "no state is named `v`; the graph has: w, b, half, own, aside";
    assert_eq!(all(&["v"]), unknown);
    assert!(all(&["frozen"]).starts_with("the trainable `frozen` is a parameter; declare it with"));
    assert!(all(&["x"]).starts_with("the trainable `x` is an input; declare it with"));
    assert!(all(&["half"]).starts_with("the trainable `half` is f16[2]; expected f32"));
    assert!(all(&["own"]).starts_with("the graph assigns the trainable `own`"));
    let severed = all(&["w", "aside"]);
    assert!(
        severed.contains("`aside`, whose gradient path ends at")
            && severed.contains("its derivative is 0"),
        "{severed}"
    );
    assert!(
        severed.contains(&format!("the loss {loss_too} does not depend")),
        "{severed}"
    );
}

#[test]
fn wrong_losses_are_named() {
    let (mut g, loss) = regression(8);
    let x = Value {
        node: g.leaf("x").unwrap(),
        port: 0,
    };
    let count = g.scalar(DType::I32, 3.0).unwrap();
    let of = |loss| refused(&g, loss, &["w"], &Sgd::default(), &StepOptions::default());
    assert_eq!(
        of(x),
        "the loss is f32[8, 3]; expected a float of rank 0, such as a mean over all axes"
    );
    assert!(
        of(count).starts_with("the loss is i32[]; expected")
            || of(count).starts_with("the loss is i32;")
    );
    let foreign = Value {
        node: tercet::NodeId(9999),
        port: 0,
    };
    assert_eq!(of(foreign), "the loss is not a value of this graph");
    let weighted = StepOptions {
        loss_weight: Some(x),
        ..StepOptions::default()
    };
    let e = refused(&g, loss, &["w"], &Sgd::default(), &weighted);
    assert!(
        e.starts_with("the loss weight is f32[8, 3]; expected a scalar"),
        "{e}"
    );
}

#[test]
fn wrong_numbers_are_named() {
    let (g, loss) = regression(8);
    let plain = StepOptions::default();
    let of = |optimizer: &dyn Optimizer, options: &StepOptions| {
        refused(&g, loss, &["w", "b"], optimizer, options)
    };
    for microbatches in [0, usize::MAX] {
        let options = StepOptions {
            microbatches,
            ..plain.clone()
        };
        let e = of(&Sgd::default(), &options);
        assert_eq!(
            e,
            format!("{microbatches} microbatches per step; expected 1 to 65536")
        );
    }
    let adamw = AdamW {
        beta2: 1.0,
        ..AdamW::default()
    };
    let e = "beta2 of AdamW is 1; expected 0 or more and below 1";
    assert_eq!(of(&adamw, &plain), e);
    let muon = Muon {
        iterations: 0,
        ..Muon::default()
    };
    assert_eq!(
        of(&muon, &plain),
        "the iterations of Muon is 0; expected 1 to 100"
    );
    let clipped = |norm| StepOptions {
        clip_norm: Some(norm),
        ..StepOptions::default()
    };
    assert_eq!(
        of(&Sgd::default(), &clipped(0.0)),
        "the clip norm is 0; expected more than 0"
    );
    assert!(of(&Sgd::default(), &clipped(f64::NAN)).contains("is NaN; expected"));
    let scaled = StepOptions {
        loss_scale: Some(LossScale {
            initial: 0.5,
            ..LossScale::default()
        }),
        ..plain.clone()
    };
    assert!(of(&Sgd::default(), &scaled).starts_with("the initial loss scale is 0.5; expected"));
    let group = ParamGroup {
        learning_rate: -1.0,
        ..ParamGroup::decay()
    };
    let trainables = [Trainable::new("w").in_group(group)];
    let e = TrainStep::build(&g, loss, &trainables, &Sgd::default(), &plain).unwrap_err();
    assert_eq!(
        e.to_string(),
        "the learning rate of group `decay` is -1; expected 0 or more"
    );
}

#[test]
fn names_of_the_step_are_free() {
    let (mut g, loss) = regression(8);
    g.output("loss", loss).unwrap();
    let keeping = |name: &str| StepOptions {
        outputs: vec![name.to_string()],
        ..StepOptions::default()
    };
    // An output named `loss` in the graph is allowed, unless it is requested as an output of the
    // step.
    TrainStep::build(&g, loss, &trainables(), &Sgd::default(), &keeping("guess")).unwrap();
    let e = refused(&g, loss, &["w"], &Sgd::default(), &keeping("loss"));
    assert!(
        e.starts_with("the graph has an output named `loss`, which the step needs"),
        "{e}"
    );
    let e = refused(&g, loss, &["w"], &Sgd::default(), &keeping("logits"));
    assert_eq!(e, "no output is named `logits`; the graph has: guess, loss");
    g.input("learning_rate", f32s([1])).unwrap();
    let e = refused(&g, loss, &["w"], &Sgd::default(), &StepOptions::default());
    assert!(
        e.starts_with("the graph has an input, parameter or state named `learning_rate`"),
        "{e}"
    );
}

#[test]
fn random_numbers_inside_are_refused_in_microbatches() {
    let mut g = Graph::new();
    let x = g.input("x", f32s([2])).unwrap();
    let w = g.state("w", f32s([2])).unwrap();
    let noisy = |seed| {
        let mut inner = Graph::new();
        let x = inner.input("x", f32s([2])).unwrap();
        let noise = inner
            .rng_uniform([2usize], DType::F32, 0.0, 1.0, seed)
            .unwrap();
        let y = inner.mul(x, noise).unwrap();
        inner.output("y", y).unwrap();
        inner
    };
    let body = noisy(1);
    let rows = g.reshape(x, [1usize, 2]).unwrap();
    let made = g.scan_over(&[], &[rows], &[], body).unwrap();
    let product = g.mul(made, w).unwrap();
    let loss = g.reduce_sum(product, &[0, 1], false).unwrap();
    let options = |microbatches| StepOptions {
        microbatches,
        ..StepOptions::default()
    };
    let trainables = ["w".into()];
    TrainStep::build(&g, loss, &trainables, &Sgd::default(), &options(1)).unwrap();
    let e = TrainStep::build(&g, loss, &trainables, &Sgd::default(), &options(2)).unwrap_err();
    let node = made.node;
    assert_eq!(e, StepError::Random { node, op: "scan" });
}

/// An optimizer that skips a trainable.
#[derive(Debug)]
struct Forgetful;

impl Optimizer for Forgetful {
    fn name(&self) -> &'static str {
        "forgetful"
    }
    fn check(&self) -> Result<(), StepError> {
        Ok(())
    }
    fn update(
        &self,
        u: &mut OptimizerUpdate<'_>,
        params: &[TrainedParam],
    ) -> Result<(), StepError> {
        let rate = u.learning_rate(&params[0].group)?;
        let w = u.stepped(params[0].weight, None, rate, params[0].gradient)?;
        u.assign(params[0].weight, w)?;
        Ok(())
    }
}

#[test]
fn an_optimizer_must_update_all() {
    let (g, loss) = regression(8);
    let e = refused(&g, loss, &["w", "b"], &Forgetful, &StepOptions::default());
    assert!(
        e.starts_with("the optimizer `forgetful` does not update `b`"),
        "{e}"
    );
}
